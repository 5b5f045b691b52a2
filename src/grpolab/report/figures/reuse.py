"""F18: reusing a batch: clip fraction and final accuracy against num_iterations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from grpolab.report.figures.panels import MEAN_DOTS, draw_seeds, legend_arms, note_gaps, panel_grid, pivot_seeds
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import by_setting, is_share, measure
from grpolab.report.statistics import page_trend, share_band, t_band
from grpolab.report.style import QUIET, arm_styles
from grpolab.report.text import p_equals

_CLIP, _BY_PASS, _SCORE = "clipped tokens (share)", "clipped, by pass\nover the batch", "final accuracy"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean clip fraction and final accuracy against num_iterations, and the clip fraction of each pass."""
    figure, grid = panel_grid([_CLIP, _BY_PASS, _SCORE], study.facets, share_x=False)
    styles = arm_styles(study.arms)
    numbers: list[Series] = []
    for facet in study.facets:
        for row, metric in ((_CLIP, "clip/active"), (_SCORE, "final_score")):
            values_SL = by_setting(study, measure(study, metric), facet, "setting/num_iterations")
            band = share_band if is_share(study, metric) else t_band
            numbers.append({"metric": metric, "facet": facet, **_draw_trend(grid[row, facet], values_SL, band)})
        for arm, updates in study.by_arm("updates", facet):
            series = draw_seeds(
                grid[_BY_PASS, facet], pivot_seeds(updates, "iteration", "clip/active"), styles[arm], share=True
            )
            numbers.append({"metric": "clip/active", "by": "iteration", "facet": facet, "arm": arm, **series})
        grid[_BY_PASS, facet].xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[_BY_PASS, facet].set_xlabel("pass (0 = first)")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Clip fraction (mean over all optimiser steps) and final accuracy against num_iterations, with the p-value of"
        " Page's test that they rise (ranks within seeds); between them the clip fraction of each pass over the batch."
    )
    return figure, manifest(study, "F18", caption, MEAN_DOTS, numbers)


def _draw_trend(panel: Axes, values_SL: pd.DataFrame, band: Callable) -> Series:
    """Seeds as dots, the mean with its interval, and the trend's p."""
    x = values_SL.columns.to_numpy(dtype=float)
    if not len(x):
        return {"x": []}
    mean, low, high, n = band(values_SL.to_numpy().T)
    for _, values in values_SL.iterrows():
        panel.plot(x, values, ".", color=QUIET, markersize=3)
    panel.errorbar(x, mean, yerr=[mean - low, high - mean], color="black", marker="o", capsize=2, elinewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(x, [f"{value:g}" for value in x])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("num_iterations")
    p = page_trend(values_SL.to_numpy())
    if np.isfinite(p):
        panel.set_title(f"rising: {p_equals(p)}", loc="right", fontsize=7)  # inside, it would lie on the data
    seeds = {int(seed): row.tolist() for seed, row in values_SL.iterrows()}
    series = {"x": x.tolist(), "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n.tolist()}
    return {**series, "trend_p": p, "seeds": seeds}
