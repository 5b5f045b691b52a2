"""Means over seeds with t-intervals. A bootstrap of 3 points covers 74% where it says 95%."""

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


def t_interval(values_S: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Mean over seeds with its t-interval; NaN entries are not there. Shape: (S,)."""
    mean, low, high, n = t_band(np.asarray(values_S, dtype=np.float64)[None], confidence)
    return Interval(float(mean[0]), float(low[0]), float(high[0]), int(n[0]))
