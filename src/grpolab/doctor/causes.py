"""Causes of trouble: `causes.yaml` has their sentences, and a rule (a function) of the same name recognises each.

Rules are grouped by the question that they answer (`ratio_is_one.py`, ...), with their thresholds above them, shared
ones in `evidence.py`. Some follow from arithmetic and say so. The others have a reason, or were set on development
runs: seeds 0 and 1 of addition and sorting; SHARPER again after a scoring on seeds 10 and 11, those of `plateau` and
`group_of_one` after one on 12 and 13. None was set on the runs that `make bench WHAT=doctor` scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from grpolab.doctor.evidence import Evidence
from grpolab.framework_names import translate_advice
from grpolab.report.text import number

# Surest first. certain: a sound run cannot have such numbers, by arithmetic, or a setting says so; likely: the numbers
# fit this cause and no other that the doctor knows; possible: they fit other causes too.
CONFIDENCES = ("certain", "likely", "possible")


@dataclass(frozen=True)
class Finding:
    """One cause in one run."""

    confidence: str  # one of CONFIDENCES
    evidence: tuple[str, ...]  # sentences with numbers and steps
    instead: tuple[str, ...] = ()  # causes that the log cannot tell from this one
    cause: str = ""
    says: str = ""
    remedy: str = ""
    side: str = ""  # the variant of the cause that this run shows, if the cause has several
    words: Mapping[str, Any] = field(default_factory=dict)  # for the braces in its sentences
    cost: str = ""  # which part of the run it concerns, one sentence; empty where no number says it
    step: int | None = None  # where that begins


def _find(confidence: str, *evidence: str, instead: tuple[str, ...] = (), side: str = "", **words: Any) -> Finding:
    return Finding(confidence, tuple(filter(None, evidence)), instead, side=side, words=words)


certain, likely, possible = (partial(_find, confidence) for confidence in CONFIDENCES)


def say_change(what: str, before_and_after: tuple[float, float]) -> str:
    """Return `what went from .. to ..`."""
    return f"{what} went from {number(before_and_after[0])} to {number(before_and_after[1])}"


# Judges a run's evidence; None if the numbers do not fit the cause, or are missing.
Rule = Callable[[Evidence], Finding | None]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Register a function as the rule of the cause that has its name."""
    return RULES.setdefault(function.__name__, function)


@dataclass(frozen=True)
class Cause:
    """One thing that can be wrong with a run, or that looks odd and is normal."""

    name: str
    sentences: Mapping[str, str]  # says, cost, remedy (none if it is normal); `says if SIDE`: of that side of it

    def find(self, run: Evidence) -> Finding | None:
        """Return what the cause's rule finds in a run, in the words of the run's framework."""
        if (finding := RULES[self.name](run)) is None:
            return None
        says, remedy = (
            self.sentences.get(f"{kind} if {finding.side}", self.sentences.get(kind, "")).format(**finding.words)
            for kind in ("says", "remedy")
        )
        return replace(finding, cause=self.name, says=says, remedy=translate_advice(run.framework, remedy))


@dataclass(frozen=True)
class Symptom:
    """A question that people ask, and the causes that answer it."""

    question: str
    causes: tuple[Cause, ...]


def read_table() -> tuple[list[Symptom], dict[str, dict[str, Any]]]:
    """Return the symptoms of `causes.yaml` (the last one holds what is normal), and its other tables by name."""
    text = Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    others = {name: table.pop(name) for name in ("needed", "still_possible", "to_log")}
    return [
        Symptom(one["question"], tuple(Cause(*of) for of in one["causes"].items())) for one in table.values()
    ], others
