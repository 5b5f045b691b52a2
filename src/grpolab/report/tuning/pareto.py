"""Several objectives at once: which trials no other trial beats in all of them."""

from __future__ import annotations

from matplotlib.figure import Figure

from grpolab.report.figures.panels import panel_grid
from grpolab.report.manifest import Manifest
from grpolab.report.style import COLUMN_WIDTH, arm_styles
from grpolab.report.tuning.marks import BEST, OVER_SEEDS, legend, manifest, mark
from grpolab.report.tuning.trials import Tuning


def pareto(tuning: Tuning) -> tuple[Figure, Manifest] | None:
    """Every other objective against the first, the fronts as lines; None with one objective."""
    first, *others = tuning.objectives
    if not others:
        return None
    figure, grid = panel_grid(others, [""], height=2.2)
    figure.set_figwidth(max(figure.get_figwidth(), COLUMN_WIDTH))
    styles, numbers = arm_styles(tuning.arms), []
    for (other, _), panel in grid.items():
        for arm in tuning.arms:
            scores = tuning.scored(arm, first).merge(tuning.scored(arm, other)[["number", "score"]], on="number")
            (colour, line, marker), front = styles[arm], tuning.best(arm)
            panel.plot(scores["score_x"], scores["score_y"], marker, color=colour, alpha=0.4, markersize=3)
            on_front = scores[scores["number"].isin(front)].sort_values("score_x")
            panel.plot(on_front["score_x"], on_front["score_y"], color=colour, linestyle=line, marker=marker)
            chosen = scores[scores["number"].isin(front[:1])]
            mark(panel, chosen["score_x"], chosen["score_y"], BEST, colour)
            numbers.append(
                {"arm": arm, "x_metric": first, "y_metric": other, "trial": scores["number"].tolist()}
                | {"x": scores["score_x"].tolist(), "y": scores["score_y"].tolist(), "front": front}
            )
        panel.set_xlabel(f"{first} ({_better(tuning, first)})")
        panel.set_ylabel(f"{other} ({_better(tuning, other)})")
    legend(figure, tuning, [BEST], arms=True)
    caption = (
        "The objectives of each complete trial; lines join an arm's Pareto front, the trials that no other trial of"
        " the arm beats in every objective. The star is the one whose values were taken."
    )
    return figure, manifest(tuning, "tuning_pareto", caption, OVER_SEEDS, numbers)


def _better(tuning: Tuning, metric: str) -> str:
    return "more is better" if tuning.sign(metric) > 0 else "less is better"
