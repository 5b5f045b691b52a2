"""Figures that compare arms: paired differences, aggregates over tasks, stability, and the ladder of changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, NotDrawnError, Sheet, arm_label, draw_row, figure
from grpolab.report.load import Study
from grpolab.report.measures import SCORE, Pool, at, estimated, interval_note, mean_interval, measure, pools
from grpolab.report.stability import stability_table
from grpolab.report.statistics import intervals
from grpolab.report.statistics.intervals import REPLICATES, Interval
from grpolab.report.statistics.tests import holm, paired_difference, wilson
from grpolab.report.style import QUIET
from grpolab.report.text import p_equals


@figure("F27", "Differences of every arm to the baseline, paired by seed")
def draw_forest(study: Study) -> Drawing:
    others, baseline = [arm for arm in study.arms if arm != study.baseline], arm_label(study, study.baseline)
    if not others:
        raise NotDrawnError(f"needs an arm beside {baseline}")
    sheet = Sheet(study, [""], height=0.5 + 0.2 * len(others))
    scores = measure(study, "final_score")
    pairs = [(facet, arm) for facet in study.facets for arm in others]
    differences = [paired_difference(at(scores, f, arm), at(scores, f, study.baseline)) for f, arm in pairs]
    adjusted = holm([difference.p for difference in differences])
    for (facet, arm), difference, p in zip(pairs, differences, adjusted, strict=True):
        panel, place = sheet.grid["", facet], others.index(arm)
        difference_S = (at(scores, facet, arm) - at(scores, facet, study.baseline)).dropna()
        interval = Interval(difference.effect, difference.low, difference.high, difference.n)
        draw_row(panel, place, difference_S.to_numpy(), interval, sheet.styles[arm])
        words = p_equals(p) if np.isfinite(p) else f"{difference.n} shared seeds"
        panel.text(1.02, place, words, transform=panel.get_yaxis_transform(), va="center", fontsize=7)
        series = {**interval._asdict(), "holm_p": p, "seeds": panels.by_seed(difference_S)}
        sheet.add(series, facet=facet, arm=arm, minus=study.baseline)
    for panel in sheet.panels:
        panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        panels.name_rows(panel, others)
        panel.margins(x=0.1)
    sheet.figure.supxlabel(f"final accuracy minus that of {baseline}", fontsize=7.5)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed. p: paired t-test of no difference,"
        f" adjusted by Holm over all {len(pairs)} comparisons of this figure."
    )
    return sheet.drawing(caption, "mean over shared seeds, 95% t-interval (not adjusted); dots are seeds")


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


def _say_lack(sheet: Sheet, panel: Axes, pool: Pool, lack: str) -> None:
    panels.say(panel, lack)
    sheet.add({"lacks": lack}, facet=pool.title)


@figure("F23", "Probability that an arm's run beats the baseline's")
def draw_improvement(study: Study) -> Drawing:
    groups = _pools(study, against_baseline=True)
    sheet = Sheet(study, [""], [pool.title for pool in groups], height=0.3 + 0.2 * len(study.arms))
    for panel, (pool, lack) in zip(sheet.panels, groups.items(), strict=True):
        if lack:
            _say_lack(sheet, panel, pool, lack)
            continue
        others = [arm for arm in pool.arms if arm != study.baseline]
        scores = dict(zip(pool.arms, pool.scores_ATS, strict=True))
        for place, arm in enumerate(others):
            pair_ATS = np.stack([scores[arm], scores[study.baseline]])
            mean, low, high = map(float, estimated(pair_ATS, intervals.probability_of_improvement, REPLICATES))
            interval = Interval(mean, low, high, len(pool.seeds))
            draw_row(panel, place, np.empty(0), interval, sheet.styles[arm])
            sheet.add(interval._asdict(), facet=pool.title, arm=arm, minus=study.baseline)
        panels.name_rows(panel, others)
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


@figure("F22", "Performance profiles: share of runs above every score")
def draw_profile(study: Study) -> Drawing:
    groups = _pools(study)
    sheet = Sheet(study, ["runs above the\nthreshold (share)"], [pool.title for pool in groups], height=2.2)
    for panel, (pool, lack) in zip(sheet.panels, groups.items(), strict=True):
        if lack:
            _say_lack(sheet, panel, pool, lack)
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


@figure("F21", "Aggregate scores over tasks: IQM, mean, median, optimality gap")
def draw_aggregates(study: Study) -> Drawing:
    groups = _pools(study)
    sheet = Sheet(study, [pool.title for pool in groups], list(_AGGREGATES), height=0.6 + 0.17 * len(study.arms))
    for pool, lack in groups.items():
        if lack:
            _say_lack(sheet, sheet.grid[pool.title, "mean"], pool, lack)
            continue
        for name, statistic in _AGGREGATES.items():
            panel = sheet.grid[pool.title, name]
            bounds_A = estimated(pool.scores_ATS, statistic, REPLICATES)
            for place, (arm, mean, low, high) in enumerate(zip(pool.arms, *bounds_A, strict=True)):
                interval = Interval(float(mean), float(low), float(high), len(pool.seeds))
                draw_row(panel, place, np.empty(0), interval, sheet.styles[arm])
                sheet.add(interval._asdict(), metric=name, facet=pool.title, arm=arm)
            panels.name_rows(panel, pool.arms)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        " that every arm has on every task."
    )
    return sheet.drawing(caption, interval_note(REPLICATES))


@figure("F26", "Stability of every arm: collapses, drawdown, spikes, largest ratio, entropy lost")
def draw_stability_summary(study: Study) -> Drawing:
    columns = {
        "collapsed, diverged\nor stopped (rate)": "lost",
        "drawdown\n(accuracy)": "drawdown",
        "gradient spikes\nper 100 rollout steps": "spikes_per_100",
        "largest\ntoken ratio": "ratio_max",
        "entropy drop\n(nat)": "entropy_drop",
    }
    table = stability_table(study)
    sheet = Sheet(study, study.facets or [""], list(columns), height=0.35 + 0.17 * len(study.arms))
    for (facet, column), panel in sheet.grid.items():
        quantity = columns[column]
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
        panels.name_rows(panel, study.arms)
        if quantity == "lost":
            panel.set_ylabel(facet.replace("/", "\n"))
            panel.set_xlim(-0.04, 1.04)
        elif quantity == "ratio_max":
            panels.log_axis(panel, "x")
            low, high = panel.get_xlim()
            panel.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 30 * low else (1, 2, 3, 5)))  # a narrow panel
        elif quantity in ("drawdown", "spikes_per_100"):  # nothing lies below 0
            tops = [other.dataLim.xmax for other in panel.get_shared_x_axes().get_siblings(panel)]
            top = max((top for top in tops if np.isfinite(top) and top > 0), default=1.0)
            panel.set_xlim(-0.04 * top, 1.06 * top)
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    return sheet.drawing(caption, MEAN_DOTS)


FULL = "full"


@figure("F28", "Ladder: one change after the other, and each left out")
def draw_ladder(study: Study) -> Drawing:
    """Final accuracy of every rung with its paired difference to the rung that it changes."""
    rungs = steps(study.arms, study.baseline)
    if not rungs:
        raise NotDrawnError(
            f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"
        )
    sheet = Sheet(study, ["final accuracy"], height=2.3)
    scores, names = measure(study, "final_score"), list(rungs)
    for (_, facet), panel in sheet.grid.items():
        for place, (arm, before) in enumerate(rungs.items()):
            labels = {"metric": "final_score", "facet": facet, "arm": arm, "minus": before}
            scores_S = at(scores, facet, arm)
            if scores_S.empty:
                sheet.add({}, **labels)
                continue
            interval = mean_interval(study, "final_score", scores_S)
            panel.bar(place, interval.mean, width=0.7, color=sheet.styles[arm].colour, alpha=0.6, linewidth=0)
            panel.plot(np.full(len(scores_S), place - 0.15), scores_S, ".", color="black", markersize=3)
            panel.vlines(place, interval.low, interval.high, color="black", linewidth=0.8)
            series = interval._asdict()
            if before is not None:
                step = paired_difference(scores_S, at(scores, facet, before))
                series |= {"step": step.effect, "step_low": step.low, "step_high": step.high}
                sure = step.low > 0 or step.high < 0
                panel.annotate(
                    f"{step.effect:+.3f}" if step.effect else "0", (place, np.fmax(scores_S.max(), interval.high)),
                    xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=6,
                    fontweight="bold" if sure else "normal", color="black" if sure else QUIET,
                )  # fmt: skip
            sheet.add({**series, "seeds": panels.by_seed(scores_S)}, **labels)
        panel.set_xticks(range(len(rungs)), names, rotation=35, ha="right", rotation_mode="anchor")
        panel.grid(axis="x", visible=False)
        full_S = at(scores, facet, FULL)
        if len(full_S):
            panel.axhline(full_S.mean(), color=QUIET, linewidth=0.7, linestyle=":")
        if FULL in names and names[-1] != FULL:  # where leaving out begins
            panel.axvline(names.index(FULL) + 0.5, color=QUIET, linewidth=0.7)
    tops = [panel.dataLim.ymax for panel in sheet.panels if np.isfinite(panel.dataLim.ymax)]
    for panel in sheet.panels:
        panel.set_ylim(0, 1.08 * max(tops, default=1.0))  # the differences stand above the intervals
    caption = (
        f"Final accuracy from `{study.baseline}` on, each + adding one change to the arm before it, and (right of the"
        f" line) with one change left out of `{FULL}`. Above each bar the mean difference to the arm before, or to"
        f" `{FULL}`, seed by seed; bold where its 95% t-interval leaves out 0 (not adjusted)."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def steps(arms: list[str], baseline: str) -> dict[str, str | None]:
    """Each rung with the arm that it is compared with: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added, [None, *added], strict=False)) | dict.fromkeys(left_out, FULL)
