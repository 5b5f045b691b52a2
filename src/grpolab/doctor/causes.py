"""Causes of trouble: their sentences stand in `causes.yaml`, and each has a rule of its name that recognises it.

    @rule
    def aliased_old_policy(run: Evidence) -> Finding | None:

A rule stands in the file of the question that it answers (`ratio_is_one.py`, `first_pass.py`, `no_progress.py`,
`breakdown.py`), its thresholds above the rules of that file, or in `evidence.py` where several files share one. Those
that follow from arithmetic say so. The others rest on a reason that is given, or were set on development runs (seeds 0
and 1, tasks addition and sorting; SHARPER again after a first scoring on seeds 10 and 11; those of a plateau and of a
group of one after one on 12 and 13), never on the runs that `make bench WHAT=doctor` scores.
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

# Surest first. certain: an identity of arithmetic that every sound run keeps is broken, or a setting leaves no other
# way out; likely: the numbers fit this cause and no other that the doctor knows; possible: they fit other causes too.
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
    side: str = ""  # of a cause that has several, the one that this run shows
    words: Mapping[str, Any] = field(default_factory=dict)  # for the braces in its sentences


def _find(confidence: str, *evidence: str, instead: tuple[str, ...] = (), side: str = "", **words: Any) -> Finding:
    """Return what a rule found; sentences that are empty are left out."""
    return Finding(confidence, tuple(filter(None, evidence)), instead, side=side, words=words)


certain, likely, possible = (partial(_find, confidence) for confidence in CONFIDENCES)


def say_change(what: str, before_and_after: tuple[float, float]) -> str:
    """Return `what went from .. to ..`."""
    return f"{what} went from {number(before_and_after[0])} to {number(before_and_after[1])}"


# Looks at a run's evidence; None where the numbers do not fit, or are not there.
Rule = Callable[[Evidence], Finding | None]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Make a function the rule of the cause of its name."""
    RULES[function.__name__] = function
    return function


@dataclass(frozen=True)
class Cause:
    """One thing that can be wrong with a run, or that looks odd and is normal."""

    name: str
    sentences: Mapping[str, str]

    @property
    def says(self) -> str:
        """The sentence about what happened, for every side of it."""
        return self.sentences["says"]

    @property
    def remedy(self) -> str:
        """The advice, likewise; empty where nothing is wrong."""
        return self.sentences.get("remedy", "")

    def find(self, run: Evidence) -> Finding | None:
        """Return what its rule finds in a run, in the words of the run's framework."""
        if (finding := RULES[self.name](run)) is None:
            return None
        says, remedy = (
            self.sentences.get(f"{kind} if {finding.side}", general).format(**finding.words)
            for kind, general in (("says", self.says), ("remedy", self.remedy))
        )
        return replace(finding, cause=self.name, says=says, remedy=translate_advice(run.framework, remedy))


@dataclass(frozen=True)
class Symptom:
    """A question that people ask, and the causes that answer it."""

    question: str
    causes: tuple[Cause, ...]


def read_table() -> tuple[list[Symptom], dict[str, str]]:
    """Return the symptoms of `causes.yaml`, last what is normal, and the metrics that a diagnosis needs."""
    text = Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    needed = table.pop("needed")
    return [
        Symptom(one["question"], tuple(Cause(*of) for of in one["causes"].items())) for one in table.values()
    ], needed
