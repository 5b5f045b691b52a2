"""What the doctor says: a cause with its evidence, and the whole diagnosis of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from grpolab.causes import CAUSES

Confidence = Literal["certain", "likely", "possible"]
CONFIDENCES: dict[Confidence, str] = {
    "certain": "an identity of arithmetic that every sound run keeps is broken, or a setting leaves no other way out",
    "likely": "the numbers fit this cause and no other that the doctor knows",
    "possible": "the numbers fit, and fit other causes too",
}


@dataclass(frozen=True)
class Finding:
    """One cause in one run."""

    cause: str  # an id of `grpolab.causes`
    confidence: Confidence
    evidence: tuple[str, ...]  # sentences with numbers and steps
    instead: tuple[str, ...] = ()  # causes that the log cannot tell from this one

    @property
    def rank(self) -> tuple[int, int]:
        """The surest first; among equals the one that explains the others."""
        return list(CONFIDENCES).index(self.confidence), list(CAUSES).index(self.cause)


@dataclass(frozen=True)
class Diagnosis:
    """What a run's numbers say: causes, best first, what only looks odd, and whether the run ended with less.

    No cause means that no rule fits, which is not that nothing is wrong: `fall` and `unknown` say more.
    """

    run: str
    state: str  # how the run ended, or that it has not
    findings: tuple[Finding, ...]
    notes: dict[str, str] = field(default_factory=dict)  # an id of `grpolab.causes.NOTES` -> its evidence
    unknown: tuple[str, ...] = ()  # what could not be looked at, one sentence each
    fall: str | None = None  # that accuracy (or reward, where only that is there) fell, with the numbers
