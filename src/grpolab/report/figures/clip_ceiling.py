"""F3: how much each arm clips, on a log scale, against what it could clip at most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from grpolab.report.figures.panels import Grid, note_gaps, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import at, clip_ceiling, run_means
from grpolab.report.statistics import t_interval
from grpolab.report.style import QUIET, ArmStyle, arm_styles

_ROW = "clipped tokens (share)"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Bars of the run's mean clip fraction, seeds as dots, and the ceiling beside each."""
    figure, grid = panel_grid([_ROW], study.facets, height=2.1)
    clip, ceiling, styles = run_means(study, "clip/active"), clip_ceiling(study), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        panel.set_xticks(range(len(study.arms)), study.arms, rotation=35, ha="right", rotation_mode="anchor")
        panel.grid(axis="x", visible=False)
        for place, arm in enumerate(study.arms):
            series = _draw_arm(panel, place, at(clip, facet, arm), at(ceiling, facet, arm), styles[arm])
            numbers.append({"metric": "clip/active", "facet": facet, "arm": arm, **series})
    _set_range(grid, numbers)
    handles = [Patch(facecolor="0.6", label="clipped"), Patch(fill=False, edgecolor=QUIET, label="ceiling")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    note_gaps(figure, study)
    caption = (
        "Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean"
        " over all optimiser steps, on a log scale. Outlined: the ceiling, (1 - share of zero-variance groups)"
        "(1 - 1/updates per batch). 0 is written out."
    )
    return figure, manifest(study, "F3", caption, "mean over seeds, 95% t-interval; dots are seeds", numbers)


def _set_range(grid: Grid, numbers: Sequence[Series]) -> None:
    """From the decade below the smallest seed to 1."""
    seeds = [value for series in numbers for value in series.get("seeds", {}).values() if value > 0]
    for panel in grid.values():
        panel.set_ylim(10 ** np.floor(np.log10(min(seeds, default=0.1))), 1)
        panel.yaxis.set_minor_formatter(NullFormatter())


def _draw_arm(panel: Axes, place: int, clip_S: pd.Series, ceiling_S: pd.Series, style: ArmStyle) -> Series:
    if clip_S.empty:
        return {}
    clip, ceiling = t_interval(clip_S), t_interval(ceiling_S)
    panel.bar(place + 0.2, ceiling.mean, width=0.36, fill=False, edgecolor=QUIET, linewidth=0.8)
    panel.bar(place - 0.2, clip.mean, width=0.36, color=style.colour, alpha=0.75, linewidth=0)
    if clip.mean > 0:
        panel.vlines(place - 0.2, max(clip.low, clip_S.min() / 10), clip.high, color="black", linewidth=0.8)
        panel.plot(np.full(len(clip_S), place - 0.32), clip_S, ".", color="black", markersize=3)
    else:
        panel.annotate("0", (place - 0.2, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    return {
        **{"mean": clip.mean, "low": clip.low, "high": clip.high, "n": clip.n, "ceiling": ceiling.mean},
        "seeds": {int(seed): float(value) for seed, value in clip_S.items()},
    }
