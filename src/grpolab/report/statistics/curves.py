"""The time until a run reaches a score. A run that never reaches it is censored at its end, not left out."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError


class Survival(NamedTuple):
    """Share of runs that have not reached the threshold by each time X; before the first time it is 1.

    Shapes: (X,). Bounds are NaN where the share is 0 or 1. `median` is infinite where half the runs never reach it.
    """

    time_X: NDArray
    share_X: NDArray
    low_X: NDArray
    high_X: NDArray
    median: float
    n: int
    censored: int


def time_to_threshold(time_E: ArrayLike, score_E: ArrayLike, threshold: float) -> tuple[float, bool]:
    """Return when a run's score first reaches the threshold, or its last time, and whether it does. Shapes: (E,).

    A run that ended early must be carried forward to its planned end: it did not reach the threshold until there.
    """
    reached = np.flatnonzero(np.asarray(score_E, dtype=np.float64) >= threshold)
    time = np.asarray(time_E, dtype=np.float64)
    return (float(time[reached[0]]), True) if len(reached) else (float(time[-1]), False)


def kaplan_meier(time_S: ArrayLike, reached_S: ArrayLike) -> Survival:
    """Return Kaplan and Meier's estimate (1958), with Greenwood's variance and intervals on the log(-log) scale.

    Shapes: (S,). `time` is when a run reached the threshold, or how long it was watched where `reached` is False.

    Raises TooFewError below two runs.
    """
    time, reached = np.asarray(time_S, dtype=np.float64), np.asarray(reached_S, dtype=bool)
    if len(time) < 2:
        raise TooFewError(f"a Kaplan-Meier curve needs at least two runs, has {len(time)}")
    from scipy import stats

    curve = stats.ecdf(stats.CensoredData.right_censored(time, ~reached)).sf
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the share is 0 or 1 there is no bound
        bounds = curve.confidence_interval(CONFIDENCE, method="log-log")
    below_half = curve.quantiles[curve.probabilities <= 0.5]
    return Survival(
        time_X=curve.quantiles,
        share_X=curve.probabilities,
        low_X=bounds.low.probabilities,
        high_X=bounds.high.probabilities,
        median=float(below_half[0]) if len(below_half) else np.inf,
        n=len(time),
        censored=int((~reached).sum()),
    )
