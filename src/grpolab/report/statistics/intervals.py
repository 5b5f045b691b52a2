"""Means over seeds with t-intervals, of shares bounded ones. A bootstrap of 3 points covers 74% where it says 95%."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from grpolab.errors import RequestError

CONFIDENCE = 0.95


class TooFewError(RequestError):
    """The data cannot carry the statistic that was asked for; the text says what it needs and what is there."""


class Interval(NamedTuple):
    """An estimate from `n` values (seeds, runs) with its interval; NaN bounds where there is none."""

    mean: float
    low: float
    high: float
    n: int


def t_band(values_XS: ArrayLike, confidence: float = CONFIDENCE) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Mean, lower and upper bound and count at each X over the seeds that have a value there.

    Shapes: (X, S) -> four times (X,). Bounds are NaN where fewer than two seeds have a value.
    """
    values = np.ma.masked_invalid(np.asarray(values_XS, dtype=np.float64))
    n_X = values.count(axis=-1)
    mean_X = values.mean(axis=-1).filled(np.nan) if values.size else np.full(values.shape[:-1], np.nan)
    with np.errstate(all="ignore"):
        deviation_X = np.sqrt(np.ma.filled((values - values.mean(axis=-1, keepdims=True)) ** 2, 0).sum(-1) / (n_X - 1))
        half_X = np.where(n_X > 1, stats.t.ppf((1 + confidence) / 2, n_X - 1) * deviation_X / np.sqrt(n_X), np.nan)
    return mean_X, mean_X - half_X, mean_X + half_X, n_X


def share_band(values_XS: ArrayLike, confidence: float = CONFIDENCE) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """`t_band` for values between 0 and 1, whose bounds stay there: Wilson's interval at the effective sample size.

    That size, m(1 - m) / se^2, gives a count the standard error that the seeds show; Student's t stands in place of the
    normal quantile (Kott and Carr 1997, for surveys). Where the spread is small against the distance to 0 and 1 it is
    the t-interval; nearer to them it holds more often what it says. Seeds without any spread give no width.
    """
    mean_X, low_X, high_X, n_X = t_band(values_XS, confidence)
    with np.errstate(all="ignore"):
        ratio_X = ((high_X - low_X) / 2) ** 2 / (mean_X * (1 - mean_X))  # t^2 / effective sample size
        centre_X = (mean_X + ratio_X / 2) / (1 + ratio_X)
        half_X = np.sqrt(ratio_X * mean_X * (1 - mean_X) + ratio_X**2 / 4) / (1 + ratio_X)
    inside_X = (mean_X > 0) & (mean_X < 1)
    low_X, high_X = np.where(inside_X, centre_X - half_X, low_X), np.where(inside_X, centre_X + half_X, high_X)
    return mean_X, np.maximum(low_X, 0.0), np.minimum(high_X, 1.0), n_X  # past them by rounding alone


def share_interval(values_S: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Mean share over seeds with the interval of `share_band`; NaN entries are not there. Shape: (S,)."""
    return _first(share_band(np.asarray(values_S, dtype=np.float64)[None], confidence))


def t_interval(values_S: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Mean over seeds with its t-interval; NaN entries are not there. Shape: (S,)."""
    return _first(t_band(np.asarray(values_S, dtype=np.float64)[None], confidence))


def _first(band: tuple[NDArray, NDArray, NDArray, NDArray]) -> Interval:
    mean, low, high, n = band
    return Interval(float(mean[0]), float(low[0]), float(high[0]), int(n[0]))
