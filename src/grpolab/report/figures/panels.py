"""What figures share: a grid of panels, lines with seeds and bands, the legend, the note of what is missing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from grpolab.report.load import Study
from grpolab.report.measures import is_share
from grpolab.report.statistics.intervals import Interval, share_band, t_band
from grpolab.report.style import (
    COLUMN_WIDTH,
    NOTE_COLOUR,
    TEXT_WIDTH,
    ArmStyle,
    Manifest,
    Series,
    arm_styles,
    cell_names,
    manifest,
)
from grpolab.report.text import OF_MEANS, count, listing
from grpolab.vocabulary import DIVERGED, STOPPED

MEAN = f"mean over seeds, 95% interval ({OF_MEANS})"
MEAN_BAND, MEAN_DOTS = f"{MEAN}; thin lines are seeds", f"{MEAN}; dots are seeds"
LOG_BAND = "geometric mean over seeds, 95% t-interval of the logarithms; thin lines are seeds"
MEDIAN = "median over seeds; thin lines are seeds"

Grid = dict[tuple[str, str], Axes]


def panel_grid(
    rows: Sequence[str], columns: Sequence[str], height: float = 1.45, share_y: bool = True, share_x: bool = True
) -> tuple[Figure, Grid]:
    """A figure with one panel per (row, column): row names label the y axes, column names stand above.

    A single column is laid on its side, one panel beside the other.
    """
    flat = len(columns) == 1
    shape = (1, len(rows)) if flat else (len(rows), len(columns))
    width = COLUMN_WIDTH if shape[1] == 1 else max(TEXT_WIDTH, 1.4 * shape[1])
    figure = Figure(figsize=(width, height * shape[0] + (0.9 if flat else 0.6)), layout="constrained")
    axes = figure.subplots(
        *shape, squeeze=False, sharex=share_x and "col", sharey="row" if share_y and not flat else False
    )
    grid = {
        (row, column): axes[0, r] if flat else axes[r, c]
        for r, row in enumerate(rows)
        for c, column in enumerate(columns)
    }
    for (row, column), panel in grid.items():
        if flat or column == columns[0]:
            panel.set_ylabel(row)
        if not flat and row == rows[0]:
            panel.set_title(column.replace("/", " · "))
    if flat and columns[0]:
        axes[0, 0].set_title(columns[0].replace("/", " · "), loc="left")
    return figure, grid


def name_arms(panel: Axes, arms: Sequence[str]) -> None:
    """An x axis with one place for each arm."""
    panel.set_xticks(range(len(arms)), arms, rotation=35, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.6, len(arms) - 0.4)
    panel.grid(axis="x", visible=False)


def label_x(grid: Grid, label: str) -> None:
    """Name the x axis below the lowest panels."""
    for panel in grid.values():
        place = panel.get_subplotspec()
        if place is not None and place.is_last_row():
            panel.set_xlabel(label)


def log_axis(panel: Axes, which: Literal["x", "y"]) -> None:
    """A log scale with plain numbers at 1 and 3 of each decade; at 1 alone where the data span many decades."""
    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 3) if high < 1e4 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def start_at_zero(grid: Grid) -> None:
    """Let the y axes begin at 0 and end above the data of all panels that share them."""
    for panel in grid.values():
        tops = [other.dataLim.ymax for other in panel.get_shared_y_axes().get_siblings(panel)]
        top = max((top for top in tops if np.isfinite(top)), default=0.0)
        panel.set_ylim(0, 1.06 * top if top > 0 else 1)


def pivot_seeds(frame: pd.DataFrame, x: str, y: str, how: str = "mean") -> pd.DataFrame:
    """y at each x (index) for each seed (columns), several at one x by `how`; x without any y is left out."""
    if y not in frame or frame[y].isna().all():
        return pd.DataFrame()
    return frame[y].astype("float64").groupby([frame[x], frame["seed"]]).agg(how).unstack().dropna(how="all")


def draw_seeds(
    panel: Axes,
    values_XS: pd.DataFrame,
    style: ArmStyle,
    median: bool = False,
    log: bool = False,
    share: bool = False,
) -> Series:
    """Thin lines for the seeds (columns), a thick one for their mean with its 95% interval, or for their median.

    `share`: the values lie between 0 and 1, and so does their band. `log`: mean and interval of the logarithms, for a
    log axis; what is not above 0 is left out. The y axis is scaled to the lines; with two seeds a band may leave the
    panel.
    """
    if values_XS.empty:
        return {"x": []}
    x, values = values_XS.index.to_numpy(), values_XS.to_numpy(dtype=np.float64)
    for seed_values in values.T:
        panel.plot(x, seed_values, color=style.colour, linewidth=0.5, alpha=0.6)
    series: Series = {"x": x.tolist()}
    if median:
        centre = values_XS.median(axis=1).to_numpy()
        series["median"] = centre.tolist()
    else:
        centre, low, high, n = (_log_band if log else share_band if share else t_band)(values)
        limits = panel.dataLim.frozen()
        panel.fill_between(x, low, high, color=style.colour, alpha=0.09, linewidth=0)
        panel.dataLim.set(limits)
        series |= {"mean": centre.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n.tolist()}
    every = max(1, len(x) // 6)
    panel.plot(x, centre, color=style.colour, linestyle=style.line, marker=style.marker, markevery=every)
    return series | {"seeds": {int(seed): values_XS[seed].tolist() for seed in values_XS}}


def _log_band(values_XS: NDArray) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """As t_band, of the logarithms; back on the scale of the values."""
    mean, low, high, n = t_band(np.log(np.where(values_XS > 0, values_XS, np.nan)))
    return np.exp(mean), np.exp(low), np.exp(high), n


def lines_by_arm(
    study: Study, rows: dict[str, tuple[str, str]], height: float = 1.45, log: bool = False
) -> tuple[Figure, Grid, list[Series]]:
    """Rows of metrics over rollout steps, one panel per facet, one line per arm; `log`: on log axes.

    `rows` maps a label to (table, metric); updates are averaged over the optimiser steps of a rollout step.
    """
    figure, grid = panel_grid(list(rows), study.facets, height)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        table, metric = rows[row]
        for arm, frame in study.by_arm(table, facet):
            values_XS = pivot_seeds(frame, "rollout_step", metric)
            series = draw_seeds(panel, values_XS, styles[arm], log=log, share=is_share(study, metric))
            numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
        if log:
            log_axis(panel, "y")
    label_x(grid, "rollout steps")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    return figure, grid, numbers


def legend_arms(figure: Figure, study: Study, arms: Sequence[str], extra: Sequence[Artist] = ()) -> None:
    """One legend below all panels."""
    styles = arm_styles(study.arms)
    handles: list[Artist] = [
        Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker, label=arm_label(study, arm))
        for arm, style in styles.items()
        if arm in arms
    ]
    handles += extra
    if handles:
        rows = math.ceil(len(handles) / int(0.86 * figure.get_figwidth()))
        columns = math.ceil(len(handles) / rows)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)


def arm_label(study: Study, arm: str) -> str:
    """The arm; one that is a number with the name of its factor."""
    return f"{study.plan['compare']} = {arm}" if arm.replace(".", "").isdigit() else arm


def note_gaps(figure: Figure, study: Study, *also: str) -> None:
    """Say in the picture which planned cells it lacks, which runs diverged or were stopped, and what else it lacks."""
    absent = study.absent
    notes = list(also)
    if len(absent):
        cells = f"{len(absent)} of {count(len(study.cells), 'cell')}"
        notes.append(f"Missing: {cells} ({listing(cell_names(absent), 2)})")
    for outcome in (DIVERGED, STOPPED):
        if names := cell_names(study.done[study.done["outcome"] == outcome]):
            notes.append(f"{outcome.capitalize()} (last finite evaluation carried forward, ×): {listing(names, 2)}")
    if notes:
        letters = int(16 * figure.get_figwidth())  # what fits into a line
        figure.suptitle("\n".join(textwrap.fill(note, letters) for note in notes), color=NOTE_COLOUR)


def say(panel: Axes, words: str) -> None:
    """A sentence in an otherwise empty panel."""
    letters = max(12, int(15 * panel.bbox.width / mpl.rcParams["figure.dpi"]))
    text = textwrap.fill(words, letters)
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=NOTE_COLOUR)


def only_says(study: Study, name: str, words: str) -> tuple[Figure, Manifest]:
    """In place of a figure: the sentence that says what the study lacks for it."""
    figure, grid = panel_grid([""], [""], height=0.3)
    for panel in grid.values():
        panel.set_axis_off()
        say(panel, f"{name}: {words}")
    note_gaps(figure, study)
    return figure, manifest(study, name, f"Not drawn: {words}.", "none", [{"lacks": words}])


def draw_row(panel: Axes, place: int, values_S: NDArray, interval: Interval, style: ArmStyle) -> None:
    """One arm across a panel: its interval as a line, its mean as a marker, its seeds as dots.

    The axis is scaled to the seeds where there are any, so an interval may leave the panel.
    """
    panel.plot(values_S, np.full(len(values_S), place), ".", color=style.colour, alpha=0.5, markersize=3)
    limits = panel.dataLim.frozen()
    panel.hlines(place, interval.low, interval.high, color=style.colour, linewidth=1)
    if len(values_S):
        panel.dataLim.set(limits)
    panel.plot(interval.mean, place, style.marker, color=style.colour)


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Names beside the rows of a panel, the first on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(max(1, len(names)) - 0.5, -0.5)


# ----------------------------------------------------------------------------------------------------------------------
# A number that a factor of the study moves, as an x axis.


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
