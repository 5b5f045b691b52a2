"""The ratio within a batch, and how far it reaches over a run: pictures of the notebook `why_is_my_ratio_one`."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpolab.report.figures.panels import (
    draw_seeds,
    label_x,
    legend_arms,
    lines_by_arm,
    panel_grid,
    pivot_seeds,
    start_at_zero,
)
from grpolab.report.load import Study
from grpolab.report.style import arm_styles

USUAL_RANGE = 0.2


def passes(study: Study) -> Figure:
    """Clip fraction by pass over the batch: 0 on the first, by construction."""
    figure, grid = panel_grid(study.facets, ["clipped tokens by pass over the batch"], share_x=False)
    styles = arm_styles(study.arms)
    for facet, panel in zip(study.facets, grid.values(), strict=True):
        for arm, updates in study.by_arm("updates", facet):
            draw_seeds(panel, pivot_seeds(updates, "iteration", "clip/active"), styles[arm], share=True)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    start_at_zero(grid)
    label_x(grid, "pass over the batch")
    legend_arms(figure, study, study.arms)
    return figure


def reach(study: Study) -> Figure:
    """Largest ratio - 1 on updates after a batch's first, over the run, and the usual clip range."""
    later = study.updates[(study.updates["iteration"] > 0) | (study.updates["minibatch"] > 0)]
    shown = replace(study, updates=later.assign(reach=later["ratio/token_max"] - 1))
    figure, grid, _ = lines_by_arm(shown, {"largest ratio - 1": ("updates", "reach")})
    for panel in grid.values():
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.axhline(USUAL_RANGE, color="0.4", linewidth=0.7, linestyle="--")
    return figure
