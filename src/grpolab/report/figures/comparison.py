"""Figures that compare arms: paired differences, aggregates over tasks, stability, and the ladder of changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from grpolab.report.figures.panels import (
    MEAN_DOTS,
    Drawing,
    NotDrawnError,
    arm_label,
    by_seed,
    draw_row,
    label_x,
    legend_arms,
    log_axis,
    name_rows,
    panel_grid,
    say,
)
from grpolab.report.load import Study
from grpolab.report.measures import SCORE, Pool, at, estimated, interval_note, mean_interval, measure, pools
from grpolab.report.stability import stability_table
from grpolab.report.statistics.intervals import (
    REPLICATES,
    Interval,
    geometric_interval,
    iqm,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from grpolab.report.statistics.tests import holm, paired_difference, wilson
from grpolab.report.style import QUIET, ArmStyle, Series, arm_styles
from grpolab.report.text import p_equals


def draw_forest(study: Study) -> Drawing:
    """Paired differences of the final accuracy to the baseline with their intervals and Holm-adjusted p-values."""
    others = [arm for arm in study.arms if arm != study.baseline]
    if not others:
        raise NotDrawnError(f"needs an arm beside {arm_label(study, study.baseline)}")
    figure, grid = panel_grid([""], study.facets, height=0.5 + 0.2 * len(others))
    scores = measure(study, "final_score")
    styles = arm_styles(study.arms)
    pairs = [(facet, arm) for facet in study.facets for arm in others]
    differences = [paired_difference(at(scores, f, arm), at(scores, f, study.baseline)) for f, arm in pairs]
    adjusted = holm([difference.p for difference in differences])
    numbers: list[Series] = []
    for (facet, arm), difference, p in zip(pairs, differences, adjusted, strict=True):
        panel = grid["", facet]
        seeds = (at(scores, facet, arm) - at(scores, facet, study.baseline)).dropna()
        interval = Interval(difference.effect, difference.low, difference.high, difference.n)
        draw_row(panel, others.index(arm), seeds.to_numpy(), interval, styles[arm])
        words = p_equals(p) if np.isfinite(p) else f"{difference.n} shared seeds"
        panel.text(1.02, others.index(arm), words, transform=panel.get_yaxis_transform(), va="center", fontsize=7)
        labels = {"facet": facet, "arm": arm, "minus": study.baseline}
        numbers.append({**labels, **interval._asdict(), "holm_p": p, "seeds": by_seed(seeds)})
    for panel in grid.values():
        panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        name_rows(panel, others)
        panel.margins(x=0.1)
    figure.supxlabel(f"final accuracy minus that of {arm_label(study, study.baseline)}", fontsize=7.5)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed. p: paired t-test of no difference,"
        f" adjusted by Holm over all {len(pairs)} comparisons of this figure."
    )
    statistic = "mean over shared seeds, 95% t-interval (not adjusted); dots are seeds"
    return Drawing(figure, caption, statistic, numbers)


def draw_improvement(study: Study) -> Drawing:
    """For every other arm the probability that one of its runs beats a run of the baseline, averaged over tasks."""
    groups = pools(study)
    lacks = [_lack_of_pairs(pool, study) for pool in groups]
    if all(lacks):
        raise NotDrawnError(lacks[0])
    figure, grid = panel_grid([""], [pool.title for pool in groups], height=0.3 + 0.2 * len(study.arms))
    styles, numbers = arm_styles(study.arms), list[Series]()
    for panel, pool, lack in zip(grid.values(), groups, lacks, strict=True):
        if lack:
            say(panel, lack)
            numbers.append({"facet": pool.title, "lacks": lack})
            continue
        others = [arm for arm in pool.arms if arm != study.baseline]
        scores = dict(zip(pool.arms, pool.scores_ATS, strict=True))
        for place, arm in enumerate(others):
            pair_ATS = np.stack([scores[arm], scores[study.baseline]])
            mean, low, high = map(float, estimated(pair_ATS, probability_of_improvement, REPLICATES))
            interval = Interval(mean, low, high, len(pool.seeds))
            draw_row(panel, place, np.empty(0), interval, styles[arm])
            numbers.append({"facet": pool.title, "arm": arm, "minus": study.baseline, **interval._asdict()})
        name_rows(panel, others)
        panel.axvline(0.5, color=QUIET, linewidth=0.7, linestyle=":")
        panel.set_xlim(-0.02, 1.02)
    label_x(grid, f"P(better than {arm_label(study, study.baseline)})")
    caption = (
        f"Probability that a run of an arm has a higher normalised score {SCORE} than a run of `{study.baseline}` on"
        " the same task, averaged over tasks; a tie is half of one. Runs are compared across seeds. Only seeds that"
        " every arm has on every task."
    )
    return Drawing(figure, caption, interval_note(REPLICATES), numbers)


def _lack_of_pairs(pool: Pool, study: Study) -> str:
    """Why there is nothing, or too little, to compare; empty where there is enough."""
    both = study.baseline in pool.arms and len(pool.arms) > 1
    return pool.lack if both else f"needs runs of {study.baseline} and of another arm"


CURVE_REPLICATES = 2_000  # each gives a whole curve


def draw_profile(study: Study) -> Drawing:
    """Share of the runs of all tasks whose normalised score is above a threshold, against that threshold."""
    groups = pools(study)
    if all(pool.lack for pool in groups):
        raise NotDrawnError(groups[0].lack)
    figure, grid = panel_grid(["runs above the\nthreshold (share)"], [pool.title for pool in groups], height=2.2)
    styles, numbers = arm_styles(study.arms), list[Series]()
    for panel, pool in zip(grid.values(), groups, strict=True):
        if pool.lack:
            say(panel, pool.lack)
            numbers.append({"facet": pool.title, "lacks": pool.lack})
            continue
        x = np.linspace(np.min(pool.scores_ATS, initial=0.0) - 0.02, np.max(pool.scores_ATS, initial=0.0) + 0.02, 81)
        bounds_AX = estimated(pool.scores_ATS, partial(performance_profile, thresholds_X=x), CURVE_REPLICATES)
        for arm, share, low, high in zip(pool.arms, *bounds_AX, strict=True):
            panel.fill_between(x, low, high, color=styles[arm].colour, alpha=0.12, linewidth=0, step="post")
            panel.plot(x, share, color=styles[arm].colour, linestyle=styles[arm].line, drawstyle="steps-post")
            series = {"x": x.tolist(), "mean": share.tolist(), "low": low.tolist(), "high": high.tolist()}
            numbers.append({"facet": pool.title, "arm": arm, **series, "n": [len(pool.seeds)] * len(x)})
    label_x(grid, f"threshold of {SCORE}")
    legend_arms(figure, study, [series["arm"] for series in numbers if "arm" in series])
    caption = (
        f"Share of runs, of all tasks together, whose normalised score {SCORE} is above a threshold: the higher the"
        " curve the better. Only seeds that every arm has on every task."
    )
    return Drawing(figure, caption, f"share of runs; band: {interval_note(CURVE_REPLICATES)}", numbers)


_AGGREGATES: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": iqm,
    "mean": lambda scores_TS: scores_TS.mean(axis=(-2, -1)),
    "median": lambda scores_TS: np.median(scores_TS, axis=(-2, -1)),
    "optimality gap\n(less is better)": optimality_gap,
}


def draw_aggregates(study: Study) -> Drawing:
    """Interquartile mean, mean, median and optimality gap of every arm over all tasks, with bootstrap intervals."""
    groups = pools(study)
    if all(pool.lack for pool in groups):
        raise NotDrawnError(groups[0].lack)
    titles = [pool.title for pool in groups]
    figure, grid = panel_grid(titles, list(_AGGREGATES), height=0.6 + 0.17 * len(study.arms))
    styles, numbers = arm_styles(study.arms), list[Series]()
    for pool in groups:
        if pool.lack:
            say(grid[pool.title, "mean"], pool.lack)
            numbers.append({"facet": pool.title, "lacks": pool.lack})
            continue
        for name, statistic in _AGGREGATES.items():
            panel = grid[pool.title, name]
            bounds_A = estimated(pool.scores_ATS, statistic, REPLICATES)
            for place, (arm, mean, low, high) in enumerate(zip(pool.arms, *bounds_A, strict=True)):
                interval = Interval(float(mean), float(low), float(high), len(pool.seeds))
                draw_row(panel, place, np.empty(0), interval, styles[arm])
                numbers.append({"metric": name, "facet": pool.title, "arm": arm, **interval._asdict()})
            name_rows(panel, pool.arms)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        " that every arm has on every task."
    )
    return Drawing(figure, caption, interval_note(REPLICATES), numbers)


_STABILITY = {
    "lost": "collapsed, diverged\nor stopped (rate)",
    "drawdown": "drawdown\n(accuracy)",
    "spikes_per_100": "gradient spikes\nper 100 rollout steps",
    "ratio_max": "largest\ntoken ratio",
    "entropy_drop": "entropy drop\n(nat)",
}


def draw_stability_summary(study: Study) -> Drawing:
    """Collapse rate, drawdown, gradient spikes, largest ratio and entropy drop of every arm, one row per facet."""
    table = stability_table(study)
    facets = study.facets or [""]
    figure, grid = panel_grid(facets, list(_STABILITY.values()), height=0.35 + 0.17 * len(study.arms))
    numbers: list[Series] = []
    for facet in facets:
        here = table[table["facet"] == facet]
        for quantity, label in _STABILITY.items():
            numbers += _draw_quantity(grid[facet, label], here, quantity, study, facet)
        grid[facet, _STABILITY["lost"]].set_ylabel(facet.replace("/", "\n"))
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def _draw_quantity(panel: Axes, table: pd.DataFrame, quantity: str, study: Study, facet: str) -> list[Series]:
    styles, numbers = arm_styles(study.arms), []
    for place, arm in enumerate(study.arms):
        runs = table[table["arm"] == arm]
        values = runs[quantity].to_numpy(dtype=np.float64)
        if quantity == "lost":
            interval = wilson(int(values.sum()), len(values))
        elif quantity == "ratio_max":
            interval = geometric_interval(values)
        else:
            interval = mean_interval(study, quantity, values)
        draw_row(panel, place, values[:0] if quantity == "lost" else values, interval, styles[arm])
        seeds = dict(zip((int(seed) for seed in runs["seed"]), values.tolist(), strict=True))
        labels = {"metric": quantity, "facet": facet, "arm": arm}
        numbers.append({**labels, **interval._asdict(), "seeds": seeds})
    name_rows(panel, study.arms)
    if quantity == "lost":
        panel.set_xlim(-0.04, 1.04)
    elif quantity == "ratio_max":
        log_axis(panel, "x")
        low, high = panel.get_xlim()
        panel.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 30 * low else (1, 2, 3, 5)))  # a narrow panel
    elif quantity in ("drawdown", "spikes_per_100"):  # nothing lies below 0
        tops = [other.dataLim.xmax for other in panel.get_shared_x_axes().get_siblings(panel)]
        top = max((top for top in tops if np.isfinite(top) and top > 0), default=1.0)
        panel.set_xlim(-0.04 * top, 1.06 * top)
    return numbers


FULL = "full"


def draw_ladder(study: Study) -> Drawing:
    """Final accuracy of every rung with its paired difference to the rung that it changes."""
    rungs = steps(study.arms, study.baseline)
    if not rungs:
        raise NotDrawnError(
            f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"
        )
    figure, grid = panel_grid(["final accuracy"], study.facets, height=2.3)
    scores, styles = measure(study, "final_score"), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        for place, (arm, before) in enumerate(rungs.items()):
            scores_S, before_S = at(scores, facet, arm), at(scores, facet, before) if before else None
            interval = mean_interval(study, "final_score", scores_S)
            series = _draw_bar(panel, place, scores_S, before_S, interval, styles[arm])
            numbers.append({"metric": "final_score", "facet": facet, "arm": arm, "minus": before, **series})
        panel.set_xticks(range(len(rungs)), list(rungs), rotation=35, ha="right", rotation_mode="anchor")
        panel.grid(axis="x", visible=False)
        full_S, names = at(scores, facet, FULL), list(rungs)
        if len(full_S):
            panel.axhline(full_S.mean(), color=QUIET, linewidth=0.7, linestyle=":")
        if FULL in names and names[-1] != FULL:  # where leaving out begins
            panel.axvline(names.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
    tops = [panel.dataLim.ymax for panel in grid.values() if np.isfinite(panel.dataLim.ymax)]
    for panel in grid.values():
        panel.set_ylim(0, 1.08 * max(tops, default=1.0))  # the differences stand above the intervals
    caption = (
        f"Final accuracy from `{study.baseline}` on, each + adding one change to the arm before it, and (right of the"
        f" line) with one change left out of `{FULL}`. Above each bar the mean difference to the arm before, or to"
        f" `{FULL}`, seed by seed; bold where its 95% t-interval leaves out 0 (not adjusted)."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def steps(arms: list[str], baseline: str) -> dict[str, str | None]:
    """Each rung with the arm that it is compared with: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added, [None, *added], strict=False)) | dict.fromkeys(left_out, FULL)


def _draw_bar(
    panel: Axes, place: int, scores_S: pd.Series, before_S: pd.Series | None, interval: Interval, style: ArmStyle
) -> Series:
    """The mean with its interval, seeds as dots, and above them the paired difference to the arm before."""
    if scores_S.empty:
        return {}
    panel.bar(place, interval.mean, width=0.7, color=style.colour, alpha=0.6, linewidth=0)
    panel.plot(np.full(len(scores_S), place - 0.15), scores_S, ".", color="black", markersize=3)
    panel.vlines(place, interval.low, interval.high, color="black", linewidth=0.8)
    if before_S is None:
        return {**interval._asdict(), "seeds": by_seed(scores_S)}
    step = paired_difference(scores_S, before_S)
    sure = step.low > 0 or step.high < 0
    height = max(scores_S.max(), interval.high) if np.isfinite(interval.high) else scores_S.max()
    words = f"{step.effect:+.3f}" if step.effect else "0"
    panel.annotate(
        words, (place, height), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
        fontsize=6, fontweight="bold" if sure else "normal", color="black" if sure else QUIET,
    )  # fmt: skip
    step_bounds = {"step": step.effect, "step_low": step.low, "step_high": step.high}
    return {**interval._asdict(), **step_bounds, "seeds": by_seed(scores_S)}
