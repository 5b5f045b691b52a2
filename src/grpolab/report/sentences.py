"""What the runs of a study show, in sentences computed from the numbers. No data, no sentence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from grpolab.report.load import Study
from grpolab.report.measures import at, by_setting, means_after_first_step, measure, run_means
from grpolab.report.stability import count_lost, stability_table
from grpolab.report.statistics.intervals import Interval, share_interval, t_interval
from grpolab.report.statistics.tests import fisher, page_trend, paired_difference, wilson
from grpolab.report.text import bounds, count, estimate, number, p_equals, percent, signed


def findings(study: Study) -> list[str]:
    """All sentences that this study's factors and runs allow."""
    if study.done.empty:
        return ["No run of this study has a result yet."]
    makers = (_baseline_learns, _clipping_acts, _clip_is_zero, _reuse, _ratio_levels, _unclipped, _against_baseline)
    return [sentence for maker in makers for sentence in maker(study)]


def _baseline_learns(study: Study) -> Iterator[str]:
    """An arm that does not learn would compare noise."""
    gains = measure(study, "gain")
    for facet in study.facets:
        gain = t_interval(at(gains, facet, study.baseline))
        if gain.n:
            verdict = "learns" if gain.low > 0 else "loses accuracy" if gain.high < 0 else "is not shown to learn"
            size = f"{estimate(*gain[:3], signed)} over its start ({count(gain.n, 'seed')})"
            yield f"The baseline `{study.baseline}` {verdict}{_in(facet)}: {size}."


def _clipping_acts(study: Study) -> Iterator[str]:
    """Below about 1% a side, arms that differ in the clip range are the same arm."""
    low, high = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
    for facet in study.facets:
        sides = [share_interval(at(values, facet, study.baseline)) for values in (low, high)]
        if sides[0].n:
            below, above = (estimate(*side[:3], percent) for side in sides)
            yield (
                f"After the first optimiser step on a batch, clipping in `{study.baseline}` silences {below} of the"
                f" tokens with an advantage below its range and {above} above it{_in(facet)}."
            )


def _clip_is_zero(study: Study) -> Iterator[str]:
    """Before the first optimiser step on a batch every ratio is 1, so nothing can be out of range."""
    if "clip/out_of_range" not in study.updates:
        return
    first = study.updates[(study.updates["iteration"] == 0) & (study.updates["minibatch"] == 0)]
    yield f"At the first update on a batch the clip fraction is {_zero(first)}."
    cells = study.done
    once = cells[cells["setting/num_iterations"] * cells["setting/num_minibatches"] == 1]
    updates = study.updates[study.updates["signature"].isin(once["signature"])]
    if len(updates):
        arms = ", ".join(f"`{arm}`" for arm in dict.fromkeys(once["arm"]))
        yield f"With one update per batch ({arms}) the clip fraction is {_zero(updates)}."


def _zero(updates: pd.DataFrame) -> str:
    """`exactly 0 in all 400 updates of 4 runs`, or where it is not."""
    share = updates["clip/out_of_range"]
    where = f"{count(len(updates), 'update')} of {count(updates['signature'].nunique(), 'run')}"
    if (share == 0).all():
        return f"exactly 0 in all {where}"
    return f"not 0 in {(share != 0).sum():,} of {where} (largest {number(share.max())})"


def _reuse(study: Study) -> Iterator[str]:
    """Clip fraction and final accuracy against num_iterations, with a trend test."""
    for metric, words in (("clip/active", "The clip fraction"), ("final_score", "Final accuracy")):
        values = measure(study, metric)
        for facet in study.facets:
            values_SL = by_setting(study, values, facet, "setting/num_iterations")
            if values_SL.shape[1] > 1:
                means = ", ".join(number(mean) for mean in values_SL.mean())
                passes = ", ".join(f"{mu:g}" for mu in values_SL)
                p = page_trend(values_SL.to_numpy())
                trend = f" (Page's test that it rises: {p_equals(p)})" if np.isfinite(p) else ""
                yield f"{words} is {means} at num_iterations {passes}{_in(facet)}{trend}."


def _ratio_levels(study: Study) -> Iterator[str]:
    """Token against sequence clipping, as factors: the arms' own rules, then both levels on the same runs."""
    if study.cells["setting/importance_sampling_level"].nunique() < 2:
        return
    clip = run_means(study, "clip/active")
    same_run = [run_means(study, f"cf/{level}_0.2") for level in ("sequence", "token")]
    for facet in study.facets:
        for arm in study.arms:
            factor = _factor(at(clip, facet, arm), at(clip, facet, study.baseline))
            if arm != study.baseline and factor.n:
                size = estimate(*factor[:3])
                yield f"`{arm}` clips {size} times the share of tokens that `{study.baseline}` clips{_in(facet)}."
        factor = _factor(*(at(values, facet, study.baseline) for values in same_run))
        if factor.n:
            yield (
                f"On the same batches (of `{study.baseline}`), a sequence ratio at epsilon .2 would clip"
                f" {estimate(*factor[:3])} times what a token ratio clips{_in(facet)}."
            )


def _factor(of: pd.Series, over: pd.Series) -> Interval:
    """Geometric mean of of / over by seed, with the t-interval of its logarithm; seeds with a zero are left out."""
    with np.errstate(divide="ignore"):
        logs = t_interval((np.log(of) - np.log(over)).replace([np.inf, -np.inf], np.nan))
    return Interval(float(np.exp(logs.mean)), float(np.exp(logs.low)), float(np.exp(logs.high)), logs.n)


def _unclipped(study: Study) -> Iterator[str]:
    """Collapse without clipping against collapse of the baseline."""
    runs = stability_table(study)
    unclipped = study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"].unique()
    for facet in study.facets:
        for arm in unclipped:
            counts = [count_lost(runs, facet, name) for name in (arm, study.baseline)]
            p = fisher(*counts[0], *counts[1])
            if np.isfinite(p):
                rate, base = (_rate(*pair) for pair in counts)
                yield (
                    f"Without clipping (`{arm}`), {rate} collapse{_in(facet)}; of `{study.baseline}`, {base}"
                    f" (Fisher's exact test, unpaired: {p_equals(p)})."
                )


def _rate(lost: int, n: int) -> str:
    """`2 of 3 runs (95%: [.2, .9])`."""
    rate = wilson(lost, n)
    return f"{lost} of {count(n, 'run')} (95%: {bounds(rate.low, rate.high)})"


def _against_baseline(study: Study) -> Iterator[str]:
    """Which arms end above, below or undecided against the baseline, in accuracy and in entropy."""
    for metric, words in (("final_score", "Final accuracy"), ("entropy_last", "Entropy at the end")):
        values = measure(study, metric)
        for facet in study.facets:
            base = at(values, facet, study.baseline)
            others = {arm: at(values, facet, arm) for arm in study.arms if arm != study.baseline}
            if len(base) and any(len(other) for other in others.values()):
                sides = _sides(others, base)
                groups = "; ".join(f"{side}: {', '.join(arms)}" for side, arms in sides.items() if arms)
                yield f"{words}{_in(facet)}: `{study.baseline}` {number(base.mean())}; against it, {groups}."


def _sides(others: dict[str, pd.Series], base: pd.Series) -> dict[str, list[str]]:
    sides: dict[str, list[str]] = {"higher": [], "lower": [], "undecided": [], "equal": []}
    for arm, values in others.items():
        difference = paired_difference(values, base)
        if difference.n:
            low, high = difference.low, difference.high
            side = "equal" if low == high == 0 else "higher" if low > 0 else "lower" if high < 0 else "undecided"
            sides[side].append(f"`{arm}` {estimate(difference.effect, low, high, signed)}")
    return sides


def _in(facet: str) -> str:
    return f" in {facet}" if facet else ""
