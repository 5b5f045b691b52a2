"""What a replayed archive comes to: as text, as JSON, and as the page of what is not reproduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grpolab.learn.conformance.compare import KINDS, PLANTED, Planted, kind_of
from grpolab.learn.conformance.replay import Peer, Verdict
from grpolab.learn.conformance.vectors import Variant
from grpolab.registry import CONFORMANCE, resolve


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


def sensitivity_lines(planted: Iterable[tuple[Variant, Sequence[Planted]]]) -> Iterator[str]:
    """What planted errors come to: by framework and kind, outputs and how many have a bound that is too loose."""
    count: Counter[tuple[str, str]] = Counter()
    looser: Counter[tuple[str, str]] = Counter()
    float32, unseen = 0, []
    for variant, outputs in planted:
        for one in outputs:
            key = variant.framework, kind_of(one.output)
            count[key] += 1
            looser[key] += one.looser
            float32 += one.error == PLANTED[True]
            if not one.looser and not one.caught:
                unseen.append(f"not seen: {variant.full_name}: {one.output} of case {one.case}, bound {one.bound:.1e}")
    yield f"{'outputs, of them with a bound too loose':<42}" + "".join(f"{kind:>16}" for kind in KINDS)
    for framework in dict.fromkeys(framework for framework, _ in count):
        cells = (f"{count[framework, kind]}, {looser[framework, kind]}" for kind in KINDS)
        yield f"{framework:<42}" + "".join(f"{cell:>16}" for cell in cells)
    yield from unseen
    total, loose = count.total(), looser.total()
    yield (
        f"{total} planted errors, {PLANTED[True]:g} in the {float32} outputs that float32 has part in and"
        f" {PLANTED[False]:g} in the others: {total - loose - len(unseen)} seen, {len(unseen)} not seen though the"
        f" bound lies below, {loose} ({loose / max(total, 1):.2%}) with a looser bound"
    )


def sensitive(planted: Iterable[tuple[Variant, Sequence[Planted]]]) -> bool:
    """Whether every planted error is seen, but for 2% of them at most whose bound is looser."""
    outputs = [one for _, some in planted for one in some]
    looser = sum(one.looser for one in outputs)
    return looser <= 0.02 * len(outputs) and all(one.caught or one.looser for one in outputs)


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
