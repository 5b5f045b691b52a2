"""F13: final entropy, final accuracy and drift over the two settings that a study moves."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from grpolab.report.figures.numeric_axis import numeric_axes
from grpolab.report.figures.panels import note_gaps, only_says, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import measure
from grpolab.report.style import NOTE_COLOUR
from grpolab.report.text import number

_PALE = "#e8b9be"  # behind the word `missing`
# Quantity of the stability table -> row.
_QUANTITIES = {
    "entropy_last": "final entropy (nat per token)",
    "final_score": "final accuracy",
    "kl_old": "KL(old || new) of a batch (nat)",
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """A map of each quantity over the first two factors that move a number; what other factors do stands apart."""
    axes = dict(list(numeric_axes(study).items())[:2])
    if len(axes) < 2:
        return only_says(study, "F13", f"two factors must move a number each; here: {', '.join(axes) or 'none'}")
    parts, (y, x) = _split(study, list(axes)), axes.values()
    rows = {quantity: f"{text}\n{y.removeprefix('setting/')}" for quantity, text in _QUANTITIES.items()}
    figure, grid = panel_grid(list(rows.values()), list(parts), height=2.1, share_x=False, share_y=False)
    numbers: list[Series] = []
    for quantity, row in rows.items():
        values = measure(study, quantity).rename("value").reset_index()
        for title, cells in parts.items():
            series = _draw_map(grid[row, title], cells.merge(values, on=["facet", "arm", "seed"], how="left"), y, x)
            numbers.append({"metric": quantity, "facet": title, **series})
    note_gaps(figure, study)
    caption = (
        "Entropy of the sampling policy over the last tenth of the run, final held-out accuracy, and the KL divergence"
        " of the policy from the one that sampled the batch at the batch's last update (estimator k3, mean over the"
        " run), for each pair of settings, in order of size. Darker is more; hatched: no run has a result."
    )
    return figure, manifest(study, "F13", caption, "mean over seeds (sample standard deviation)", numbers)


def _split(study: Study, axes: list[str]) -> dict[str, pd.DataFrame]:
    """The cells by the levels of the factors that are not on the axes, under those levels' names."""
    within = [f"factor/{factor}" for factor in study.plan["factors"] if factor not in axes]
    if not within:
        return {"": study.cells}
    return {"/".join(levels): cells for levels, cells in study.cells.groupby(within, sort=False)}


def _draw_map(panel: Axes, cells: pd.DataFrame, y: str, x: str) -> Series:
    """Mean (sd) in each cell of y (rows, rising) by x (columns, rising)."""
    by_cell = cells.groupby([y, x])["value"]
    mean_YX, sd_YX, n_YX = (by_cell.agg(how).unstack() for how in ("mean", "std", "count"))
    norm = mpl.colors.Normalize(np.nanmin(mean_YX), np.nanmax(mean_YX)) if n_YX.to_numpy().any() else None
    planned = int(by_cell.size().max())
    for row, column in np.ndindex(mean_YX.shape):
        mean, sd, n = (table.iat[row, column] for table in (mean_YX, sd_YX, n_YX))
        share = float(norm(mean)) if norm and n > 0 else np.nan
        _draw_cell(panel, column, row, share, _words(mean, sd, int(n) if n > 0 else 0, planned))
    panel.grid(visible=False)
    for axis, values in ((panel.xaxis, mean_YX.columns), (panel.yaxis, mean_YX.index)):
        axis.set_ticks(range(len(values)), [f"{value:g}".replace("inf", "∞") for value in values])
        axis.set_tick_params(length=0)
    panel.set_xlabel(x.removeprefix("setting/"))
    panel.set(xlim=(-0.5, mean_YX.shape[1] - 0.5), ylim=(-0.5, mean_YX.shape[0] - 0.5))
    tables = {"mean": mean_YX, "sd": sd_YX, "n": n_YX}
    lists = {name: table.to_numpy(dtype=np.float64).tolist() for name, table in tables.items()}
    return {"x": mean_YX.columns.tolist(), "y": mean_YX.index.tolist(), **lists}


def _draw_cell(panel: Axes, x: int, y: int, share: float, words: str) -> None:
    """One square, the darker the greater its share of the panel's range; without a share hatched."""
    missing = np.isnan(share)
    colour = "white" if missing else mpl.colormaps["Blues"](0.08 + 0.72 * share)
    edge, hatch = (_PALE, "//") if missing else ("white", None)
    corner = (x - 0.5, y - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, linewidth=0.6, edgecolor=edge, hatch=hatch))
    ink = NOTE_COLOUR if missing else "white" if share > 0.6 else "black"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if missing else None
    panel.text(x, y, words, ha="center", va="center", fontsize=7, color=ink, bbox=box)


def _words(mean: float, sd: float, n: int, planned: int) -> str:
    """`0.412 (0.021)` in two lines; how many seeds where some are missing."""
    if not n:
        return "missing"
    spread = f"\n({number(sd)})" if n > 1 else ""
    return number(mean) + spread + (f"\nn = {n}" if n < planned else "")
