"""A hypothesis with the numbers that it is about: one question for each combination of levels that it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from grpolab.quantities import LABELS
from grpolab.report.load import Study
from grpolab.report.measures import is_share, measure
from grpolab.report.sentences import compare_bits
from grpolab.report.statistics.intervals import share_interval
from grpolab.report.statistics.power import (
    MOST_NEEDED,
    POWER,
    rate_seeds_to_decide,
    seeds_to_decide,
    trend_seeds_to_decide,
)
from grpolab.report.statistics.tests import (
    Difference,
    equivalence,
    holm,
    paired_difference,
    rank_trend,
    rate_difference,
)
from grpolab.report.text import NONE, count, estimate, listing, number, p_equals, probability, signed
from grpolab.vocabulary import DIVERGED, RESULTS

Hypothesis = dict[str, Any]  # as the plan has it


@dataclass(frozen=True)
class Question:
    """A hypothesis in one facet. `values_SA`: a row for each seed that all arms share, a column for each arm.

    A run that diverged or was stopped counts with what it has; `diverged` says how many there are. `valueless` seeds
    have all runs, but one that ended before its metric could be measured. `void` says why nothing can be decided.
    """

    hypothesis: Hypothesis
    facet: str
    values_SA: pd.DataFrame
    diverged: int
    valueless: int
    void: str

    @property
    def test(self) -> str:
        """What decides it. Plans of older programs do not say: they had three tests, and a rule for each."""
        if "test" in self.hypothesis:
            return self.hypothesis["test"]
        if self.hypothesis["metric"] in LABELS:
            return "fisher"
        return "equivalence" if self.direction == "equal" else "paired_t"

    @property
    def direction(self) -> str:
        """less, greater or equal."""
        return self.hypothesis["direction"]

    @property
    def margin(self) -> float:
        """By more than this, or within this, on the scale on which it is tested."""
        margin = self.hypothesis["margin"]
        return float(np.log(margin)) if self.test == "paired_log_t" else margin

    @property
    def null(self) -> float:
        """The effect that lies between claimed and not claimed; `equal` has two, and says so itself."""
        return -self.margin if self.direction == "less" else self.margin

    @property
    def of(self) -> pd.Series:
        """The first arm's values by seed."""
        return self.values_SA.iloc[:, 0]

    @property
    def minus(self) -> pd.Series:
        """The second arm's, or 0."""
        return self.values_SA.iloc[:, 1] if self.values_SA.shape[1] > 1 else 0 * self.of

    @property
    def contrast(self) -> str:
        """`a - b`, `a / b`, `a` or `a, b, c`."""
        between = {"page": ", ", "paired_log_t": " / "}.get(self.test, " - ")
        return between.join(self.values_SA.columns)

    @property
    def measured(self) -> str:
        """The metric, or its range over a factor."""
        factor = self.hypothesis.get("range_over")
        return (
            f"the range over {factor} of `{self.hypothesis['metric']}`" if factor else f"`{self.hypothesis['metric']}`"
        )

    @property
    def seeds(self) -> int:
        """From how many shared seeds on it may be decided; plans of older programs do not say."""
        return self.hypothesis.get("seeds", 2)


def arms_of(hypothesis: Hypothesis) -> list[str]:
    """The arms that a hypothesis compares, in its order."""
    contrast = hypothesis.get("contrast")
    return [arm for arm in contrast.values() if arm is not None] if contrast else hypothesis["trend"]


def questions(study: Study) -> Iterator[Question]:
    """Every hypothesis of the study, once for each facet that it is about and that has all its arms."""
    for hypothesis in study.plan.get("hypotheses", []):
        arms, varied = arms_of(hypothesis), hypothesis.get("range_over")
        cells = _cells(study, hypothesis)
        for facet, own in cells.groupby("place", sort=False):
            planned = own[own["arm"].isin(arms)]
            if set(planned["arm"]) == set(arms):
                yield _question(hypothesis, str(facet), planned, arms, bool(varied), _void(hypothesis, study, own))


def _cells(study: Study, hypothesis: Hypothesis) -> pd.DataFrame:
    """The cells that its `where` leaves, with the metric as `value`, and as `place` what is not compared."""
    cells = study.cells
    for factor, level in (hypothesis.get("where") or {}).items():
        cells = cells[cells[f"factor/{factor}"] == level]
    inside = (study.plan["compare"], hypothesis.get("range_over"))
    outer = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in inside]
    places = ["/".join(levels) for levels in cells[outer].to_numpy(dtype=str)]
    return cells.assign(place=places, value=_measured(study, cells, hypothesis["metric"]))


def _measured(study: Study, cells: pd.DataFrame, metric: str) -> np.ndarray:
    """The metric's value of each cell's run; NaN where there is none."""
    values = measure(study, metric)
    return values.reindex(pd.MultiIndex.from_frame(cells[list(values.index.names)])).to_numpy()


def _question(
    hypothesis: Hypothesis, facet: str, cells: pd.DataFrame, arms: list[str], is_range: bool, void: str
) -> Question:
    if hypothesis.get("test") == "paired_log_t":  # a negative number has no logarithm
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))
    each = cells.groupby(["seed", "arm"])["value"].agg(_range if is_range else _only).unstack().reindex(columns=arms)
    there = cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all()
    values_SA = each.dropna()
    return Question(
        hypothesis=hypothesis,
        facet=facet,
        values_SA=values_SA,
        diverged=int((cells["outcome"] == DIVERGED)[cells["seed"].isin(values_SA.index)].sum()),
        valueless=int(there.sum()) - len(values_SA),
        void=void,
    )


def _only(values: pd.Series) -> float:
    return float(values.iloc[0])


def _range(values: pd.Series) -> float:
    """Largest minus smallest; NaN where a level has no value, because the range would be too small."""
    return float(values.max() - values.min()) if values.notna().all() else np.nan


def _void(hypothesis: Hypothesis, study: Study, cells: pd.DataFrame) -> str:
    """Why the test would say nothing: the condition of the hypothesis, where it does not hold."""
    condition = hypothesis.get("provided")
    if not condition:
        return ""
    mean = pd.Series(_measured(study, cells[cells["arm"] == condition["of"]], condition["metric"])).mean()
    if mean > condition["above"]:
        return ""
    found = f"`{condition['metric']}` of {condition['of']} is {'not measured' if np.isnan(mean) else number(mean)}"
    return f"its condition fails: {found}, not above {condition['above']:g}"


# ----------------------------------------------------------------------------------------------------------------------
# The tests that decide hypotheses: for each, the effect with its p, how many seeds would decide, how it is written.


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


# ----------------------------------------------------------------------------------------------------------------------
# Decide what a study file claimed before its runs, by seeds that all sides share: supported, refuted, undecided.


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
