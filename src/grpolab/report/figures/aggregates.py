"""F21: every arm's score over all tasks as one number, in four ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from grpolab.report.figures.panels import draw_row, name_rows, note_gaps, only_says, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.pooled import SCORE, Pool, estimated, interval_note, pools
from grpolab.report.statistics import Interval, iqm, optimality_gap
from grpolab.report.statistics.bootstrap import REPLICATES
from grpolab.report.style import arm_styles


def _mean(scores_TS: NDArray) -> NDArray:
    return scores_TS.mean(axis=(-2, -1))


def _median(scores_TS: NDArray) -> NDArray:
    return np.median(scores_TS, axis=(-2, -1))


_COLUMNS: dict[str, Callable[[NDArray], NDArray]] = {
    "interquartile mean": iqm,
    "mean": _mean,
    "median": _median,
    "optimality gap\n(less is better)": optimality_gap,
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Interquartile mean, mean, median and optimality gap of every arm over all tasks, with bootstrap intervals."""
    groups = {pool.title: pool for pool in pools(study)}
    lacks = [pool.lack for pool in groups.values()]
    if all(lacks):
        return only_says(study, "F21", lacks[0])
    figure, grid = panel_grid(list(groups), list(_COLUMNS), height=0.6 + 0.17 * len(study.arms))
    numbers: list[Series] = []
    for title, pool in groups.items():
        panels = {column: grid[title, column] for column in _COLUMNS}
        if pool.lack:
            say(panels["mean"], pool.lack)
        numbers += [{"facet": title, "lacks": pool.lack}] if pool.lack else _draw_pool(panels, pool, study.arms)
    note_gaps(figure, study)
    caption = (
        f"Normalised score {SCORE} over all tasks: 0 is the warm start, 1 always right. The interquartile mean leaves"
        " out the best and the worst quarter of runs; the optimality gap is how far runs stay below 1. Only seeds"
        " that every arm has on every task."
    )
    return figure, manifest(study, "F21", caption, interval_note(REPLICATES), numbers)


def _draw_pool(panels: dict[str, Axes], pool: Pool, arms: list[str]) -> list[Series]:
    """Four panels of one pool, a row for each arm."""
    styles, numbers = arm_styles(arms), []
    for name, statistic in _COLUMNS.items():
        values_A, low_A, high_A = estimated(pool.scores_ATS, statistic, REPLICATES)
        for place, arm in enumerate(pool.arms):
            interval = Interval(float(values_A[place]), float(low_A[place]), float(high_A[place]), len(pool.seeds))
            draw_row(panels[name], place, np.empty(0), interval, styles[arm])
            numbers.append({"metric": name, "facet": pool.title, "arm": arm, **interval._asdict()})
        name_rows(panels[name], pool.arms)
    return numbers
