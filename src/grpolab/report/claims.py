"""Decide what a study file claimed before its runs, from differences paired by seed: supported, refuted, undecided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpolab.report.load import Study
from grpolab.report.measures import at, measure
from grpolab.report.statistics import Paired, holm, paired_difference
from grpolab.report.text import count, estimate, listing, p_equals, signed

SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
ALPHA = 0.05


@dataclass(frozen=True)
class Claim:
    """A hypothesis in one facet, decided. `effect.p` is the p-value before Holm's correction."""

    study: str
    id: str
    says: str
    source: str
    facet: str
    contrast: str
    effect: Paired
    holm_p: float
    verdict: str
    sentence: str


def decide(study: Study) -> list[Claim]:
    """Every hypothesis of the study, once for each combination of levels that its `where` leaves open.

    `less` and `greater`: two-sided paired t-test against the margin, in the direction claimed. `equal`: two one-sided
    tests against either margin (TOST). All tests of the study are one family for Holm's correction. The placebo pairs
    come last: they are equal to the bit or not, without statistics.
    """
    questions = [(h, facet) for h in study.plan.get("hypotheses", []) for facet in _facets(study, h.get("where") or {})]
    effects = [_effect(study, hypothesis, facet) for hypothesis, facet in questions]
    adjusted = holm([effect.p for effect in effects])
    claims = [
        _claim(study, hypothesis, facet, effect, float(p))
        for (hypothesis, facet), effect, p in zip(questions, effects, adjusted, strict=True)
    ]
    return [*claims, *(_placebo(study, *pair) for pair in study.plan.get("placebo", []))]


def _facets(study: Study, where: dict[str, str]) -> Iterator[str]:
    """Facets whose levels are those of `where`."""
    cells = study.cells
    for factor, level in where.items():
        cells = cells[cells[f"factor/{factor}"] == level]
    yield from dict.fromkeys(cells["facet"])


def _effect(study: Study, hypothesis: dict[str, Any], facet: str) -> Paired:
    """Paired difference of the contrast, with the p-value of the hypothesis' own test."""
    values = measure(study, hypothesis["metric"])
    of, minus = (at(values, facet, hypothesis["contrast"][side]) for side in ("of", "minus"))
    margin, direction = hypothesis["margin"], hypothesis["direction"]
    if direction == "equal":
        return equivalence(of, minus, margin)
    return paired_difference(of, minus, null=-margin if direction == "less" else margin)


def equivalence(of: pd.Series, minus: pd.Series, margin: float) -> Paired:
    """The paired difference, with the p of two one-sided tests (TOST) where it lies within the margin.

    The margin that is nearer decides. Where the difference lies outside, p says how surely (two-sided).
    """
    nearer = paired_difference(of, minus, null=margin if (of - minus).mean() > 0 else -margin)
    return nearer if abs(nearer.effect) > margin else nearer._replace(p=nearer.p / 2)


def verdict(effect: Paired, holm_p: float, direction: str, margin: float) -> str:
    """Supported or refuted where the corrected p is below ALPHA, by the side on which the effect lies."""
    if not holm_p < ALPHA:
        return UNDECIDED
    claimed = {
        "less": effect.effect < -margin,
        "greater": effect.effect > margin,
        "equal": abs(effect.effect) < margin,
    }
    return SUPPORTED if claimed[direction] else REFUTED


def _claim(study: Study, hypothesis: dict[str, Any], facet: str, effect: Paired, holm_p: float) -> Claim:
    contrast = f"{hypothesis['contrast']['of']} - {hypothesis['contrast']['minus']}"
    decision = verdict(effect, holm_p, hypothesis["direction"], hypothesis["margin"])
    return Claim(
        study=study.name,
        id=hypothesis["id"],
        says=hypothesis["says"],
        source=hypothesis["source"],
        facet=facet,
        contrast=contrast,
        effect=effect,
        holm_p=holm_p,
        verdict=decision,
        sentence=_sentence(hypothesis, facet, contrast, effect, holm_p, decision),
    )


def _sentence(
    hypothesis: dict[str, Any], facet: str, contrast: str, effect: Paired, holm_p: float, decision: str
) -> str:
    place = f" in {facet}" if facet else ""
    if effect.n == 0:
        return f"{hypothesis['id']} is {UNDECIDED}{place}: no seed has both runs."
    size = estimate(effect.effect, effect.low, effect.high, signed)
    test = f"Holm-adjusted {p_equals(holm_p)}" if np.isfinite(holm_p) else "too few for a test"
    wanted = {"less": "below", "greater": "above", "equal": "within ±"}[hypothesis["direction"]]
    margin = {"less": -1, "greater": 1, "equal": 1}[hypothesis["direction"]] * hypothesis["margin"] + 0.0
    return (
        f"{hypothesis['id']} is {decision}{place}: `{hypothesis['metric']}` of {contrast} is {size}"
        f" ({count(effect.n, 'seed')}, {test}; claimed: {wanted}{'' if wanted.endswith('±') else ' '}{margin:g})."
    )


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
        effect=Paired(np.nan, np.nan, np.nan, np.nan, equal + len(different)),
        holm_p=np.nan,
        verdict=decision,
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
