"""Figures of the importance ratio: its range and spread, whole responses, and how probable the tokens were."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpolab.report.figures import panels
from grpolab.report.figures.learning import GEOMETRIC
from grpolab.report.figures.panels import MEAN, SMOOTHED, Drawing, Sheet, band_series, figure
from grpolab.report.journals import QUARTERS, at_quarters
from grpolab.report.load import Study
from grpolab.report.stability import after_first_step
from grpolab.report.statistics.intervals import share_band
from grpolab.report.style import Series
from grpolab.vocabulary import LEVELS, QUANTILES, SIGNS, quantile_metric


@figure("F6", "ratio_range", "Smallest and largest ratio at each rollout step")
def draw_ratio_range(study: Study) -> Drawing:
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    sheet = Sheet(study, rows, height=1.9)
    sheet.mark(y=1)
    for row, level in rows.items():
        for end in ("min", "max"):
            sheet.lines(row, "updates", f"ratio/{level}_{end}", log=True, how=end)
    panels.label_x(sheet.grid, "rollout steps")
    sheet.legend()
    caption = (
        "Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),"
        " over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest."
    )
    return sheet.drawing(caption, GEOMETRIC)


@figure("F5", "log_ratio_spread", "Spread of the log ratio at four moments of training, per token and per sequence")
def draw_log_ratios(study: Study) -> Drawing:
    words = {"pos": "A > 0", "neg": "A < 0"}
    rows = {f"log {level} ratio,\n{words[sign]}": (level, sign) for level in LEVELS for sign in SIGNS}
    sheet = Sheet(study, rows, height=1.3)
    sheet.mark(y=0)
    for panel in sheet.panels:
        panel.set_yscale("symlog", linthresh=0.1)
    thick = min(2.6, 13 / len(study.arms))  # points
    for row, (level, sign) in rows.items():
        names = {quantile_metric(level, quantile, sign): quantile for quantile in QUANTILES}
        for panel, facet, arm, updates in sheet.arms(row, "updates"):
            series: Series = {"x": []}
            quantiles = pd.DataFrame()  # of the log ratio (columns) by quarter and seed (index)
            if names.keys() <= set(updates):
                ends = at_quarters(updates).set_index(["quarter", "seed"])[list(names)].rename(columns=names)
                quantiles = np.log(ends.dropna(how="all").astype("float64"))
            if len(quantiles):
                colour, quarters = sheet.styles[arm].colour, quantiles.groupby(level="quarter")
                middle = quarters.median()
                x = study.arms.index(arm) + 0.2 * (middle.index.to_series() - (QUARTERS + 1) / 2)  # side by side
                panel.vlines(x, middle["p001"], middle["p999"], color=colour, linewidth=0.7)
                panel.vlines(x, middle["p01"], middle["p99"], color=colour, linewidth=thick, alpha=0.75)
                panel.plot(x, middle["p50"], "_", color="white", markersize=thick, markeredgewidth=0.8)
                series = {"x": middle.index.tolist(), **middle.to_dict("list")}
            sheet.add(series, level=level, sign=sign, facet=facet, arm=arm)
    for (_, facet), panel in sheet.grid.items():
        if not panel.collections:
            sheet.say(panel, "no run here has diagnostics.quantiles", facet=facet)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels.name_arms(panel, [panels.arm_label(study, arm) for arm in study.arms])
    caption = (
        "Natural logarithm of the token ratio and of the sequence ratio (0: unchanged) at the last optimiser step of"
        " the rollout steps that end the quarters of each run, side by side for each arm. Thick: 1% to 99% of the"
        " batch; thin: 0.1% to 99.9%; white: the median. Linear between -0.1 and 0.1, logarithmic beyond."
    )
    return sheet.drawing(caption, "median over seeds of each quantile")


@figure("F8", "response_ratio", "Mean sequence ratio of right and of wrong completions")
def draw_response_ratio(study: Study) -> Drawing:
    rows = {
        "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
        "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
        "mean token ratio,\nall tokens": "ratio/token_mean",
    }
    sheet = Sheet(study, rows, height=1.35, share_y=False)
    sheet.mark(y=1)
    for row, metric in rows.items():
        sheet.lines(row, after_first_step(study.updates), metric)
    for (_, facet), panel in sheet.grid.items():
        if len(panel.lines) == 1:  # the mark
            sheet.say(panel, "no batch here has a second update", facet=facet)
    panels.label_x(sheet.grid, "rollout steps")
    sheet.legend()
    caption = (
        "Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a"
        " negative advantage, over the optimiser steps of a rollout step after the first, in which every ratio is 1."
        " Last row: the mean ratio of all tokens, those without an advantage included."
    )
    return sheet.drawing(caption, f"{MEAN}; {SMOOTHED}")


_COUNTS = "probability/counts"
_START_COLOUR = "0.75"


@figure("F31", "token_probabilities", "Histogram of the sampled tokens' probabilities, at the start and at the end")
def draw_probability_histogram(study: Study) -> Drawing:
    row = "sampled tokens\n(share)"
    sheet = Sheet(study, [row], height=2.1)
    for panel, facet, arm, records in sheet.arms(row, "histograms"):
        if _COUNTS not in records or records[_COUNTS].isna().all():
            continue
        style, labels = sheet.styles[arm], {"metric": _COUNTS, "facet": facet, "arm": arm}
        if arm == study.baseline:
            shares_XS = _shares(records, "head")
            series = band_series(shares_XS, share_band(shares_XS.to_numpy()))
            edges = np.linspace(0, 1, len(shares_XS) + 1)
            panel.stairs([share or np.nan for share in series["mean"]], edges, color=_START_COLOUR, linewidth=2.5)
            sheet.add(series, **labels, at="start")
        shares_XS = _shares(records, "tail")
        mean, low, high, _ = band = share_band(shares_XS.to_numpy())
        x, seen = shares_XS.index.to_numpy(), mean > 0
        low, high = (np.where(np.isnan(bound), mean, bound) for bound in (low, high))
        panel.vlines(x[seen], low[seen], high[seen], color=style.colour, linewidth=0.8)
        panel.plot(x[seen], mean[seen], **style.line_options)
        sheet.add(band_series(shares_XS, band), **labels, at="end")
    lowest = min((share for series in sheet.numbers for share in series.get("mean", []) if share > 0), default=0.02)
    for (_, facet), panel in sheet.grid.items():
        panel.set_ylim(lowest / 2, 1.2)
        panels.log_axis(panel, "y")
        panel.set_xticks(np.linspace(0, 1, 6))
        if not panel.lines:
            sheet.say(panel, "no run here has diagnostics.histogram_every", facet=facet)
    panels.label_x(sheet.grid, "probability when sampled")
    start = f"start ({panels.arm_label(study, study.baseline)})"
    sheet.legend([Line2D([], [], color=_START_COLOUR, linewidth=2.5, label=start)])
    caption = (
        "Share of sampled tokens by the probability that the old policy gave them, ten equal bins, on a log scale."
        f" Grey steps: the first record of the runs of `{study.baseline}`; points: the last record of every arm."
        " Empty bins are left out."
    )
    return sheet.drawing(caption, MEAN)


def _shares(records: pd.DataFrame, end: str) -> pd.DataFrame:
    """Share of tokens in each bin (index: its middle) for each seed (columns), of its first (head) or last record."""
    by_seed = records.dropna(subset=_COUNTS).sort_values("rollout_step").groupby("seed")
    counts = (by_seed.head(1) if end == "head" else by_seed.tail(1)).set_index("seed")[_COUNTS]
    counts_SX = np.stack(counts.to_list()).astype(np.float64)
    shares = counts_SX / counts_SX.sum(axis=1, keepdims=True)
    bins = counts_SX.shape[1]
    return pd.DataFrame(shares.T, index=(np.arange(bins) + 0.5) / bins, columns=counts.index)
