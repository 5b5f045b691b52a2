"""How much runs of one arm differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from grpolab.report.statistics.intervals import CONFIDENCE, Interval


def sd_interval(values_S: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Standard deviation over seeds with the chi-squared interval of normal values; NaN below two. Shape: (S,)."""
    values = np.asarray(values_S, dtype=np.float64)
    n = len(values)
    if n < 2:
        return Interval(np.nan, np.nan, np.nan, n)
    sd, tail = float(np.std(values, ddof=1)), (1 - confidence) / 2
    low, high = (sd * np.sqrt((n - 1) / stats.chi2.isf(share, n - 1)) for share in (tail, 1 - tail))
    return Interval(sd, float(low), float(high), n)


def worst_mean(values_S: ArrayLike, share: float = 0.2) -> float:
    """Mean of the worst (smallest) share of runs, of one run at least: the conditional value at risk. Shape: (S,)."""
    values = np.sort(np.asarray(values_S, dtype=np.float64))
    return float(values[: max(1, round(share * len(values)))].mean()) if len(values) else np.nan
