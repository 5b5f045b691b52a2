"""F27: what every arm gains or loses against the baseline, seed by seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from grpolab.report.figures.panels import (
    MEAN_DOTS,
    arm_label,
    draw_row,
    label_x,
    legend_arms,
    name_rows,
    note_gaps,
    numeric_axes,
    only_says,
    panel_grid,
    say,
)
from grpolab.report.load import Study
from grpolab.report.measures import at, mean_interval, measure
from grpolab.report.sentences import SCORE, Pool, estimated, interval_note, pools
from grpolab.report.statistics.intervals import (
    REPLICATES,
    Interval,
    iqm,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from grpolab.report.statistics.tests import Difference, holm, paired_difference
from grpolab.report.style import NOTE_COLOUR, QUIET, ArmStyle, Manifest, Series, arm_styles, manifest
from grpolab.report.text import number, p_equals


def draw_forest(study: Study) -> tuple[Figure, Manifest]:
    """Paired differences of the final accuracy to the baseline with their intervals and Holm-adjusted p-values."""
    others = [arm for arm in study.arms if arm != study.baseline]
    if not others:
        return only_says(study, "F27", f"needs an arm beside {arm_label(study, study.baseline)}")
    figure, grid = panel_grid([""], study.facets, height=0.5 + 0.2 * len(others))
    scores = measure(study, "final_score")
    pairs = [(facet, arm) for facet in study.facets for arm in others]
    differences = [paired_difference(at(scores, f, arm), at(scores, f, study.baseline)) for f, arm in pairs]
    adjusted = holm([difference.p for difference in differences])
    numbers: list[Series] = []
    for (facet, arm), difference, p in zip(pairs, differences, adjusted, strict=True):
        panel = grid["", facet]
        seeds = (at(scores, facet, arm) - at(scores, facet, study.baseline)).dropna()
        draw_row(panel, others.index(arm), seeds.to_numpy(), _interval(difference), arm_styles(study.arms)[arm])
        _write_p(panel, others.index(arm), difference, p)
        estimate = {"mean": difference.effect, "low": difference.low, "high": difference.high, "n": difference.n}
        values = {int(seed): float(value) for seed, value in seeds.items()}
        numbers.append({"facet": facet, "arm": arm, "minus": study.baseline, **estimate, "holm_p": p, "seeds": values})
    for panel in grid.values():
        panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        name_rows(panel, others)
        panel.margins(x=0.1)
    figure.supxlabel(f"final accuracy minus that of {arm_label(study, study.baseline)}", fontsize=7.5)
    note_gaps(figure, study)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed. p: paired t-test of no difference,"
        f" adjusted by Holm over all {len(pairs)} comparisons of this figure."
    )
    statistic = "mean over shared seeds, 95% t-interval (not adjusted); dots are seeds"
    return figure, manifest(study, "F27", caption, statistic, numbers)


def _interval(difference: Difference) -> Interval:
    return Interval(difference.effect, difference.low, difference.high, difference.n)


def _write_p(panel: Axes, place: int, difference: Difference, p: float) -> None:
    """The adjusted p right of the row; in its place how many seeds there are where they are too few."""
    words = p_equals(p) if np.isfinite(p) else f"{difference.n} shared seeds"
    panel.text(1.02, place, words, transform=panel.get_yaxis_transform(), va="center", fontsize=7)


# ----------------------------------------------------------------------------------------------------------------------
# F23: probability of improvement over the baseline.


def draw_improvement(study: Study) -> tuple[Figure, Manifest]:
    """For every other arm the probability that one of its runs beats a run of the baseline, averaged over tasks."""
    groups = pools(study)
    if all(_lack(pool, study) for pool in groups):
        return only_says(study, "F23", _lack(groups[0], study))
    figure, grid = panel_grid([""], [pool.title for pool in groups], height=0.3 + 0.2 * len(study.arms))
    numbers: list[Series] = []
    for panel, pool in zip(grid.values(), groups, strict=True):
        if lack := _lack(pool, study):
            say(panel, lack)
        numbers += [{"facet": pool.title, "lacks": lack}] if lack else _draw_pool(panel, pool, study)
    label_x(grid, f"P(better than {arm_label(study, study.baseline)})")
    note_gaps(figure, study)
    caption = (
        f"Probability that a run of an arm has a higher normalised score {SCORE} than a run of `{study.baseline}` on"
        " the same task, averaged over tasks; a tie is half of one. Runs are compared across seeds. Only seeds that"
        " every arm has on every task."
    )
    return figure, manifest(study, "F23", caption, interval_note(REPLICATES), numbers)


def _lack(pool: Pool, study: Study) -> str:
    """Why there is nothing, or too little, to compare; empty where there is enough."""
    both = study.baseline in pool.arms and len(pool.arms) > 1
    return pool.lack if both else f"needs runs of {study.baseline} and of another arm"


def _draw_pool(panel: Axes, pool: Pool, study: Study) -> list[Series]:
    """A row for each arm but the baseline."""
    others = [arm for arm in pool.arms if arm != study.baseline]
    styles, numbers = arm_styles(study.arms), []
    scores = dict(zip(pool.arms, pool.scores_ATS, strict=True))
    for place, arm in enumerate(others):
        pair_ATS = np.stack([scores[arm], scores[study.baseline]])
        mean, low, high = (float(x) for x in estimated(pair_ATS, probability_of_improvement, REPLICATES))
        draw_row(panel, place, np.empty(0), Interval(mean, low, high, len(pool.seeds)), styles[arm])
        bounds = {"mean": mean, "low": low, "high": high, "n": len(pool.seeds)}
        numbers.append({"facet": pool.title, "arm": arm, "minus": study.baseline, **bounds})
    name_rows(panel, others)
    panel.axvline(0.5, color=QUIET, linewidth=0.7, linestyle=":")
    panel.set_xlim(-0.02, 1.02)
    return numbers


# ----------------------------------------------------------------------------------------------------------------------
# F22: performance profile, the share of runs that score above each threshold.


CURVE_REPLICATES = 2_000  # each gives a whole curve
_ROW = "runs above the\nthreshold (share)"


def draw_profile(study: Study) -> tuple[Figure, Manifest]:
    """Share of the runs of all tasks whose normalised score is above a threshold, against that threshold."""
    groups = pools(study)
    if all(pool.lack for pool in groups):
        return only_says(study, "F22", groups[0].lack)
    figure, grid = panel_grid([_ROW], [pool.title for pool in groups], height=2.2)
    numbers: list[Series] = []
    for panel, pool in zip(grid.values(), groups, strict=True):
        if pool.lack:
            say(panel, pool.lack)
        numbers += (
            [{"facet": pool.title, "lacks": pool.lack}] if pool.lack else _draw_profile_pool(panel, pool, study.arms)
        )
    label_x(grid, f"threshold of {SCORE}")
    legend_arms(figure, study, [series["arm"] for series in numbers if "arm" in series])
    note_gaps(figure, study)
    caption = (
        f"Share of runs, of all tasks together, whose normalised score {SCORE} is above a threshold: the higher the"
        " curve the better. Only seeds that every arm has on every task."
    )
    return figure, manifest(study, "F22", caption, f"share of runs; band: {interval_note(CURVE_REPLICATES)}", numbers)


def _draw_profile_pool(panel: Axes, pool: Pool, arms: list[str]) -> list[Series]:
    """A curve and its band for each arm."""
    styles, numbers = arm_styles(arms), []
    lowest, highest = (reach(pool.scores_ATS, initial=0.0) for reach in (np.min, np.max))
    x = np.linspace(lowest - 0.02, highest + 0.02, 81)
    bounds_AX = estimated(pool.scores_ATS, partial(performance_profile, thresholds_X=x), CURVE_REPLICATES)
    for arm, share, low, high in zip(pool.arms, *bounds_AX, strict=True):
        style = styles[arm]
        panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, step="post")
        panel.plot(x, share, color=style.colour, linestyle=style.line, drawstyle="steps-post")
        n = [len(pool.seeds)] * len(x)
        series = {"x": x.tolist(), "mean": share.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n}
        numbers.append({"facet": pool.title, "arm": arm, **series})
    return numbers


# ----------------------------------------------------------------------------------------------------------------------
# F21: every arm's score over all tasks as one number, in four ways.


def _mean(scores_TS: NDArray) -> NDArray:
    return scores_TS.mean(axis=(-2, -1))


def _median(scores_TS: NDArray) -> NDArray:
    return np.median(scores_TS, axis=(-2, -1))


_COLUMNS: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": iqm,
    "mean": _mean,
    "median": _median,
    "optimality gap\n(less is better)": optimality_gap,
}


def draw_aggregates(study: Study) -> tuple[Figure, Manifest]:
    """Interquartile mean, mean, median and optimality gap of every arm over all tasks, with bootstrap intervals."""
    groups = {pool.title: pool for pool in pools(study)}
    lacks = [pool.lack for pool in groups.values()]
    if all(lacks):
        return only_says(study, "F21", lacks[0])
    figure, grid = panel_grid(list(groups), list(_COLUMNS), height=0.6 + 0.17 * len(study.arms))
    numbers: list[Series] = []
    for title, pool in groups.items():
        panels = {column: grid[title, column] for column in _COLUMNS}
        if pool.lack:
            say(panels["mean"], pool.lack)
        numbers += (
            [{"facet": title, "lacks": pool.lack}] if pool.lack else _draw_aggregates_pool(panels, pool, study.arms)
        )
    note_gaps(figure, study)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        " that every arm has on every task."
    )
    return figure, manifest(study, "F21", caption, interval_note(REPLICATES), numbers)


def _draw_aggregates_pool(panels: dict[str, Axes], pool: Pool, arms: list[str]) -> list[Series]:
    """Four panels of one pool, a row for each arm."""
    styles, numbers = arm_styles(arms), []
    for name, statistic in _COLUMNS.items():
        values_A, low_A, high_A = estimated(pool.scores_ATS, statistic, REPLICATES)
        for place, arm in enumerate(pool.arms):
            interval = Interval(float(values_A[place]), float(low_A[place]), float(high_A[place]), len(pool.seeds))
            draw_row(panels[name], place, np.empty(0), interval, styles[arm])
            numbers.append({"metric": name, "facet": pool.title, "arm": arm, **interval._asdict()})
        name_rows(panels[name], pool.arms)
    return numbers


# ----------------------------------------------------------------------------------------------------------------------
# F28: changes added one after the other, and each left out of all.


FULL = "full"
_LACK = f"needs arms that are named +x for a change that is added, {FULL} for all of them, -x for one left out"


def draw_ladder(study: Study) -> tuple[Figure, Manifest]:
    """Final accuracy of every rung with its paired difference to the rung that it changes."""
    rungs = steps(study.arms, study.baseline)
    if not rungs:
        return only_says(study, "F28", _LACK)
    figure, grid = panel_grid(["final accuracy"], study.facets, height=2.3)
    scores, styles = measure(study, "final_score"), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        for place, (arm, before) in enumerate(rungs.items()):
            own, other = at(scores, facet, arm), at(scores, facet, before) if before else None
            estimate = mean_interval(study, "final_score", own)
            series = _draw_bar(panel, place, own, other, estimate, styles[arm])
            numbers.append({"metric": "final_score", "facet": facet, "arm": arm, "minus": before, **series})
        panel.set_xticks(range(len(rungs)), list(rungs), rotation=35, ha="right", rotation_mode="anchor")
        panel.grid(axis="x", visible=False)
        _mark_full(panel, at(scores, facet, FULL), list(rungs))
    tops = [panel.dataLim.ymax for panel in grid.values() if np.isfinite(panel.dataLim.ymax)]
    for panel in grid.values():
        panel.set_ylim(0, 1.08 * max(tops, default=1.0))  # the differences stand above the intervals
    note_gaps(figure, study)
    caption = (
        f"Final accuracy from `{study.baseline}` on, each + adding one change to the arm before it, and (right of the"
        f" line) with one change left out of `{FULL}`. Above each bar the mean difference to the arm before, or to"
        f" `{FULL}`, seed by seed; bold where its 95% t-interval leaves out 0 (not adjusted)."
    )
    return figure, manifest(study, "F28", caption, MEAN_DOTS, numbers)


def steps(arms: list[str], baseline: str) -> dict[str, str | None]:
    """Each rung with the arm that it is compared with: the one before, or `full` for one left out; {} for no ladder."""
    added = [baseline, *(arm for arm in arms if arm.startswith("+")), *(arm for arm in arms if arm == FULL)]
    left_out = [arm for arm in arms if arm.startswith("-") and FULL in arms]
    if len(added) == 1 or len(added) + len(left_out) < 3:
        return {}
    return dict(zip(added, [None, *added], strict=False)) | dict.fromkeys(left_out, FULL)


def _draw_bar(
    panel: Axes, place: int, own_S: pd.Series, other_S: pd.Series | None, estimate: Interval, style: ArmStyle
) -> Series:
    """The mean with its interval, seeds as dots, and above them the paired difference."""
    if own_S.empty:
        return {}
    mean, low, high, n = estimate
    panel.bar(place, mean, width=0.7, color=style.colour, alpha=0.6, linewidth=0)
    panel.plot(np.full(len(own_S), place - 0.15), own_S, ".", color="black", markersize=3)
    panel.vlines(place, low, high, color="black", linewidth=0.8)
    series: Series = {"mean": mean, "low": low, "high": high, "n": n}
    seeds = {int(seed): float(value) for seed, value in own_S.items()}
    if other_S is None:
        return {**series, "seeds": seeds}
    step = paired_difference(own_S, other_S)
    sure = step.low > 0 or step.high < 0
    height = max(own_S.max(), high) if np.isfinite(high) else own_S.max()
    words = f"{step.effect:+.3f}" if step.effect else "0"
    panel.annotate(
        words, (place, height), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
        fontsize=6, fontweight="bold" if sure else "normal", color="black" if sure else QUIET,
    )  # fmt: skip
    return {**series, "step": step.effect, "step_low": step.low, "step_high": step.high, "seeds": seeds}


def _mark_full(panel: Axes, full_S: pd.Series, rungs: list[str]) -> None:
    """The height of `full`, and where leaving out begins."""
    if len(full_S):
        panel.axhline(full_S.mean(), color=QUIET, linewidth=0.7, linestyle=":")
    if FULL in rungs and rungs[-1] != FULL:
        panel.axvline(rungs.index(FULL) + 0.5, color=QUIET, linewidth=0.7)


# ----------------------------------------------------------------------------------------------------------------------
# F13: final entropy, final accuracy and drift over the two settings that a study moves.


_PALE = "#e8b9be"  # behind the word `missing`
# Quantity of the stability table -> row.
_QUANTITIES = {
    "entropy_last": "final entropy (nat per token)",
    "final_score": "final accuracy",
    "kl_old": "KL(old || new) of a batch (nat)",
}


def draw_factor_map(study: Study) -> tuple[Figure, Manifest]:
    """A map of each quantity over the first two factors that move a number; what other factors do stands apart."""
    axes = dict(list(numeric_axes(study).items())[:2])
    if len(axes) < 2:
        return only_says(study, "F13", f"two factors must move a number each; here: {', '.join(axes) or 'none'}")
    parts, (y, x) = _split(study, list(axes)), axes.values()
    rows = {quantity: f"{text}\n{y.removeprefix('setting/')}" for quantity, text in _QUANTITIES.items()}
    figure, grid = panel_grid(list(rows.values()), list(parts), height=2.1, share_x=False, share_y=False)
    numbers: list[Series] = []
    for quantity, row in rows.items():
        values = measure(study, quantity).rename("value").reset_index()
        for title, cells in parts.items():
            series = _draw_map(grid[row, title], cells.merge(values, on=["facet", "arm", "seed"], how="left"), y, x)
            numbers.append({"metric": quantity, "facet": title, **series})
    note_gaps(figure, study)
    caption = (
        "Entropy of the sampling policy over the last tenth of the run, final held-out accuracy, and the KL divergence"
        " of the policy from the one that sampled the batch at the batch's last update (estimator k3, mean over the"
        " run), for each pair of settings, in order of size. Darker is more; hatched: no run has a result."
    )
    return figure, manifest(study, "F13", caption, "mean over seeds (sample standard deviation)", numbers)


def _split(study: Study, axes: list[str]) -> dict[str, pd.DataFrame]:
    """The cells by the levels of the factors that are not on the axes, under those levels' names."""
    within = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in axes]
    if not within:
        return {"": study.cells}
    return {"/".join(levels): cells for levels, cells in study.cells.groupby(within, sort=False)}


def _draw_map(panel: Axes, cells: pd.DataFrame, y: str, x: str) -> Series:
    """Mean (sd) in each cell of y (rows, rising) by x (columns, rising)."""
    by_cell = cells.groupby([y, x])["value"]
    mean_YX, sd_YX, n_YX = (by_cell.agg(how).unstack() for how in ("mean", "std", "count"))
    norm = mpl.colors.Normalize(np.nanmin(mean_YX), np.nanmax(mean_YX)) if n_YX.to_numpy().any() else None
    planned = int(by_cell.size().max())
    for row, column in np.ndindex(mean_YX.shape):
        mean, sd, n = (table.iat[row, column] for table in (mean_YX, sd_YX, n_YX))
        share = float(norm(mean)) if norm and n > 0 else np.nan
        _draw_cell(panel, column, row, share, _words(mean, sd, int(n) if n > 0 else 0, planned))
    panel.grid(visible=False)
    for axis, values in ((panel.xaxis, mean_YX.columns), (panel.yaxis, mean_YX.index)):
        axis.set_ticks(range(len(values)), [f"{value:g}".replace("inf", "∞") for value in values])
        axis.set_tick_params(length=0)
    panel.set_xlabel(x.removeprefix("setting/"))
    panel.set(xlim=(-0.5, mean_YX.shape[1] - 0.5), ylim=(-0.5, mean_YX.shape[0] - 0.5))
    tables = {"mean": mean_YX, "sd": sd_YX, "n": n_YX}
    lists = {name: table.to_numpy(dtype=np.float64).tolist() for name, table in tables.items()}
    return {"x": mean_YX.columns.tolist(), "y": mean_YX.index.tolist(), **lists}


def _draw_cell(panel: Axes, x: int, y: int, share: float, words: str) -> None:
    """One square, the darker the greater its share of the panel's range; without a share hatched."""
    missing = np.isnan(share)
    colour = "white" if missing else mpl.colormaps["Blues"](0.08 + 0.72 * share)
    edge, hatch = (_PALE, "//") if missing else ("white", None)
    corner = (x - 0.5, y - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, linewidth=0.6, edgecolor=edge, hatch=hatch))
    ink = NOTE_COLOUR if missing else "white" if share > 0.6 else "black"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if missing else None
    panel.text(x, y, words, ha="center", va="center", fontsize=7, color=ink, bbox=box)


def _words(mean: float, sd: float, n: int, planned: int) -> str:
    """`0.412 (0.021)` in two lines; how many seeds where some are missing."""
    if not n:
        return "missing"
    spread = f"\n({number(sd)})" if n > 1 else ""
    return number(mean) + spread + (f"\nn = {n}" if n < planned else "")
