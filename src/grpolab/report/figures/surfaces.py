"""Figures of the objective itself: its shape, its gradient weight over probabilities, and along an update."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures.panels import (
    MEAN_BAND,
    Drawing,
    draw_arms,
    label_x,
    legend_arms,
    panel_grid,
    say,
)
from grpolab.report.load import Study
from grpolab.report.style import QUIET, TEXT_WIDTH, Series, arm_styles
from grpolab.report.text import count

_SURROGATE_ROWS = {
    r"$L_\mathrm{CPI}$ (not clipped)": "l_cpi",
    r"$L_\mathrm{CLIP}$ (clipped)": "l_clip",
    "KL(old || there)\n(nat per token)": "kl",
}


def draw_surrogate(study: Study) -> Drawing:
    """Unclipped and clipped surrogate and KL from the old to the new policy of updates, and as far again."""
    path = study.results.surrogate
    columns = ["signature", "rollout_step", "alpha", *_SURROGATE_ROWS.values()]
    table = pd.read_csv(path, dtype={"signature": str}) if path.is_file() else pd.DataFrame(columns=columns)
    table = table.merge(study.done[["signature", "facet", "arm", "seed"]], on="signature")
    figure, grid = panel_grid(list(_SURROGATE_ROWS), study.facets, height=1.5)
    numbers: list[Series] = []
    for (row, facet), panel in grid.items():
        panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
        rows = table[table["facet"] == facet]
        frames = ((arm, rows[rows["arm"] == arm]) for arm in study.arms if (rows["arm"] == arm).any())
        numbers += draw_arms(panel, study, frames, _SURROGATE_ROWS[row], facet, x="alpha")
    label_x(grid, "weights: 0 = old, 1 = new")
    legend_arms(figure, study)
    runs = set(study.done["signature"])
    lacking = f"{len(runs - set(table['signature']))} of {count(len(runs), 'run')}"
    note = f"Not in {path.name}: {lacking} (`grpolab surrogate {study.name}` adds them)"
    batches = table["rollout_step"].nunique()
    caption = (
        "The unclipped surrogate, the clipped one at the arm's ratio level, clip range and averaging (whatever rule it"
        " trains with), and the exact KL divergence from the old policy, on the weights old + alpha (new - old) and on"
        f" the batch of the update: mean over the first {batches} rollout steps of each run, made again from its warm"
        " start."
    )
    lacks = () if runs <= set(table["signature"]) else (note,)
    return Drawing(figure, caption, MEAN_BAND, numbers or [{"x": []}], lacks)


_GEOMETRY_ROWS = {"objective": "objective\n(maximised)", "weight": "weight on the gradient\nof the log-prob"}
_SIGN_COLUMNS = {1: "advantage +1", -1: "advantage -1"}


def draw_geometry(study: Study) -> Drawing:
    """Objective and gradient weight of one token against its importance ratio, for either sign of the advantage."""
    figure, grid = panel_grid(list(_GEOMETRY_ROWS.values()), list(_SIGN_COLUMNS.values()), height=2.0)
    path = study.results.geometry
    table = (
        pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["curve", "advantage", "ratio", *_GEOMETRY_ROWS])
    )
    curves = list(dict.fromkeys(table["curve"]))
    styles, numbers = arm_styles(curves), []
    for quantity, row in _GEOMETRY_ROWS.items():
        for sign, column in _SIGN_COLUMNS.items():
            panel = grid[row, column]
            for curve in curves:
                points = table[(table["curve"] == curve) & (table["advantage"] == sign)].sort_values("ratio")
                if quantity == "weight" or is_surrogate(points):
                    style = styles[curve]
                    panel.plot(points["ratio"], points[quantity], color=style.colour, linestyle=style.line)
                    labels = {"metric": quantity, "curve": curve, "advantage": sign}
                    numbers.append({**labels, "x": points["ratio"].tolist(), "value": points[quantity].tolist()})
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
    return Drawing(figure, caption, "analytic", numbers)


def is_surrogate(points: pd.DataFrame) -> bool:
    """Whether the weight is the objective's slope against the log ratio; not so for CISPO's detached cap."""
    slope = np.gradient(points["objective"], np.log(points["ratio"]))
    return bool(np.mean(np.abs(slope - points["weight"]) < 0.01) > 0.9)  # not at the kinks


_SIGN_ROWS = {1: "new probability,\nadvantage +1", -1: "new probability,\nadvantage -1"}
_SILENT = "0.8"
_NORM = mpl.colors.LogNorm(0.1, 10, clip=True)


def draw_weight_surface(study: Study) -> Drawing:
    """The size of d objective / d log-prob over old and new probability, one column per rule, one row per sign."""
    path = study.results.surface
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["rule", "advantage", "old", "new", "weight"])
    rules = list(dict.fromkeys(table["rule"]))
    figure, grid = panel_grid(list(_SIGN_ROWS.values()), rules or [""], height=1.2)
    figure.set_figwidth(TEXT_WIDTH)
    numbers: list[Series] = []
    for sign, row in _SIGN_ROWS.items():
        for rule in rules:
            points = table[(table["rule"] == rule) & (table["advantage"] == sign)]
            weight_NO = points.pivot(index="new", columns="old", values="weight")
            _draw_surface(grid[row, rule], weight_NO)
            grid[row, rule].set_title(rule if sign == 1 else "", fontsize=7)
            grid[row, rule].set_xlabel("old probability" if sign == -1 else "")
            places = {"x": weight_NO.columns.tolist(), "y": weight_NO.index.tolist()}
            labels = {"metric": "weight", "rule": rule, "advantage": sign}
            numbers.append({**labels, **places, "value": weight_NO.to_numpy().tolist()})
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
    return Drawing(figure, caption, "analytic", numbers or [{"x": []}])


def _draw_surface(panel: Axes, weight_NO: pd.DataFrame) -> None:
    """Colour by size on a log scale; grey where there is no gradient."""
    size = np.ma.masked_equal(weight_NO.abs().to_numpy(dtype=np.float64), 0)
    panel.set_facecolor(_SILENT)
    panel.imshow(size, origin="lower", extent=(0, 1, 0, 1), norm=_NORM, cmap="viridis", aspect="auto")
    panel.plot([0, 1], [0, 1], color="white", linewidth=0.6)
    panel.grid(visible=False)
    panel.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], xlim=(0, 1), ylim=(0, 1))
    panel.set_xticklabels(["0", ".5", "1"])
