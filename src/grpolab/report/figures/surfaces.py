"""Figures of the objective itself: its shape, and its gradient weight over probabilities."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpolab.report.figures.panels import Drawing, NotDrawnError, panel_grid
from grpolab.report.load import StudyRuns
from grpolab.report.style import QUIET, TEXT_WIDTH, Series, arm_styles


def draw_objective_shape(study: StudyRuns) -> Drawing:
    """Objective of one token, and the factor on the gradient of its log-prob, against its importance ratio: computed by
    the loss code of this program ({study.results.geometry.name}). A rule that stops gradients inside its objective has
    no curve in the upper row: its slope would not be its gradient.
    """
    rows = {"objective": "objective\n(maximised)", "weight": "weight on the gradient\nof the log-prob"}
    signs = {"advantage +1": 1, "advantage -1": -1}
    figure, grid = panel_grid(list(rows.values()), list(signs), height=2.0)
    table = _read_analytic(study.results.geometry)
    looks = arm_styles(list(dict.fromkeys(table["curve"])))
    numbers: list[Series] = []
    for quantity, row in rows.items():
        for column, sign in signs.items():
            panel = grid[row, column]
            for curve, look in looks.items():
                points = table[(table["curve"] == curve) & (table["advantage"] == sign)].sort_values("ratio")
                if quantity == "weight" or is_surrogate(points):
                    panel.plot(points["ratio"], points[quantity], color=look.colour, linestyle=look.line)
                    values = {"x": points["ratio"].tolist(), "value": points[quantity].tolist()}
                    numbers.append({"metric": quantity, "curve": curve, "advantage": sign, **values})
            panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
            panel.set_xlabel("importance ratio" if quantity == "weight" else "")
    handles = [Line2D([], [], color=look.colour, linestyle=look.line, label=curve) for curve, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return Drawing(figure, "analytic", numbers)


def is_surrogate(points: pd.DataFrame) -> bool:
    """Return True if the weight is the objective's slope against the log ratio, which CISPO's detached cap breaks."""
    slope = np.gradient(points["objective"], np.log(points["ratio"]))
    return bool(np.mean(np.abs(slope - points["weight"]) < 0.01) > 0.9)  # not at the kinks


def draw_gradient_weight(study: StudyRuns) -> Drawing:
    """Size of the factor on the gradient of a token's log-prob, over the token's old and new probability, for either
    sign of the advantage: computed by the loss code of this program ({study.results.surface.name}). Its sign is the
    advantage's everywhere. White: probability as it was. A rule on the ratio has rays through the origin, one on the
    change of probability has parallels to the diagonal.
    """
    rows, silent = {"new probability,\nadvantage +1": 1, "new probability,\nadvantage -1": -1}, "0.8"
    norm = mpl.colors.LogNorm(0.1, 10, clip=True)
    table = _read_analytic(study.results.surface)
    rules = list(dict.fromkeys(table["rule"]))
    figure, grid = panel_grid(list(rows), rules, height=1.2)
    figure.set_figwidth(TEXT_WIDTH)
    numbers: list[Series] = []
    for (row, rule), panel in grid.items():
        sign = rows[row]
        points = table[(table["rule"] == rule) & (table["advantage"] == sign)]
        weight_NO = points.pivot(index="new", columns="old", values="weight")
        size = np.ma.masked_equal(weight_NO.abs().to_numpy(dtype=np.float64), 0)
        panel.set_facecolor(silent)
        panel.imshow(size, origin="lower", extent=(0, 1, 0, 1), norm=norm, cmap="viridis", aspect="auto")
        panel.plot([0, 1], [0, 1], color="white", linewidth=0.6)
        panel.grid(visible=False)
        panel.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1], xlim=(0, 1), ylim=(0, 1), xticklabels=["0", ".5", "1"])
        panel.set_title(rule if sign == 1 else "", fontsize=7)
        panel.set_xlabel("old probability" if sign == -1 else "")
        places = {"x": weight_NO.columns.tolist(), "y": weight_NO.index.tolist()}
        values = {**places, "value": weight_NO.to_numpy().tolist()}
        numbers.append({"metric": "weight", "rule": rule, "advantage": sign, **values})
    scale = mpl.cm.ScalarMappable(norm, "viridis")
    bar = figure.colorbar(scale, ax=list(grid.values()), extend="both", pad=0.01, aspect=30)
    bar.set_label("size of the weight on the gradient")
    bar.ax.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    bar.ax.minorticks_off()
    figure.legend(handles=[Patch(color=silent, label="no gradient")], loc="outside lower center")
    return Drawing(figure, "analytic", numbers)


def _read_analytic(path: Path) -> pd.DataFrame:
    """Read a table that `grpolab geometry` writes. Raises NotDrawnError where it has not."""
    if not path.is_file():
        raise NotDrawnError(f"{path.name} is not there: run `grpolab geometry`")
    return pd.read_csv(path)
