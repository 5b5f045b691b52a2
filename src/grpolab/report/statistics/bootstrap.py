"""The stratified bootstrap: runs drawn again within each task, the same seeds for every arm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError

REPLICATES = 50_000


def bootstrap(
    scores_TS: ArrayLike,
    statistic: Callable[[NDArray], NDArray],
    generator: np.random.Generator,
    replicates: int = REPLICATES,
    confidence: float = CONFIDENCE,
) -> tuple[NDArray, NDArray, NDArray]:
    """A statistic of runs with its percentile interval: value, lower and upper bound.

    Shapes: scores (T, S), or (A, T, S) for arms that share seeds. In each replicate every task draws its own S seeds
    with replacement, and all arms the same ones (paired). `statistic` maps (R, [A,] T, S) to (R,) or (R, X); the three
    results have its shape without R.

    It covers less than it says: its 95% interval of a mean over 3 tasks with 3, 5, 10 and 20 runs each holds about 84%,
    89%, 93% and 94%; on one task with 3 runs 74%. Report it from 10 runs on; below, `t_interval` is the honest one.

    Raises TooFewError below two runs, or where a run is missing (NaN): the arms would not be paired any more.
    """
    scores = np.asarray(scores_TS, dtype=np.float64)
    *_, tasks, runs = scores.shape
    if runs < 2:
        raise TooFewError(f"a bootstrap needs at least two runs of each task, has {runs}")
    if np.isnan(scores).any():
        raise TooFewError(f"a bootstrap needs a score of every run, {int(np.isnan(scores).sum())} are missing")
    drawn_RTS = generator.integers(runs, size=(replicates, tasks, runs))
    # (..., T, S) indexed by (T, 1) and (R, T, S) -> (..., R, T, S); the replicates then go to the front.
    resampled = np.moveaxis(scores[..., np.arange(tasks)[:, None], drawn_RTS], -3, 0)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(statistic(resampled), [tail, 100 - tail], axis=0)
    return statistic(scores[None])[0], low, high
