"""Differences of two groups of runs that share no seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from grpolab.report.statistics.intervals import CONFIDENCE
from grpolab.report.statistics.paired import Difference


def welch_difference(of: pd.Series, minus: pd.Series, confidence: float = CONFIDENCE) -> Difference:
    """Difference of the means of `of` and `minus` with its interval and p (Welch 1947): the spreads may differ.

    Values that are not finite are left out; `n` is the smaller group. No interval and no p below two values a side.
    Groups without any spread differ surely, or not at all.
    """
    sides = [_finite(side) for side in (of, minus)]
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


def welch_error(of: pd.Series, minus: pd.Series) -> tuple[float, float]:
    """Standard error of the difference of means and its degrees of freedom (Welch and Satterthwaite).

    Needs two values a side. Without any spread the error is 0, and the freedom that of the smaller group.
    """
    sides = [_finite(side) for side in (of, minus)]
    terms = [side.var(ddof=1) / len(side) for side in sides]
    if not sum(terms):
        return 0.0, min(map(len, sides)) - 1
    return float(np.sqrt(sum(terms))), float(
        sum(terms) ** 2 / sum(term**2 / (len(side) - 1) for term, side in zip(terms, sides, strict=True))
    )


def _finite(values: pd.Series) -> NDArray:
    return values[np.isfinite(values)].to_numpy(dtype=np.float64)
