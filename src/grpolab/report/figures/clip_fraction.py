"""F2: clip fraction over time."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpolab.report.figures.panels import MEAN_BAND, lines_by_arm, start_at_zero
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest

ROWS = {
    "clipped below\n(tokens with A≠0)": ("updates", "clip/active_low_nz"),
    "clipped above\n(tokens with A≠0)": ("updates", "clip/active_high_nz"),
    "clipped\n(all tokens)": ("updates", "clip/active"),
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Share of clipped tokens: below and above the range among tokens with an advantage, and among all."""
    figure, grid, numbers = lines_by_arm(study, ROWS, height=1.35)
    start_at_zero(grid)
    for panel in grid.values():
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    caption = (
        "Share of tokens whose gradient clipping set to zero (below the range with A<0, above it with A>0): mean over"
        " the optimiser steps of a rollout step, of which the first can never clip."
    )
    return figure, manifest(study, "F2", caption, MEAN_BAND, numbers)
