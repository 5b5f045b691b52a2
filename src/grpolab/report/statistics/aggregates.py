"""Scores of many runs on several tasks as one number (Agarwal et al. 2021, arXiv:2108.13264; their library rliable).

Every function takes scores of shape (..., T, S), normalised so that tasks can be pooled, and keeps the leading axes, so
that `bootstrap` can hand all its replicates over at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from grpolab.report.statistics.intervals import TooFewError

LEAST_TASKS, LEAST_RUNS = 3, 5


def iqm(scores_TS: ArrayLike) -> NDArray:
    """Interquartile mean: the mean of the middle half of all runs of all tasks. Shape: (..., T, S) -> (...).

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    return stats.trim_mean(_pooled(scores_TS, "an interquartile mean"), 0.25, axis=-1)


def optimality_gap(scores_TS: ArrayLike, optimum: float = 1.0) -> NDArray:
    """How far runs stay below `optimum` on average; what is above it counts as reaching it. (..., T, S) -> (...).

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    return optimum - np.minimum(_pooled(scores_TS, "an optimality gap"), optimum).mean(axis=-1)


def performance_profile(scores_TS: ArrayLike, thresholds_X: ArrayLike) -> NDArray:
    """Share of runs with a score above each threshold. Shapes: (..., T, S), (X,) -> (..., X).

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    pooled = _pooled(scores_TS, "a performance profile")
    # A threshold at a time: all at once would be X times the memory of all replicates.
    return np.stack([(pooled > threshold).mean(axis=-1) for threshold in np.asarray(thresholds_X)], axis=-1)


def probability_of_improvement(scores_ATS: ArrayLike) -> NDArray:
    """P(a run of arm 0 beats a run of arm 1), a tie being half of it, averaged over tasks. (..., 2, T, S) -> (...).

    Runs are compared with all runs of the other arm, not by seed: it is about a run that somebody else will make.

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    scores = _enough(scores_ATS, "a probability of improvement")
    first, second = scores[..., 0, :, :, None], scores[..., 1, :, None, :]
    return ((first > second).mean(axis=(-3, -2, -1)) + (first >= second).mean(axis=(-3, -2, -1))) / 2


def _pooled(scores_TS: ArrayLike, what: str) -> NDArray:
    scores = _enough(scores_TS, what)
    return scores.reshape(*scores.shape[:-2], -1)


def _enough(scores_TS: ArrayLike, what: str) -> NDArray:
    scores = np.asarray(scores_TS, dtype=np.float64)
    tasks, runs = scores.shape[-2:]
    if tasks < LEAST_TASKS or runs < LEAST_RUNS:
        raise TooFewError(
            f"{what} needs at least {LEAST_TASKS} tasks with {LEAST_RUNS} runs each, has {tasks} with {runs}"
        )
    return scores
