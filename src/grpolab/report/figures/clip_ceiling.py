"""F3: how much each arm clips, on a log scale, against what it could clip at most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from grpolab.report.figures.panels import MEAN_DOTS, Grid, name_arms, note_gaps, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import at, clip_ceiling, run_means
from grpolab.report.statistics import share_interval
from grpolab.report.style import QUIET, ArmStyle, arm_styles

_ROW = "clipped tokens (share)"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """The run's mean clip fraction as a point with its interval, seeds as dots, and the ceiling as a line above."""
    figure, grid = panel_grid([_ROW], study.facets, height=2.1)
    clip, ceiling, styles = run_means(study, "clip/active"), clip_ceiling(study), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        name_arms(panel, study.arms)
        for place, arm in enumerate(study.arms):
            series = _draw_arm(panel, place, at(clip, facet, arm), at(ceiling, facet, arm), styles[arm])
            numbers.append({"metric": "clip/active", "facet": facet, "arm": arm, **series})
    _set_range(grid, numbers)
    handles = [
        Line2D([], [], color="0.3", marker="o", linestyle="", label="clipped"),
        Line2D([], [], color=QUIET, linewidth=2, label="ceiling"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    note_gaps(figure, study)
    caption = (
        "Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean"
        " over all optimiser steps, on a log scale: points, for a log scale has no zero from which a bar could rise."
        " Grey line: the ceiling, (1 - share of zero-variance groups)(1 - 1/updates per batch). 0 is written out."
    )
    return figure, manifest(study, "F3", caption, MEAN_DOTS, numbers)


def _set_range(grid: Grid, numbers: Sequence[Series]) -> None:
    """From below the smallest seed or interval to 1."""
    drawn = [value for series in numbers for value in (*series.get("seeds", {}).values(), series.get("low", 0.0))]
    lowest = min((value for value in drawn if value > 0), default=0.1)
    for panel in grid.values():
        panel.set_ylim(lowest / 1.6, 1.05)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.yaxis.set_minor_formatter(NullFormatter())


def _draw_arm(panel: Axes, place: int, clip_S: pd.Series, ceiling_S: pd.Series, style: ArmStyle) -> Series:
    if clip_S.empty:
        return {}
    clip, ceiling = share_interval(clip_S), share_interval(ceiling_S)
    if ceiling.mean > 0:
        panel.hlines(ceiling.mean, place - 0.35, place + 0.35, color=QUIET, linewidth=2)
    if clip.mean > 0:
        panel.vlines(place, clip.low, clip.high, color=style.colour, linewidth=1)
        panel.plot(place, clip.mean, style.marker, color=style.colour, markersize=5)
        panel.plot(np.full(len(clip_S), place - 0.22), clip_S, ".", color=style.colour, alpha=0.6, markersize=3)
    else:
        panel.annotate("0", (place, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    return {
        **{"mean": clip.mean, "low": clip.low, "high": clip.high, "n": clip.n, "ceiling": ceiling.mean},
        "seeds": {int(seed): float(value) for seed, value in clip_S.items()},
    }
