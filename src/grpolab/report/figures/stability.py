"""F26: stability of every arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from grpolab.report.figures.panels import (
    MEAN_DOTS,
    Axis,
    draw_along,
    draw_row,
    legend_arms,
    log_axis,
    name_rows,
    note_gaps,
    numeric_axes,
    only_says,
    panel_grid,
    split,
)
from grpolab.report.load import Study
from grpolab.report.measures import by_cell, is_share, mean_interval
from grpolab.report.stability import stability_table
from grpolab.report.statistics.intervals import Interval, t_interval
from grpolab.report.statistics.tests import wilson
from grpolab.report.style import ArmStyle, Manifest, Series, arm_styles, manifest


@dataclass(frozen=True)
class _Quantity:
    label: str
    metric: str
    rate: bool = False
    log: bool = False


_FROM_ZERO = ("drawdown", "spikes_per_100")  # nothing lies below 0
_QUANTITIES = [
    _Quantity("collapsed, diverged\nor stopped (rate)", "lost", rate=True),
    _Quantity("drawdown\n(accuracy)", "drawdown"),
    _Quantity("gradient spikes\nper 100 rollout steps", "spikes_per_100"),
    _Quantity("largest\ntoken ratio", "ratio_max", log=True),
    _Quantity("entropy drop\n(nat)", "entropy_drop"),
]


def draw_stability_summary(study: Study) -> tuple[Figure, Manifest]:
    """Collapse rate, drawdown, gradient spikes, largest ratio and entropy drop of every arm, one row per facet."""
    table = stability_table(study)
    height = 0.35 + 0.17 * len(study.arms)
    facets = study.facets or [""]
    figure, grid = panel_grid(facets, [q.label for q in _QUANTITIES], height=height, share_y=True)
    numbers: list[Series] = []
    for facet in facets:
        for quantity in _QUANTITIES:
            here = table[table["facet"] == facet]
            numbers += _draw_panel(grid[facet, quantity.label], here, quantity, study, facet)
        grid[facet, _QUANTITIES[0].label].set_ylabel(facet.replace("/", "\n"))
    note_gaps(figure, study)
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    return figure, manifest(study, "F26", caption, MEAN_DOTS, numbers)


def _draw_panel(panel: Axes, table: pd.DataFrame, quantity: _Quantity, study: Study, facet: str) -> list[Series]:
    arms, numbers = study.arms, []
    styles = arm_styles(arms)
    for place, arm in enumerate(arms):
        runs = table[table["arm"] == arm]
        values = runs[quantity.metric].to_numpy(dtype=np.float64)
        interval = _interval(study, values, quantity)
        draw_row(panel, place, values[:0] if quantity.rate else values, interval, styles[arm])
        seeds = dict(zip((int(seed) for seed in runs["seed"]), values.tolist(), strict=True))
        estimate = {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n}
        numbers.append({"metric": quantity.metric, "facet": facet, "arm": arm, **estimate, "seeds": seeds})
    name_rows(panel, arms)
    if quantity.rate:
        panel.set_xlim(-0.04, 1.04)
    elif quantity.log:
        log_axis(panel, "x")
        low, high = panel.get_xlim()
        panel.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 30 * low else (1, 2, 3, 5)))  # a narrow panel
    elif quantity.metric in _FROM_ZERO:
        tops = [other.dataLim.xmax for other in panel.get_shared_x_axes().get_siblings(panel)]
        top = max((top for top in tops if np.isfinite(top) and top > 0), default=1.0)
        panel.set_xlim(-0.04 * top, 1.06 * top)
    return numbers


def _interval(study: Study, values: np.ndarray, quantity: _Quantity) -> Interval:
    """Wilson's interval of a rate; else that of a mean, of the logarithms where the axis is logarithmic."""
    if quantity.rate:
        return wilson(int(values.sum()), len(values))
    if quantity.log:
        mean, low, high, n = t_interval(np.log(values))
        return Interval(float(np.exp(mean)), float(np.exp(low)), float(np.exp(high)), n)
    return mean_interval(study, quantity.metric, values)


# ----------------------------------------------------------------------------------------------------------------------
# F24: final accuracy against the settings that a factor of the study moves.


_ROW = "final accuracy"


def draw_sensitivity(study: Study) -> tuple[Figure, Manifest]:
    """Final accuracy along each numeric axis of the study, one line per arm; one line where the arms are the axis."""
    scores = study.cells.assign(score=by_cell(study, "final_score"))
    panels = {
        (setting, title): frame
        for factor, setting in numeric_axes(study).items()
        for title, frame in split(scores, study, factor)
    }
    if not panels:
        return only_says(study, "F24", "needs a factor that moves nothing but a number")
    figure, grid = panel_grid([_ROW], [title for _, title in panels], height=2.0, share_x=False)
    numbers: list[Series] = []
    for panel, ((setting, title), frame) in zip(grid.values(), panels.items(), strict=False):
        lines = _draw_sensitivity_panel(panel, frame, setting, study)
        numbers += [{"setting": setting, "facet": title, **series} for series in lines]
    best = Line2D([], [], color="black", marker="*", linestyle="", markersize=8, label="best mean of the arm")
    legend_arms(figure, study, [series["arm"] for series in numbers], [best])
    note_gaps(figure, study)
    caption = (
        "Final accuracy against each setting that a factor moves: evenly spaced, in order of size, or on a log scale"
        " where the values span decades (∞ stands beyond the largest). Shaded: one standard deviation of the seeds. A"
        " star marks the value with the best mean of each arm; picked on these runs, it is biased upwards."
    )
    return figure, manifest(study, "F24", caption, MEAN_DOTS, numbers)


def _draw_sensitivity_panel(panel: Axes, scores: pd.DataFrame, setting: str, study: Study) -> list[Series]:
    """A line for each arm; one for all where each arm has one value of the setting."""
    axis = Axis(sorted(scores[setting].unique()), setting.removeprefix("setting/"))
    one_line = scores.groupby("arm")[setting].nunique().eq(1).all()
    lines = [("all", scores)] if one_line else list(scores.groupby("arm", sort=False))
    styles, share, numbers = arm_styles(study.arms), is_share(study, "final_score"), []
    for place, (arm, own) in enumerate(lines):
        style, shift = styles.get(arm, ArmStyle("black", "-", "o")), 0.06 * (place - (len(lines) - 1) / 2)
        series = draw_along(panel, axis, own, (setting, "score"), style, shift, share)
        if series["x"]:
            series["best"] = _shade_and_mark(panel, axis.places(series["x"], shift), series, style, share)
        numbers.append({"arm": arm, **series})
    axis.label(panel)
    return numbers


def _shade_and_mark(panel: Axes, places: Sequence[float], series: Series, style: ArmStyle, share: bool) -> float:
    """The seeds' spread as a band (of a share: between 0 and 1), and a star at the best mean; the value there."""
    mean = np.array(series["mean"])
    values_SX = np.array(list(series["seeds"].values()))
    counts = np.isfinite(values_SX).sum(axis=0)
    spread = np.full(len(mean), np.nan)
    spread[counts > 1] = np.nanstd(values_SX[:, counts > 1], axis=0, ddof=1)
    low, high = mean - spread, mean + spread
    if share:
        low, high = np.maximum(low, 0), np.minimum(high, 1)
    panel.fill_between(places, low, high, color=style.colour, alpha=0.1, linewidth=0)
    best = int(np.nanargmax(mean))
    panel.plot(places[best], mean[best], "*", color=style.colour, markersize=10, markeredgecolor="white", zorder=3)
    return float(series["x"][best])
