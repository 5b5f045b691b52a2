"""The tests that decide hypotheses: for each, the effect with its p, how many seeds would decide, how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from grpolab.report.questions import Question
from grpolab.report.statistics import (
    Difference,
    equivalence,
    paired_difference,
    rank_trend,
    rate_difference,
    rate_seeds_to_decide,
    seeds_to_decide,
    trend_seeds_to_decide,
)
from grpolab.report.text import estimate, number, signed


@dataclass(frozen=True)
class Method:
    """One test. `effect` is on the scale on which it is tested; `shown` on the one on which it is written."""

    name: str
    effect: Callable[[Question], Difference]
    needed: Callable[[Question, Difference, float], int | None]
    what: Callable[[Question], str] = lambda question: f"{question.measured} of {question.contrast}"
    shown: Callable[[Difference], Difference] = lambda effect: effect
    form: Callable[[float], str] = signed
    claimed: Callable[[Question], str] = lambda question: _side(question, f"{question.null + 0.0:g}")  # never -0
    also: Callable[[Question], str] = lambda question: ""

    def size(self, effect: Difference) -> str:
        """The effect with its interval, as it is written."""
        return estimate(*self.shown(effect)[:3], self.form)


def _side(question: Question, null: str) -> str:
    return {"less": "below ", "greater": "above ", "equal": "within ±"}[question.direction] + null


def _paired(question: Question) -> Difference:
    return paired_difference(question.of, question.minus, null=question.null)


def _log_paired(question: Question) -> Difference:
    """A share that is 0 in one arm is infinitely smaller: the sign test then gives p. In both arms it is a tie."""
    with np.errstate(divide="ignore"):
        of, minus = np.log(question.of), np.log(question.minus)
    return paired_difference(of, minus, null=question.null)


def _ratio(effect: Difference) -> Difference:
    size, low, high = (float(np.exp(value)) for value in effect[:3])
    return effect._replace(effect=size, low=low, high=high)


def _times(question: Question) -> str:
    factor = question.hypothesis["margin"]
    if question.direction == "greater" or factor == 1:
        return _side(question, f"{factor:g}")
    return f"below 1/{factor:g}"


def _equivalent(question: Question) -> Difference:
    return equivalence(question.of, question.minus, question.margin)


def _counted(question: Question) -> Difference:
    return rate_difference(int(question.of.sum()), len(question.of), int(question.minus.sum()), len(question.minus))


def _trend(question: Question) -> Difference:
    return rank_trend(question.values_SA.to_numpy())


def _seeds_of_mean(question: Question, effect: Difference, level: float) -> int | None:
    return seeds_to_decide(effect, question.direction, question.margin, level)


def _seeds_of_rates(question: Question, effect: Difference, level: float) -> int | None:
    return rate_seeds_to_decide(question.of.mean(), question.minus.mean(), level)


def _seeds_of_trend(question: Question, effect: Difference, level: float) -> int | None:
    return trend_seeds_to_decide(question.values_SA.to_numpy(), level)


def _all_pairs(question: Question) -> str:
    """Means of the levels, and the paired difference of every two of them."""
    values = question.values_SA
    pairs = [
        f"{upper} - {lower} {estimate(*paired_difference(values[upper], values[lower])[:3], signed)}"
        for lower, upper in combinations(values.columns, 2)
    ]
    means = ", ".join(f"{arm} {number(mean)}" for arm, mean in values.mean().items())
    return f"; means: {means}; all pairs: {', '.join(pairs)}"


METHODS = {
    "paired_t": Method("paired t-test", _paired, _seeds_of_mean),
    "paired_log_t": Method(
        "paired t-test of the logarithm", _log_paired, _seeds_of_mean, shown=_ratio, form=number, claimed=_times
    ),
    "equivalence": Method("two one-sided t-tests", _equivalent, _seeds_of_mean),
    "fisher": Method("Fisher's exact test, unpaired", _counted, _seeds_of_rates),
    "page": Method(
        "Page's test, two-sided",
        _trend,
        _seeds_of_trend,
        what=lambda question: f"Kendall's tau of {question.measured} over {question.contrast}",
        claimed=lambda question: "rising" if question.direction == "greater" else "falling",
        also=_all_pairs,
    ),
}
