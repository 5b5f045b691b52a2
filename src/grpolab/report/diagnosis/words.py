"""A diagnosis for people, and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from grpolab.causes import CAUSES, NOTES
from grpolab.report.diagnosis.finding import Diagnosis, Finding

WIDTH = 110


def text(diagnosis: Diagnosis) -> str:
    """Several lines: the causes with evidence and advice, what is normal, what could not be looked at."""
    lines = [f"run {diagnosis.run}: {diagnosis.state}"]
    if diagnosis.fall:
        lines += _filled("", f"{diagnosis.fall}.")
    for place, finding in enumerate(diagnosis.findings, start=1):
        lines += ["", f"{place}. {finding.cause} ({finding.confidence})", *_finding(finding)]
    if not diagnosis.findings:
        lines += ["", *_filled("", _without_cause(diagnosis))]
    for name, evidence in diagnosis.notes.items():
        lines += ["", *_filled("normal: ", f"{NOTES[name]} Here: {evidence}.")]
    if diagnosis.unknown:
        lines += ["", "not looked at:", *(line for what in diagnosis.unknown for line in _filled("   - ", what))]
    return "\n".join(lines)


def _without_cause(diagnosis: Diagnosis) -> str:
    """What it means that no rule fits."""
    if diagnosis.fall:
        return "No cause found: the fall is real, and nothing that the doctor knows explains it."
    if diagnosis.unknown:
        return "No cause found in what could be looked at. What could not stands below, and may hide one."
    return "No cause found: every number that the doctor knows is there, and none is known to be wrong."


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same as plain values, for JSON."""
    return {
        "run": diagnosis.run,
        "state": diagnosis.state,
        "fall": diagnosis.fall,
        "causes": [
            {
                "cause": finding.cause,
                "confidence": finding.confidence,
                "says": CAUSES[finding.cause].says,
                "evidence": list(finding.evidence),
                "instead": list(finding.instead),
                "try": CAUSES[finding.cause].try_,
            }
            for finding in diagnosis.findings
        ],
        "normal": [{"note": name, "says": NOTES[name], "evidence": text} for name, text in diagnosis.notes.items()],
        "unknown": list(diagnosis.unknown),
    }


def _finding(finding: Finding) -> Iterator[str]:
    cause = CAUSES[finding.cause]
    yield from _filled("   ", cause.says)
    for sentence in finding.evidence:
        yield from _filled("   - ", sentence)
    if finding.instead:
        yield from _filled("   ", f"Looks the same in this log: {', '.join(finding.instead)}.")
    yield from _filled("   Try: ", cause.try_)


def _filled(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
