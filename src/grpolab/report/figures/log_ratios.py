"""F5: how far the ratios of tokens and of responses spread, at the ends of the run's quarters."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from grpolab.report.checkpoints import QUARTERS, at_quarters
from grpolab.report.figures.panels import name_arms, note_gaps, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import QUIET, arm_styles
from grpolab.vocabulary import LEVELS, QUANTILES, SIGNS, quantile_metric

_WORDS = {"pos": "A > 0", "neg": "A < 0"}
_STATISTIC = "median over seeds of each quantile; dots are the seeds' smallest and largest ratio"


def draw(study: Study) -> tuple[Figure, Manifest]:
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
