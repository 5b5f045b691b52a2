"""F16: gradient norm and its spikes."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from grpolab.quantities import Thresholds
from grpolab.report.figures.panels import MEDIAN, draw_seeds, legend_arms, log_axis, note_gaps, panel_grid, pivot_seeds
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.stability import gradient_spikes
from grpolab.report.style import ArmStyle, arm_styles

_OVER_TIME, _BY_UPDATE = "gradient norm,\nlargest of the step", "gradient norm,\nmedian over the run"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Gradient norm before clipping: the largest of each rollout step, spikes marked, and by update in the batch."""
    figure, grid = panel_grid([_OVER_TIME, _BY_UPDATE], study.facets, share_x=False)
    styles, numbers, limits = arm_styles(study.arms), [], study.thresholds
    for facet in study.facets:
        for arm, updates in study.by_arm("updates", facet):
            norms_XS = pivot_seeds(updates, "rollout_step", "grad_norm", "max")
            spikes = _mark_spikes(grid[_OVER_TIME, facet], norms_XS, styles[arm], limits)
            over_time = draw_seeds(grid[_OVER_TIME, facet], norms_XS.where(norms_XS > 0), styles[arm], median=True)
            within = draw_seeds(grid[_BY_UPDATE, facet], _by_update(updates), styles[arm], median=True)
            labels = {"metric": "grad_norm", "facet": facet, "arm": arm}
            numbers += [{**labels, "spikes": spikes, **over_time}, {**labels, "by": "update in the batch", **within}]
        for row, label in ((_OVER_TIME, "rollout steps"), (_BY_UPDATE, "update of a batch")):
            log_axis(grid[row, facet], "y")
            grid[row, facet].set_xlabel(label)
        grid[_BY_UPDATE, facet].xaxis.set_major_locator(MaxNLocator(integer=True))
    spike = Line2D([], [], color="black", marker="*", linestyle="", label="spike (any seed)")
    legend_arms(figure, study, study.arms, [spike])
    note_gaps(figure, study)
    caption = (
        "Global gradient norm before clipping (log scale). First the largest of a rollout step; a star is a spike: more"
        f" than {limits.spike_factor:g} times the median of the {limits.spike_window} rollout steps before. Then by"
        " the update's place in its batch (0: the first). Norms of 0 are left out: nothing could be learnt."
    )
    return figure, manifest(study, "F16", caption, MEDIAN, numbers)


def _by_update(updates: pd.DataFrame) -> pd.DataFrame:
    """Median norm over the run at each update of a batch (index) for each seed (columns)."""
    place = updates.groupby(["seed", "rollout_step"]).cumcount()
    norms = updates[["seed", "grad_norm"]].assign(update=place)
    return pivot_seeds(norms, "update", "grad_norm", "median")


def _mark_spikes(panel: Axes, norms_XS: pd.DataFrame, style: ArmStyle, limits: Thresholds) -> dict[int, list[int]]:
    """A star on each spike; the rollout steps of each seed's spikes."""
    spikes = {}
    for seed, norms in norms_XS.items():
        at = norms[gradient_spikes(norms.to_numpy(), limits)]
        panel.plot(at.index, at, "*", color=style.colour, markersize=5, markeredgewidth=0)
        spikes[int(seed)] = at.index.tolist()
    return spikes
