"""Intervals and tests for a handful of seeds. Pure functions on arrays; letters: X points, S seeds.

Arms share warm start, prompts and noise with their seed, so differences are taken seed by seed. Intervals are
t-intervals: a bootstrap of 3 points covers 74% where it says 95%.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over `n` seeds with its interval; NaN bounds where n < 2."""

    mean: float
    low: float
    high: float
    n: int


class Paired(NamedTuple):
    """Mean of the paired differences over `n` shared seeds, its interval, and p for `effect == null`."""

    effect: float
    low: float
    high: float
    p: float
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


def paired_difference(of: pd.Series, minus: pd.Series, null: float = 0.0, confidence: float = CONFIDENCE) -> Paired:
    """`of - minus` by seed (the index of both), with t-interval and two-sided t-test of `effect == null`.

    Seeds that only one side has are left out. p is NaN below two shared seeds; where all differences are the same
    number, p is 1 if that number is `null` and 0 if not.
    """
    difference_S = (of.astype("float64") - minus.astype("float64")).dropna()
    effect, low, high, n = t_interval(difference_S.to_numpy(), confidence)
    if n < 2 or not np.isfinite(effect):
        return Paired(effect, np.nan, np.nan, np.nan, n)
    if difference_S.nunique() == 1:
        return Paired(effect, effect, effect, float(effect == null), n)
    return Paired(effect, low, high, float(stats.ttest_1samp(difference_S, null).pvalue), n)


def holm(p_values: Sequence[float]) -> NDArray:
    """Holm's adjusted p-values of one family (Holm 1979). A NaN (a test that had no data) counts and stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    stepped = np.nan_to_num(p[order], nan=1.0) * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)


def wilson(successes: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """A rate with Wilson's score interval (Wilson 1927); NaN without trials."""
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    z = float(stats.norm.ppf((1 + confidence) / 2))
    rate, scale = successes / n, 1 + z**2 / n
    centre = (rate + z**2 / (2 * n)) / scale
    half = z * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / scale
    # At 0 and n of n the bound is exactly 0 and 1; rounding must not push it past.
    low = 0.0 if successes == 0 else float(centre - half)
    return Interval(rate, low, 1.0 if successes == n else float(centre + half), n)


def page_trend(values_SL: ArrayLike) -> float:
    """p of Page's test that values rise along L ordered levels, ranked within each seed (Page 1963). Shape: (S, L).

    Seeds with a gap are left out; NaN with fewer than two seeds or three levels.
    """
    values = np.asarray(values_SL, dtype=np.float64)
    complete = values[np.isfinite(values).all(axis=1)]
    if complete.shape[0] < 2 or values.shape[1] < 3:
        return np.nan
    return float(stats.page_trend_test(complete).pvalue)
