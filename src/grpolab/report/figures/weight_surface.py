"""F10: which rule looks at the ratio and which at the probability: the weight on a token's gradient over both."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpolab.report.figures.panels import panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import TEXT_WIDTH

_ROWS = {1: "new probability,\nadvantage +1", -1: "new probability,\nadvantage -1"}
_SILENT = "0.8"
_NORM = mpl.colors.LogNorm(0.1, 10, clip=True)


def draw(study: Study) -> tuple[Figure, Manifest]:
    """The size of d objective / d log-prob over old and new probability, one column per rule, one row per sign."""
    path = study.results.surface
    table = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["rule", "advantage", "old", "new", "weight"])
    rules = list(dict.fromkeys(table["rule"]))
    figure, grid = panel_grid(list(_ROWS.values()), rules or [""], height=1.2)
    figure.set_figwidth(TEXT_WIDTH)
    numbers: list[Series] = []
    for sign, row in _ROWS.items():
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
