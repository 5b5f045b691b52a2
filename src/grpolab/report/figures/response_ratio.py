"""F8: whole responses move with the sign of their advantage."""

from __future__ import annotations

from matplotlib.figure import Figure

from grpolab.report.figures.panels import (
    MEAN_BAND,
    draw_seeds,
    label_x,
    legend_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
    say,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.measures import after_first_step
from grpolab.report.style import QUIET, arm_styles

ROWS = {
    "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
    "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
    "mean token ratio,\nall tokens": "ratio/token_mean",
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean sequence ratio of responses with a positive and with a negative advantage; below, of all tokens."""
    figure, grid = panel_grid(list(ROWS), study.facets, height=1.35, share_y=False)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            values_XS = pivot_seeds(after_first_step(updates), "rollout_step", ROWS[row])
            numbers.append(
                {"metric": ROWS[row], "facet": facet, "arm": arm, **draw_seeds(panel, values_XS, styles[arm])}
            )
        if not any(series["x"] for series in numbers if (series["metric"], series["facet"]) == (ROWS[row], facet)):
            say(panel, "no batch here has a second update")
    label_x(grid, "rollout steps")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a"
        " negative advantage, over the optimiser steps of a rollout step after the first, in which every ratio is 1."
        " Last row: the mean ratio of all tokens, those without an advantage included."
    )
    return figure, manifest(study, "F8", caption, MEAN_BAND, numbers)
