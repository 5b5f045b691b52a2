"""Figures that compare arms: paired differences, aggregates over tasks, stability, and the ladder of changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, NotDrawnError, Sheet, arm_label, draw_row, figure
from grpolab.report.load import Study
from grpolab.report.measures import SCORE, Pool, at, difference, estimated, interval_note, mean_interval, measure, pools
from grpolab.report.stability import stability_table
from grpolab.report.statistics import intervals
from grpolab.report.statistics.intervals import REPLICATES, Interval
from grpolab.report.statistics.tests import wilson
from grpolab.report.style import QUIET
from grpolab.report.text import estimate

UNPAIRED = "difference of means over seeds, 95% interval of Welch: a description, not corrected"
DESCRIPTION = "mean over shared seeds, 95% t-interval: a description, not corrected; dots are seeds"


@figure("F27", "final_accuracy", "Final accuracy of every arm minus the baseline's, paired by seed")
def draw_forest(study: Study) -> Drawing:
    others, baseline = [arm for arm in study.arms if arm != study.baseline], arm_label(study, study.baseline)
    if not others:
        raise NotDrawnError(f"needs an arm beside {baseline}")
    sheet = _differences(study, dict.fromkeys(others, study.baseline))
    sheet.figure.supxlabel(f"final {study.score_name} minus that of {baseline}", fontsize=7.5)
    if not study.is_paired:
        return sheet.drawing(f"Mean final {study.score_name} minus that of `{study.baseline}`, unpaired.", UNPAIRED)
    caption = f"Final {study.score_name} minus that of `{study.baseline}` with the same seed."
    return sheet.drawing(caption, DESCRIPTION)


def _differences(study: Study, pairs: dict[str, str]) -> Sheet:
    """A row for each pair of arms: final accuracy of the first minus that of the second, by seed."""
    sheet, scores = Sheet(study, [""], height=0.5 + 0.2 * len(pairs)), measure(study, "final_score")
    for (_, facet), panel in sheet.grid.items():
        for place, (arm, other) in enumerate(pairs.items()):
            difference_S = (at(scores, facet, arm) - at(scores, facet, other)).dropna()
            interval = intervals.t_interval(difference_S)
            if not study.is_paired:  # what two runs with one number differ by says nothing
                unpaired, difference_S = difference(study, scores, facet, arm, other), difference_S[:0]
                interval = Interval(unpaired.effect, unpaired.low, unpaired.high, unpaired.n)
            draw_row(panel, place, difference_S.to_numpy(), interval, sheet.styles[arm])
            series = {**interval._asdict(), "seeds": panels.by_seed(difference_S)}
            sheet.add(series, metric="final_score", facet=facet, arm=arm, minus=other)
        panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        sheet.name_rows(panel, list(pairs))
        panel.margins(x=0.1)
        panel.locator_params(axis="x", nbins=5)
    return sheet


def _pools(study: Study, against_baseline: bool = False) -> dict[Pool, str]:
    """Groups of runs over whose tasks scores are averaged: why not, where they must not be, else nothing.

    Raises NotDrawnError where none may be.
    """
    lacks = {pool: pool.lack for pool in pools(study)}
    for pool in lacks if against_baseline else ():
        if study.baseline not in pool.arms or len(pool.arms) == 1:
            lacks[pool] = f"needs runs of {study.baseline} and of another arm"
    if all(lacks.values()):
        raise NotDrawnError(next(iter(lacks.values())))
    return lacks


@figure("F23", "probability_of_improvement", "Probability that an arm's run beats the baseline's")
def draw_improvement(study: Study) -> Drawing:
    groups = _pools(study, against_baseline=True)
    sheet = Sheet(study, [""], [pool.title for pool in groups], height=0.3 + 0.2 * len(study.arms))
    for panel, (pool, lack) in zip(sheet.panels, groups.items(), strict=True):
        if lack:
            sheet.say(panel, lack, facet=pool.title)
            continue
        others = [arm for arm in pool.arms if arm != study.baseline]
        scores = dict(zip(pool.arms, pool.scores_ATS, strict=True))
        for place, arm in enumerate(others):
            pair_ATS = np.stack([scores[arm], scores[study.baseline]])
            mean, low, high = map(float, estimated(pair_ATS, intervals.probability_of_improvement, REPLICATES))
            interval = Interval(mean, low, high, len(pool.seeds))
            draw_row(panel, place, np.empty(0), interval, sheet.styles[arm])
            sheet.add(interval._asdict(), facet=pool.title, arm=arm, minus=study.baseline)
        sheet.name_rows(panel, others)
        panel.axvline(0.5, color=QUIET, linewidth=0.7, linestyle=":")
        panel.set_xlim(-0.02, 1.02)
    panels.label_x(sheet.grid, f"P(better than {arm_label(study, study.baseline)})")
    caption = (
        f"Probability that a run of an arm has a higher normalised score {SCORE} than a run of `{study.baseline}` on"
        " the same task, averaged over tasks; a tie is half of one. Runs are compared across seeds. Only seeds that"
        " every arm has on every task."
    )
    return sheet.drawing(caption, interval_note(REPLICATES))


CURVE_REPLICATES = 2_000  # each gives a whole curve


@figure("F22", "performance_profile", "Performance profiles: share of runs above every score")
def draw_profile(study: Study) -> Drawing:
    groups = _pools(study)
    sheet = Sheet(study, ["runs above the\nthreshold (share)"], [pool.title for pool in groups], height=2.2)
    for panel, (pool, lack) in zip(sheet.panels, groups.items(), strict=True):
        if lack:
            sheet.say(panel, lack, facet=pool.title)
            continue
        x = np.linspace(np.min(pool.scores_ATS, initial=0.0) - 0.02, np.max(pool.scores_ATS, initial=0.0) + 0.02, 81)
        bounds_AX = estimated(pool.scores_ATS, partial(intervals.performance_profile, thresholds_X=x), CURVE_REPLICATES)
        for arm, share, low, high in zip(pool.arms, *bounds_AX, strict=True):
            style = sheet.styles[arm]
            panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, step="post")
            panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
            series = {"x": x.tolist(), "mean": share.tolist(), "low": low.tolist(), "high": high.tolist()}
            sheet.add({**series, "n": [len(pool.seeds)] * len(x)}, facet=pool.title, arm=arm)
    panels.label_x(sheet.grid, f"threshold of {SCORE}")
    sheet.legend(arms=[series["arm"] for series in sheet.numbers if "arm" in series])
    caption = (
        f"Share of runs, of all tasks together, whose normalised score {SCORE} is above a threshold: the higher the"
        " curve the better. Only seeds that every arm has on every task."
    )
    return sheet.drawing(caption, f"share of runs; band: {interval_note(CURVE_REPLICATES)}")


_AGGREGATES: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": intervals.iqm,
    "mean": lambda scores_TS: scores_TS.mean(axis=(-2, -1)),
    "median": lambda scores_TS: np.median(scores_TS, axis=(-2, -1)),
    "optimality gap\n(less is better)": intervals.optimality_gap,
}


@figure("F21", "aggregate_scores", "Aggregate scores over tasks: IQM, mean, median, optimality gap")
def draw_aggregates(study: Study) -> Drawing:
    groups = _pools(study)
    sheet = Sheet(study, [pool.title for pool in groups], list(_AGGREGATES), height=0.6 + 0.17 * len(study.arms))
    said = list[str]()
    for pool, lack in groups.items():
        if lack:
            sheet.say(sheet.grid[pool.title, "mean"], lack, facet=pool.title)
            continue
        for name, statistic in _AGGREGATES.items():
            panel = sheet.grid[pool.title, name]
            bounds_A = estimated(pool.scores_ATS, statistic, REPLICATES)
            for place, (arm, mean, low, high) in enumerate(zip(pool.arms, *bounds_A, strict=True)):
                interval = Interval(float(mean), float(low), float(high), len(pool.seeds))
                draw_row(panel, place, np.empty(0), interval, sheet.styles[arm])
                sheet.add(interval._asdict(), metric=name, facet=pool.title, arm=arm)
                if statistic is intervals.iqm:
                    where = f", {pool.title}" if pool.title else ""
                    said.append(f"`{arm}`{where} {estimate(*interval[:3])}")
            sheet.name_rows(panel, pool.arms)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        f" that every arm has on every task. Interquartile means: {'; '.join(said)}."
    )
    return sheet.drawing(caption, interval_note(REPLICATES))


@figure("F26", "stability", "Stability of every arm: collapses, drawdown, spikes, largest ratio, entropy lost")
def draw_stability_summary(study: Study) -> Drawing:
    columns = {
        "lost": "collapsed, diverged\nor stopped (rate)",
        "drawdown": "drawdown\n(accuracy)",
        "spikes_per_100": "gradient spikes\nper 100 rollout steps",
        "ratio_max": "largest\ntoken ratio",
        "entropy_drop": "entropy drop\n(nat)",
    }
    table = stability_table(study)
    never = {quantity for quantity in ("drawdown", "spikes_per_100") if not (table[quantity] > 0).any()}
    shown = {title: quantity for quantity, title in columns.items() if quantity not in never}
    sheet = Sheet(study, study.facets, list(shown), height=0.35 + 0.17 * len(study.arms))
    for (facet, column), panel in sheet.grid.items():
        quantity = shown[column]
        for place, arm in enumerate(study.arms):
            runs = table[(table["facet"] == facet) & (table["arm"] == arm)].set_index("seed")
            values = runs[quantity].to_numpy(dtype=np.float64)
            if quantity == "lost":
                interval = wilson(int(values.sum()), len(values))
            elif quantity == "ratio_max":
                interval = intervals.geometric_interval(values)
            else:
                interval = mean_interval(study, quantity, values)
            draw_row(panel, place, values[:0] if quantity == "lost" else values, interval, sheet.styles[arm])
            series = {**interval._asdict(), "seeds": panels.by_seed(runs[quantity])}
            sheet.add(series, metric=quantity, facet=facet, arm=arm)
        sheet.name_rows(panel, study.arms)
        if quantity == "lost":
            panel.set_ylabel(facet.replace("/", "\n"))
            panel.set_xlim(-0.04, 1.04)
    for (_, column), panel in sheet.grid.items():
        if shown[column] == "ratio_max":
            panels.log_axis(panel, "x")
        elif shown[column] in ("drawdown", "spikes_per_100"):  # nothing lies below 0
            top = max(other.dataLim.xmax for other in panel.get_shared_x_axes().get_siblings(panel))
            panel.set_xlim(-0.04 * top, 1.06 * top)
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    if never:
        words = " and ".join(columns[quantity].split("\n")[0] for quantity in columns if quantity in never)
        caption += f" Left out, because no run has any: {words}."
    return sheet.drawing(caption, MEAN_DOTS)


FULL = "full"


@figure("F28", "each_change", "Ladder: what one change after the other brings, and each left out")
def draw_ladder(study: Study) -> Drawing:
    rungs = steps(study.arms, study.baseline)
    if not rungs:
        raise NotDrawnError(
            f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"
        )
    sheet, names = _differences(study, rungs), list(rungs)
    for panel in sheet.panels if FULL in names and names[-1] != FULL else ():  # where leaving out begins
        panel.axhline(names.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
    sheet.figure.supxlabel("final accuracy minus that of the arm that is changed", fontsize=7.5)
    caption = (
        f"What each change does to the final accuracy, seed by seed: from `{study.baseline}` on each + is added to the"
        f" arm above it, and below the line one change is left out of `{FULL}`."
    )
    return sheet.drawing(caption, DESCRIPTION)


def steps(arms: list[str], baseline: str) -> dict[str, str]:
    """Each rung with the arm that it changes: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added[1:], added, strict=False)) | dict.fromkeys(left_out, FULL)
