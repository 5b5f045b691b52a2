"""F17: length of right and wrong completions, and how many are cut off."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import MEAN_BAND, lines_by_arm
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest

_ROWS = {
    f"{label}\n{sort} (tokens)": ("rollouts", f"length/{sort}_{statistic}")
    for statistic, label in (("mean", "mean length,"), ("p95", "95th percentile,"))
    for sort in ("right", "wrong")
}
_TRUNCATED = {"truncated\n(share)": ("rollouts", "truncation/share")}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean and 95th percentile of the length of right and of wrong completions; below, the share that is truncated."""
    figure, grid, numbers = lines_by_arm(study, _ROWS | _TRUNCATED, height=1.15)
    _equal_heights([panel for (row, _), panel in grid.items() if row in _ROWS])
    for (row, _), panel in grid.items():
        if row in _TRUNCATED:
            panel.set_ylim(0, max(0.02, 1.06 * panel.dataLim.ymax) if panel.lines else 1)
    caption = (
        "Length of right and of wrong completions in tokens, end token included: mean and 95th percentile of the"
        " batch, all four on one scale; below, the share of completions that ran into the limit without an end token."
    )
    return figure, manifest(study, "F17", caption, MEAN_BAND, numbers)


def _equal_heights(panels: list[Axes]) -> None:
    """One y scale for all, so that right and wrong can be compared."""
    drawn = [panel.dataLim for panel in panels if panel.lines]
    if drawn:
        low, high = min(box.ymin for box in drawn), max(box.ymax for box in drawn)
        room = 0.06 * (high - low) or 0.5
        for panel in panels:
            panel.set_ylim(low - room, high + room)
