"""Figures of the importance ratio: its range and spread, whole responses, and how probable the tokens were."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpolab.report.figures.panels import (
    MEAN,
    MEAN_BAND,
    Drawing,
    arm_label,
    band_series,
    draw_arms,
    label_x,
    legend_arms,
    log_axis,
    name_arms,
    panel_grid,
    pivot_seeds,
    say,
)
from grpolab.report.journals import QUARTERS, at_quarters
from grpolab.report.load import Study
from grpolab.report.measures import after_first_step
from grpolab.report.statistics.intervals import share_band
from grpolab.report.style import QUIET, ArmStyle, Series, arm_styles
from grpolab.vocabulary import LEVELS, QUANTILES, SIGNS, quantile_metric


def draw_ratio_range(study: Study) -> Drawing:
    """Smallest and largest token and sequence ratio over the updates of each rollout step, on a log scale."""
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    figure, grid = panel_grid(list(rows), study.facets, height=1.9)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            for end in ("min", "max"):
                metric = f"ratio/{rows[row]}_{end}"
                series = _draw_extreme(panel, pivot_seeds(updates, "rollout_step", metric, end), styles[arm])
                numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
        log_axis(panel, "y")
    label_x(grid, "rollout steps")
    legend_arms(figure, study)
    caption = (
        "Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),"
        " over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest."
    )
    return Drawing(figure, caption, "median over seeds; band from the least to the greatest seed", numbers)


def _draw_extreme(panel: Axes, values_XS: pd.DataFrame, style: ArmStyle) -> Series:
    """The median over seeds as a line, to which the axis is scaled, in a band from the least to the greatest seed."""
    if values_XS.empty:
        return {"x": []}
    x, low, high = values_XS.index.to_numpy(), values_XS.min(axis=1), values_XS.max(axis=1)
    limits = panel.dataLim.frozen()
    panel.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
    panel.dataLim.set(limits)
    median, every = values_XS.median(axis=1), max(1, len(x) // 6)
    panel.plot(x, median, color=style.colour, linestyle=style.line, marker=style.marker, markevery=every, linewidth=1)
    return {
        **{"x": x.tolist(), "median": median.tolist(), "low": low.tolist(), "high": high.tolist()},
        "n": np.asarray(values_XS.count(axis=1)).tolist(),
    }


_SIGN_WORDS = {"pos": "A > 0", "neg": "A < 0"}


def draw_log_ratios(study: Study) -> Drawing:
    """Quantiles of the log ratio by level and sign of the advantage: four bars per arm, in the order of the run."""
    rows = {f"log {level} ratio,\n{_SIGN_WORDS[sign]}": (level, sign) for level in LEVELS for sign in SIGNS}
    figure, grid = panel_grid(list(rows), study.facets, height=1.3)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(0, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            quantiles = _log_quantiles(updates, *rows[row])
            thick = min(2.6, 13 / len(study.arms))
            series = _draw_quarters(panel, study.arms.index(arm), quantiles, styles[arm].colour, thick)
            numbers.append({"level": rows[row][0], "sign": rows[row][1], "facet": facet, "arm": arm, **series})
        if not panel.collections:
            say(panel, "no run here has diagnostics.quantiles")
        panel.set_yscale("symlog", linthresh=0.1)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        name_arms(panel, study.arms)
    caption = (
        "Natural logarithm of the token ratio and of the sequence ratio (0: unchanged) at the last optimiser step of"
        " the rollout steps that end the quarters of each run, side by side for each arm. Thick: 1% to 99% of the"
        " batch; thin: 0.1% to 99.9%; white: the median. Linear between -0.1 and 0.1, logarithmic beyond."
    )
    statistic = "median over seeds of each quantile; dots are the seeds' smallest and largest ratio"
    return Drawing(figure, caption, statistic, numbers)


def _log_quantiles(updates: pd.DataFrame, level: str, sign: str) -> pd.DataFrame:
    """Log of each quantile (columns) by quarter and seed (index); empty where the journal lacks them."""
    names = {quantile_metric(level, quantile, sign): quantile for quantile in QUANTILES}
    if not names.keys() <= set(updates):
        return pd.DataFrame()
    ends = at_quarters(updates).set_index(["quarter", "seed"])[list(names)].rename(columns=names)
    return np.log(ends.dropna(how="all").astype("float64"))


def _draw_quarters(panel: Axes, place: int, quantiles: pd.DataFrame, colour: str, thick: float) -> Series:
    """One bar for each quarter, `thick` points wide, side by side around `place`."""
    if quantiles.empty:
        return {"x": []}
    middle = quantiles.groupby(level="quarter").median()
    x = place + 0.2 * (middle.index.to_numpy() - (QUARTERS + 1) / 2)
    panel.vlines(x, middle["p001"], middle["p999"], color=colour, linewidth=0.7)
    panel.vlines(x, middle["p01"], middle["p99"], color=colour, linewidth=thick, alpha=0.75)
    panel.plot(x, middle["p50"], "_", color="white", markersize=thick, markeredgewidth=0.8)
    at = dict(zip(middle.index, x, strict=True))
    for end in ("min", "max"):
        seeds = quantiles[end]
        panel.plot([at[quarter] for quarter, _ in seeds.index], seeds, ".", color=colour, markersize=1.6, alpha=0.7)
    extremes = {end: quantiles[end].groupby(level="quarter").apply(list).tolist() for end in ("min", "max")}
    return {"x": middle.index.tolist(), **{name: middle[name].tolist() for name in middle}, "seeds": extremes}


_MEAN_ROWS = {
    "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
    "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
    "mean token ratio,\nall tokens": "ratio/token_mean",
}


def draw_response_ratio(study: Study) -> Drawing:
    """Mean sequence ratio of responses with a positive and with a negative advantage; below, of all tokens."""
    figure, grid = panel_grid(list(_MEAN_ROWS), study.facets, height=1.35, share_y=False)
    numbers: list[Series] = []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        later = ((arm, after_first_step(updates)) for arm, updates in study.by_arm("updates", facet))
        drawn = draw_arms(panel, study, later, _MEAN_ROWS[row], facet)
        numbers += drawn
        if not any(series["x"] for series in drawn):
            say(panel, "no batch here has a second update")
    label_x(grid, "rollout steps")
    legend_arms(figure, study)
    caption = (
        "Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a"
        " negative advantage, over the optimiser steps of a rollout step after the first, in which every ratio is 1."
        " Last row: the mean ratio of all tokens, those without an advantage included."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


_COUNTS = "probability/counts"
_START_COLOUR = "0.75"


def draw_probability_histogram(study: Study) -> Drawing:
    """Share of sampled tokens in each bin of their probability: the baseline's first record, every arm's last one."""
    figure, grid = panel_grid(["sampled tokens\n(share)"], study.facets, height=2.1)
    styles, numbers = arm_styles(study.arms), []
    for (_, facet), panel in grid.items():
        for arm, records in study.by_arm("histograms", facet):
            if _COUNTS not in records or records[_COUNTS].isna().all():
                continue
            labels = {"metric": _COUNTS, "facet": facet, "arm": arm}
            if arm == study.baseline:
                numbers.append({**labels, "at": "start", **_draw_start(panel, _shares(records, "head"))})
            numbers.append({**labels, "at": "end", **_draw_last(panel, _shares(records, "tail"), styles[arm])})
        panel.set_yscale("log")
        panel.set_xticks(np.linspace(0, 1, 6))
        if not panel.lines:
            say(panel, "no run here has diagnostics.histogram_every")
    lowest = min((share for series in numbers for share in series["mean"] if share > 0), default=0.02)
    for panel in grid.values():
        panel.set_ylim(lowest / 2, 1.2)
    label_x(grid, "probability when sampled")
    start = Line2D([], [], color=_START_COLOUR, linewidth=2.5, label=f"start ({arm_label(study, study.baseline)})")
    legend_arms(figure, study, extra=[start])
    caption = (
        "Share of sampled tokens by the probability that the old policy gave them, ten equal bins, on a log scale."
        f" Grey steps: the first record of the runs of `{study.baseline}`; points: the last record of every arm."
        " Empty bins are left out."
    )
    return Drawing(figure, caption, MEAN, numbers)


def _shares(records: pd.DataFrame, end: str) -> pd.DataFrame:
    """Share of tokens in each bin (index: its middle) for each seed (columns), of its first (head) or last record."""
    by_seed = records.dropna(subset=_COUNTS).sort_values("rollout_step").groupby("seed")
    counts = (by_seed.head(1) if end == "head" else by_seed.tail(1)).set_index("seed")[_COUNTS]
    counts_SX = np.stack(counts.to_list()).astype(np.float64)
    shares = counts_SX / counts_SX.sum(axis=1, keepdims=True)
    bins = counts_SX.shape[1]
    return pd.DataFrame(shares.T, index=(np.arange(bins) + 0.5) / bins, columns=counts.index)


def _draw_start(panel: Axes, shares_XS: pd.DataFrame) -> Series:
    series = band_series(shares_XS, share_band(shares_XS.to_numpy()))
    edges = np.linspace(0, 1, len(series["x"]) + 1)
    panel.stairs([share or np.nan for share in series["mean"]], edges, color=_START_COLOUR, linewidth=2.5)
    return series


def _draw_last(panel: Axes, shares_XS: pd.DataFrame, style: ArmStyle) -> Series:
    band = share_band(shares_XS.to_numpy())
    x, mean, seen = shares_XS.index.to_numpy(), band[0], band[0] > 0
    low, high = (np.where(np.isnan(bound), mean, bound) for bound in band[1:3])
    panel.vlines(x[seen], low[seen], high[seen], color=style.colour, linewidth=0.8)
    panel.plot(x[seen], mean[seen], color=style.colour, linestyle=style.line, marker=style.marker)
    return band_series(shares_XS, band)
