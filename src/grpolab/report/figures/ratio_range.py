"""F6: the smallest and the largest ratio of every rollout step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import label_x, legend_arms, log_axis, note_gaps, panel_grid, pivot_seeds
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import QUIET, ArmStyle, arm_styles
from grpolab.vocabulary import LEVELS


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Smallest and largest token and sequence ratio over the updates of each rollout step, on a log scale."""
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    figure, grid = panel_grid(list(rows), study.facets, height=1.9)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            for end in ("min", "max"):
                metric = f"ratio/{rows[row]}_{end}"
                series = _draw_end(panel, pivot_seeds(updates, "rollout_step", metric, end), styles[arm])
                numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
        log_axis(panel, "y")
    label_x(grid, "rollout steps")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),"
        " over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest."
    )
    return figure, manifest(
        study, "F6", caption, "median over seeds; band from the least to the greatest seed", numbers
    )


def _draw_end(panel: Axes, values_XS: pd.DataFrame, style: ArmStyle) -> Series:
    """The median over seeds as a line, to which the axis is scaled, in a band from the least to the greatest seed."""
    if values_XS.empty:
        return {"x": []}
    x, low, high = values_XS.index.to_numpy(), values_XS.min(axis=1), values_XS.max(axis=1)
    limits = panel.dataLim.frozen()
    panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
    panel.dataLim.set(limits)
    median, every = values_XS.median(axis=1), max(1, len(x) // 6)
    panel.plot(x, median, color=style.colour, linestyle=style.line, marker=style.marker, markevery=every, linewidth=1)
    return {
        **{"x": x.tolist(), "median": median.tolist(), "low": low.tolist(), "high": high.tolist()},
        "n": np.asarray(values_XS.count(axis=1)).tolist(),
    }
