"""What a replayed archive comes to: as text, as JSON, and as the page of what is not reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpolab.learn.conformance.replay import Peer, Verdict
from grpolab.registry import CONFORMANCE, resolve

KINDS = ("loss", "gradient", "metric", "tensor")


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts, and every variant with its worst errors and its misses."""
    return {
        "replayed": sum(one.unsupported is None for one in verdicts),
        "agree": sum(one.agrees for one in verdicts),
        "unsupported": sum(one.unsupported is not None for one in verdicts),
        "variants": [
            {
                "variant": one.variant,
                "cases": one.cases,
                "refused": one.refused,
                "agrees": one.agrees if one.unsupported is None else None,
                "worst": {kind: one.worst(kind) for kind in KINDS},
                "misses": [
                    {"case": miss.case, "output": miss.output, "error": miss.error, "bound": miss.bound}
                    for miss in one.misses
                ],
                "unsupported": one.unsupported,
            }
            for one in verdicts
        ],
    }


def lines(verdicts: Sequence[Verdict], each: bool = False) -> Iterator[str]:
    """A table of frameworks (`each`: of variants), every miss, every variant that is not replayed, and the counts."""
    titles = ("variants", "cases", *(f"worst {kind}" for kind in KINDS), "verdict")
    yield f"{'':<52}" + "".join(f"{title:>16}" for title in titles)
    for name, group in _grouped(verdicts, each).items():
        if replayed := [one for one in group if one.unsupported is None]:
            worst = "".join(f"{max(one.worst(kind) for one in replayed):>16.1e}" for kind in KINDS)
            verdict = "agree" if all(one.agrees for one in replayed) else "MISS"
            yield f"{name:<52}{len(replayed):>16}{sum(one.cases for one in replayed):>16}{worst}{verdict:>16}"
    for one in verdicts:
        if one.misses:
            most = max(one.misses, key=lambda miss: miss.error)
            where = f"{most.output} of case {most.case}: {most.error:.1e}"
            yield f"miss: {one.variant}: {len(one.misses)} outputs, the worst is {where}"
    for one in verdicts:
        if one.unsupported is not None:
            yield f"not replayed: {one.variant}: {one.unsupported}"
    replayed = [one for one in verdicts if one.unsupported is None]
    agree = sum(one.agrees for one in replayed)
    yield (
        f"{len(verdicts)} variants: {len(replayed)} replayed with {sum(one.cases for one in replayed)} cases,"
        f" {agree} agree, {len(replayed) - agree} miss; {len(verdicts) - len(replayed)} not replayed"
    )


def _grouped(verdicts: Sequence[Verdict], each: bool) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for one in verdicts:
        found.setdefault(one.variant if each else one.variant.partition("__")[0], []).append(one)
    return found


def not_reproduced_page() -> str:
    """docs/not_reproduced.md, from the reasons that stand beside the replays."""
    peers: dict[str, Peer] = {framework: resolve(path) for framework, path in CONFORMANCE.items()}
    parts = [
        "# What is not reproduced, and why\n",
        "Written by `grpolab conformance --not-reproduced`. `grpolab conformance PATH` lists by name, and counts, each",
        "variant of an archive that these patterns leave out.\n",
        "| framework | variants | reason, and the size of the difference |",
        "| --- | --- | --- |",
    ]
    for framework, peer in peers.items():
        parts += [f"| {framework} | `{pattern}` | {reason} |" for pattern, reason in peer.not_reproduced.items()]
    parts += ["", "## As far as it goes", "", "| framework | what to know |", "| --- | --- |"]
    parts += [f"| {framework} | {limit} |" for framework, peer in peers.items() for limit in peer.limits]
    return "\n".join(parts) + "\n"
