"""Decide what a study file claimed before its runs, from differences paired by seed: supported, refuted, undecided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype

from grpolab.report.load import Study
from grpolab.report.measures import at, measure
from grpolab.report.stability import stability_table
from grpolab.report.statistics import (
    MOST_SEEDS,
    POWER,
    Difference,
    equivalence,
    holm,
    paired_difference,
    rate_difference,
    rate_seeds_to_decide,
    seeds_to_decide,
)
from grpolab.report.text import count, estimate, listing, p_equals, probability, signed

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
ALPHA = 0.05


@dataclass(frozen=True)
class Claim:
    """A hypothesis in one facet, decided. `effect.p` is the p-value before Holm's correction.

    `needed` is how many seeds in all would decide an undecided one; None where it is decided, or nobody can say.
    """

    study: str
    id: str
    says: str
    source: str
    facet: str
    contrast: str
    effect: Difference
    holm_p: float
    verdict: str
    needed: int | None
    sentence: str


@dataclass(frozen=True)
class Question:
    """A hypothesis in one facet, with both sides of its contrast: columns `of` and `minus`, for the seeds of both."""

    hypothesis: dict[str, Any]
    facet: str
    pairs: pd.DataFrame
    is_label: bool  # a run either has it or not: collapsed, diverged, ...

    @property
    def direction(self) -> str:
        """less, greater or equal."""
        return self.hypothesis["direction"]

    @property
    def margin(self) -> float:
        """By more than this, or within this."""
        return self.hypothesis["margin"]

    @property
    def contrast(self) -> str:
        """`of - minus`."""
        return f"{self.hypothesis['contrast']['of']} - {self.hypothesis['contrast']['minus']}"

    @property
    def seeds(self) -> int:
        """From how many shared seeds on it may be decided; plans of older programs do not say."""
        return self.hypothesis.get("seeds", 2)


def decide(study: Study) -> list[Claim]:
    """Every hypothesis of the study, once for each combination of levels that its `where` leaves open.

    `less` and `greater`: two-sided paired t-test against the margin, in the direction claimed. `equal`: two one-sided
    tests against either margin (TOST). Labels (collapsed, diverged, ...) are counts: Fisher's exact test. All tests of
    the study are one family for Holm's correction. A claim with fewer shared seeds than it asks for stays undecided,
    whatever its p. The placebo pairs come last: they are equal to the bit or not, without statistics.
    """
    questions = [
        _question(study, hypothesis, facet)
        for hypothesis in study.plan.get("hypotheses", [])
        for facet in _facets(study, hypothesis.get("where") or {})
    ]
    effects = [_effect(question) for question in questions]
    adjusted = holm([effect.p for effect in effects])
    verdicts = [verdict(*answer) for answer in zip(questions, effects, adjusted, strict=True)]
    level = ALPHA / max(1, verdicts.count(UNDECIDED))  # what Holm's next step asks of each that is left
    claims = [
        _claim(study, question, effect, float(p), decision, level)
        for question, effect, p, decision in zip(questions, effects, adjusted, verdicts, strict=True)
    ]
    return [*claims, *(_placebo(study, *pair) for pair in study.plan.get("placebo", []))]


def _facets(study: Study, where: dict[str, str]) -> Iterator[str]:
    """Facets whose levels are those of `where`."""
    cells = study.cells
    for factor, level in where.items():
        cells = cells[cells[f"factor/{factor}"] == level]
    yield from dict.fromkeys(cells["facet"])


def _question(study: Study, hypothesis: dict[str, Any], facet: str) -> Question:
    metric, table = hypothesis["metric"], stability_table(study)
    values = measure(study, metric)
    sides = {side: at(values, facet, hypothesis["contrast"][side]) for side in ("of", "minus")}
    label = metric in table and is_bool_dtype(table[metric])
    return Question(hypothesis, facet, pd.DataFrame(sides).dropna(), label)


def _effect(question: Question) -> Difference:
    """Difference of the contrast over shared seeds, with the p-value of the hypothesis' own test."""
    of, minus = question.pairs["of"], question.pairs["minus"]
    if question.is_label:
        difference = rate_difference(int(of.sum()), int(minus.sum()), len(of))
        exact = question.direction != "equal" and question.margin == 0  # Fisher's test knows no margin
        return difference if exact else difference._replace(p=np.nan)
    if question.direction == "equal":
        return equivalence(of, minus, question.margin)
    return paired_difference(of, minus, null=-question.margin if question.direction == "less" else question.margin)


def _seeds_needed(question: Question, effect: Difference, level: float) -> int | None:
    """How many seeds in all would decide it, were effect and spread as observed. `level`: what p must stay below."""
    if not np.isfinite(effect.p):
        return None
    if question.is_label:
        needed = rate_seeds_to_decide(question.pairs["of"].mean(), question.pairs["minus"].mean(), level)
    else:
        needed = seeds_to_decide(effect, question.direction, question.margin, level)
    return max(needed, effect.n + 1, question.seeds) if needed else None


def verdict(question: Question, effect: Difference, holm_p: float) -> str:
    """Supported or refuted where the corrected p is below ALPHA, by the side on which the effect lies."""
    if effect.n < question.seeds or not holm_p < ALPHA:
        return UNDECIDED
    claimed = {
        "less": effect.effect < -question.margin,
        "greater": effect.effect > question.margin,
        "equal": abs(effect.effect) < question.margin,
    }
    return SUPPORTED if claimed[question.direction] else REFUTED


def _claim(study: Study, question: Question, effect: Difference, holm_p: float, decision: str, level: float) -> Claim:
    undecided = decision == UNDECIDED
    needed = _seeds_needed(question, effect, level) if undecided else None
    outlook = _outlook(effect, needed) if undecided else ""
    return Claim(
        study=study.name,
        **{key: question.hypothesis[key] for key in ("id", "says", "source")},
        facet=question.facet,
        contrast=question.contrast,
        effect=effect,
        holm_p=holm_p,
        verdict=decision,
        needed=needed,
        sentence=f"{_finding(question, effect, holm_p, decision)}{outlook}.",
    )


def _finding(question: Question, effect: Difference, holm_p: float, decision: str) -> str:
    """What was measured and decided."""
    name, place = question.hypothesis["id"], f" in {question.facet}" if question.facet else ""
    if effect.n == 0:
        return f"{name} is {UNDECIDED}{place}: no seed has both runs"
    size = estimate(effect.effect, effect.low, effect.high, signed)
    short = f" of the {question.seeds} that it asks for" if 1 < effect.n < question.seeds else ""
    wanted = {"less": "below ", "greater": "above ", "equal": "within ±"}[question.direction]
    margin = (-1 if question.direction == "less" else 1) * question.margin + 0.0  # never -0
    return (
        f"{name} is {decision}{place}: `{question.hypothesis['metric']}` of {question.contrast} is {size}"
        f" ({count(effect.n, 'seed')}{short}, {_test(effect, holm_p)}; claimed: {wanted}{margin:g})"
    )


def _test(effect: Difference, holm_p: float) -> str:
    if np.isfinite(holm_p):
        return f"Holm-adjusted {p_equals(holm_p)}"
    return "too few for a test" if effect.n < 2 else "no exact test of rates against a margin"


def _outlook(effect: Difference, needed: int | None) -> str:
    """What more seeds would do for an undecided claim."""
    if needed:
        power = probability(POWER).rstrip("0")
        return f"; about {needed} seeds in all would decide it (power {power}, were effect and spread as observed)"
    if effect.n == 0 or (effect.n > 1 and np.isnan(effect.p)):
        return ""
    if not np.isfinite(effect.sd):
        return "; its spread is not known, so neither is how many seeds would decide it"
    if effect.effect == effect.sd == 0:
        return "; no seed shows a difference, and more seeds like these would not decide it"
    return f"; not even {MOST_SEEDS:,} seeds would decide it, were effect and spread as observed"


def _placebo(study: Study, first: str, second: str) -> Claim:
    """Journals and weights of two arms that are the same function, compared by their hashes."""
    equal, different, what = _compare_bits(study, first, second)
    planned = (study.cells["arm"] == first).sum()
    decision = REFUTED if different else SUPPORTED if equal == planned else UNDECIDED
    sentence = (
        f"`{second}` and `{first}` are bit-identical ({what}) in {equal} of"
        f" {count(int(planned), 'planned pair')}" + (f"; they differ in {listing(different)}." if different else ".")
    )
    return Claim(
        study=study.name,
        id="placebo",
        says=f"`{second}` and `{first}` are the same function.",
        source="identity O3",
        facet="",
        contrast=f"{second} - {first}",
        effect=Difference(np.nan, np.nan, np.nan, np.nan, equal + len(different)),
        holm_p=np.nan,
        verdict=decision,
        needed=None,
        sentence=sentence,
    )


def _compare_bits(study: Study, first: str, second: str) -> tuple[int, list[str], str]:
    """How many pairs are equal, the names of those that are not, and what of them was compared.

    The journals of two dialects differ in any case: each has its framework's metrics.
    """
    keys, hashes, what = ["facet", "seed"], ["journal_sha256", "policy_sha256"], "whole journal and final weights"
    if "setting/framework" in study.cells:
        pair = study.cells[study.cells["arm"].isin((first, second))]
        if pair["setting/framework"].nunique(dropna=False) > 1:
            hashes, what = hashes[1:], "final weights"
    if study.done.empty:
        return 0, [], what
    sides = [study.done[study.done["arm"] == arm].set_index(keys)[hashes] for arm in (first, second)]
    pairs: pd.DataFrame = sides[0].join(sides[1], suffixes=("_first", "_second"), how="inner")
    same = np.logical_and.reduce([pairs[f"{name}_first"] == pairs[f"{name}_second"] for name in hashes])
    return int(same.sum()), [f"{facet} seed {seed}" for facet, seed in pairs.index[~same]], what
