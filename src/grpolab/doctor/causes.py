"""Causes of trouble: a name, a sentence, a remedy, and the rule that recognises it in a run.

    @RATIO_IS_ONE.cause("The old log-probs are the live ones: ...", "Compute the old log-probs once per batch ...")
    def aliased_old_policy(run: Evidence) -> Finding | None:

The rule's name is the cause's, and that of the file `conf/fault/aliased_old_policy.yaml`, which plants it on purpose.
Causes stand under the symptom that they explain (`ratio_is_one.py`, `first_pass.py`, `no_progress.py`,
`breakdown.py`). Their order is precedence: where two fit equally well, the earlier one explains the later.

A threshold stands above the rules of its file, one that several files share in `evidence.py`. Those that follow from
arithmetic say so. The others rest on a reason that is given, or were set on development runs (seeds 0 and 1, tasks
addition and sorting; SHARPER again after a first scoring on seeds 10 and 11; those of a plateau and of a group of one
after one on 12 and 13), never on the runs that `make bench WHAT=doctor` scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from grpolab.doctor.evidence import Evidence
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
    cause: str = ""  # the name of the rule that made it
    # Where a cause has several sides, those that this run shows. Empty: the cause's own, which hold for every side.
    says: str = ""
    remedy: str = ""


def _finder(confidence: str) -> Callable[..., Finding]:
    """Return a function that makes findings of one confidence; sentences that are empty are left out."""

    def find(*evidence: str, instead: tuple[str, ...] = (), says: str = "", remedy: str = "") -> Finding:
        return Finding(confidence, tuple(filter(None, evidence)), instead, says=says, remedy=remedy)

    return find


certain, likely, possible = map(_finder, CONFIDENCES)


def say_change(what: str, before_and_after: tuple[float, float]) -> str:
    """Return `what went from .. to ..`."""
    return f"{what} went from {number(before_and_after[0])} to {number(before_and_after[1])}"


# Looks at a run's evidence; None where the numbers do not fit, or are not there.
Rule = Callable[[Evidence], Finding | None]


@dataclass(frozen=True)
class Cause:
    """One thing that can be wrong with a run."""

    name: str
    says: str  # what happened, in one sentence that holds for every side of it
    remedy: str  # what to change, likewise; empty where nothing is wrong
    rule: Rule


@dataclass(frozen=True)
class Symptom:
    """A question that people ask, and the causes that answer it."""

    question: str
    causes: list[Cause] = field(default_factory=list)

    def cause(self, says: str, remedy: str = "") -> Callable[[Rule], Rule]:
        """Add the rule below as one more cause, under its own name."""

        def add(rule: Rule) -> Rule:
            self.causes.append(Cause(rule.__name__, says, remedy, rule))
            return rule

        return add
