"""What a cause is, in one place: its name, what it says, what to do about it, and the rule that recognises it.

    @RATIO_IS_ONE.cause(says="The old log-probs are the live ones: ...", remedy="Compute the old log-probs once ...")
    def aliased_old_policy(run: Evidence) -> Finding | None:

The rule's name is the cause's, and that of the file `conf/fault/aliased_old_policy.yaml` which plants it on purpose.
Causes stand under the question that they answer (`no_progress.py`, `ratio_is_one.py`, `first_pass.py`,
`breakdown.py`, `decline.py`), and their order is precedence: where two fit equally well, the earlier one explains the
later.

A threshold stands above the rules of its file, one that several files share in `evidence.py`. Those that follow from
arithmetic say so; the others were set on development runs (seeds 0 and 1, tasks addition and sorting; SHARPER again
after a first scoring on seeds 10 and 11; those of a plateau and of a group of one after one on 12 and 13), or stand on
a reason that is given, never on the runs that `make bench WHAT=doctor` scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from grpolab.doctor.evidence import Evidence

# Surest first. certain: an identity of arithmetic that every sound run keeps is broken, or a setting leaves no other
# way out; likely: the numbers fit this cause and no other that the doctor knows; possible: they fit other causes too.
Confidence = Literal["certain", "likely", "possible"]


@dataclass(frozen=True)
class Finding:
    """One cause in one run; its name is that of the rule which made it."""

    confidence: Confidence
    evidence: tuple[str, ...]  # sentences with numbers and steps
    instead: tuple[str, ...] = ()  # causes that the log cannot tell from this one
    cause: str = ""
    # Where a cause has several sides: those of this run's. Empty: the cause's, which are true of every side.
    says: str = ""
    remedy: str = ""


def certain(*evidence: str, instead: tuple[str, ...] = (), says: str = "", remedy: str = "") -> Finding:
    """What a rule finds that leaves no doubt."""
    return Finding("certain", evidence, instead, says=says, remedy=remedy)


def likely(*evidence: str, instead: tuple[str, ...] = (), says: str = "", remedy: str = "") -> Finding:
    """What a rule finds that fits nothing else."""
    return Finding("likely", evidence, instead, says=says, remedy=remedy)


def possible(*evidence: str, instead: tuple[str, ...] = (), says: str = "", remedy: str = "") -> Finding:
    """A finding that other causes explain as well."""
    return Finding("possible", evidence, instead, says=says, remedy=remedy)


def of_difficulty(run: Evidence) -> str:
    """Which prompts would tell completions apart, where groups have equal rewards: easier ones, or harder ones."""
    return {
        "right": "draw harder prompts: these are solved",
        "wrong": "draw easier prompts, or begin with a better model: nothing is right here that could be reinforced",
        "mixed": "leave out the prompts that are always right and those that are always wrong",
        "unknown": "draw harder prompts where the mean reward is near its largest value, easier ones where it is near"
        " its least",
    }[run.why_equal]


# Looks at a run's evidence; None where the numbers do not fit, or are not there.
Rule = Callable[[Evidence], Finding | None]


@dataclass(frozen=True)
class Cause:
    """One thing that can be wrong with a run."""

    name: str
    says: str  # what happened, one sentence; where it has several sides, what is true of all
    remedy: str  # what to change, one sentence, likewise; empty where nothing is wrong
    rule: Rule


@dataclass(frozen=True)
class Question:
    """What people ask, and the causes that answer it."""

    text: str
    causes: list[Cause] = field(default_factory=list)

    def cause(self, says: str, remedy: str = "") -> Callable[[Rule], Rule]:
        """Decorator: the rule below it is one more cause of this question, under its own name.

        A rule that fits runs which need different answers says which in its Finding.
        """

        def add(rule: Rule) -> Rule:
            self.causes.append(Cause(rule.__name__, says, remedy, rule))
            return rule

        return add
