"""What figures share: a grid of panels, lines with seeds and bands, the legend, the note of what is missing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from grpolab.report.load import Study
from grpolab.report.manifest import Series, cell_names
from grpolab.report.statistics import t_band
from grpolab.report.style import COLUMN_WIDTH, NOTE_COLOUR, TEXT_WIDTH, ArmStyle, arm_styles
from grpolab.report.text import count, listing
from grpolab.vocabulary import DIVERGED, STOPPED

MEAN_BAND = "mean over seeds, 95% t-interval; thin lines are seeds"
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


def label_x(grid: Grid, label: str) -> None:
    """Name the x axis below the lowest panels."""
    for panel in grid.values():
        place = panel.get_subplotspec()
        if place is not None and place.is_last_row():
            panel.set_xlabel(label)


def log_axis(panel: Axes, which: Literal["x", "y"]) -> None:
    """A log scale with plain numbers at 1 and 3 of each decade."""
    panel.set(**{f"{which}scale": "log"})
    axis = panel.xaxis if which == "x" else panel.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def start_at_zero(grid: Grid) -> None:
    """Let the y axes begin at 0 and end above the data of all panels that share them."""
    for panel in grid.values():
        tops = [other.dataLim.ymax for other in panel.get_shared_y_axes().get_siblings(panel)]
        top = max((top for top in tops if np.isfinite(top)), default=0.0)
        panel.set_ylim(0, 1.06 * top if top > 0 else 1)


def pivot_seeds(frame: pd.DataFrame, x: str, y: str, how: str = "mean") -> pd.DataFrame:
    """y at each x (index) for each seed (columns), several at one x by `how`; empty where the journal lacks y."""
    if y not in frame or frame[y].isna().all():
        return pd.DataFrame()
    return frame[y].astype("float64").groupby([frame[x], frame["seed"]]).agg(how).unstack()


def draw_seeds(panel: Axes, values_XS: pd.DataFrame, style: ArmStyle, median: bool = False) -> Series:
    """Thin lines for the seeds (columns), a thick one for their mean with its t-interval, or for their median.

    The y axis is scaled to the lines; with two seeds a band may leave the panel.
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
        centre, low, high, n = t_band(values)
        limits = panel.dataLim.frozen()
        panel.fill_between(x, low, high, color=style.colour, alpha=0.09, linewidth=0)
        panel.dataLim.set(limits)
        series |= {"mean": centre.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n.tolist()}
    every = max(1, len(x) // 6)
    panel.plot(x, centre, color=style.colour, linestyle=style.line, marker=style.marker, markevery=every)
    return series | {"seeds": {int(seed): values_XS[seed].tolist() for seed in values_XS}}


def lines_by_arm(
    study: Study, rows: dict[str, tuple[str, str]], height: float = 1.45
) -> tuple[Figure, Grid, list[Series]]:
    """Rows of metrics over rollout steps, one panel per facet, one line per arm.

    `rows` maps a label to (table, metric); updates are averaged over the optimiser steps of a rollout step.
    """
    figure, grid = panel_grid(list(rows), study.facets, height)
    styles, numbers = arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        table, metric = rows[row]
        for arm, frame in study.by_arm(table, facet):
            series = draw_seeds(panel, pivot_seeds(frame, "rollout_step", metric), styles[arm])
            numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
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
        rows = math.ceil(len(handles) / 6)
        columns = math.ceil(len(handles) / rows)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)


def arm_label(study: Study, arm: str) -> str:
    """The arm; one that is a number with the name of its factor."""
    return f"{study.plan['compare']} = {arm}" if arm.replace(".", "").isdigit() else arm


def note_gaps(figure: Figure, study: Study) -> None:
    """Say in the picture which planned cells it lacks, and which runs diverged or were stopped."""
    absent = study.absent
    notes = []
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
    panel.text(0.5, 0.5, words, transform=panel.transAxes, ha="center", va="center", color=NOTE_COLOUR, wrap=True)
