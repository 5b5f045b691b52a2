"""F7: ratio and clipping by position in the completion."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpolab.report.figures.panels import MEAN_BAND, draw_seeds, legend_arms, note_gaps, panel_grid, start_at_zero
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import add_ragged
from grpolab.report.style import arm_styles

# (what, counted from): (sums of the histogram records, their token counts)
_ROWS = {
    ("mean |log ratio|", "start"): ("position/abs_log_ratio", "position/count"),
    ("mean |log ratio|", "end"): ("position_end/abs_log_ratio", "position_end/count"),
    ("clipped (share)", "start"): ("position/active", "position/count"),
    ("clipped (share)", "end"): ("position_end/active", "position_end/count"),
}
LEAST_TOKENS = 100  # a mean over fewer tokens is not drawn


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean |log ratio| and clip fraction at each token position, from either end."""
    labels = {f"{what}\nfrom the {end}": (end, *fields) for (what, end), fields in _ROWS.items()}
    figure, grid = panel_grid(list(labels), study.facets, height=1.25, share_x=False)
    styles, numbers = arm_styles(study.arms), []
    for (label, facet), panel in grid.items():
        end, sums, counts = labels[label]
        for arm, frame in study.by_arm("histograms", facet):
            series: Series = draw_seeds(
                panel, _means_by_seed(frame, sums, counts), styles[arm], share=sums.endswith("active")
            )
            numbers.append({"metric": sums, "facet": facet, "arm": arm, **series})
        panel.set_xlabel("0 = first token" if end == "start" else "0 = last token")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    start_at_zero(grid)
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Mean |log ratio| and share of clipped tokens by token position, from the start and from the end of the"
        f" completion; last optimiser step of the rollout steps with a histogram; positions with {LEAST_TOKENS} tokens"
        " or more in a run."
    )
    return figure, manifest(study, "F7", caption, MEAN_BAND, numbers)


def _means_by_seed(records: pd.DataFrame, sums: str, counts: str) -> pd.DataFrame:
    """Mean at each position (index) for each seed (columns)."""
    if sums not in records:
        return pd.DataFrame()
    by_seed = {}
    for seed, own in records.groupby("seed"):
        n_T = add_ragged(own[counts].dropna())
        by_seed[seed] = pd.Series(add_ragged(own[sums].dropna()) / np.where(n_T >= LEAST_TOKENS, n_T, np.nan))
    return pd.DataFrame(by_seed).dropna(how="all")
