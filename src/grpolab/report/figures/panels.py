"""The drawing kit of all figures: a grid of panels, lines with bands, rows with intervals, legends, notes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from grpolab.errors import RequestError
from grpolab.report.load import StudyRuns
from grpolab.report.measures import band_of
from grpolab.report.statistics.intervals import Band, Interval, geometric_band
from grpolab.report.style import (
    COLUMN_WIDTH,
    NOTE_COLOUR,
    QUIET,
    TEXT_WIDTH,
    ArmStyle,
    Manifest,
    Series,
    arm_styles,
    cell_names,
    manifest,
    paper_style,
)
from grpolab.report.text import OF_MEANS, count, listing
from grpolab.vocabulary import ANALYTIC_FIGURES, DIVERGED, STOPPED

MEAN = f"mean over seeds, 95% interval ({OF_MEANS})"
MEAN_DOTS = f"{MEAN}; dots are seeds"
SMOOTHED = "of each seed first the moving mean over about a tenth of the rollout steps (fewer at the start)"
OVER_TIME = f"{MEAN}; {SMOOTHED}"
GEOMETRIC = f"geometric mean over seeds, 95% t-interval of the logarithms; {SMOOTHED}"
MOST_BANDS = 6  # more would hide the lines
MOST_COLUMNS = 5  # of panels beside each other
LEAST_SCALED = 3  # seeds; the interval of two is many times as long as they lie apart

Grid = dict[tuple[str, str], Axes]


class Drawing(NamedTuple):
    """A figure, and what its manifest says of it."""

    figure: Figure
    caption: str
    statistic: str
    numbers: list[Series]


class NotDrawnError(Exception):
    """The study lacks what the figure needs; the text says what, and stands in the figure's place."""


def panel_grid(
    rows: Sequence[str], columns: Sequence[str], height: float = 1.45, share_y: bool = True, share_x: bool = True
) -> tuple[Figure, Grid]:
    """Return a figure with one panel per (row, column): row names label the y axes, column names stand above.

    A single column is laid on its side, one panel beside the other; more than MOST_COLUMNS go on below the first ones.
    """
    flat = len(columns) == 1
    places = [(row, column) for row in rows for column in columns]
    lines = [[place] for place in places] if flat else [[(row, column) for row in rows] for column in columns]
    blocks = math.ceil(len(lines) / MOST_COLUMNS) if not flat else 1
    across, down = math.ceil(len(lines) / blocks), len(lines[0])
    width = COLUMN_WIDTH if across == 1 else max(TEXT_WIDTH, TEXT_WIDTH / MOST_COLUMNS * across)
    figure = Figure(figsize=(width, height * down * blocks + (0.9 if flat else 0.6)), layout="constrained")
    sharey: Any = "row" if share_y and not flat else False
    sharex: Any = "col" if share_x and blocks == 1 else False
    axes = figure.subplots(down * blocks, across, squeeze=False, sharex=sharex, sharey=sharey)
    spots = {
        place: (at // across * down + below, at % across)
        for at, line in enumerate(lines)
        for below, place in enumerate(line)
    }
    grid = {place: axes[spots[place]] for place in places}
    for at in range(len(lines), across * blocks):
        for panel in axes[-down:, at % across]:
            panel.remove()
    for line in lines if share_x and blocks > 1 else []:  # a column and the one below it have nothing in common
        for above, place in pairwise(line):
            grid[place].sharex(grid[above])
            grid[above].tick_params(labelbottom=False)
    for (row, column), panel in grid.items():
        if flat or spots[row, column][1] == 0:
            panel.set_ylabel(row)
        if column and row == rows[0]:
            panel.set_title(column.replace("/", " · "), loc="left" if flat else "center")
    return figure, grid


class Sheet:
    """A study's figure while it is drawn: its panels by (row, facet), the arms' styles, the numbers drawn so far."""

    def __init__(
        self, study: StudyRuns, rows: Iterable[str], columns: Sequence[str] | None = None, **options: Any
    ) -> None:
        self.study, self.styles = study, arm_styles(study.arms)
        self.figure, self.grid = panel_grid(list(rows), study.facets if columns is None else columns, **options)
        for (_, facet), panel in self.grid.items():
            if columns is None and panel.get_title() and facet.isdigit():
                panel.set_title(f"{study.facet_factors} = {facet}")
        self.numbers: list[Series] = []
        self.has_lines = False

    @property
    def panels(self) -> list[Axes]:
        """All panels, row by row."""
        return list(self.grid.values())

    @property
    def baseline(self) -> str:
        """The baseline as the figure names it."""
        return arm_label(self.study, self.study.baseline)

    def row(self, row: str) -> list[Axes]:
        """Return the panels of a row."""
        return [panel for (name, _), panel in self.grid.items() if name == row]

    def mark(self, y: float) -> None:
        """Draw a quiet line across every panel, which is scaled to show it."""
        for panel in self.panels:
            panel.axhline(y, color=QUIET, linewidth=0.6, zorder=0)

    def mark_zero(self, row: str) -> None:
        """Draw a dotted line at 0 in the panels of a row."""
        for panel in self.row(row):
            panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")

    def arms(self, row: str, table: str | pd.DataFrame) -> Iterator[tuple[Axes, str, str, pd.DataFrame]]:
        """Yield panel, facet, arm and its records for every arm with records in each panel of a row."""
        for facet in self.study.facets:
            for arm, records in self.study.by_arm(table, facet):
                yield self.grid[row, facet], facet, arm, records

    def add(self, series: Series, **labels: Any) -> None:
        """Keep what is drawn for the manifest."""
        self.numbers.append(labels | series)

    def say(self, panel: Axes, lack: str, **labels: Any) -> None:
        """Write why a panel is empty, in it and in the manifest."""
        say(panel, lack)
        self.add({"lacks": lack}, **labels)

    def line(
        self, panel: Axes, values_XS: pd.DataFrame, style: ArmStyle, band: Callable[[NDArray], Band], **labels: Any
    ) -> None:
        """Draw a line for the mean over seeds (columns) with its 95% band; of many arms only the baseline has a band.

        `band`: `t_band`, `share_band` for values between 0 and 1, `geometric_band` for a log axis (what is not above 0
        is left out). Seeds have thin lines where the study asks for them.
        """
        if values_XS.empty:
            self.add({"x": []}, **labels)
            return
        x, (mean, low, high, n) = values_XS.index.to_numpy(), band(values_XS.to_numpy(dtype=np.float64))
        if self.study.single_seeds:
            panel.plot(x, values_XS, color=style.colour, linewidth=0.5, alpha=0.6)
        if len(self.styles) <= MOST_BANDS or labels.get("arm") == self.study.baseline:
            with interval_over(panel, n.max()):
                panel.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
        panel.plot(x, mean, **style.line_options, markevery=max(1, len(x) // 6))
        self.add(band_series(values_XS, (mean, low, high, n)), **labels)
        self.has_lines = True

    def lines(self, row: str, table: str | pd.DataFrame, metric: str, log: bool = False, how: str = "mean") -> None:
        """Draw a line over rollout steps for each arm, in each panel of a row; `log`: on a log axis.

        Several values of a seed at one step are joined by `how`; what rollout steps record is smoothed, evaluations
        are not.
        """
        band = geometric_band if log else band_of(self.study, metric)
        for panel, facet, arm, records in self.arms(row, table):
            values_XS = pivot_seeds(records, "rollout_step", metric, how)
            if not metric.startswith("eval/"):
                values_XS = smoothed(values_XS, log)
            self.line(panel, values_XS, self.styles[arm], band, metric=metric, facet=facet, arm=arm)
        for panel in self.row(row) if log else []:
            log_axis(panel, "y")

    def interval_row(
        self, panel: Axes, place: float, values_S: NDArray | pd.Series, interval: Interval, arm: str, **labels: Any
    ) -> None:
        """Draw one arm across a panel and keep its numbers: interval as a line, mean as a marker, seeds as dots."""
        draw_row(panel, place, np.asarray(values_S), interval, self.styles[arm])
        seeds = {"seeds": by_seed(values_S)} if isinstance(values_S, pd.Series) else {}
        self.add({**interval._asdict(), **seeds}, **labels, arm=arm)

    def along(
        self,
        panel: Axes,
        places: Sequence[float],
        values_XS: pd.DataFrame,
        style: ArmStyle,
        band: Callable[[NDArray], Band],
        **labels: Any,
    ) -> Series:
        """Draw seeds (columns) as dots and their mean with its 95% interval at places of an axis; return numbers."""
        mean, low, high, n = bounds = band(values_XS.to_numpy())
        panel.plot(places, values_XS.to_numpy(), ".", color=style.colour, markersize=3, alpha=0.5)
        with interval_over(panel, n.max()):
            error = [mean - low, high - mean]
            panel.errorbar(places, mean, yerr=error, capsize=2, elinewidth=0.8, **style.line_options)
        series = band_series(values_XS, bounds)
        self.add(series, **labels)
        return series

    def name_rows(self, panel: Axes, arms: Sequence[str]) -> None:
        """Write arms beside the rows of a panel, the first on top."""
        panel.set_yticks(range(len(arms)), [arm_label(self.study, arm) for arm in arms])
        panel.set_ylim(max(1, len(arms)) - 0.5, -0.5)

    def label_x(self, label: str) -> None:
        """Name the x axis below the lowest panels."""
        label_x(self.grid, label)

    def start_at_zero(self, as_percent: bool = False) -> None:
        """Let the y axes begin at 0 and end above the data of all panels that share them."""
        for panel in self.panels:
            tops = [other.dataLim.ymax for other in panel.get_shared_y_axes().get_siblings(panel)]
            top = max((top for top in tops if np.isfinite(top)), default=0.0)
            panel.set_ylim(0, 1.06 * top if top > 0 else 1)
            if as_percent:
                panel.yaxis.set_major_formatter(PercentFormatter(1))

    def legend(self, extra: Sequence[Artist] = (), arms: Iterable[str] | None = None) -> None:
        """Draw one legend below all panels: all arms of the study, or those given; then `extra`."""
        shown = self.styles if arms is None else set(arms)
        drawn = [handle(arm_label(self.study, arm), style) for arm, style in self.styles.items() if arm in shown]
        if handles := [*drawn, *extra]:
            rows = math.ceil(len(handles) / int(0.86 * self.figure.get_figwidth()))
            columns = math.ceil(len(handles) / rows)
            self.figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)

    def drawing(self, caption: str, statistic: str) -> Drawing:
        """Return what is drawn as a whole. Raises NotDrawnError where no panel shows a number."""
        if not any(map(_has_number, self.numbers)):
            said = dict.fromkeys(series["lacks"] for series in self.numbers if "lacks" in series)
            raise NotDrawnError("; ".join(said) or "no run here has recorded what it shows")
        if self.has_lines and self.study.single_seeds:
            statistic += "; thin lines are seeds"
        if self.has_lines and len(self.styles) > MOST_BANDS:
            caption += f" Of {len(self.styles)} lines the baseline's alone has its band: more would hide them."
        return Drawing(self.figure, caption, statistic, self.numbers)


def _has_number(series: Series) -> bool:
    return bool(np.any(pd.notna(series.get("mean", series.get("x", [])))))


def lines_by_arm(
    study: StudyRuns, rows: dict[str, tuple[str | pd.DataFrame, str]], height: float = 1.45, log: bool = False
) -> Sheet:
    """Draw rows of metrics over rollout steps, one panel per facet, one line per arm; `log`: on log axes.

    `rows` maps a label to (table, metric); updates are averaged over the optimiser steps of a rollout step.
    """
    sheet = Sheet(study, rows, height=height)
    for row, (table, metric) in rows.items():
        sheet.lines(row, table, metric, log=log)
    sheet.label_x("rollout steps")
    sheet.legend()
    return sheet


def label_x(grid: Grid, label: str) -> None:
    """Name the x axis below the lowest panels."""
    lowest = dict[int, tuple[int, Axes]]()
    for panel in grid.values():
        place = panel.get_subplotspec()
        assert place is not None
        below, across = place.rowspan.stop, place.colspan.start
        lowest[across] = max(lowest.get(across, (below, panel)), (below, panel), key=lambda spot: spot[0])
    for _, panel in lowest.values():
        panel.set_xlabel(label)


def whole_numbers(panel: Axes) -> None:
    """Set ticks of the x axis at whole numbers alone."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def log_axis(panel: Axes, which: Literal["x", "y"]) -> None:
    """Set a log scale with plain numbers at 1 and 3 of each decade; at 1 alone where there is no room for more."""
    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    decades, inches = np.ptp(np.log10(axis.get_view_interval())), panel.bbox.width / mpl.rcParams["figure.dpi"]
    axis.set_major_locator(LogLocator(subs=(1, 3) if decades < (inches if which == "x" else 4) else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write_plainly(value)))
    axis.set_minor_formatter(NullFormatter())


def write_plainly(value: float) -> str:
    """Write a number with three digits at most, and never an exponent."""
    return np.format_float_positional(value, precision=3, unique=False, fractional=False, trim="-")


def as_percent(share: float, _place: int = 0) -> str:
    """Write a share on an axis, e.g. 0.002 as `0.2%`."""
    return f"{100 * share:g}%"


@contextmanager
def interval_over(panel: Axes, seeds: int) -> Iterator[None]:
    """Let an interval over fewer than LEAST_SCALED seeds, drawn inside this block, leave the panel."""
    limits = panel.dataLim.frozen()
    yield
    if seeds < LEAST_SCALED:
        panel.dataLim.set(limits)


def pivot_seeds(frame: pd.DataFrame, x: str, y: str, how: str = "mean") -> pd.DataFrame:
    """Return y at each x (index) for each seed (columns), several at one x by `how`; x without any y is left out."""
    if y not in frame or frame[y].isna().all():
        return pd.DataFrame()
    return frame[y].astype("float64").groupby([frame[x], frame["seed"]]).agg(how).unstack().dropna(how="all")


def by_seed(values: pd.Series | pd.DataFrame) -> dict[int, Any]:
    """Return the value of each seed (index), or its list of values (columns are seeds), as the manifest keeps them."""
    return {int(seed): item.tolist() if isinstance(item, pd.Series) else float(item) for seed, item in values.items()}


def band_series(values_XS: pd.DataFrame, band: Band) -> Series:
    """Return what the manifest keeps of a band over seeds (columns), and of the seeds."""
    bounds = {name: values.tolist() for name, values in zip(("mean", "low", "high", "n"), band, strict=True)}
    return {"x": values_XS.index.tolist(), **bounds, "seeds": by_seed(values_XS)}


def smoothed(values_XS: pd.DataFrame, log: bool = False) -> pd.DataFrame:
    """Return the moving mean of each seed (columns) over a tenth of the rollout steps; `log`: the geometric one.

    Fewer steps at the start, where a run changes most. Steps that fewer than half of the seeds have are left out: a
    mean of the others would depend on which are left.
    """
    values_XS = np.log(values_XS.where(values_XS > 0)) if log else values_XS
    half = round(len(values_XS) / 20)
    means_XS = values_XS.rolling(2 * half + 1, center=True, min_periods=1).mean() if half else values_XS
    for step in range(half):
        means_XS.iloc[step] = values_XS.iloc[: 2 * step + 1].mean()
    means_XS = means_XS.where(values_XS.notna())[values_XS.notna().mean(axis=1) >= 0.5]
    return np.exp(means_XS) if log else means_XS


def draw_row(panel: Axes, place: float, values_S: NDArray, interval: Interval, style: ArmStyle) -> None:
    """Draw one arm across a panel: its interval as a line, its mean as a marker, its seeds as dots."""
    panel.plot(values_S, np.full(len(values_S), place + 0.2), ".", color=style.colour, alpha=0.6, markersize=3)
    with interval_over(panel, interval.n):
        panel.hlines(place, interval.low, interval.high, color=style.colour, linewidth=1)
    panel.plot(interval.mean, place, style.marker, color=style.colour, markerfacecolor=style.colour)


def handle(label: str, style: ArmStyle) -> Line2D:
    """Return what the legend shows of a line."""
    return Line2D([], [], **style.line_options, label=label)


def arm_label(study: StudyRuns, arm: str) -> str:
    """Return the arm; one that is a number with the name of its factor."""
    return f"{study.plan['compare']} = {arm}" if arm.replace(".", "").isdigit() else arm


def note_gaps(figure: Figure, study: StudyRuns) -> None:
    """Say in the picture which planned cells are missing, and which runs diverged or were stopped."""
    notes, absent = list[str](), study.absent
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
    """Write a sentence in an otherwise empty panel."""
    letters = max(12, int(15 * panel.bbox.width / mpl.rcParams["figure.dpi"]))
    text = textwrap.fill(words, letters)
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=NOTE_COLOUR)


def draw_figure(study: StudyRuns, figure: str, catalogue: Mapping[str, tuple[str, str]]) -> tuple[Figure, Manifest]:
    """Draw a figure of the catalogue, which maps its id to the file that draws it and its name.

    Where the study lacks what the figure needs, the manifest has no numbers, and its caption and the picture say what
    is lacking. Raises RequestError for a figure that does not exist, or that needs runs where the plan has no cells.
    """
    if figure not in catalogue:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(catalogue)}")
    needs_runs = figure not in ANALYTIC_FIGURES
    if needs_runs and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    file, name = catalogue[figure]
    draw = getattr(import_module(f"grpolab.report.figures.{file}"), f"draw_{name}")
    with paper_style():
        try:
            if needs_runs and study.done.empty:
                raise NotDrawnError("no run has a result yet")
            drawing: Drawing = draw(study)
        except NotDrawnError as lack:
            sentence, grid = panel_grid([""], [""], height=0.3)
            grid["", ""].set_axis_off()
            say(grid["", ""], f"{figure}: {lack}")
            drawing = Drawing(sentence, f"Not drawn: {lack}.", "none", [])
        if needs_runs:
            note_gaps(drawing.figure, study)
    return drawing.figure, manifest(study, figure, drawing.caption, drawing.statistic, drawing.numbers)
