"""Scores of runs on several tasks as arrays: what is averaged over tasks (Agarwal et al. 2021, arXiv:2108.13264)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report.load import Study
from grpolab.report.measures import by_cell
from grpolab.report.statistics import LEAST_FOR_BOOTSTRAP, bootstrap
from grpolab.report.statistics.aggregates import LEAST_RUNS, LEAST_TASKS
from grpolab.report.text import count

SCORE = "(final accuracy - start) / (1 - start)"
_TASK = "factor/task"


@dataclass(frozen=True)
class Pool:
    """Runs that differ in arm, task and seed alone.

    `scores_ATS` is 0 where a run ends as accurate as its warm start, and 1 where it is always right. It holds the seeds
    that every arm has on every task; arms without any run are left out.
    """

    title: str
    arms: list[str]
    tasks: list[str]
    seeds: list[int]
    scores_ATS: NDArray

    @property
    def lack(self) -> str:
        """Why its scores must not be averaged over tasks; empty where they may."""
        if len(self.tasks) >= LEAST_TASKS and len(self.seeds) >= LEAST_RUNS:
            return ""
        needs = f"needs {LEAST_TASKS} tasks with {LEAST_RUNS} seeds that every arm has on every task"
        return f"{needs}; has {count(len(self.tasks), 'task')} with {count(len(self.seeds), 'such seed')}"


def pools(study: Study) -> list[Pool]:
    """One for each combination of the levels of the factors that are neither `task` nor the arms."""
    start, final = by_cell(study, "start"), by_cell(study, "final_score")
    cells = study.cells.assign(score=(final - start) / (1 - start))
    if _TASK not in cells:
        cells[_TASK] = cells["setting/task"]
    others = [c for c in cells if c.startswith("factor/") and c not in (_TASK, f"factor/{study.plan['compare']}")]
    groups = cells.groupby(others, sort=False) if others else [((), cells)]
    return [_pool(study, " · ".join(levels), frame) for levels, frame in groups]


def _pool(study: Study, title: str, cells: pd.DataFrame) -> Pool:
    ran = set(cells.loc[cells["score"].notna(), "arm"])
    arms, tasks = [arm for arm in study.arms if arm in ran], list(cells[_TASK].unique())
    wide = cells.set_index(["seed", "arm", _TASK])["score"].unstack(["arm", _TASK])
    complete = wide[list(product(arms, tasks))].dropna().sort_index()
    scores_ATS = complete.to_numpy(dtype=np.float64).T.reshape(len(arms), len(tasks), len(complete))
    return Pool(title, arms, tasks, [int(seed) for seed in complete.index], scores_ATS)


def estimated(
    scores_TS: NDArray, statistic: Callable[[NDArray], NDArray], replicates: int
) -> tuple[NDArray, NDArray, NDArray]:
    """A statistic with the bounds of its bootstrap interval, which are NaN below LEAST_FOR_BOOTSTRAP runs.

    Shapes as in `bootstrap`; its generator is seeded with 0. Raises TooFewError as the statistic does.
    """
    if scores_TS.shape[-1] >= LEAST_FOR_BOOTSTRAP:
        return bootstrap(scores_TS, statistic, np.random.default_rng(0), replicates)
    value = statistic(scores_TS)
    return value, np.full_like(value, np.nan), np.full_like(value, np.nan)


def interval_note(replicates: int) -> str:
    """How `estimated` comes to its interval, for a manifest."""
    return (
        f"95% percentile interval of a bootstrap of seeds within tasks, the same seeds for every arm ({replicates:,}"
        f" replicates, generator seed 0), where there are {LEAST_FOR_BOOTSTRAP} runs of each task or more"
    )
