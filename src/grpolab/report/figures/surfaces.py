"""F11: what the surrogates promise along an update, and what it costs in KL."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures.panels import (
    MEAN_BAND,
    draw_seeds,
    label_x,
    legend_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
    say,
)
from grpolab.report.load import Study
from grpolab.report.style import QUIET, TEXT_WIDTH, Manifest, Series, arm_styles, manifest
from grpolab.report.text import count

_ROWS = {
    r"$L_\mathrm{CPI}$ (not clipped)": "l_cpi",
    r"$L_\mathrm{CLIP}$ (clipped)": "l_clip",
    "KL(old || there)\n(nat per token)": "kl",
}


def draw_surrogate(study: Study) -> tuple[Figure, Manifest]:
    """Unclipped and clipped surrogate and KL from the old to the new policy of updates, and as far again."""
    figure, grid = panel_grid(list(_ROWS), study.facets, height=1.5)
    table, styles, numbers = _table(study), arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm in study.arms:
            own = table[(table["facet"] == facet) & (table["arm"] == arm)]
            if len(own):
                series = draw_seeds(panel, pivot_seeds(own, "alpha", _ROWS[row]), styles[arm])
                numbers.append({"metric": _ROWS[row], "facet": facet, "arm": arm, **series})
    label_x(grid, "weights: 0 = old, 1 = new")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study, *_lacking(study, table))
    batches = table["rollout_step"].nunique()
    caption = (
        "The unclipped surrogate, the clipped one at the arm's ratio level, clip range and averaging (whatever rule it"
        " trains with), and the exact KL divergence from the old policy, on the weights old + alpha (new - old) and on"
        f" the batch of the update: mean over the first {batches} rollout steps of each run, made again from its warm"
        " start."
    )
    return figure, manifest(study, "F11", caption, MEAN_BAND, numbers or [{"x": []}])


def _table(study: Study) -> pd.DataFrame:
    """The table's rows of the study's runs, with their facet, arm and seed."""
    path = study.results.surrogate
    columns = ["signature", "rollout_step", "alpha", *_ROWS.values()]
    table = pd.read_csv(path, dtype={"signature": str}) if path.is_file() else pd.DataFrame(columns=columns)
    return table.merge(study.done[["signature", "facet", "arm", "seed"]], on="signature")


def _lacking(study: Study, table: pd.DataFrame) -> list[str]:
    """The note of the runs that the table lacks, if there are any."""
    wanted = set(study.done["signature"])
    lacking = wanted - set(table["signature"])
    runs = f"{len(lacking)} of {count(len(wanted), 'run')}"
    note = f"Not in {study.results.surrogate.name}: {runs} (`grpolab surrogate {study.name}` adds them)"
    return [note] if lacking else []


# ----------------------------------------------------------------------------------------------------------------------
# F9: the shape of the objective, drawn from the table that the loss code itself computed.


_GEOMETRY_ROWS = {"objective": "objective\n(maximised)", "weight": "weight on the gradient\nof the log-prob"}
_COLUMNS = {1: "advantage +1", -1: "advantage -1"}


def draw_geometry(study: Study) -> tuple[Figure, Manifest]:
    """Objective and gradient weight of one token against its importance ratio, for either sign of the advantage."""
    figure, grid = panel_grid(list(_GEOMETRY_ROWS.values()), list(_COLUMNS.values()), height=2.0)
    path = study.results.geometry
    table = (
        pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["curve", "advantage", "ratio", *_GEOMETRY_ROWS])
    )
    curves = list(dict.fromkeys(table["curve"]))
    styles, numbers = arm_styles(curves), []
    for quantity, row in _GEOMETRY_ROWS.items():
        for sign, column in _COLUMNS.items():
            panel = grid[row, column]
            for curve in curves:
                points = table[(table["curve"] == curve) & (table["advantage"] == sign)].sort_values("ratio")
                if quantity == "weight" or is_surrogate(points):
                    panel.plot(
                        points["ratio"], points[quantity], color=styles[curve].colour, linestyle=styles[curve].line
                    )
                    numbers.append(_series(curve, sign, quantity, points))
            panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
            panel.set_xlabel("importance ratio" if row == _GEOMETRY_ROWS["weight"] else "")
            if not curves:
                say(panel, f"{path.name} is not there:\nrun `grpolab geometry`")
    handles = [Line2D([], [], color=s.colour, linestyle=s.line, label=curve) for curve, s in styles.items()]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
    caption = (
        "What one token adds to the objective, and the factor on the gradient of its log-prob, against its importance"
        f" ratio: computed by the loss code of this program ({path.name}). A rule that stops gradients inside its"
        " objective has no curve in the upper row: its slope would not be its gradient."
    )
    return figure, manifest(study, "F9", caption, "analytic", numbers)


def is_surrogate(points: pd.DataFrame) -> bool:
    """Whether the weight is the objective's slope against the log ratio; not so for CISPO's detached cap."""
    slope = np.gradient(points["objective"], np.log(points["ratio"]))
    return bool(np.mean(np.abs(slope - points["weight"]) < 0.01) > 0.9)  # not at the kinks


def _series(curve: str, sign: int, quantity: str, points: pd.DataFrame) -> Series:
    x, values = points["ratio"].tolist(), points[quantity].tolist()
    return {"metric": quantity, "curve": curve, "advantage": sign, "x": x, "value": values}


# ----------------------------------------------------------------------------------------------------------------------
# F10: which rule looks at the ratio and which at the probability: the weight on a token's gradient over both.


_WEIGHT_SURFACE_ROWS = {1: "new probability,\nadvantage +1", -1: "new probability,\nadvantage -1"}
_SILENT = "0.8"
_NORM = mpl.colors.LogNorm(0.1, 10, clip=True)


def draw_weight_surface(study: Study) -> tuple[Figure, Manifest]:
    """The size of d objective / d log-prob over old and new probability, one column per rule, one row per sign."""
    path = study.results.surface
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["rule", "advantage", "old", "new", "weight"])
    rules = list(dict.fromkeys(table["rule"]))
    figure, grid = panel_grid(list(_WEIGHT_SURFACE_ROWS.values()), rules or [""], height=1.2)
    figure.set_figwidth(TEXT_WIDTH)
    numbers: list[Series] = []
    for sign, row in _WEIGHT_SURFACE_ROWS.items():
        for rule in rules:
            own = table[(table["rule"] == rule) & (table["advantage"] == sign)]
            weight_NO = own.pivot(index="new", columns="old", values="weight")
            _draw_surface(grid[row, rule], weight_NO)
            grid[row, rule].set_title(rule if sign == 1 else "", fontsize=7)
            grid[row, rule].set_xlabel("old probability" if sign == -1 else "")
            lists = {
                "x": weight_NO.columns.tolist(),
                "y": weight_NO.index.tolist(),
                "value": weight_NO.to_numpy().tolist(),
            }
            numbers.append({"metric": "weight", "rule": rule, "advantage": sign, **lists})
        if not rules:
            say(grid[row, ""], f"{path.name} is not there: run `grpolab geometry`")
    if rules:
        scale = mpl.cm.ScalarMappable(_NORM, "viridis")
        bar = figure.colorbar(scale, ax=list(grid.values()), extend="both", pad=0.01, aspect=30)
        bar.set_label("size of the weight on the gradient")
        bar.ax.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
        bar.ax.minorticks_off()
        silent = Patch(color=_SILENT, label="no gradient")
        figure.legend(handles=[silent], loc="outside lower center")
    caption = (
        "Size of the factor on the gradient of a token's log-prob, over the token's old and new probability, for either"
        f" sign of the advantage: computed by the loss code of this program ({path.name}). Its sign is the advantage's"
        " everywhere. White: probability as it was. A rule on the ratio has rays through the origin, one on the change"
        " of probability has parallels to the diagonal."
    )
    return figure, manifest(study, "F10", caption, "analytic", numbers or [{"x": []}])


def _draw_surface(panel: Axes, weight_NO: pd.DataFrame) -> None:
    """Colour by size on a log scale; grey where there is no gradient."""
    size = np.ma.masked_equal(weight_NO.abs().to_numpy(dtype=np.float64), 0)
    panel.set_facecolor(_SILENT)
    panel.imshow(size, origin="lower", extent=(0, 1, 0, 1), norm=_NORM, cmap="viridis", aspect="auto")
    panel.plot([0, 1], [0, 1], color="white", linewidth=0.6)
    panel.grid(visible=False)
    panel.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], xlim=(0, 1), ylim=(0, 1))
    panel.set_xticklabels(["0", ".5", "1"])
