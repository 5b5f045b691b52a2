"""Figures that compare arms: paired differences, aggregates over tasks, time to a threshold, stability, the ladder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, NotDrawnError, Sheet, arm_label
from grpolab.report.load import StudyRuns
from grpolab.report.measures import (
    SCORE,
    at,
    completions_learnt,
    difference,
    mean_interval,
    measure,
    pool_tasks,
    stability_table,
)
from grpolab.report.statistics import intervals
from grpolab.report.statistics.intervals import (
    LEAST_FOR_BOOTSTRAP,
    REPLICATES,
    Interval,
    TooFewError,
    kaplan_meier,
    time_to_threshold,
)
from grpolab.report.statistics.tests import wilson
from grpolab.report.style import QUIET
from grpolab.report.text import estimate, number

UNPAIRED = "difference of means over seeds, 95% interval of Welch: a description, not corrected"
DESCRIPTION = "mean over shared seeds, 95% t-interval: a description, not corrected; dots are seeds"


def draw_final_accuracy(study: StudyRuns) -> Drawing:
    """Draw F27."""
    others, baseline = [arm for arm in study.arms if arm != study.baseline], arm_label(study, study.baseline)
    if not others:
        raise NotDrawnError(f"needs an arm beside {baseline}")
    sheet = _draw_differences(study, dict.fromkeys(others, study.baseline))
    sheet.figure.supxlabel(f"final {study.score_name} minus that of {baseline}", fontsize=7.5)
    if not study.is_paired:
        return sheet.finish(f"Mean final {study.score_name} minus that of `{study.baseline}`, unpaired.", UNPAIRED)
    caption = f"Final {study.score_name} minus that of `{study.baseline}` with the same seed."
    return sheet.finish(caption, DESCRIPTION)


def _draw_differences(study: StudyRuns, pairs: dict[str, str]) -> Sheet:
    """Draw a row for each pair of arms: final accuracy of the first minus that of the second, by seed."""
    sheet, scores = Sheet(study, [""], height=0.5 + 0.2 * len(pairs)), measure(study, "final_score")
    for (_, facet), panel in sheet.grid.items():
        for y, (arm, other) in enumerate(pairs.items()):
            difference_S = (at(scores, facet, arm) - at(scores, facet, other)).dropna()
            interval = intervals.t_interval(difference_S)
            if not study.is_paired:  # the difference of two runs with one number means nothing
                unpaired, difference_S = difference(study, scores, facet, arm, other), difference_S[:0]
                interval = Interval(unpaired.effect, unpaired.low, unpaired.high, unpaired.n)
            labels = {"metric": "final_score", "facet": facet, "minus": other}
            sheet.draw_interval(panel, y, difference_S, interval, arm, **labels)
        panel.axvline(0, color=QUIET, linewidth=0.6, zorder=0)
        sheet.name_rows(panel, list(pairs))
        panel.margins(x=0.1)
        panel.locator_params(axis="x", nbins=5)
    return sheet


_AGGREGATES: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": intervals.iqm,
    "mean": lambda scores_TS: scores_TS.mean(axis=(-2, -1)),
    "median": lambda scores_TS: np.median(scores_TS, axis=(-2, -1)),
    "optimality gap\n(less is better)": intervals.optimality_gap,
}


def draw_aggregate_scores(study: StudyRuns) -> Drawing:
    """Draw F21."""
    groups = pool_tasks(study)
    if all(group.lack for group in groups):
        raise NotDrawnError(groups[0].lack)
    sheet = Sheet(study, [group.title for group in groups], list(_AGGREGATES), height=0.6 + 0.17 * len(study.arms))
    written = list[str]()
    for group in groups:
        if group.lack:
            sheet.write_lack(sheet.grid[group.title, "mean"], group.lack, facet=group.title)
            continue
        for name, statistic in _AGGREGATES.items():
            panel = sheet.grid[group.title, name]
            bounds_A = intervals.estimate_with_bounds(group.scores_ATS, statistic)
            for y, (arm, mean, low, high) in enumerate(zip(group.arms, *bounds_A, strict=True)):
                interval = Interval(float(mean), float(low), float(high), len(group.seeds))
                sheet.draw_interval(panel, y, pd.Series(dtype=float), interval, arm, metric=name, facet=group.title)
                if statistic is intervals.iqm:
                    place = f", {group.title}" if group.title else ""
                    written.append(f"`{arm}`{place} {estimate(*interval[:3])}")
            sheet.name_rows(panel, group.arms)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        f" that every arm has on every task. Interquartile means: {'; '.join(written)}."
    )
    how = (
        f"95% percentile interval of a bootstrap of seeds within tasks, the same seeds for every arm ({REPLICATES:,}"
        f" replicates, generator seed 0), where there are {LEAST_FOR_BOOTSTRAP} runs of each task or more"
    )
    return sheet.finish(caption, how)


def draw_time_to_threshold(study: StudyRuns) -> Drawing:
    """Draw F25: the share of runs that have reached the threshold, by completions learnt from."""
    row = "runs that reached it\n(share)"
    sheet = Sheet(study, [row], height=1.7)
    for facet in study.facets:
        panel, arms = sheet.grid[row, facet], dict(study.by_arm("evaluations", facet))
        threshold = half_gain(arms.get(study.baseline, pd.DataFrame()), study.metric)
        labels = {"by": "completions", "facet": facet, "threshold": threshold}
        panel.set(xlabel=f"completions to a gain of {number(threshold)}", ylim=(-0.03, 1.03))
        if np.isnan(threshold):
            sheet.write_lack(panel, f"{study.baseline} gains nothing: there is no threshold", **labels)
            arms = {}
        for arm, evaluations in arms.items():
            ends = []  # of each run: the time when it reaches the threshold or ends, and whether it reaches it
            for _, unsorted in evaluations.groupby("seed"):
                run = unsorted.sort_values("rollout_step")
                gain = run[study.metric] - run[study.metric].iloc[0]
                ends.append(time_to_threshold(completions_learnt(study, run), gain, threshold))
            times, reached = zip(*ends, strict=True)
            try:
                survival = kaplan_meier(times, reached)
            except TooFewError as lack:
                sheet.write_lack(panel, str(lack), **labels, arm=arm)
                continue
            style = sheet.styles[arm]
            x = [0.0, *survival.time_X.tolist(), max(times)]
            share, low, high = (
                [first, *(1 - values).tolist(), 1 - values[-1]]
                for first, values in ((0.0, survival.share_X), (np.nan, survival.high_X), (np.nan, survival.low_X))
            )
            panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, step="post")
            panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
            series = {"x": x, "mean": share, "low": low, "high": high}
            counts = {"median": survival.median, "n": survival.n, "censored": survival.censored}
            sheet.record({**series, **counts}, **labels, arm=arm)
    sheet.draw_legend()
    caption = (
        f"Share of runs whose held-out accuracy (`{study.metric}`) has risen above their own start by the threshold:"
        f" half of the gain of `{study.baseline}`, from the start of its mean curve to its highest point. By"
        " completions learnt from, as far as evaluations tell; not by seconds, which measure what else the machine was"
        " doing: the runs of a sweep share its cores. Runs that never get there are censored at their planned end."
    )
    return sheet.finish(caption, "Kaplan-Meier estimate, 95% log-log interval")


def half_gain(curves: pd.DataFrame, metric: str) -> float:
    """Return half of the gain of the mean curve over seeds, from its start to its highest point; NaN without a gain."""
    if curves.empty:
        return np.nan
    mean_E = curves.groupby("rollout_step")[metric].mean().sort_index().to_numpy(dtype=np.float64)
    start, highest = float(mean_E[0]), float(mean_E.max())
    return (highest - start) / 2 if highest > start else np.nan


def draw_stability(study: StudyRuns) -> Drawing:
    """Draw F26."""
    columns = {
        "lost": "collapsed, diverged\nor stopped (rate)",
        "drawdown": "drawdown\n(accuracy)",
        "spikes_per_100": "gradient spikes\nper 100 rollout steps",
        "ratio_max": "largest\ntoken ratio",
        "entropy_drop": "entropy drop\n(nat)",
    }
    table = stability_table(study)
    never = [quantity for quantity in ("drawdown", "spikes_per_100") if not (table[quantity] > 0).any()]
    shown = {title: quantity for quantity, title in columns.items() if quantity not in never}
    sheet = Sheet(study, study.facets, list(shown), height=0.35 + 0.17 * len(study.arms))
    for (facet, column), panel in sheet.grid.items():
        quantity = shown[column]
        for y, arm in enumerate(study.arms):
            runs = table[(table["facet"] == facet) & (table["arm"] == arm)].set_index("seed")
            values_S = runs[quantity].astype("float64")
            if quantity == "lost":
                interval = wilson(int(values_S.sum()), len(values_S))
            elif quantity == "ratio_max":
                interval = intervals.geometric_interval(values_S)
            else:
                interval = mean_interval(study, quantity, values_S)
            sheet.draw_interval(panel, y, values_S, interval, arm, metric=quantity, facet=facet)
        sheet.name_rows(panel, study.arms)
        if quantity == "lost":
            panel.set_ylabel(facet.replace("/", "\n"))
            panel.set_xlim(-0.04, 1.04)
    for (_, column), panel in sheet.grid.items():
        if shown[column] == "ratio_max":
            panels.set_log_axis(panel, "x")
        elif shown[column] in ("drawdown", "spikes_per_100"):  # nothing lies below 0
            panel.set_xlim(left=-0.04 * panel.get_xlim()[1])
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    if never:
        words = " and ".join(columns[quantity].split("\n")[0] for quantity in never)
        caption += f" Left out, because no run has any: {words}."
    return sheet.finish(caption, MEAN_DOTS)


FULL = "full"


def draw_each_change(study: StudyRuns) -> Drawing:
    """Draw F28."""
    rungs = ladder_of(study.arms, study.baseline)
    if not rungs:
        raise NotDrawnError(
            f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"
        )
    sheet, names = _draw_differences(study, rungs), list(rungs)
    for panel in sheet.grid.values() if FULL in names and names[-1] != FULL else ():  # where leaving out begins
        panel.axhline(names.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
    sheet.figure.supxlabel("final accuracy minus that of the arm that is changed", fontsize=7.5)
    caption = (
        f"What each change does to the final accuracy, seed by seed: from `{study.baseline}` on each + is added to the"
        f" arm above it, and below the line one change is left out of `{FULL}`."
    )
    return sheet.finish(caption, DESCRIPTION)


def ladder_of(arms: list[str], baseline: str) -> dict[str, str]:
    """Return each rung with the arm that it changes: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added[1:], added, strict=False)) | dict.fromkeys(left_out, FULL)
