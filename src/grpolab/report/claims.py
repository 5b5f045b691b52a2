"""What a study file claimed before its runs, decided by the seeds that all sides share: supported, refuted, undecided.

A hypothesis becomes a question for each combination of levels that it leaves open. Its test gives the effect with its
p, Holm's correction over all questions of the study the verdict, and a sentence says all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from grpolab.quantities import LABELS
from grpolab.report.load import Study
from grpolab.report.measures import is_share, measure
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

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
ALPHA = 0.05
Hypothesis = dict[str, Any]  # as the plan has it


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

    `less` and `greater` are two-sided tests against the margin, in the direction claimed (TESTS); `equal` is two
    one-sided ones. All tests of the study are one family for Holm's correction. A claim with fewer shared seeds than it
    asks for stays undecided, whatever its p, as does one whose condition does not hold. The placebo pairs come last:
    they are equal to the bit or not, without statistics.
    """
    asked = list(questions(study))
    effects = [_effect(study, question) for question in asked]
    adjusted = [float(p) for p in holm([effect.p for effect in effects])]
    verdicts = [_verdict(*answer) for answer in zip(asked, effects, adjusted, strict=True)]
    level = ALPHA / max(1, verdicts.count(UNDECIDED))  # what Holm's next step asks of each that is left
    claims = [
        _claim(study, question, effect, p, verdict, level)
        for question, effect, p, verdict in zip(asked, effects, adjusted, verdicts, strict=True)
    ]
    return [*claims, *(_placebo(study, *pair) for pair in study.plan.get("placebo", []))]


def _effect(study: Study, question: Question) -> Difference:
    """What the hypothesis' own test finds; a void test has no p. One arm's mean share has the interval of a share."""
    effect = TESTS[question.test].effect(question)
    metric = question.hypothesis["metric"]
    if len(arms_of(question.hypothesis)) == 1 and is_share(study, metric) and question.test != "fisher":
        _, low, high, _ = share_interval(question.of)
        effect = effect._replace(low=low, high=high)
    return effect._replace(p=np.nan) if question.void else effect


def _verdict(question: Question, effect: Difference, holm_p: float) -> str:
    """Supported or refuted where the corrected p is below ALPHA, by the side on which the effect lies."""
    if effect.n < question.seeds or not holm_p < ALPHA:
        return UNDECIDED
    claimed = {
        "less": effect.effect < question.null,
        "greater": effect.effect > question.null,
        "equal": abs(effect.effect) < question.margin,
    }
    return SUPPORTED if claimed[question.direction] else REFUTED


def _claim(study: Study, question: Question, effect: Difference, holm_p: float, verdict: str, level: float) -> Claim:
    """`level`: what p must stay below, were there more seeds."""
    test, needed, outlook = TESTS[question.test], None, ""
    if verdict == UNDECIDED:
        if np.isfinite(effect.p) and (needed := test.needed(question, effect, level)):
            needed = max(needed, effect.n + 1, question.seeds)
        outlook = _outlook(question, effect, needed)
    return Claim(
        study=study.name,
        **{key: question.hypothesis[key] for key in ("id", "says", "source")},
        facet=question.facet,
        contrast=question.contrast,
        test=test.name,
        effect=test.shown(effect),
        size=test.size(effect),
        holm_p=holm_p,
        verdict=verdict,
        needed=needed,
        sentence=f"{_finding(question, effect, holm_p, verdict)}{outlook}.",
    )


# ----------------------------------------------------------------------------------------------------------------------
# A hypothesis with the numbers that it is about.


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
    def seeds(self) -> int:
        """From how many shared seeds on it may be decided; plans of older programs do not say."""
        return self.hypothesis.get("seeds", 2)

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
        factor, metric = self.hypothesis.get("range_over"), f"`{self.hypothesis['metric']}`"
        return f"the range over {factor} of {metric}" if factor else metric

    def beyond(self, null: str) -> str:
        """`below 0`, `above 0.1` or `within ±0.1`."""
        return {"less": "below ", "greater": "above ", "equal": "within ±"}[self.direction] + null


def arms_of(hypothesis: Hypothesis) -> list[str]:
    """The arms that a hypothesis compares, in its order."""
    contrast = hypothesis.get("contrast")
    return [arm for arm in contrast.values() if arm is not None] if contrast else hypothesis["trend"]


def questions(study: Study) -> Iterator[Question]:
    """Every hypothesis of the study, once for each facet that it is about and that has all its arms."""
    for hypothesis in study.plan.get("hypotheses", []):
        cells, arms = study.cells, arms_of(hypothesis)
        for factor, level in (hypothesis.get("where") or {}).items():
            cells = cells[cells[f"factor/{factor}"] == level]
        inside = (study.plan["compare"], hypothesis.get("range_over"))
        outer = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in inside]
        places = pd.Series(["/".join(levels) for levels in cells[outer].to_numpy(dtype=str)], cells.index, dtype=object)
        cells = cells.assign(value=_values(study, cells, hypothesis["metric"]))
        for facet, here in cells.groupby(places, sort=False):
            planned = here[here["arm"].isin(arms)]
            if set(planned["arm"]) == set(arms):
                yield _question(hypothesis, str(facet), planned, _void(hypothesis, study, here))


def _values(study: Study, cells: pd.DataFrame, metric: str) -> np.ndarray:
    """The metric's value of each cell's run; NaN where there is none."""
    values = measure(study, metric)
    return values.reindex(pd.MultiIndex.from_frame(cells[list(values.index.names)])).to_numpy()


def _void(hypothesis: Hypothesis, study: Study, cells: pd.DataFrame) -> str:
    """Why the test would say nothing: the condition of the hypothesis, where it does not hold."""
    condition = hypothesis.get("provided")
    if not condition:
        return ""
    mean = pd.Series(_values(study, cells[cells["arm"] == condition["of"]], condition["metric"])).mean()
    if mean > condition["above"]:
        return ""
    measured = "not measured" if np.isnan(mean) else number(mean)
    return (
        f"its condition fails: `{condition['metric']}` of {condition['of']} is {measured}, not above"
        f" {condition['above']:g}"
    )


def _question(hypothesis: Hypothesis, facet: str, cells: pd.DataFrame, void: str) -> Question:
    if hypothesis.get("test") == "paired_log_t":  # a negative number has no logarithm
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))
    runs = cells.groupby(["seed", "arm"])["value"]
    values = runs.agg(_range) if hypothesis.get("range_over") else runs.agg(lambda run: run.iloc[0])
    values_SA = values.unstack().reindex(columns=arms_of(hypothesis)).dropna()
    complete = cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all()
    return Question(
        hypothesis=hypothesis,
        facet=facet,
        values_SA=values_SA,
        diverged=int((cells["outcome"] == DIVERGED)[cells["seed"].isin(values_SA.index)].sum()),
        valueless=int(complete.sum()) - len(values_SA),
        void=void,
    )


def _range(values: pd.Series) -> float:
    """Largest minus smallest; NaN where a level has no value, because the range would be too small."""
    return float(values.max() - values.min()) if values.notna().all() else np.nan


# ----------------------------------------------------------------------------------------------------------------------
# The tests that decide hypotheses: for each, the effect with its p, how many seeds would decide, how it is written.


class PairedT:
    """Mean difference over shared seeds. The other tests say what of theirs is otherwise."""

    name = "paired t-test"

    def effect(self, question: Question) -> Difference:
        """On the scale on which it is tested."""
        return paired_difference(question.of, question.minus, null=question.null)

    def needed(self, question: Question, effect: Difference, level: float) -> int | None:
        """How many seeds in all would decide it, were effect and spread as observed. `level`: what p must be below."""
        return seeds_to_decide(effect, question.direction, question.margin, level)

    def shown(self, effect: Difference) -> Difference:
        """The effect on the scale on which it is written."""
        return effect

    def size(self, effect: Difference) -> str:
        """The effect with its interval, as it is written."""
        return estimate(*effect[:3], signed)

    def what(self, question: Question) -> str:
        """What the effect is an effect of."""
        return f"{question.measured} of {question.contrast}"

    def claimed(self, question: Question) -> str:
        """Where the effect was claimed to lie."""
        return question.beyond(f"{question.null + 0.0:g}")  # never -0

    def also(self, question: Question) -> str:
        """What else is said of the values."""
        return ""


class PairedLogT(PairedT):
    """Ratio of two arms, tested on its logarithm."""

    name = "paired t-test of the logarithm"

    def effect(self, question: Question) -> Difference:
        """A share that is 0 in one arm is infinitely smaller: the sign test then gives p. In both arms it is a tie."""
        with np.errstate(divide="ignore"):
            of, minus = np.log(question.of), np.log(question.minus)
        return paired_difference(of, minus, null=question.null)

    def shown(self, effect: Difference) -> Difference:
        ratio, low, high = (float(np.exp(value)) for value in effect[:3])
        return effect._replace(effect=ratio, low=low, high=high)

    def size(self, effect: Difference) -> str:
        return estimate(*self.shown(effect)[:3])

    def claimed(self, question: Question) -> str:
        factor = question.hypothesis["margin"]
        if question.direction == "greater" or factor == 1:
            return question.beyond(f"{factor:g}")
        return f"below 1/{factor:g}"


class Equivalence(PairedT):
    """Whether the mean difference lies within the margin."""

    name = "two one-sided t-tests"

    def effect(self, question: Question) -> Difference:
        return equivalence(question.of, question.minus, question.margin)


class Fisher(PairedT):
    """Difference of the shares of runs that have a label."""

    name = "Fisher's exact test, unpaired"

    def effect(self, question: Question) -> Difference:
        of, minus = question.of, question.minus
        return rate_difference(int(of.sum()), len(of), int(minus.sum()), len(minus))

    def needed(self, question: Question, effect: Difference, level: float) -> int | None:
        return rate_seeds_to_decide(question.of.mean(), question.minus.mean(), level)


class Page(PairedT):
    """Whether the values rise or fall with the order of the arms."""

    name = "Page's test, two-sided"

    def effect(self, question: Question) -> Difference:
        return rank_trend(question.values_SA.to_numpy())

    def needed(self, question: Question, effect: Difference, level: float) -> int | None:
        return trend_seeds_to_decide(question.values_SA.to_numpy(), level)

    def what(self, question: Question) -> str:
        return f"Kendall's tau of {question.measured} over {question.contrast}"

    def claimed(self, question: Question) -> str:
        return "rising" if question.direction == "greater" else "falling"

    def also(self, question: Question) -> str:
        """Means of the levels, and the paired difference of every two of them."""
        values = question.values_SA
        pairs = [
            f"{upper} - {lower} {estimate(*paired_difference(values[upper], values[lower])[:3], signed)}"
            for lower, upper in combinations(values.columns, 2)
        ]
        means = ", ".join(f"{arm} {number(mean)}" for arm, mean in values.mean().items())
        return f"; means: {means}; all pairs: {', '.join(pairs)}"


TESTS = {
    "paired_t": PairedT(),
    "paired_log_t": PairedLogT(),
    "equivalence": Equivalence(),
    "fisher": Fisher(),
    "page": Page(),
}


# ----------------------------------------------------------------------------------------------------------------------
# The sentences.


def _finding(question: Question, effect: Difference, holm_p: float, verdict: str) -> str:
    """What was measured and decided. Runs that did not end well are never left out without a word."""
    test = TESTS[question.test]
    head = f"{question.hypothesis['id']} is {verdict}" + (f" in {question.facet}" if question.facet else "")
    lost = f"; {count(question.diverged, 'run')} that diverged counted as far as they came" if question.diverged else ""
    lost += f"; {count(question.valueless, 'seed')} without a value of it" if question.valueless else ""
    if effect.n == 0:
        return f"{head}: no seed has {'both' if len(question.values_SA.columns) == 2 else 'all'} runs{lost}"
    short = f" of the {question.seeds} that it asks for" if 1 < effect.n < question.seeds else ""
    p = f"{test.name}: Holm-adjusted {p_equals(holm_p)}" if np.isfinite(holm_p) else "no test"
    return (
        f"{head}: {test.what(question)} is {test.size(effect)} ({count(effect.n, 'seed')}{short}, {p};"
        f" claimed: {test.claimed(question)}){test.also(question)}{lost}"
    )


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


# ----------------------------------------------------------------------------------------------------------------------
# The placebo: arms that are the same function.


def _placebo(study: Study, first: str, second: str) -> Claim:
    """Whether the runs of two arms are equal to the bit, by the hashes of their journals and weights.

    The journals of two dialects differ in any case: each has its framework's metrics.
    """
    planned = study.cells[study.cells["arm"].isin((first, second))]
    pairs = int((planned["arm"] == first).sum())
    hashes, what = ["journal_sha256", "policy_sha256"], "whole journal and final weights"
    if "setting/framework" in planned and planned["setting/framework"].nunique(dropna=False) > 1:
        hashes, what = ["policy_sha256"], "final weights"
    done, equal, different = study.done, 0, list[str]()
    if len(done):
        of, minus = (done[done["arm"] == arm].set_index(["facet", "seed"])[hashes] for arm in (first, second))
        shared = of.index.intersection(minus.index, sort=False)
        same = (of.loc[shared] == minus.loc[shared]).all(axis=1)
        equal, different = int(same.sum()), [f"{facet} seed {seed}" for facet, seed in shared[~same]]
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
        verdict=REFUTED if different else SUPPORTED if equal == pairs else UNDECIDED,
        needed=None,
        sentence=f"`{second}` and `{first}` are bit-identical ({what}) in {equal} of {count(pairs, 'planned pair')}"
        + (f"; they differ in {listing(different)}." if different else "."),
    )
