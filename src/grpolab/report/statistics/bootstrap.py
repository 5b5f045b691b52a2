"""The stratified bootstrap: runs drawn again within each task, the same seeds for every arm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError

REPLICATES = 50_000
# What the 95% intervals of normal scores over 3 tasks hold, by runs of each task (`grpolab self-check`).
COVERAGE = {"mean": {3: 0.83, 5: 0.88, 10: 0.92, 20: 0.94}, "IQM": {5: 0.91, 10: 0.93, 20: 0.94}}
LEAST_COVERAGE = 0.92
LEAST_FOR_BOOTSTRAP = min(n for n in COVERAGE["IQM"] if min(held[n] for held in COVERAGE.values()) >= LEAST_COVERAGE)

Statistic = Callable[[NDArray], NDArray]


def bootstrap(
    scores_TS: ArrayLike,
    statistic: Statistic,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
    confidence: float = CONFIDENCE,
) -> tuple[NDArray, NDArray, NDArray]:
    """A statistic of runs with its percentile interval (`resample`), where that interval holds what it says.

    Raises TooFewError below LEAST_FOR_BOOTSTRAP runs of each task, and as `resample` does.
    """
    runs = np.asarray(scores_TS).shape[-1]
    if runs < LEAST_FOR_BOOTSTRAP:
        raise TooFewError(
            f"a bootstrap interval needs at least {LEAST_FOR_BOOTSTRAP} runs of each task, has {runs}: it would hold"
            f" less than {LEAST_COVERAGE:.0%} where it says 95%"
        )
    return resample(scores_TS, statistic, generator, replicates, confidence)


def resample(
    scores_TS: ArrayLike,
    statistic: Statistic,
    generator: np.random.Generator,
    replicates: int = REPLICATES,
    confidence: float = CONFIDENCE,
) -> tuple[NDArray, NDArray, NDArray]:
    """A statistic of runs with its percentile interval, whatever that holds: value, lower and upper bound.

    Shapes: scores (T, S), or (A, T, S) for arms that share seeds. In each replicate every task draws its own S seeds
    with replacement, and all arms the same ones (paired). `statistic` maps (R, [A,] T, S) to (R,) or (R, X); the three
    results have its shape without R.

    Raises TooFewError where a run is missing (NaN): the arms would not be paired any more.
    """
    scores = np.asarray(scores_TS, dtype=np.float64)
    *_, tasks, runs = scores.shape
    if np.isnan(scores).any():
        raise TooFewError(f"a bootstrap needs a score of every run, {int(np.isnan(scores).sum())} are missing")
    drawn_RTS = generator.integers(runs, size=(replicates, tasks, runs))
    # (..., T, S) indexed by (T, 1) and (R, T, S) -> (..., R, T, S); the replicates then go to the front.
    resampled = np.moveaxis(scores[..., np.arange(tasks)[:, None], drawn_RTS], -3, 0)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(statistic(resampled), [tail, 100 - tail], axis=0)
    return statistic(scores[None])[0], low, high
