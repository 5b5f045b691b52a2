"""Time until a run reaches a threshold. A run that never does is censored at its end, not left out."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError
from grpolab.report.statistics.swaps import swap_test


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
    """When a run's score first reaches the threshold, and whether it does; if not, its last time. Shapes: (E,).

    A run that ended early must be carried forward to its planned end: it did not reach the threshold until there.
    """
    reached = np.flatnonzero(np.asarray(score_E, dtype=np.float64) >= threshold)
    time = np.asarray(time_E, dtype=np.float64)
    return (float(time[reached[0]]), True) if len(reached) else (float(time[-1]), False)


def kaplan_meier(time_S: ArrayLike, reached_S: ArrayLike, confidence: float = CONFIDENCE) -> Survival:
    """Kaplan and Meier's estimate (1958), with Greenwood's variance and intervals on the log(-log) scale.

    Shapes: (S,). `time` is when a run reached the threshold, or how long it was watched where `reached` is False.

    Raises TooFewError below two runs.
    """
    time, reached = np.asarray(time_S, dtype=np.float64), np.asarray(reached_S, dtype=bool)
    if len(time) < 2:
        raise TooFewError(f"a Kaplan-Meier curve needs at least two runs, has {len(time)}")
    curve = stats.ecdf(stats.CensoredData.right_censored(time, ~reached)).sf
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the share is 0 or 1 there is no bound
        bounds = curve.confidence_interval(confidence, method="log-log")
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


class LogRank(NamedTuple):
    """Runs of the first arm that reached the threshold, how many would if arms were equal, and p that they are."""

    observed: int
    expected: float
    p: float


def log_rank(time_AS: ArrayLike, reached_AS: ArrayLike) -> LogRank:
    """The log-rank comparison (Mantel 1966) of two arms that share seeds: are they equally fast? Shapes: (2, S).

    p is two-sided, from swapping the arms within seeds in every possible way: the usual chi-squared distribution
    rejects 7% where it says 5% with few runs, and knows nothing of pairs.

    Raises TooFewError below two seeds, or where no run of either arm reaches the threshold.
    """
    time, reached = np.asarray(time_AS, dtype=np.float64), np.asarray(reached_AS, dtype=bool)
    seeds = time.shape[1]
    if seeds < 2 or not reached.any():
        lack = f"{seeds} shared seeds" if seeds < 2 else "none that reaches the threshold"
        raise TooFewError(f"a log-rank test needs two shared seeds and a run that reaches the threshold, has {lack}")
    events, counts = np.unique(time[reached], return_counts=True)
    hazard = counts / (time[:, :, None] >= events).sum(axis=(0, 1))
    expected_AS = ((time[:, :, None] >= events) * hazard).sum(axis=-1)
    first, second = reached - expected_AS
    observed, expected = int(reached[0].sum()), float(expected_AS[0].sum())
    return LogRank(observed, expected, swap_test((first - second) / 2))
