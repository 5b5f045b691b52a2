"""Differences of two groups of runs that share no seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from grpolab.report.statistics.intervals import CONFIDENCE
from grpolab.report.statistics.paired import Difference


def welch_difference(of: pd.Series, minus: pd.Series, confidence: float = CONFIDENCE) -> Difference:
    """Difference of the means of `of` and `minus` with its interval and p (Welch 1947): the spreads may differ.

    Values that are not finite are left out; `n` is the smaller group. No interval and no p below two values a side.
    Groups without any spread differ surely, or not at all.
    """
    sides = [side[np.isfinite(side)].to_numpy(dtype=np.float64) for side in (of, minus)]
    n = min(map(len, sides))
    if n < 2:
        return Difference(float(sides[0].mean() - sides[1].mean()) if n else np.nan, np.nan, np.nan, np.nan, n)
    effect = float(sides[0].mean() - sides[1].mean())
    if not any(np.ptp(side) for side in sides):
        return Difference(effect, effect, effect, float(effect == 0), n, 0.0)
    test = stats.ttest_ind(*sides, equal_var=False)
    low, high = test.confidence_interval(confidence)
    sd = float(np.sqrt(sum(side.var(ddof=1) for side in sides)))
    return Difference(effect, float(low), float(high), float(test.pvalue), n, sd)
