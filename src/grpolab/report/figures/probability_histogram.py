"""F31: how probable the sampled tokens were, at the start and at the end."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpolab.report.figures.panels import MEAN, arm_label, label_x, legend_arms, note_gaps, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.statistics import share_band
from grpolab.report.style import ArmStyle, arm_styles

_FIELD, _ROW, _START_COLOUR = "probability/counts", "sampled tokens\n(share)", "0.75"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Share of sampled tokens in each bin of their probability: the baseline's first record, every arm's last one."""
    figure, grid = panel_grid([_ROW], study.facets, height=2.1)
    styles, numbers = arm_styles(study.arms), []
    for (_, facet), panel in grid.items():
        for arm, records in study.by_arm("histograms", facet):
            if _FIELD not in records or records[_FIELD].isna().all():
                continue
            first, last = (_shares(records, end) for end in ("head", "tail"))
            labels = {"metric": _FIELD, "facet": facet, "arm": arm}
            if arm == study.baseline:
                numbers.append({**labels, "at": "start", **_draw_start(panel, first)})
            numbers.append({**labels, "at": "end", **_draw_end(panel, last, styles[arm])})
        panel.set_yscale("log")
        panel.set_xticks(np.linspace(0, 1, 6))
        if not panel.lines:
            say(panel, "no run here has diagnostics.histogram_every")
    lowest = min((share for series in numbers for share in series["mean"] if share > 0), default=0.02)
    for panel in grid.values():
        panel.set_ylim(lowest / 2, 1.2)
    label_x(grid, "probability when sampled")
    start = Line2D([], [], color=_START_COLOUR, linewidth=2.5, label=f"start ({arm_label(study, study.baseline)})")
    legend_arms(figure, study, study.arms, [start])
    note_gaps(figure, study)
    caption = (
        "Share of sampled tokens by the probability that the old policy gave them, ten equal bins, on a log scale."
        f" Grey steps: the first record of the runs of `{study.baseline}`; points: the last record of every arm."
        " Empty bins are left out."
    )
    return figure, manifest(study, "F31", caption, MEAN, numbers)


def _shares(records: pd.DataFrame, end: str) -> pd.DataFrame:
    """Share of tokens in each bin (index: its middle) for each seed (columns), of its first or last record."""
    kept = records.dropna(subset=_FIELD).sort_values("rollout_step")
    one = getattr(kept.groupby("seed"), end)(1).set_index("seed")[_FIELD]
    counts_SX = np.stack(one.to_list()).astype(np.float64)
    shares = counts_SX / counts_SX.sum(axis=1, keepdims=True)
    bins = counts_SX.shape[1]
    return pd.DataFrame(shares.T, index=(np.arange(bins) + 0.5) / bins, columns=one.index)


def _draw_start(panel: Axes, shares_XS: pd.DataFrame) -> Series:
    series = _estimate(shares_XS)
    edges = np.linspace(0, 1, len(series["x"]) + 1)
    panel.stairs([share or np.nan for share in series["mean"]], edges, color=_START_COLOUR, linewidth=2.5)
    return series


def _draw_end(panel: Axes, shares_XS: pd.DataFrame, style: ArmStyle) -> Series:
    series = _estimate(shares_XS)
    mean, low = np.array(series["mean"]), np.array(series["low"])
    seen = mean > 0
    low, high = np.where(np.isnan(low), mean, low), np.where(np.isnan(series["high"]), mean, series["high"])
    panel.vlines(np.array(series["x"])[seen], low[seen], high[seen], color=style.colour, linewidth=0.8)
    panel.plot(np.array(series["x"])[seen], mean[seen], color=style.colour, linestyle=style.line, marker=style.marker)
    return series


def _estimate(shares_XS: pd.DataFrame) -> Series:
    mean, low, high, n = share_band(shares_XS.to_numpy())
    seeds = {int(seed): shares_XS[seed].tolist() for seed in shares_XS}
    series = {"x": shares_XS.index.tolist(), "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
    return {**series, "n": n.tolist(), "seeds": seeds}
