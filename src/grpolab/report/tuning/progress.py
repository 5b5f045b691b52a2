"""How a tuning went: scores and the best so far by trial, and what the pruner saw of each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpolab.report.figures.panels import Grid, label_x, panel_grid
from grpolab.report.manifest import Manifest
from grpolab.report.style import QUIET, arm_styles
from grpolab.report.tuning.marks import BEST, OVER_SEEDS, legend, manifest, mark, mark_unscored
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, PRUNED, Tuning


def history(tuning: Tuning) -> tuple[Figure, Manifest]:
    """Score of each trial by number, with the best so far as a step line; one row per objective."""
    figure, grid = panel_grid(tuning.objectives, tuning.arms, height=1.6)
    styles, numbers = arm_styles(tuning.arms), []
    for (metric, arm), panel in grid.items():
        done, colour = tuning.scored(arm, metric), styles[arm].colour
        sign = tuning.sign(metric)
        best_so_far = sign * np.maximum.accumulate(sign * done["score"].to_numpy())
        panel.step(done["number"], best_so_far, where="post", color=colour)
        mark(panel, done["number"], done["score"], COMPLETE, colour)
        others = tuning.of(arm, PRUNED, DIVERGED)
        mark_unscored(panel, others["number"], others["state"], colour)
        numbers.append(
            {"arm": arm, "metric": metric, "x": done["number"].tolist(), "score": done["score"].tolist()}
            | {"best_so_far": best_so_far.tolist()}
            | {state: tuning.of(arm, state)["number"].tolist() for state in (PRUNED, DIVERGED)}
        )
    _count_x(grid, "trial")
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED])
    caption = (
        "Score of each trial in the order of asking, and the best so far. Pruned and diverged trials have no score and"
        " stand along the lower edge."
    )
    return figure, manifest(tuning, "tuning_history", caption, OVER_SEEDS, numbers)


def intermediate(tuning: Tuning) -> tuple[Figure, Manifest]:
    """What the pruner saw of each seed of each trial; pruned ones are grey and end in their mark."""
    pruner = tuning.document["pruner"]
    figure, grid = panel_grid([pruner["metric"]], tuning.arms, height=1.9)
    styles, numbers = arm_styles(tuning.arms), []
    for (_, arm), panel in grid.items():
        best = tuning.best(arm)[:1]
        for trial in tuning.of(arm, PRUNED, DIVERGED, COMPLETE).sort_values("state", ascending=False).itertuples():
            curves = tuning.curves[(tuning.curves["arm"] == arm) & (tuning.curves["number"] == trial.number)]
            _draw_curves(panel, curves, trial.state, trial.number in best, styles[arm].colour)
            seeds = {
                int(seed): {"x": own["step"].tolist(), "value": own["value"].tolist()}
                for seed, own in curves.groupby("seed")
            }
            numbers.append({"arm": arm, "trial": trial.number, "state": trial.state, "seeds": seeds})
    _count_x(grid, "rollout steps")
    legend(figure, tuning, [PRUNED, DIVERGED, BEST])
    window = pruner.get("window", 1)
    caption = (
        f"What the pruner saw: mean of the last {window} evaluations of `{pruner['metric']}`, one line per seed of a"
        " trial. Grey lines end where their trial was pruned or diverged; the best trial is drawn thick."
    )
    return figure, manifest(tuning, "tuning_intermediate", caption, "single seeds", numbers)


def _count_x(grid: Grid, label: str) -> None:
    """An x axis of whole numbers."""
    label_x(grid, label)
    for panel in grid.values():
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_curves(panel: Axes, curves: pd.DataFrame, state: str, is_best: bool, colour: str) -> None:
    """The seeds of one trial; the mark of an ended trial stands where its last seed ended."""
    own, width = (colour if state == COMPLETE else QUIET), (1.6 if is_best else 0.6)
    ends = []
    for _, seed in curves.groupby("seed", sort=False):
        panel.plot(seed["step"], seed["value"], color=own, linewidth=width, alpha=1 if is_best else 0.7)
        ends.append((seed["step"].iloc[-1], seed["value"].iloc[-1]))
    if ends and (is_best or state in (PRUNED, DIVERGED)):
        step, value = ends[-1]
        mark(panel, [step], [value], BEST if is_best else state, own)
