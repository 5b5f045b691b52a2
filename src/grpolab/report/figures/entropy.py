"""F12: entropy of the sampling policy."""

from __future__ import annotations

from matplotlib.figure import Figure

from grpolab.report.figures.panels import MEAN_BAND, lines_by_arm, start_at_zero
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest

ROWS = {
    "mean entropy\n(nat per token)": ("rollouts", "entropy/behaviour"),
    "80th percentile\n(nat per token)": ("rollouts", "entropy/behaviour_p80"),
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean and 80th percentile of the sampling policy's token entropy."""
    figure, grid, numbers = lines_by_arm(study, ROWS)
    start_at_zero(grid)
    caption = "Entropy of the sampling policy over rollout steps: mean and 80th percentile over completion tokens."
    return figure, manifest(study, "F12", caption, MEAN_BAND, numbers)
