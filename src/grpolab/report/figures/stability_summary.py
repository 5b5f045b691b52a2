"""F26: stability of every arm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from grpolab.report.figures.panels import MEAN_DOTS, draw_row, log_axis, name_rows, note_gaps, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import mean_interval
from grpolab.report.stability import stability_table
from grpolab.report.statistics import Interval, t_interval, wilson
from grpolab.report.style import arm_styles


@dataclass(frozen=True)
class _Quantity:
    label: str
    metric: str
    rate: bool = False
    log: bool = False


_FROM_ZERO = ("drawdown", "spikes_per_100")  # nothing lies below 0
_QUANTITIES = [
    _Quantity("collapsed, diverged\nor stopped (rate)", "lost", rate=True),
    _Quantity("drawdown\n(accuracy)", "drawdown"),
    _Quantity("gradient spikes\nper 100 rollout steps", "spikes_per_100"),
    _Quantity("largest\ntoken ratio", "ratio_max", log=True),
    _Quantity("entropy drop\n(nat)", "entropy_drop"),
]


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Collapse rate, drawdown, gradient spikes, largest ratio and entropy drop of every arm, one row per facet."""
    table = stability_table(study)
    height = 0.35 + 0.17 * len(study.arms)
    facets = study.facets or [""]
    figure, grid = panel_grid(facets, [q.label for q in _QUANTITIES], height=height, share_y=True)
    numbers: list[Series] = []
    for facet in facets:
        for quantity in _QUANTITIES:
            here = table[table["facet"] == facet]
            numbers += _draw_panel(grid[facet, quantity.label], here, quantity, study, facet)
        grid[facet, _QUANTITIES[0].label].set_ylabel(facet.replace("/", "\n"))
    note_gaps(figure, study)
    caption = (
        "Stability per arm: rate of collapsed, diverged or stopped runs (95% Wilson interval), largest fall of the"
        " held-out accuracy below an earlier peak, gradient spikes, largest token ratio (log scale, geometric mean),"
        " and the fall of the sampling policy's entropy from the first to the last tenth of the run."
    )
    return figure, manifest(study, "F26", caption, MEAN_DOTS, numbers)


def _draw_panel(panel: Axes, table: pd.DataFrame, quantity: _Quantity, study: Study, facet: str) -> list[Series]:
    arms, numbers = study.arms, []
    styles = arm_styles(arms)
    for place, arm in enumerate(arms):
        runs = table[table["arm"] == arm]
        values = runs[quantity.metric].to_numpy(dtype=np.float64)
        interval = _interval(study, values, quantity)
        draw_row(panel, place, values[:0] if quantity.rate else values, interval, styles[arm])
        seeds = dict(zip((int(seed) for seed in runs["seed"]), values.tolist(), strict=True))
        estimate = {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n}
        numbers.append({"metric": quantity.metric, "facet": facet, "arm": arm, **estimate, "seeds": seeds})
    name_rows(panel, arms)
    if quantity.rate:
        panel.set_xlim(-0.04, 1.04)
    elif quantity.log:
        log_axis(panel, "x")
        low, high = panel.get_xlim()
        panel.xaxis.set_major_locator(LogLocator(subs=(1,) if high > 30 * low else (1, 2, 3, 5)))  # a narrow panel
    elif quantity.metric in _FROM_ZERO:
        tops = [other.dataLim.xmax for other in panel.get_shared_x_axes().get_siblings(panel)]
        top = max((top for top in tops if np.isfinite(top) and top > 0), default=1.0)
        panel.set_xlim(-0.04 * top, 1.06 * top)
    return numbers


def _interval(study: Study, values: np.ndarray, quantity: _Quantity) -> Interval:
    """Wilson's interval of a rate; else that of a mean, of the logarithms where the axis is logarithmic."""
    if quantity.rate:
        return wilson(int(values.sum()), len(values))
    if quantity.log:
        mean, low, high, n = t_interval(np.log(values))
        return Interval(float(np.exp(mean)), float(np.exp(low)), float(np.exp(high)), n)
    return mean_interval(study, quantity.metric, values)
