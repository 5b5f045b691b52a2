"""The drawing kit of all figures: a grid of panels, means over seeds with their intervals, legends, notes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import getdoc
from itertools import product
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from grpolab.report import style
from grpolab.report.load import StudyRuns
from grpolab.report.measures import band_of
from grpolab.report.statistics.intervals import Band, Interval, geometric_band
from grpolab.report.style import NOTE_COLOUR, QUIET, TEXT_WIDTH, ArmStyle, Manifest, Series
from grpolab.report.text import OF_MEANS, count, listing
from grpolab.vocabulary import ANALYTIC_FIGURES, DIVERGED, STOPPED

MEAN = f"mean over seeds, 95% interval ({OF_MEANS})"
MEAN_DOTS = f"{MEAN}; dots are seeds"
SMOOTHED = "of each seed first the moving mean over about a tenth of the rollout steps (fewer at the start)"
OVER_TIME = f"{MEAN}; {SMOOTHED}"
GEOMETRIC = f"geometric mean over seeds, 95% t-interval of the logarithms; {SMOOTHED}"
MOST_BANDS = 6  # more would hide the lines
MOST_COLUMNS = 5  # of panels beside each other
LEAST_SCALED = 3  # seeds; the interval of two is many times longer than their distance
APART = 3.0  # points between error bars of two arms, so that both can be seen
BLACK = ArmStyle("black", "-", "o")  # of a line that joins arms

BandOf = Callable[[NDArray], Band]
Places = Sequence[float] | None  # on the x axis, where they are not the values themselves


class Drawing(NamedTuple):
    """A figure with the manifest's texts about it, except the caption, which is the docstring of its function."""

    figure: Figure
    statistic: str
    numbers: list[Series]
    more: str = ""  # sentences behind the caption
    words: Mapping[str, str] = MappingProxyType({})  # for the braces in the caption, besides the attributes of `study`


class NotDrawnError(Exception):
    """The study lacks what the figure needs; the text says what, and is shown instead of the figure."""


def panel_grid(
    rows: Sequence[str], columns: Sequence[str], height: float = 1.45, share_y: bool = True, share_x: bool = True
) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """Return a figure with one panel per (row, column): row names label the y axes, column names stand above.

    The panels of a single column are placed side by side. Columns beyond MOST_COLUMNS continue in a block below.
    """
    flat = len(columns) == 1
    blocks = 1 if flat else math.ceil(len(columns) / MOST_COLUMNS)
    across, down = (len(rows), 1) if flat else (math.ceil(len(columns) / blocks), len(rows))
    width = style.COLUMN_WIDTH if across == 1 else max(TEXT_WIDTH, TEXT_WIDTH / MOST_COLUMNS * across)
    figure = Figure(figsize=(width, height * down * blocks + (0.9 if flat else 0.6)), layout="constrained")
    shared: dict[str, Any] = {"sharey": "row" if share_y and not flat else False}
    shared["sharex"] = "col" if share_x and blocks == 1 else False
    axes = figure.subplots(down * blocks, across, squeeze=False, **shared)
    panels = axes.reshape(blocks, down, across).swapaxes(0, 1).reshape(down, -1)  # blocks beside each other
    used = len(rows) if flat else len(columns)
    for spare in panels[:, used:].flat:
        spare.remove()
    grid = dict(zip(product(rows, columns), panels[:, :used].flat, strict=True))
    for (row, column), panel in grid.items():
        if flat or panel in axes[:, 0]:
            panel.set_ylabel(row)
        if column and row == rows[0]:
            panel.set_title(column.replace("/", " · "), loc="left" if flat else "center")
    return figure, grid


class Sheet:
    """A study's figure while it is drawn: its panels by (row, facet), the arms' styles, the numbers drawn so far."""

    def __init__(
        self, study: StudyRuns, rows: Iterable[str], columns: Sequence[str] | None = None, **options: Any
    ) -> None:
        self.study, self.styles = study, style.arm_styles(study.arms)
        self.figure, self.grid = panel_grid(list(rows), study.facets if columns is None else columns, **options)
        for (_, facet), panel in self.grid.items():
            if columns is None and panel.get_title() and facet.isdigit():
                panel.set_title(f"{study.facet_factors} = {facet}")
        self.numbers: list[Series] = []
        self.has_bands = False
        self.shared = set[int]()  # numbers of seeds of the panels from which some are left out

    def row(self, row: str) -> list[Axes]:
        """Return the panels of a row."""
        return [panel for (name, _), panel in self.grid.items() if name == row]

    def by_arm(
        self, row: str, table: str | pd.DataFrame, metric: str = ""
    ) -> Iterator[tuple[Axes, str, str, pd.DataFrame]]:
        """Yield panel, facet, arm and records for every arm with records in each panel of a row.

        With `metric` only the records of seeds that have a value of it, in every arm of the panel that has any.
        """
        for facet in self.study.facets:
            of_arm = dict(self.study.by_arm(table, facet))
            if metric:
                kept = self.share({arm: _seeds_with(of, metric) for arm, of in of_arm.items()})
                of_arm = {arm: of[of["seed"].isin(kept[arm])] for arm, of in of_arm.items()}
            for arm, records in of_arm.items():
                yield self.grid[row, facet], facet, arm, records

    def share(self, seeds_of: Mapping[Any, set[int]]) -> dict[Any, set[int]]:
        """Return the seeds to draw of each arm: those that all arms with any have, if there are such.

        Arms of different seeds would differ by the seeds too. Runs that are not paired keep all of theirs.
        """
        some = [seeds for seeds in seeds_of.values() if seeds]
        shared = set.intersection(*some) if some and self.study.is_paired else set()
        if not shared:
            return dict(seeds_of)
        if any(seeds != shared for seeds in some):
            self.shared.add(len(shared))
        return {arm: seeds & shared for arm, seeds in seeds_of.items()}

    def share_columns(self, values_XS: pd.DataFrame) -> pd.DataFrame:
        """Return the columns (seeds) that are shared by all rows (arms)."""
        seeds = self.share({x: {*values_S.dropna().index} for x, values_S in values_XS.iterrows()})
        return values_XS[sorted(set().union(*seeds.values()))]

    def record(self, series: Series, **labels: Any) -> None:
        """Keep the numbers of what is drawn for the manifest."""
        self.numbers.append(labels | series)

    def write_lack(self, panel: Axes, lack: str, **labels: Any) -> None:
        """Write why a panel is empty, in it and in the manifest."""
        write_sentence(panel, lack)
        self.record({"lacks": lack}, **labels)

    def draw_means(
        self, panel: Axes, values_XS: pd.DataFrame, look: ArmStyle, band: BandOf, places: Places = None, **labels: Any
    ) -> NDArray:
        """Draw and return the mean over seeds (columns) at each x (index) with its 95% interval, both from `band`.

        The interval is a band; if there are many arms, only the baseline has one. Seeds have thin lines if the study
        asks for them. With `places` on the x axis, intervals are error bars and seeds are dots.
        """
        if values_XS.empty:
            self.record({"x": []}, **labels)
            return np.empty(0)
        values, x = values_XS.to_numpy(dtype=np.float64), values_XS.index if places is None else places
        bounds = dict(zip(("mean", "low", "high", "n"), band(values), strict=True))
        mean, low, high, n = bounds.values()
        if places is not None:
            panel.plot(x, values, ".", color=look.colour, markersize=3, alpha=0.5)
        elif self.study.single_seeds:
            panel.plot(x, values, color=look.colour, linewidth=0.5, alpha=0.6)
        with interval_over(panel, n.max()):
            if places is not None:
                error = [mean - low, high - mean]
                panel.errorbar(x, mean, yerr=error, fmt="none", ecolor=look.colour, capsize=2, elinewidth=0.8)
            elif len(self.styles) <= MOST_BANDS or labels.get("arm") == self.study.baseline:
                panel.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
        panel.plot(x, mean, **look.line_options, markevery=max(1, len(x) // 6) if places is None else 1)
        lists = {name: numbers.tolist() for name, numbers in bounds.items()}
        self.record({"x": values_XS.index.tolist(), **lists, "seeds": by_seed(values_XS)}, **labels)
        self.has_bands |= places is None
        return mean

    def draw_beside(
        self, panel: Axes, values: dict[Any, pd.DataFrame], band: BandOf, place: Callable[[Any], float], **labels: Any
    ) -> None:
        """Draw the means of arms side by side, at `place` of each x; in black if a name is no arm."""
        for line, (arm, values_XS) in enumerate(values.items()):
            lines, collections = len(panel.lines), len(panel.collections)
            places = [place(x) for x in values_XS.index]
            self.draw_means(panel, values_XS, self.styles.get(arm, BLACK), band, places, **labels, arm=arm)
            if shift := APART * (line - (len(values) - 1) / 2):
                moved = panel.transData + ScaledTranslation(shift / 72, 0, self.figure.dpi_scale_trans)
                for artist in (*panel.lines[lines:], *panel.collections[collections:]):
                    artist.set_transform(moved)  # once the panel's limits hold the data

    def draw_metric(
        self, row: str, table: str | pd.DataFrame, metric: str, log: bool = False, how: str = "mean"
    ) -> None:
        """Draw a line over rollout steps for each arm, in each panel of a row; `log`: on a log axis.

        `how` joins several values of a seed at one step. Metrics of rollout steps are smoothed, evaluations are not.
        """
        band = geometric_band if log else band_of(self.study, metric)
        for panel, facet, arm, records in self.by_arm(row, table, metric):
            values_XS = pivot_seeds(records, "rollout_step", metric, how)
            if not metric.startswith("eval/"):
                values_XS = smooth(values_XS, log)
            self.draw_means(panel, values_XS, self.styles[arm], band, metric=metric, facet=facet, arm=arm)
        for panel in self.row(row) if log else []:
            set_log_axis(panel, "y")

    def draw_interval(
        self, panel: Axes, y: float, values_S: pd.Series, interval: Interval, arm: str, **labels: Any
    ) -> None:
        """Draw one arm across a panel: its interval as a line, its mean as a marker, its seeds (index) as dots."""
        look = self.styles[arm]
        panel.plot(values_S, np.full(len(values_S), y + 0.2), ".", color=look.colour, alpha=0.6, markersize=3)
        with interval_over(panel, interval.n):
            panel.hlines(y, interval.low, interval.high, color=look.colour, linewidth=1)
        panel.plot(interval.mean, y, look.marker, color=look.colour, markerfacecolor=look.colour)
        seeds = {"seeds": by_seed(values_S)} if len(values_S) else {}
        self.record({**interval._asdict(), **seeds}, **labels, arm=arm)

    def name_rows(self, panel: Axes, arms: Sequence[str]) -> None:
        """Write arms beside the rows of a panel, the first on top."""
        panel.set_yticks(range(len(arms)), [arm_label(self.study, arm) for arm in arms])
        panel.set_ylim(max(1, len(arms)) - 0.5, -0.5)

    def mark(self, y: float, row: str | None = None) -> None:
        """Draw a quiet line across the panels of a row, or of all; they are scaled to show it."""
        for panel in self.grid.values() if row is None else self.row(row):
            panel.axhline(y, color=QUIET, linewidth=0.6, zorder=0)

    def label_x(self, label: str) -> None:
        """Name the x axis below the lowest panels of each block."""
        rows, columns = zip(*self.grid, strict=True)
        for (row, _), panel in self.grid.items():
            if row == rows[-1] or len(set(columns)) == 1:
                panel.set_xlabel(label)

    def start_at_zero(self, as_percent: bool = False) -> None:
        """Let the y axes begin at 0."""
        for panel in self.grid.values():
            panel.set_ylim(bottom=0)
            if as_percent:
                panel.yaxis.set_major_formatter(PercentFormatter(1))

    def draw_legend(self, extra: Sequence[Artist] = (), arms: Iterable[str] | None = None) -> None:
        """Draw one legend below all panels: all arms of the study, or `arms`; then `extra`."""
        shown = self.styles if arms is None else set(arms)
        handles: list[Artist] = [
            line_of(look, arm_label(self.study, arm)) for arm, look in self.styles.items() if arm in shown
        ]
        if handles := [*handles, *extra]:
            rows = math.ceil(len(handles) / int(0.86 * self.figure.get_figwidth()))
            columns = math.ceil(len(handles) / rows)
            self.figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)

    def finish(self, statistic: str, more: str = "", **words: str) -> Drawing:
        """Return the drawing, with `more` behind its caption. Raises NotDrawnError where no panel shows a number."""
        if not any(np.any(pd.notna(series.get("mean", series.get("x", [])))) for series in self.numbers):
            lacks = dict.fromkeys(series["lacks"] for series in self.numbers if "lacks" in series)
            raise NotDrawnError("; ".join(lacks) or "no run here has recorded what it shows")
        if self.has_bands and self.study.single_seeds:
            statistic += "; thin lines are seeds"
        if self.has_bands and len(self.styles) > MOST_BANDS:
            more += f" Of {len(self.styles)} lines the baseline's alone has its band: more would hide them."
        if self.shared:
            seeds = listing([str(n) for n in sorted(self.shared)])
            more += f" Lines are over the {seeds} seeds that all arms of their panel share."
        return Drawing(self.figure, statistic, self.numbers, more, words)


def draw_curves(
    study: StudyRuns, rows: dict[str, tuple[str | pd.DataFrame, str]], height: float = 1.45, log: bool = False
) -> Sheet:
    """Draw rows {label: (table, metric)} over rollout steps: a panel per facet, a line per arm; `log`: on log axes.

    Updates are averaged over the optimiser steps of a rollout step.
    """
    sheet = Sheet(study, rows, height=height)
    for row, (table, metric) in rows.items():
        sheet.draw_metric(row, table, metric, log=log)
    sheet.label_x("rollout steps")
    sheet.draw_legend()
    return sheet


def line_of(look: ArmStyle, label: str) -> Line2D:
    """Return an entry of a legend."""
    return Line2D([], [], **look.line_options, label=label)


def set_whole_ticks(panel: Axes) -> None:
    """Set ticks of the x axis at whole numbers alone."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def set_log_axis(panel: Axes, which: Literal["x", "y"], form: Callable[[float], str] | None = None) -> None:
    """Set a log scale with plain numbers at 1 and 3 of each decade, or at 1 alone where there is little room."""
    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    decades, inches = np.ptp(np.log10(axis.get_view_interval())), panel.bbox.width / mpl.rcParams["figure.dpi"]
    most_decades = inches if which == "x" else 4  # with room for 3s: along x, an inch for each decade
    axis.set_major_locator(LogLocator(subs=(1, 3) if decades < most_decades else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: (form or write_plainly)(value)))
    axis.set_minor_formatter(NullFormatter())


FACTORS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, *(10.0**n for n in range(1, 9)))


def set_factor_axis(panel: Axes, low: float, high: float) -> None:
    """Set a log scale of x about 1, from `low` to `high`, with ticks at plain factors to both sides."""
    outer = max((factor for factor in FACTORS if factor <= max(high, 1 / low)), default=FACTORS[0])
    inner = max((factor for factor in FACTORS if factor <= np.sqrt(outer)), default=outer)
    panel.set(xscale="log", xlim=(low / (high / low) ** 0.05, high * (high / low) ** 0.05))
    ticks = [at for at in sorted({1 / outer, 1 / inner, 1.0, inner, outer}) if low <= at <= high]
    panel.set_xticks(ticks, [f"{at:.2g}" for at in ticks])
    panel.minorticks_off()


def write_plainly(value: float) -> str:
    """Write a number with three digits at most, and never an exponent."""
    return np.format_float_positional(value, precision=3, unique=False, fractional=False, trim="-")


def write_short(value: float) -> str:
    """Write a number below 0.01 as people write learning rates, e.g. 3.75e-5; any other plainly."""
    if not 0 < value < 0.01:
        return write_plainly(value)
    digits, power = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def write_percent(share: float) -> str:
    """Write a share on an axis, e.g. 0.002 as `0.2%`."""
    return f"{100 * share:g}%"


@contextmanager
def interval_over(panel: Axes, seeds: int) -> Iterator[None]:
    """Leave the interval that is drawn inside this block out of the panel's scale, if it is from too few seeds."""
    limits = panel.dataLim.frozen()
    yield
    if seeds < LEAST_SCALED:
        panel.dataLim.set(limits)


def pivot_seeds(frame: pd.DataFrame, x: str, y: str, how: str = "mean") -> pd.DataFrame:
    """Return y at each x (index) for each seed (columns), several y at one x joined by `how`; without empty x."""
    if y not in frame or frame[y].isna().all():
        return pd.DataFrame()
    return frame[y].astype("float64").groupby([frame[x], frame["seed"]]).agg(how).unstack().dropna(how="all")


def _seeds_with(records: pd.DataFrame, metric: str) -> set[int]:
    return {*records.loc[records[metric].notna(), "seed"]} if metric in records else set()


def by_seed(values: pd.Series | pd.DataFrame) -> dict[int, Any]:
    """Return the value of each seed (index), or its list of values (columns are seeds), as the manifest keeps them."""
    return {int(seed): item.tolist() if isinstance(item, pd.Series) else float(item) for seed, item in values.items()}


def smooth(values_XS: pd.DataFrame, log: bool = False) -> pd.DataFrame:
    """Return the moving mean of each seed (columns) over a tenth of the rollout steps; `log`: the geometric one.

    At the start, where a run changes most, it is over fewer steps. Steps that fewer than half of the seeds have are
    left out, because the mean would depend on which seeds these are.
    """
    values_XS = np.log(values_XS.where(values_XS > 0)) if log else values_XS
    half = round(len(values_XS) / 20)
    means_XS = values_XS.rolling(2 * half + 1, center=True, min_periods=1).mean() if half else values_XS
    for step in range(half):
        means_XS.iloc[step] = values_XS.iloc[: 2 * step + 1].mean()
    means_XS = means_XS.where(values_XS.notna())[values_XS.notna().mean(axis=1) >= 0.5]
    return np.exp(means_XS) if log else means_XS


def arm_label(study: StudyRuns, arm: str) -> str:
    """Return the arm's name, with its factor's name if the arm is a number."""
    return f"{study.plan['compare']} = {arm}" if arm.replace(".", "").isdigit() else arm


def note_gaps(figure: Figure, study: StudyRuns) -> None:
    """Say in the picture which planned cells are missing, and which runs diverged or were stopped."""
    notes, absent = list[str](), study.absent
    if len(absent):
        cells = f"{len(absent)} of {count(len(study.cells), 'cell')}"
        notes.append(f"Missing: {cells} ({listing(style.cell_names(absent), 2)})")
    for outcome in (DIVERGED, STOPPED):
        if names := style.cell_names(study.done[study.done["outcome"] == outcome]):
            notes.append(f"{outcome.capitalize()} (last finite evaluation carried forward, ×): {listing(names, 2)}")
    if notes:
        letters = int(16 * figure.get_figwidth())  # that fit into a line
        figure.suptitle("\n".join(textwrap.fill(note, letters) for note in notes), color=NOTE_COLOUR)


def write_sentence(panel: Axes, words: str) -> None:
    """Write a sentence in an otherwise empty panel."""
    letters = max(12, int(15 * panel.bbox.width / mpl.rcParams["figure.dpi"]))
    text = textwrap.fill(words, letters)
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", va="center", color=NOTE_COLOUR)


def draw_figure(study: StudyRuns, figure: str, draw: Callable[[StudyRuns], Drawing]) -> tuple[Figure, Manifest]:
    """Draw a figure with its notes or, if the study lacks something, a sentence that says so."""
    needs_runs = figure not in ANALYTIC_FIGURES
    with style.paper_style():
        try:
            if needs_runs and study.done.empty:
                raise NotDrawnError("no run has a result yet")
            drawing = draw(study)
            caption = " ".join((getdoc(draw) or "").split()).format(study=study, **drawing.words) + drawing.more
        except NotDrawnError as lack:
            sentence, grid = panel_grid([""], [""], height=0.3)
            grid["", ""].set_axis_off()
            write_sentence(grid["", ""], f"{figure}: {lack}")
            drawing, caption = Drawing(sentence, "none", []), f"Not drawn: {lack}."
        if needs_runs:
            note_gaps(drawing.figure, study)
    return drawing.figure, style.manifest(study, figure, caption, drawing.statistic, drawing.numbers)
