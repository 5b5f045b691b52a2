"""F20: groups whose rewards are all equal: they teach nothing."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures.panels import (
    MEAN_BAND,
    arm_label,
    draw_seeds,
    label_x,
    legend_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
    start_at_zero,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import arm_styles

_ALL_RIGHT, _ALL_WRONG = "zero_variance/all_right", "zero_variance/all_wrong"
_COLOURS = {_ALL_RIGHT: "0.8", _ALL_WRONG: "0.5"}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """All-right and all-wrong groups of the baseline, stacked, with the theory; below, their sum for every arm."""
    stacked, share = f"share of groups,\n{arm_label(study, study.baseline)}", "zero-variance groups\n(share)"
    figure, grid = panel_grid([stacked, share], study.facets)
    styles = arm_styles(study.arms)
    numbers: list[Series] = []
    for facet in study.facets:
        for arm, frame in study.by_arm("rollouts", facet):
            labels = {"facet": facet, "arm": arm}
            if arm == study.baseline:
                numbers += [
                    {**labels, **s} for s in _draw_stack(grid[stacked, facet], frame, _group_size(study, facet))
                ]
            series = draw_seeds(
                grid[share, facet], pivot_seeds(frame, "rollout_step", "zero_variance/share"), styles[arm], share=True
            )
            numbers.append({"metric": "zero_variance/share", **labels, **series})
    start_at_zero(grid)
    label_x(grid, "rollout steps")
    areas = [Patch(color=colour, label=metric.split("/")[1].replace("_", " ")) for metric, colour in _COLOURS.items()]
    theory = Line2D([], [], color="black", linestyle=":", label=r"$p^G + (1-p)^G$")
    legend_arms(figure, study, study.arms, [*areas, theory])
    note_gaps(figure, study)
    caption = (
        f"Groups whose completions all have the same reward. First the runs of `{study.baseline}`: all right and all"
        " wrong, stacked, mean over seeds; dotted, what one success probability p common to all prompts (the batch's"
        " mean) would give. Then the share of such groups for every arm."
    )
    return figure, manifest(study, "F20", caption, MEAN_BAND, numbers)


def _group_size(study: Study, facet: str) -> int:
    """Completions of a group in the baseline's runs, which a study may compare with other sizes."""
    own = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == study.baseline)]
    return int(own["setting/num_generations"].iloc[0])


def _draw_stack(panel: Axes, rollouts: pd.DataFrame, group_size: int) -> list[Series]:
    """Stacked means of both kinds over rollout steps, and p^G + (1-p)^G for the mean share of right completions p."""
    shares = rollouts.reindex(columns=["rollout_step", _ALL_RIGHT, _ALL_WRONG, "reward/correct"])
    means = shares.groupby("rollout_step").mean().astype("float64")
    panel.stackplot(means.index, means[_ALL_RIGHT], means[_ALL_WRONG], colors=list(_COLOURS.values()), linewidth=0)
    p = means["reward/correct"]
    theory = p**group_size + (1 - p) ** group_size
    panel.plot(means.index, theory, color="black", linestyle=":", linewidth=1)
    x = means.index.tolist()
    drawn = {_ALL_RIGHT: means[_ALL_RIGHT], _ALL_WRONG: means[_ALL_WRONG], "p^G+(1-p)^G": theory}
    return [{"metric": metric, "x": x, "mean": values.tolist()} for metric, values in drawn.items()]
