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
from grpolab.report.measures import by_cell, is_share
from grpolab.report.registered import CONFIRMATORY, EXPLORATORY, registered_seeds
from grpolab.report.registered import label as label_of
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
CHECK = "check"  # what holds by construction is no finding
ALPHA = 0.05
TESTS = {
    "paired_t": "paired t-test",
    "paired_log_t": "paired t-test of the logarithm",
    "equivalence": "two one-sided t-tests",
    "fisher": "Fisher's exact test, unpaired",
    "page": "Page's test, two-sided",
}
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
    label: str  # confirmatory, exploratory or a check
    why: str  # it is exploratory
    needed: int | None
    sentence: str


@dataclass(frozen=True)
class Question:
    """A hypothesis in one facet, with the numbers that decide it.

    `values_SA` has a row for each seed that all arms share and a column for each arm. `margin`, `effect` and `null`,
    the effect that lies between claimed and not claimed (of `equal` there are two), are on the scale on which it is
    tested. `void` says why nothing can be decided, `gaps` which runs ended early or are left out, `seeds` from how many
    shared ones on it may be decided.
    """

    hypothesis: Hypothesis
    facet: str
    test: str
    values_SA: pd.DataFrame
    margin: float
    null: float
    effect: Difference
    void: str
    gaps: str
    seeds: int
    label: str
    why: str


def decide(study: Study) -> list[Claim]:
    """Every hypothesis of the study, once for each combination of levels that its `where` leaves open.

    `less` and `greater` are two-sided tests against the margin, in the direction claimed; `equal` is two one-sided
    ones. All confirmatory tests of the study are one family for Holm's correction, all exploratory ones another; what
    was registered is decided by its registered seeds alone (`report/registered.py`). A claim with fewer shared seeds
    than it asks for stays undecided, whatever its p, as does one whose condition does not hold. The placebo pairs come
    last: they are equal to the bit or not, without statistics.
    """
    questions, claims = list(_questions(study)), dict[int, Claim]()
    for label in (CONFIRMATORY, EXPLORATORY):  # each a family of its own
        family = {place: question for place, question in enumerate(questions) if question.label == label}
        adjusted = [float(p) for p in holm([question.effect.p for question in family.values()])]
        verdicts = [_verdict(*answer) for answer in zip(family.values(), adjusted, strict=True)]
        level = ALPHA / max(1, verdicts.count(UNDECIDED))  # what Holm's next step asks of each that is left
        answers = zip(family.items(), adjusted, verdicts, strict=True)
        claims |= {place: _claim(study.name, question, p, verdict, level) for (place, question), p, verdict in answers}
    decided = [claims[place] for place in range(len(questions))]
    return [*decided, *(_placebo(study, *pair) for pair in study.plan.get("placebo", []))]


def _questions(study: Study) -> Iterator[Question]:
    """Every hypothesis, once for each facet that it is about and that has all its arms."""
    for hypothesis in study.plan.get("hypotheses", []):
        cells = study.cells.assign(value=by_cell(study, hypothesis["metric"]))
        for factor, level in (hypothesis.get("where") or {}).items():
            cells = cells[cells[f"factor/{factor}"] == level]
        inside = (study.plan["compare"], hypothesis.get("range_over"))
        outer = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in inside]
        facets = pd.Series(["/".join(levels) for levels in cells[outer].to_numpy(dtype=str)], cells.index, dtype=object)
        contrast = hypothesis.get("contrast")
        arms = [arm for arm in contrast.values() if arm is not None] if contrast else hypothesis["trend"]
        for facet, here in cells.groupby(facets, sort=False):
            if set(arms) <= set(here["arm"]):
                yield _question(study, hypothesis, str(facet), here, arms)


def _question(study: Study, hypothesis: Hypothesis, facet: str, here: pd.DataFrame, arms: list[str]) -> Question:
    """`here` are all cells of the facet, with the hypothesis' metric as `value`."""
    metric, direction, margin = hypothesis["metric"], hypothesis["direction"], hypothesis["margin"]
    # Plans of older programs name no test: there were three, and a rule for each.
    test = hypothesis.get("test") or (
        "fisher" if metric in LABELS else "equivalence" if direction == "equal" else "paired_t"
    )
    cells = here[here["arm"].isin(arms)]
    deciding = cells[cells["seed"].isin(registered_seeds(study, hypothesis["id"]))]
    label, why = label_of(study, hypothesis["id"], deciding)
    cells = deciding if label == CONFIRMATORY else cells
    if test == "paired_log_t":
        margin = float(np.log(margin))
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))  # a negative number has no logarithm
    # A range over a factor is NaN where a level has no value: it would be too small. Else there is one run of a seed.
    summary = np.ptp if hypothesis.get("range_over") else np.max
    values = cells.groupby(["seed", "arm"])["value"].agg(lambda runs: summary(runs.to_numpy()))
    values_SA = values.unstack().reindex(columns=arms).dropna()
    null = -margin if direction == "less" else margin
    effect = _effect(test, values_SA, null, margin)
    if len(arms) == 1 and is_share(study, metric) and test != "fisher":
        _, low, high, _ = share_interval(values_SA[arms[0]])
        effect = effect._replace(low=low, high=high)
    void = _void(study, hypothesis, here)
    diverged = int((cells["outcome"] == DIVERGED)[cells["seed"].isin(values_SA.index)].sum())
    valueless = int(cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all().sum()) - len(values_SA)
    gaps = f"; {count(diverged, 'run')} that diverged counted as far as they came" if diverged else ""
    gaps += f"; {count(valueless, 'seed')} without a value of it" if valueless else ""
    effect = effect._replace(p=np.nan) if void else effect
    seeds = hypothesis.get("seeds", 2)  # plans of older programs do not say
    return Question(hypothesis, facet, test, values_SA, margin, null, effect, void, gaps, seeds, label, why)


def _effect(test: str, values_SA: pd.DataFrame, null: float, margin: float) -> Difference:
    """What the test finds in the first arm against the second (or 0), or along the order of the arms."""
    if test == "page":
        return rank_trend(values_SA.to_numpy())
    of = values_SA.iloc[:, 0]
    minus = values_SA.iloc[:, 1] if values_SA.shape[1] > 1 else 0 * of
    if test == "fisher":
        return rate_difference(int(of.sum()), len(of), int(minus.sum()), len(minus))
    if test == "equivalence":
        return equivalence(of, minus, margin)
    if test == "paired_log_t":
        # A share that is 0 in one arm is infinitely smaller: the sign test then gives p. In both arms it is a tie.
        with np.errstate(divide="ignore"):
            of, minus = np.log(of), np.log(minus)
    return paired_difference(of, minus, null=null)


def _void(study: Study, hypothesis: Hypothesis, here: pd.DataFrame) -> str:
    """Why the test would say nothing: the condition of the hypothesis, where it does not hold."""
    condition = hypothesis.get("provided")
    if not condition:
        return ""
    mean = by_cell(study, condition["metric"])[here.index[here["arm"] == condition["of"]]].mean()
    if mean > condition["above"]:
        return ""
    measured = "not measured" if np.isnan(mean) else number(mean)
    return (
        f"its condition fails: `{condition['metric']}` of {condition['of']} is {measured}, not above"
        f" {condition['above']:g}"
    )


def _verdict(question: Question, holm_p: float) -> str:
    """Supported or refuted where the corrected p is below ALPHA, by the side on which the effect lies."""
    effect = question.effect
    if effect.n < question.seeds or not holm_p < ALPHA:
        return UNDECIDED
    claimed = {
        "less": effect.effect < question.null,
        "greater": effect.effect > question.null,
        "equal": abs(effect.effect) < question.margin,
    }
    return SUPPORTED if claimed[question.hypothesis["direction"]] else REFUTED


def _claim(study: str, question: Question, holm_p: float, verdict: str, level: float) -> Claim:
    """The claim in numbers and in words; `level` is what p would have to stay below with more seeds."""
    hypothesis, test, effect, values = question.hypothesis, question.test, question.effect, question.values_SA
    direction, margin, facet = hypothesis["direction"], hypothesis["margin"], question.facet
    contrast = {"page": ", ", "paired_log_t": " / "}.get(test, " - ").join(values.columns)
    measured, bound, means = f"`{hypothesis['metric']}`", f"{question.null + 0.0:g}", ""  # never -0
    if hypothesis.get("range_over"):
        measured = f"the range over {hypothesis['range_over']} of {measured}"
    if test == "paired_log_t":
        ratio, low, high = (float(np.exp(value)) for value in effect[:3])
        effect = effect._replace(effect=ratio, low=low, high=high)
        bound = f"1/{margin:g}" if direction == "less" and margin != 1 else f"{margin:g}"
    size = estimate(*effect[:3], number if test == "paired_log_t" else signed)
    claimed = {"less": "below ", "greater": "above ", "equal": "within ±"}[direction] + bound
    what = f"{measured} of {contrast}"
    if test == "page":
        what = f"Kendall's tau of {measured} over {contrast}"
        claimed = "rising" if direction == "greater" else "falling"
        pairs = [
            f"{upper} - {lower} {estimate(*paired_difference(values[upper], values[lower])[:3], signed)}"
            for lower, upper in combinations(values.columns, 2)
        ]
        levels = ", ".join(f"{arm} {number(mean)}" for arm, mean in values.mean().items())
        means = f"; means: {levels}; all pairs: {', '.join(pairs)}"
    sentence = f"{hypothesis['id']} is {verdict} ({question.label})" + (f" in {facet}" if facet else "")
    if effect.n == 0:
        sentence += f": no seed has {'both' if len(values.columns) == 2 else 'all'} runs"
    else:
        short = f" of the {question.seeds} that it asks for" if 1 < effect.n < question.seeds else ""
        p = f"{TESTS[test]}: Holm-adjusted {p_equals(holm_p)}" if np.isfinite(holm_p) else "no test"
        sentence += f": {what} is {size} ({count(effect.n, 'seed')}{short}, {p}; claimed: {claimed}){means}"
    needed = _needed(question, level) if verdict == UNDECIDED else None
    outlook = _outlook(question, needed) if verdict == UNDECIDED else ""
    return Claim(
        study=study,
        **{key: hypothesis[key] for key in ("id", "says", "source")},
        facet=facet,
        contrast=contrast,
        test=TESTS[test],
        effect=effect,
        size=size,
        holm_p=holm_p,
        verdict=verdict,
        label=question.label,
        why=question.why,
        needed=needed,
        sentence=f"{sentence}{question.gaps}{outlook}.",
    )


def _needed(question: Question, level: float) -> int | None:
    """How many seeds in all would decide it, were effect and spread as observed. `level`: what p must be below."""
    effect, values = question.effect, question.values_SA
    if not np.isfinite(effect.p):
        return None
    if question.test == "fisher":
        first, second = [*values.mean(), 0.0][:2]
        needed = rate_seeds_to_decide(first, second, level)
    elif question.test == "page":
        needed = trend_seeds_to_decide(values.to_numpy(), level)
    else:
        needed = seeds_to_decide(effect, question.hypothesis["direction"], question.margin, level)
    return max(needed, effect.n + 1, question.seeds) if needed else None


def _outlook(question: Question, needed: int | None) -> str:
    """What more seeds would do for an undecided claim."""
    effect = question.effect
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
    """Whether the runs of two arms that are one function are equal to the bit: journals and weights, by their hashes.

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
        label=CHECK,
        why="",
        verdict=REFUTED if different else SUPPORTED if equal == pairs else UNDECIDED,
        needed=None,
        sentence=f"`{second}` and `{first}` are bit-identical ({what}) in {equal} of {count(pairs, 'planned pair')}"
        + (f"; they differ in {listing(different)}." if different else "."),
    )
