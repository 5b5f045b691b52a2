"""A number that a factor of the study moves, as an x axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grpolab.report.figures.panels import log_axis, pivot_seeds
from grpolab.report.load import Study
from grpolab.report.manifest import Series
from grpolab.report.statistics import share_band, t_band
from grpolab.report.style import ArmStyle

DECADES = 100.0  # values that are this far apart get a log scale


def numeric_axes(study: Study) -> dict[str, str]:
    """{factor: setting} for the factors whose levels differ in nothing but numbers, all of them different.

    They may be other numbers for each arm. The first such setting stands for a factor that moves several together
    (epsilon and epsilon_high).
    """
    one_seed = study.cells[study.cells["seed"] == study.cells["seed"].min()]
    axes = {}
    for factor in study.plan["factors"]:
        others = [c for c in one_seed if c.startswith("factor/") and c != f"factor/{factor}"]
        groups = [frame for _, frame in one_seed.groupby(others)] if others else [one_seed]
        moved = [c for c in one_seed if c.startswith("setting/") and any(_differs(frame[c]) for frame in groups)]
        numeric = all(isinstance(value, Real) for column in moved for value in one_seed[column])
        distinct = [c for c in moved if numeric and all(frame[c].nunique() == len(frame) for frame in groups)]
        if distinct:
            axes[factor] = distinct[0]
    return axes


def _differs(values: pd.Series) -> bool:
    return values.astype(str).nunique() > 1


def split(values: pd.DataFrame, study: Study, factor: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows with the columns of `study.cells`, by the levels of the factors that are neither `factor` nor the arms."""
    within = [c for c in values if c.startswith("factor/") and c[7:] not in (factor, study.plan["compare"])]
    if not within:
        return [("", values)]
    return [(" · ".join(levels), frame) for levels, frame in values.groupby(within, sort=False)]


@dataclass(frozen=True)
class Axis:
    """Where the values of a setting stand: in order of size, evenly spaced, or on a log scale where they span decades.

    An infinite value then stands a step beyond the largest.
    """

    values: Sequence[float]
    name: str

    @property
    def is_log(self) -> bool:
        """Whether it is a log scale."""
        finite = [value for value in self.values if np.isfinite(value)]
        return min(self.values) > 0 and max(finite) >= DECADES * min(finite)

    def places(self, values: Sequence[float], shift: float = 0.0) -> list[float]:
        """Where some of its values stand; `shift`, in steps, parts lines that would lie on each other."""
        if not self.is_log:
            return [self.values.index(value) + shift for value in values]
        return [min(value, self._beyond) for value in values]

    @property
    def _beyond(self) -> float:
        """Where an infinite value stands on the log scale."""
        return 4 * max(value for value in self.values if np.isfinite(value))

    def label(self, panel: Axes) -> None:
        """Ticks and name of the x axis."""
        panel.set_xlabel(self.name)
        if self.is_log:
            log_axis(panel, "x")
            if np.inf in self.values:
                decades = 10.0 ** np.arange(np.ceil(np.log10(min(self.values))), np.log10(self._beyond / 4) + 1e-9)
                panel.set_xticks([*decades, self._beyond], [*(f"{decade:g}" for decade in decades), "∞"])
        else:
            panel.set_xticks(range(len(self.values)), [f"{value:g}".replace("inf", "∞") for value in self.values])


def draw_along(
    panel: Axes,
    axis: Axis,
    values: pd.DataFrame,
    columns: tuple[str, str],
    style: ArmStyle,
    shift: float = 0.0,
    share: bool = False,
) -> Series:
    """Seeds as dots and their mean with its 95% interval along an axis; `columns` are those of x and y.

    `share`: y lies between 0 and 1, and so does its interval.
    """
    values_XS = pivot_seeds(values, *columns)
    if values_XS.empty:
        return {"x": []}
    x = values_XS.index.tolist()
    places = axis.places(x, shift)
    mean, low, high, n = (share_band if share else t_band)(values_XS.to_numpy())
    panel.plot(places, values_XS.to_numpy(), ".", color=style.colour, markersize=3, alpha=0.5)
    limits = panel.dataLim.frozen()
    error = [mean - low, high - mean]
    lines = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
    panel.errorbar(places, mean, yerr=error, capsize=2, elinewidth=0.8, **lines)
    panel.dataLim.set(limits)
    seeds = {int(seed): values_XS[seed].tolist() for seed in values_XS}
    series = {"x": x, "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n.tolist()}
    return {**series, "seeds": seeds}
