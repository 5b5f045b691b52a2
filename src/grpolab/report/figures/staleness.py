"""F30: learning from stale batches."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.numeric_axis import Axis, draw_along, numeric_axes, split
from grpolab.report.figures.panels import MEAN, arm_label, legend_arms, log_axis, note_gaps, only_says, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import by_cell, is_share
from grpolab.report.style import QUIET, arm_styles

_SETTING = "setting/staleness"
_ROWS = {
    "final accuracy": "final_score",
    "clipped tokens\n(share)": "clip/active",
    "largest\ntoken ratio": "ratio_max",
    "sampler–trainer\ngap (nat)": "gap/sampler_trainer",
}
_LOG = ("ratio_max", "gap/sampler_trainer")


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Accuracy, its paired difference to the baseline, clipping, largest ratio and sampler-trainer gap by staleness."""
    difference = f"accuracy minus\nthat of {arm_label(study, study.baseline)}"
    rows = {"final accuracy": "final_score", difference: "difference"} | _ROWS
    factors = [factor for factor, setting in numeric_axes(study).items() if setting == _SETTING]
    if not factors:
        return only_says(study, "F30", "needs a factor that moves staleness alone")
    panels = split(_values(study), study, factors[0])
    figure, grid = panel_grid(list(rows), [title for title, _ in panels], height=1.3)
    numbers: list[Series] = []
    for title, values in panels:
        for row, metric in rows.items():
            panel = grid[row, title]
            lines = _draw_lines(panel, values, metric, study)
            numbers += [{"metric": metric, "facet": title, "arm": arm, **series} for arm, series in lines.items()]
            if metric in _LOG:
                log_axis(panel, "y")
            if metric == "difference":
                panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    legend_arms(figure, study, [series["arm"] for series in numbers])
    note_gaps(figure, study)
    caption = (
        "Against staleness (rollout steps between sampling a batch and learning from it): final accuracy; its"
        f" difference to `{study.baseline}` at the same staleness, seed by seed; clipped tokens (`clip/active`, mean"
        " of the run); largest token ratio of the run; largest difference of the sampler's and the trainer's"
        " log-probabilities, mean over batches. The last two on log scales, where 0 is left out; the gap"
        " is known where the trainer computes log-probabilities of its own (`old_log_probs`)."
    )
    statistic = f"{MEAN}, of the difference paired by seed; dots are seeds"
    return figure, manifest(study, "F30", caption, statistic, numbers)


def _values(study: Study) -> pd.DataFrame:
    """The study's cells with each metric of the rows as a column, and the paired difference of the accuracy."""
    cells = study.cells.assign(**{metric: by_cell(study, metric) for metric in _ROWS.values()})
    baseline = cells.loc[cells["arm"] == study.baseline, ["facet", "seed", "final_score"]]
    cells = cells.merge(baseline, on=["facet", "seed"], how="left", suffixes=("", "_baseline"))
    return cells.assign(difference=cells["final_score"] - cells["final_score_baseline"])


def _draw_lines(panel: Axes, values: pd.DataFrame, metric: str, study: Study) -> dict[str, Series]:
    """A line for each arm; on a log scale without values of 0."""
    axis, styles, lines = Axis(sorted(values[_SETTING].unique()), "staleness"), arm_styles(study.arms), {}
    shown = values.where(values[metric] > 0) if metric in _LOG else values
    for place, (arm, own) in enumerate(shown.dropna(subset=[metric]).groupby("arm", sort=False)):
        if metric != "difference" or arm != study.baseline:
            lines[arm] = draw_along(
                panel, axis, own, (_SETTING, metric), styles[arm], 0.08 * place, is_share(study, metric)
            )
    axis.label(panel)
    return lines
