"""F1: learning curves."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import MEAN_BAND, lines_by_arm
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.style import arm_styles
from grpolab.vocabulary import DIVERGED, STOPPED


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Training reward and held-out accuracy over rollout steps."""
    rows = {"training reward": ("rollouts", "reward/mean"), "held-out accuracy": ("evaluations", study.metric)}
    figure, grid, numbers = lines_by_arm(study, rows)
    for facet in study.facets:
        _mark_ended(grid["held-out accuracy", facet], study, facet)
    caption = f"Training reward (batch mean) and held-out accuracy (`{study.metric}`) over rollout steps."
    return figure, manifest(study, "F1", caption, MEAN_BAND, numbers)


def _mark_ended(panel: Axes, study: Study, facet: str) -> None:
    """A cross at the last finite evaluation of each run that diverged or was stopped."""
    styles, here = arm_styles(study.arms), study.done[study.done["facet"] == facet]
    for cell in here[here["outcome"].isin([DIVERGED, STOPPED])].itertuples():
        own = study.of_cell("evaluations", cell)
        last = own[~own["carried"]].tail(1)
        colour = styles[cell.arm].colour
        panel.plot(last["rollout_step"], last[study.metric], "x", color=colour, markersize=6, markeredgewidth=1.5)
