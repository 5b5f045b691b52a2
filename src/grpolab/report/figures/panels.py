"""What figures share: the catalogue, a grid of panels, lines with bands, rows with intervals, legends, notes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from grpolab.report.load import Study
from grpolab.report.measures import band_of
from grpolab.report.statistics.intervals import Band, Interval, geometric_band, t_band
from grpolab.report.style import COLUMN_WIDTH, NOTE_COLOUR, QUIET, TEXT_WIDTH, ArmStyle, Series, arm_styles, cell_names
from grpolab.report.text import OF_MEANS, count, listing
from grpolab.vocabulary import DIVERGED, STOPPED

MEAN = f"mean over seeds, 95% interval ({OF_MEANS})"
MEAN_BAND, MEAN_DOTS = f"{MEAN}; thin lines are seeds", f"{MEAN}; dots are seeds"

Grid = dict[tuple[str, str], Axes]


class Drawing(NamedTuple):
    """A figure and what its manifest says of it; `lacks` are notes about what it lacks besides cells."""

    figure: Figure
    caption: str
    statistic: str
    numbers: list[Series]
    lacks: tuple[str, ...] = ()


Draw = Callable[[Study], Drawing]
CATALOGUE: dict[str, tuple[Draw, str]] = {}  # a figure's id: what draws it, and its title


def figure(name: str, title: str) -> Callable[[Draw], Draw]:
    """Enter what draws a study's figure into the catalogue, under the figure's id (which names its file) and title."""

    def enter(draw: Draw) -> Draw:
        CATALOGUE[name] = (draw, title)
        return draw

    return enter


class NotDrawnError(Exception):
    """The study lacks what the figure needs; the text says what, and stands in the figure's place."""


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
    sharey: Any = "row" if share_y and not flat else False
    axes = figure.subplots(*shape, squeeze=False, sharex=share_x and "col", sharey=sharey)
    places = [(row, column) for row in rows for column in columns]
    grid = dict(zip(places, axes.flat, strict=True))
    for (row, column), panel in grid.items():
        if flat or column == columns[0]:
            panel.set_ylabel(row)
        if column and row == rows[0]:
            panel.set_title(column.replace("/", " · "), loc="left" if flat else "center")
    return figure, grid


class Sheet:
    """A study's figure while it is drawn: its panels by (row, facet), the arms' styles, the numbers drawn so far."""

    def __init__(self, study: Study, rows: Iterable[str], columns: Sequence[str] | None = None, **options: Any) -> None:
        self.study, self.styles = study, arm_styles(study.arms)
        self.figure, self.grid = panel_grid(list(rows), study.facets if columns is None else columns, **options)
        self.numbers: list[Series] = []

    @property
    def panels(self) -> list[Axes]:
        """All panels, row by row."""
        return list(self.grid.values())

    def row(self, row: str) -> list[Axes]:
        """The panels of a row."""
        return [panel for (name, _), panel in self.grid.items() if name == row]

    def mark(self, y: float) -> None:
        """A quiet line across every panel, which is scaled to show it."""
        for panel in self.panels:
            panel.axhline(y, color=QUIET, linewidth=0.6, zorder=0)

    def arms(self, row: str, table: str | pd.DataFrame) -> Iterator[tuple[Axes, str, str, pd.DataFrame]]:
        """In each panel of a row every arm with records there: panel, facet, arm, and its records (`Study.by_arm`)."""
        for facet in self.study.facets:
            for arm, records in self.study.by_arm(table, facet):
                yield self.grid[row, facet], facet, arm, records

    def add(self, series: Series, **labels: Any) -> None:
        """Keep what is drawn for the manifest."""
        self.numbers.append(labels | series)

    def lines(
        self, row: str, table: str | pd.DataFrame, metric: str, x: str = "rollout_step", log: bool = False
    ) -> None:
        """A line over x with its band for each arm, in each panel of a row; `log`: on log axes."""
        band = geometric_band if log else band_of(self.study, metric)
        for panel, facet, arm, records in self.arms(row, table):
            series = draw_seeds(panel, pivot_seeds(records, x, metric), self.styles[arm], band)
            self.add(series, metric=metric, facet=facet, arm=arm)
        for panel in self.row(row) if log else []:
            log_axis(panel, "y")

    def legend(self, extra: Sequence[Artist] = (), arms: Iterable[str] | None = None) -> None:
        """One legend below all panels: all arms of the study, or those that are drawn."""
        shown = self.styles if arms is None else set(arms)
        drawn = [handle(arm_label(self.study, arm), style) for arm, style in self.styles.items() if arm in shown]
        if handles := [*drawn, *extra]:
            rows = math.ceil(len(handles) / int(0.86 * self.figure.get_figwidth()))
            columns = math.ceil(len(handles) / rows)
            self.figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)

    def drawing(self, caption: str, statistic: str, lacks: tuple[str, ...] = ()) -> Drawing:
        """What is drawn, as a whole."""
        return Drawing(self.figure, caption, statistic, self.numbers, lacks)


def lines_by_arm(study: Study, rows: dict[str, tuple[str, str]], height: float = 1.45, log: bool = False) -> Sheet:
    """Rows of metrics over rollout steps, one panel per facet, one line per arm; `log`: on log axes.

    `rows` maps a label to (table, metric); updates are averaged over the optimiser steps of a rollout step.
    """
    sheet = Sheet(study, rows, height=height)
    for row, (table, metric) in rows.items():
        sheet.lines(row, table, metric, log=log)
    label_x(sheet.grid, "rollout steps")
    sheet.legend()
    return sheet


def name_arms(panel: Axes, arms: Sequence[str]) -> None:
    """An x axis with one place for each arm."""
    panel.set_xticks(range(len(arms)), arms, rotation=35, ha="right", rotation_mode="anchor")
    panel.set_xlim(-0.6, len(arms) - 0.4)
    panel.grid(axis="x", visible=False)


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Names beside the rows of a panel, the first on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(max(1, len(names)) - 0.5, -0.5)


def label_x(grid: Grid, label: str) -> None:
    """Name the x axis below the lowest panels."""
    for panel in grid.values():
        place = panel.get_subplotspec()
        if place is not None and place.is_last_row():
            panel.set_xlabel(label)


def whole_numbers(panel: Axes) -> None:
    """Ticks of the x axis at whole numbers alone."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


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


@contextmanager
def not_scaled_to(panel: Axes) -> Iterator[None]:
    """What is drawn inside may leave the panel: its axes are not scaled to it."""
    limits = panel.dataLim.frozen()
    yield
    panel.dataLim.set(limits)


def pivot_seeds(frame: pd.DataFrame, x: str, y: str, how: str = "mean") -> pd.DataFrame:
    """y at each x (index) for each seed (columns), several at one x by `how`; x without any y is left out."""
    if y not in frame or frame[y].isna().all():
        return pd.DataFrame()
    return frame[y].astype("float64").groupby([frame[x], frame["seed"]]).agg(how).unstack().dropna(how="all")


def by_seed(values: pd.Series | pd.DataFrame) -> dict[int, Any]:
    """The value of each seed (index), or its list of values (columns are seeds), as the manifest keeps them."""
    return {int(seed): item.tolist() if isinstance(item, pd.Series) else float(item) for seed, item in values.items()}


def band_series(values_XS: pd.DataFrame, band: Band) -> Series:
    """What the manifest keeps of a band over seeds (columns), and of the seeds."""
    bounds = {name: values.tolist() for name, values in zip(("mean", "low", "high", "n"), band, strict=True)}
    return {"x": values_XS.index.tolist(), **bounds, "seeds": by_seed(values_XS)}


def draw_seeds(
    panel: Axes, values_XS: pd.DataFrame, style: ArmStyle, band: Callable[[NDArray], Band] | None = t_band
) -> Series:
    """Thin lines for the seeds (columns), a thick one for their mean with its 95% interval, or for their median.

    `band`: `t_band`, `share_band` for values between 0 and 1, `geometric_band` for a log axis (what is not above 0 is
    left out); None for the median. The y axis is scaled to the lines; with two seeds a band may leave the panel.
    """
    if values_XS.empty:
        return {"x": []}
    x, values = values_XS.index.to_numpy(), values_XS.to_numpy(dtype=np.float64)
    for seed_values in values.T:
        panel.plot(x, seed_values, color=style.colour, linewidth=0.5, alpha=0.6)
    if band is None:
        centre = values_XS.median(axis=1).to_numpy()
        series: Series = {"x": x.tolist(), "median": centre.tolist(), "seeds": by_seed(values_XS)}
    else:
        centre, low, high, _ = bounds = band(values)
        with not_scaled_to(panel):
            panel.fill_between(x, low, high, color=style.colour, alpha=0.09, linewidth=0)
        series = band_series(values_XS, bounds)
    panel.plot(x, centre, **style.line_options, markevery=max(1, len(x) // 6))
    return series


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


def handle(label: str, style: ArmStyle) -> Line2D:
    """What the legend shows of a line."""
    return Line2D([], [], **style.line_options, label=label)


def arm_label(study: Study, arm: str) -> str:
    """The arm; one that is a number with the name of its factor."""
    return f"{study.plan['compare']} = {arm}" if arm.replace(".", "").isdigit() else arm


def note_gaps(figure: Figure, study: Study, lacks: Sequence[str] = ()) -> None:
    """Say in the picture what it lacks: the notes `lacks`, planned cells; and which runs diverged or were stopped."""
    notes, absent = list(lacks), study.absent
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
