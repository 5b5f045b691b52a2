"""F6: the smallest and the largest ratio of every rollout step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpolab.report.figures.panels import (
    MEAN,
    MEAN_BAND,
    Axis,
    arm_label,
    draw_along,
    draw_seeds,
    label_x,
    legend_arms,
    log_axis,
    name_arms,
    note_gaps,
    numeric_axes,
    only_says,
    panel_grid,
    pivot_seeds,
    say,
    split,
)
from grpolab.report.journals import QUARTERS, at_quarters
from grpolab.report.load import Study
from grpolab.report.measures import after_first_step, by_cell, is_share
from grpolab.report.statistics.intervals import share_band
from grpolab.report.style import QUIET, ArmStyle, Manifest, Series, arm_styles, manifest
from grpolab.vocabulary import LEVELS, QUANTILES, SIGNS, quantile_metric


def draw_ratio_range(study: Study) -> tuple[Figure, Manifest]:
    """Smallest and largest token and sequence ratio over the updates of each rollout step, on a log scale."""
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    figure, grid = panel_grid(list(rows), study.facets, height=1.9)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            for end in ("min", "max"):
                metric = f"ratio/{rows[row]}_{end}"
                series = _draw_end(panel, pivot_seeds(updates, "rollout_step", metric, end), styles[arm])
                numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
        log_axis(panel, "y")
    label_x(grid, "rollout steps")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),"
        " over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest."
    )
    return figure, manifest(
        study, "F6", caption, "median over seeds; band from the least to the greatest seed", numbers
    )


def _draw_end(panel: Axes, values_XS: pd.DataFrame, style: ArmStyle) -> Series:
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


# ----------------------------------------------------------------------------------------------------------------------
# F5: how far the ratios of tokens and of responses spread, at the ends of the run's quarters.


_WORDS = {"pos": "A > 0", "neg": "A < 0"}
_STATISTIC = "median over seeds of each quantile; dots are the seeds' smallest and largest ratio"


def draw_log_ratios(study: Study) -> tuple[Figure, Manifest]:
    """Quantiles of the log ratio by level and sign of the advantage: four bars per arm, in the order of the run."""
    rows = {f"log {level} ratio,\n{_WORDS[sign]}": (level, sign) for level in LEVELS for sign in SIGNS}
    figure, grid = panel_grid(list(rows), study.facets, height=1.3)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(0, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            quantiles = _log_quantiles(updates, *rows[row])
            series = _draw_arm(
                panel, study.arms.index(arm), quantiles, styles[arm].colour, min(2.6, 13 / len(study.arms))
            )
            numbers.append({"level": rows[row][0], "sign": rows[row][1], "facet": facet, "arm": arm, **series})
        if not panel.collections:
            say(panel, "no run here has diagnostics.quantiles")
        panel.set_yscale("symlog", linthresh=0.1)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        name_arms(panel, study.arms)
    note_gaps(figure, study)
    caption = (
        "Natural logarithm of the token ratio and of the sequence ratio (0: unchanged) at the last optimiser step of"
        " the rollout steps that end the quarters of each run, side by side for each arm. Thick: 1% to 99% of the"
        " batch; thin: 0.1% to 99.9%; white: the median. Linear between -0.1 and 0.1, logarithmic beyond."
    )
    return figure, manifest(study, "F5", caption, _STATISTIC, numbers)


def _log_quantiles(updates: pd.DataFrame, level: str, sign: str) -> pd.DataFrame:
    """Log of each quantile (columns) by quarter and seed (index); empty where the journal lacks them."""
    names = {quantile_metric(level, quantile, sign): quantile for quantile in QUANTILES}
    if not names.keys() <= set(updates):
        return pd.DataFrame()
    ends = at_quarters(updates).set_index(["quarter", "seed"])[list(names)].rename(columns=names)
    return np.log(ends.dropna(how="all").astype("float64"))


def _draw_arm(panel: Axes, place: int, quantiles: pd.DataFrame, colour: str, thick: float) -> Series:
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


# ----------------------------------------------------------------------------------------------------------------------
# F8: whole responses move with the sign of their advantage.


ROWS = {
    "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
    "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
    "mean token ratio,\nall tokens": "ratio/token_mean",
}


def draw_response_ratio(study: Study) -> tuple[Figure, Manifest]:
    """Mean sequence ratio of responses with a positive and with a negative advantage; below, of all tokens."""
    figure, grid = panel_grid(list(ROWS), study.facets, height=1.35, share_y=False)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axhline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm, updates in study.by_arm("updates", facet):
            values_XS = pivot_seeds(after_first_step(updates), "rollout_step", ROWS[row])
            numbers.append(
                {"metric": ROWS[row], "facet": facet, "arm": arm, **draw_seeds(panel, values_XS, styles[arm])}
            )
        if not any(series["x"] for series in numbers if (series["metric"], series["facet"]) == (ROWS[row], facet)):
            say(panel, "no batch here has a second update")
    label_x(grid, "rollout steps")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    caption = (
        "Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a"
        " negative advantage, over the optimiser steps of a rollout step after the first, in which every ratio is 1."
        " Last row: the mean ratio of all tokens, those without an advantage included."
    )
    return figure, manifest(study, "F8", caption, MEAN_BAND, numbers)


# ----------------------------------------------------------------------------------------------------------------------
# F31: how probable the sampled tokens were, at the start and at the end.


_FIELD, _ROW, _START_COLOUR = "probability/counts", "sampled tokens\n(share)", "0.75"


def draw_probability_histogram(study: Study) -> tuple[Figure, Manifest]:
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
            numbers.append({**labels, "at": "end", **_draw_probability_histogram_end(panel, last, styles[arm])})
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


def _draw_probability_histogram_end(panel: Axes, shares_XS: pd.DataFrame, style: ArmStyle) -> Series:
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


# ----------------------------------------------------------------------------------------------------------------------
# F30: learning from stale batches.


_SETTING = "setting/staleness"
_ROWS = {
    "final accuracy": "final_score",
    "clipped tokens\n(share)": "clip/active",
    "largest\ntoken ratio": "ratio_max",
    "sampler–trainer\ngap (nat)": "gap/sampler_trainer",
}
_LOG = ("ratio_max", "gap/sampler_trainer")


def draw_staleness(study: Study) -> tuple[Figure, Manifest]:
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
