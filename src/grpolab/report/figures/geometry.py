"""F9: the shape of the objective, drawn from the table that the loss code itself computed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpolab.report.figures.panels import panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import QUIET, arm_styles

_ROWS = {"objective": "objective\n(maximised)", "weight": "weight on the gradient\nof the log-prob"}
_COLUMNS = {1: "advantage +1", -1: "advantage -1"}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Objective and gradient weight of one token against its importance ratio, for either sign of the advantage."""
    figure, grid = panel_grid(list(_ROWS.values()), list(_COLUMNS.values()), height=2.0)
    path = study.results.geometry
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["curve", "advantage", "ratio", *_ROWS])
    curves = list(dict.fromkeys(table["curve"]))
    styles, numbers = arm_styles(curves), []
    for quantity, row in _ROWS.items():
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
            panel.set_xlabel("importance ratio" if row == _ROWS["weight"] else "")
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
