"""Rates of runs: how many of an arm's runs collapsed."""

from __future__ import annotations

import numpy as np
from scipy import stats

from grpolab.report.statistics.intervals import CONFIDENCE, Interval
from grpolab.report.statistics.paired import Difference


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


def fisher(first: int, first_n: int, second: int, second_n: int) -> float:
    """Two-sided p of Fisher's exact test (1922) that two arms have one rate; NaN where an arm has no runs.

    It knows nothing of pairs: runs that share a seed and tend to fail together make it cautious, never bold.
    """
    if not first_n or not second_n:
        return np.nan
    return float(stats.fisher_exact([[first, first_n - first], [second, second_n - second]]).pvalue)


def rate_difference(first: int, first_n: int, second: int, second_n: int, confidence: float = CONFIDENCE) -> Difference:
    """Difference of two counts of runs as rates: Newcombe's interval (1998, method 10) and Fisher's p; both unpaired.

    The interval lies between -1 and 1; `n` is the smaller number of runs. NaN without runs.
    """
    of, minus = wilson(first, first_n, confidence), wilson(second, second_n, confidence)
    effect = of.mean - minus.mean
    below = np.hypot(of.mean - of.low, minus.high - minus.mean)
    above = np.hypot(of.high - of.mean, minus.mean - minus.low)
    sd = float(np.sqrt(sum(rate.mean * (1 - rate.mean) for rate in (of, minus))))
    p = fisher(first, first_n, second, second_n)
    return Difference(effect, float(effect - below), float(effect + above), p, min(first_n, second_n), sd)
