"""F24: final accuracy against the settings that a factor of the study moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpolab.report.figures.numeric_axis import Axis, draw_along, numeric_axes, split
from grpolab.report.figures.panels import MEAN_DOTS, legend_arms, note_gaps, only_says, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import by_cell, is_share
from grpolab.report.style import ArmStyle, arm_styles

_ROW = "final accuracy"


def draw(study: Study) -> tuple[Figure, Manifest]:
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
        lines = _draw_panel(panel, frame, setting, study)
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


def _draw_panel(panel: Axes, scores: pd.DataFrame, setting: str, study: Study) -> list[Series]:
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
