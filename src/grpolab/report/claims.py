"""Decide what a study file claimed before its runs, by seeds that all sides share: supported, refuted, undecided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpolab.report.load import Study
from grpolab.report.measures import is_share
from grpolab.report.methods import METHODS, Method
from grpolab.report.placebo import compare_bits
from grpolab.report.questions import Question, arms_of, questions
from grpolab.report.statistics import MOST_NEEDED, POWER, Difference, holm, share_interval
from grpolab.report.text import NONE, count, listing, p_equals, probability

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
ALPHA = 0.05


@dataclass(frozen=True)
class Claim:
    """A hypothesis in one facet, decided.

    `effect` is on the scale on which it is written (a ratio, a Kendall tau), with the p before Holm's correction;
    `size` is the same as text. `needed` is how many seeds in all would decide an undecided one; None where it is
    decided, or nobody can say.
    """

    study: str
    id: str
    says: str
    source: str
    facet: str
    contrast: str
    test: str
    effect: Difference
    size: str
    holm_p: float
    verdict: str
    needed: int | None
    sentence: str


def decide(study: Study) -> list[Claim]:
    """Every hypothesis of the study, once for each combination of levels that its `where` leaves open.

    `less` and `greater` are two-sided tests against the margin, in the direction claimed (`methods.METHODS`); `equal`
    is two one-sided ones. All tests of the study are one family for Holm's correction. A claim with fewer shared seeds
    than it asks for stays undecided, whatever its p, as does one whose condition does not hold. The placebo pairs come
    last: they are equal to the bit or not, without statistics.
    """
    asked = list(questions(study))
    effects = [_effect(study, question) for question in asked]
    adjusted = holm([effect.p for effect in effects])
    verdicts = [verdict(*answer) for answer in zip(asked, effects, adjusted, strict=True)]
    level = ALPHA / max(1, verdicts.count(UNDECIDED))  # what Holm's next step asks of each that is left
    claims = [
        _claim(study, question, effect, float(p), decision, level)
        for question, effect, p, decision in zip(asked, effects, adjusted, verdicts, strict=True)
    ]
    return [*claims, *(_placebo(study, *pair) for pair in study.plan.get("placebo", []))]


def _effect(study: Study, question: Question) -> Difference:
    """What the hypothesis' own test finds; a void test has no p. One arm's mean share has the interval of a share."""
    effect = METHODS[question.test].effect(question)
    metric = question.hypothesis["metric"]
    if len(arms_of(question.hypothesis)) == 1 and is_share(study, metric) and question.test != "fisher":
        _, low, high, _ = share_interval(question.of)
        effect = effect._replace(low=low, high=high)
    return effect._replace(p=np.nan) if question.void else effect


def verdict(question: Question, effect: Difference, holm_p: float) -> str:
    """Supported or refuted where the corrected p is below ALPHA, by the side on which the effect lies."""
    if effect.n < question.seeds or not holm_p < ALPHA:
        return UNDECIDED
    claimed = {
        "less": effect.effect < question.null,
        "greater": effect.effect > question.null,
        "equal": abs(effect.effect) < question.margin,
    }
    return SUPPORTED if claimed[question.direction] else REFUTED


def _claim(study: Study, question: Question, effect: Difference, holm_p: float, decision: str, level: float) -> Claim:
    method, undecided = METHODS[question.test], decision == UNDECIDED
    needed = _seeds_needed(question, effect, level) if undecided else None
    outlook = _outlook(question, effect, needed) if undecided else ""
    return Claim(
        study=study.name,
        **{key: question.hypothesis[key] for key in ("id", "says", "source")},
        facet=question.facet,
        contrast=question.contrast,
        test=method.name,
        effect=method.shown(effect),
        size=method.size(effect),
        holm_p=holm_p,
        verdict=decision,
        needed=needed,
        sentence=f"{_finding(question, method, effect, holm_p, decision)}{outlook}.",
    )


def _seeds_needed(question: Question, effect: Difference, level: float) -> int | None:
    """How many seeds in all would decide it, were effect and spread as observed. `level`: what p must stay below."""
    if not np.isfinite(effect.p):
        return None
    needed = METHODS[question.test].needed(question, effect, level)
    return max(needed, effect.n + 1, question.seeds) if needed else None


def _finding(question: Question, method: Method, effect: Difference, holm_p: float, decision: str) -> str:
    """What was measured and decided."""
    head = f"{question.hypothesis['id']} is {decision}" + (f" in {question.facet}" if question.facet else "")
    if effect.n == 0:
        return f"{head}: no seed has {'both' if len(question.values_SA.columns) == 2 else 'all'} runs{_lost(question)}"
    short = f" of the {question.seeds} that it asks for" if 1 < effect.n < question.seeds else ""
    p = f"{method.name}: Holm-adjusted {p_equals(holm_p)}" if np.isfinite(holm_p) else "no test"
    return (
        f"{head}: {method.what(question)} is {method.size(effect)} ({count(effect.n, 'seed')}{short}, {p};"
        f" claimed: {method.claimed(question)}){method.also(question)}{_lost(question)}"
    )


def _lost(question: Question) -> str:
    """Runs that did not end well are never left out without a word."""
    texts = [
        f"; {count(question.diverged, 'run')} that diverged counted as far as they came" if question.diverged else "",
        f"; {count(question.valueless, 'seed')} without a value of it" if question.valueless else "",
    ]
    return "".join(texts)


def _outlook(question: Question, effect: Difference, needed: int | None) -> str:
    """What more seeds would do for an undecided claim."""
    if question.void:
        return f"; {question.void}"
    if needed:
        power = probability(POWER).rstrip("0")
        return f"; about {needed} seeds in all would decide it (power {power}, were effect and spread as observed)"
    if effect.n == 0:
        return ""
    if effect.n < 2 or not np.isfinite(effect.sd):
        return "; its spread is not known, so neither is how many seeds would decide it"
    if effect.effect == effect.sd == 0:
        return "; no seed shows a difference, and more seeds like these would not decide it"
    return f"; not even {MOST_NEEDED:,} seeds would decide it, were effect and spread as observed"


def _placebo(study: Study, first: str, second: str) -> Claim:
    equal, different, planned, what = compare_bits(study, first, second)
    decision = REFUTED if different else SUPPORTED if equal == planned else UNDECIDED
    sentence = f"`{second}` and `{first}` are bit-identical ({what}) in {equal} of {count(planned, 'planned pair')}" + (
        f"; they differ in {listing(different)}." if different else "."
    )
    return Claim(
        study=study.name,
        id="placebo",
        says=f"`{second}` and `{first}` are the same function.",
        source="identity O3",
        facet="",
        contrast=f"{second} - {first}",
        test="hashes",
        effect=Difference(np.nan, np.nan, np.nan, np.nan, equal + len(different)),
        size=NONE,
        holm_p=np.nan,
        verdict=decision,
        needed=None,
        sentence=sentence,
    )
