"""Estimates with their intervals: means and spreads over seeds, scores over tasks, and the time to a score.

Means have t-intervals, which have their nominal coverage even with three seeds. A 95% bootstrap interval of three
values covers 74%.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.errors import RequestError

CONFIDENCE = 0.95


class TooFewError(RequestError):
    """Too few data for a statistic; the text says what it needs and what is there."""


class Interval(NamedTuple):
    """An estimate from `n` values (seeds, runs) with its interval; the bounds are NaN if there is none."""

    mean: float
    low: float
    high: float
    n: int


Band = tuple[NDArray, NDArray, NDArray, NDArray]  # mean, lower bound, upper bound and count at each X


def t_band(values_XS: ArrayLike) -> Band:
    """Return mean, low, high and n at each X over the seeds with a value there. Shapes: (X, S) -> four times (X,).

    Low and high bound the 95% t-interval of the mean; they are NaN where fewer than two seeds have a value.
    """
    values = np.ma.masked_invalid(np.asarray(values_XS, dtype=np.float64))
    n_X = values.count(axis=-1)
    mean_X = values.mean(axis=-1).filled(np.nan) if values.size else np.full(values.shape[:-1], np.nan)
    with np.errstate(all="ignore"):
        deviation_X = np.sqrt(np.ma.filled((values - values.mean(axis=-1, keepdims=True)) ** 2, 0).sum(-1) / (n_X - 1))
        half_X = np.where(n_X > 1, special.stdtrit(n_X - 1, (1 + CONFIDENCE) / 2) * deviation_X / np.sqrt(n_X), np.nan)
    return mean_X, mean_X - half_X, mean_X + half_X, n_X


def share_band(values_XS: ArrayLike) -> Band:
    """Return mean and interval of values between 0 and 1, like `t_band`, with bounds that stay between 0 and 1.

    It is Wilson's interval at the effective sample size m(1 - m) / se^2, with Student's t in place of the normal
    quantile (Kott and Carr 1997, for surveys). Far from 0 and 1 it equals the t-interval; near them it covers more
    often. Seeds without any spread give an interval without width.
    """
    mean_X, low_X, high_X, n_X = t_band(values_XS)
    with np.errstate(all="ignore"):
        bounds = share_bounds(mean_X, ((high_X - low_X) / 2) ** 2 / (mean_X * (1 - mean_X)))
    inside_X = (mean_X > 0) & (mean_X < 1)
    low_X, high_X = (np.where(inside_X, of, plain) for of, plain in zip(bounds, (low_X, high_X), strict=True))
    return mean_X, np.maximum(low_X, 0.0), np.minimum(high_X, 1.0), n_X  # rounding alone goes beyond 0 and 1


def share_bounds(mean_X: NDArray, ratio_X: NDArray) -> tuple[NDArray, NDArray]:
    """Return Wilson's bounds of shares; `ratio_X`: t^2 / effective sample size. Any shape."""
    centre_X = (mean_X + ratio_X / 2) / (1 + ratio_X)
    half_X = np.sqrt(ratio_X * mean_X * (1 - mean_X) + ratio_X**2 / 4) / (1 + ratio_X)
    return centre_X - half_X, centre_X + half_X


def geometric_band(values_XS: ArrayLike) -> Band:
    """Return geometric mean and interval: `t_band` of the logarithms, transformed back. Values <= 0 are left out."""
    values = np.asarray(values_XS, dtype=np.float64)
    mean_X, low_X, high_X, n_X = t_band(np.log(np.where(values > 0, values, np.nan)))
    return np.exp(mean_X), np.exp(low_X), np.exp(high_X), n_X


def t_interval(values_S: ArrayLike) -> Interval:
    """Return the mean over seeds with its t-interval; NaN entries are left out. Shape: (S,)."""
    return _first_of(t_band(np.asarray(values_S, dtype=np.float64)[None]))


def share_interval(values_S: ArrayLike) -> Interval:
    """Return the mean share over seeds with the interval of `share_band`; NaN entries are left out. Shape: (S,)."""
    return _first_of(share_band(np.asarray(values_S, dtype=np.float64)[None]))


def geometric_interval(values_S: ArrayLike) -> Interval:
    """Return the geometric mean over seeds with the interval of `geometric_band`. Shape: (S,)."""
    return _first_of(geometric_band(np.asarray(values_S, dtype=np.float64)[None]))


def _first_of(band: Band) -> Interval:
    mean, low, high, n = band
    return Interval(float(mean[0]), float(low[0]), float(high[0]), int(n[0]))


def sd_interval(values_S: ArrayLike) -> Interval:
    """Return the standard deviation over seeds with its chi-squared interval; NaN below two seeds. Shape: (S,)."""
    values = np.asarray(values_S, dtype=np.float64)
    n = len(values)
    if n < 2:
        return Interval(np.nan, np.nan, np.nan, n)
    sd, tail = float(np.std(values, ddof=1)), (1 - CONFIDENCE) / 2
    low, high = (sd * np.sqrt((n - 1) / special.chdtri(n - 1, share)) for share in (tail, 1 - tail))
    return Interval(sd, float(low), float(high), n)


def worst_mean(values_S: ArrayLike, share: float = 0.2) -> float:
    """Return the mean of the smallest share of values, at least one (conditional value at risk). Shape: (S,)."""
    values = np.sort(np.asarray(values_S, dtype=np.float64))
    return float(values[: max(1, round(share * len(values)))].mean()) if len(values) else np.nan


def interquartile_range(values_S: NDArray) -> float:
    """Return the third quartile minus the first, linearly interpolated; NaN without finite values. Shape: (S,)."""
    if not len(values_S) or not np.isfinite(values_S).all():
        return np.nan
    return float(np.subtract(*np.percentile(values_S, [75, 25])))


# Scores of many runs on several tasks as one number (Agarwal et al. 2021, arXiv:2108.13264; their library rliable).
# Shape (..., T, S), normalised so that tasks can be pooled; leading axes are the replicates of a bootstrap.
LEAST_TASKS, LEAST_RUNS = 3, 5


def iqm(scores_TS: ArrayLike) -> NDArray:
    """Return the interquartile mean: the mean of the middle half of all runs of all tasks. Shape: (..., T, S) -> (...).

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    from scipy import stats

    return stats.trim_mean(_pool(scores_TS, "an interquartile mean"), 0.25, axis=-1)


def optimality_gap(scores_TS: ArrayLike, optimum: float = 1.0) -> NDArray:
    """Return how far runs stay below `optimum` on average, where runs above it count as at it. (..., T, S) -> (...).

    Raises TooFewError below 3 tasks or 5 runs each.
    """
    return optimum - np.minimum(_pool(scores_TS, "an optimality gap"), optimum).mean(axis=-1)


def _pool(scores_TS: ArrayLike, statistic: str) -> NDArray:
    """Join the runs of all tasks: (..., T, S) -> (..., T * S)."""
    scores = np.asarray(scores_TS, dtype=np.float64)
    tasks, runs = scores.shape[-2:]
    if tasks < LEAST_TASKS or runs < LEAST_RUNS:
        needs = f"{statistic} needs at least {LEAST_TASKS} tasks with {LEAST_RUNS} runs each"
        raise TooFewError(f"{needs}, has {tasks} with {runs}")
    return scores.reshape(*scores.shape[:-2], -1)


REPLICATES = 50_000
# Measured coverage of the 95% bootstrap interval of normal scores over 3 tasks, by runs of each task
# (`make bench WHAT=self-check`).
COVERAGE = {"mean": {3: 0.83, 5: 0.88, 10: 0.92, 20: 0.94}, "IQM": {5: 0.91, 10: 0.93, 20: 0.94}}
LEAST_COVERAGE = 0.92
LEAST_FOR_BOOTSTRAP = min(n for n in COVERAGE["IQM"] if min(by_n[n] for by_n in COVERAGE.values()) >= LEAST_COVERAGE)

Statistic = Callable[[NDArray], NDArray]


def estimate_with_bounds(scores_TS: ArrayLike, statistic: Statistic) -> tuple[NDArray, NDArray, NDArray]:
    """Return a statistic of runs with its bootstrap interval (`resample`, generator seed 0).

    The bounds are NaN below LEAST_FOR_BOOTSTRAP runs of each task: the interval would cover less than it promises.
    Raises TooFewError as `resample` and the statistic do.
    """
    scores = np.asarray(scores_TS)
    if scores.shape[-1] >= LEAST_FOR_BOOTSTRAP:
        return resample(scores, statistic, np.random.default_rng(0))
    value = statistic(scores)
    return value, np.full_like(value, np.nan), np.full_like(value, np.nan)


def resample(
    scores_TS: ArrayLike, statistic: Statistic, generator: np.random.Generator, replicates: int = REPLICATES
) -> tuple[NDArray, NDArray, NDArray]:
    """Return a statistic of runs with the bounds of its percentile bootstrap, whatever their coverage.

    Shapes: scores (T, S), or (A, T, S) for arms that share seeds. In each replicate every task draws its own S seeds
    with replacement; all arms draw the same ones, so they stay paired. `statistic` maps (R, [A,] T, S) to (R,) or
    (R, X). Value, lower and upper bound have its shape without R.

    Raises TooFewError where a run is missing (NaN): the arms would not be paired any more.
    """
    scores = np.asarray(scores_TS, dtype=np.float64)
    *_, tasks, runs = scores.shape
    if np.isnan(scores).any():
        raise TooFewError(f"a bootstrap needs a score of every run, {int(np.isnan(scores).sum())} are missing")
    drawn_RTS = generator.integers(runs, size=(replicates, tasks, runs))
    # (..., T, S) indexed by (T, 1) and (R, T, S) -> (..., R, T, S); the replicates then go to the front.
    resampled = np.moveaxis(scores[..., np.arange(tasks)[:, None], drawn_RTS], -3, 0)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(statistic(resampled), [tail, 100 - tail], axis=0)
    return statistic(scores[None])[0], low, high


class Survival(NamedTuple):
    """The share of runs that have not reached a threshold by each time; before the first time it is 1.

    Shapes: (X,). Bounds are NaN where the share is 0 or 1. `median` is infinite if half of the runs never reach it.
    """

    time_X: NDArray
    share_X: NDArray
    low_X: NDArray
    high_X: NDArray
    median: float
    n: int
    censored: int


def time_to_threshold(time_E: ArrayLike, score_E: ArrayLike, threshold: float) -> tuple[float, bool]:
    """Return when a run's score first reaches the threshold, else its last time, and whether it does. Shapes: (E,).

    If a run ended early, its last score must be repeated up to its planned end, because it counts as not reaching the
    threshold until then.
    """
    reached = np.flatnonzero(np.asarray(score_E, dtype=np.float64) >= threshold)
    time = np.asarray(time_E, dtype=np.float64)
    return (float(time[reached[0]]), True) if len(reached) else (float(time[-1]), False)


def kaplan_meier(time_S: ArrayLike, reached_S: ArrayLike) -> Survival:
    """Return Kaplan and Meier's estimate (1958), with Greenwood's variance and intervals on the log(-log) scale.

    Shapes: (S,). `time_S` is when a run reached the threshold, or, where `reached_S` is False, how long it was watched
    (censored, not left out). Raises TooFewError below two runs.
    """
    time, reached = np.asarray(time_S, dtype=np.float64), np.asarray(reached_S, dtype=bool)
    if len(time) < 2:
        raise TooFewError(f"a Kaplan-Meier curve needs at least two runs, has {len(time)}")
    from scipy import stats

    curve = stats.ecdf(stats.CensoredData.right_censored(time, ~reached)).sf
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # there is no bound where the share is 0 or 1
        low, high = curve.confidence_interval(CONFIDENCE, method="log-log")
    time_X, share_X = curve.quantiles, curve.probabilities
    median = float(min(time_X[share_X <= 0.5], default=np.inf))
    return Survival(time_X, share_X, low.probabilities, high.probabilities, median, len(time), int((~reached).sum()))
