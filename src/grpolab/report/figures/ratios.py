"""Figures of the importance ratio: its range and spread, and that of whole responses."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from grpolab.report.figures import panels
from grpolab.report.figures.panels import GEOMETRIC, OVER_TIME, Drawing, Sheet
from grpolab.report.journals import QUARTERS, at_quarters
from grpolab.report.load import StudyRuns
from grpolab.report.stability import after_first_step
from grpolab.report.style import Series
from grpolab.vocabulary import LEVELS, QUANTILES, SIGNS, quantile_metric


def draw_ratio_range(study: StudyRuns) -> Drawing:
    """Draw F6."""
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    sheet = Sheet(study, rows, height=1.9)
    sheet.mark(1)
    for row, level in rows.items():
        for end in ("min", "max"):
            sheet.draw_metric(row, "updates", f"ratio/{level}_{end}", log=True, how=end)
    sheet.label_x("rollout steps")
    sheet.draw_legend()
    caption = (
        "Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),"
        " over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest."
    )
    return sheet.finish(caption, GEOMETRIC)


def draw_log_ratio_spread(study: StudyRuns) -> Drawing:
    """Draw F5."""
    words = {"pos": "A > 0", "neg": "A < 0"}
    rows = {f"log {level} ratio,\n{words[sign]}": (level, sign) for level in LEVELS for sign in SIGNS}
    sheet = Sheet(study, rows, height=1.3)
    sheet.mark(0)
    for panel in sheet.grid.values():
        panel.set_yscale("symlog", linthresh=0.1)
    thick = min(2.6, 13 / len(study.arms))  # points
    for row, (level, sign) in rows.items():
        names = {quantile_metric(level, quantile, sign): quantile for quantile in QUANTILES}
        for panel, facet, arm, updates in sheet.by_arm(row, "updates"):
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
            sheet.record(series, level=level, sign=sign, facet=facet, arm=arm)
    arms = [panels.arm_label(study, arm) for arm in study.arms]
    for (_, facet), panel in sheet.grid.items():
        if not panel.collections:
            sheet.write_lack(panel, "no run here has diagnostics.quantiles", facet=facet)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_xticks(range(len(arms)), arms, rotation=35, ha="right", rotation_mode="anchor")
        panel.set_xlim(-0.6, len(arms) - 0.4)
        panel.grid(axis="x", visible=False)
    caption = (
        "Natural logarithm of the token ratio and of the sequence ratio (0: unchanged) at the last optimiser step of"
        " the rollout steps that end the quarters of each run, side by side for each arm. Thick: 1% to 99% of the"
        " batch; thin: 0.1% to 99.9%; white: the median. Linear between -0.1 and 0.1, logarithmic beyond."
    )
    return sheet.finish(caption, "median over seeds of each quantile")


def draw_response_ratio(study: StudyRuns) -> Drawing:
    """Draw F8."""
    rows = {
        "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
        "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
        "mean token ratio,\nall tokens": "ratio/token_mean",
    }
    sheet = Sheet(study, rows, height=1.35, share_y=False)
    sheet.mark(1)
    for row, metric in rows.items():
        sheet.draw_metric(row, after_first_step(study.updates), metric)
    for (_, facet), panel in sheet.grid.items():
        if len(panel.lines) == 1:  # the mark
            sheet.write_lack(panel, "no batch here has a second update", facet=facet)
    sheet.label_x("rollout steps")
    sheet.draw_legend()
    caption = (
        "Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a"
        " negative advantage, over the optimiser steps of a rollout step after the first, in which every ratio is 1."
        " Last row: the mean ratio of all tokens, those without an advantage included."
    )
    return sheet.finish(caption, OVER_TIME)
