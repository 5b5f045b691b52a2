"""Tests: differences of two arms by seed, rates of runs, groups without shared seeds, trends along ordered levels.

The sign test and Wilson's interval are written out: scipy's differ in the last bits, and committed tables hold these.
Holm's is four lines; only statsmodels has it, which nothing else here needs. `scipy.stats` takes three quarters of a
second to import, most of what a first screen may take: Benjamini and Hochberg's is written out, and what needs the
package imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.report.statistics.intervals import CONFIDENCE, Interval, share_interval, t_interval

FLIPPED_SEEDS = 24  # of which all signs are tried; 30 would be 2**30 sums
EXACT_LEVELS = 7  # of a trend: all orders are tried; above, the normal approximation
# Differences closer to each other than this share of the values are one number, rounded.
ROUNDING = 1e-12


class Difference(NamedTuple):
    """Mean of the differences over `n` shared seeds, its interval, and p that it is 0.

    `sd` is the differences' standard deviation. NaN where there is none.
    """

    effect: float
    low: float
    high: float
    p: float
    n: int
    sd: float = np.nan


def paired_difference(of: pd.Series, minus: pd.Series) -> Difference:
    """`of - minus` by seed (the index of both): t-interval and paired t-test.

    Seeds that only one side has are left out, and p is NaN below two shared seeds. Where the t-test has nothing to work
    with, the sign test gives p: differences without spread (labels, counts), or an infinite one (a run that diverged;
    the effect is then the median).
    """
    pairs = pd.DataFrame({"of": of, "minus": minus}).astype("float64").dropna()
    of_S, minus_S = pairs["of"].to_numpy(), pairs["minus"].to_numpy()
    difference_S = np.subtract(of_S, minus_S, out=np.zeros(len(pairs)), where=of_S != minus_S)  # inf - inf is a tie
    n, effect = len(pairs), float(np.mean(difference_S)) if len(pairs) else np.nan
    if n < 2:
        return Difference(effect, np.nan, np.nan, np.nan, n)
    if not np.isfinite(difference_S).all():
        return Difference(float(np.median(difference_S)), np.nan, np.nan, sign_test(difference_S), n)
    if np.ptp(difference_S) <= ROUNDING * np.abs(pairs.to_numpy()).max():
        return Difference(effect, effect, effect, sign_test(difference_S), n, 0.0)
    _, low, high, _ = t_interval(difference_S)
    sd = float(np.std(difference_S, ddof=1))
    p = 2 * float(special.stdtr(n - 1, -abs(effect / sd * np.sqrt(n))))
    return Difference(effect, low, high, p, n, sd)


def sign_test(values_S: NDArray) -> float:
    """Exact two-sided p that values are as often above 0 as below; ties count for neither."""
    above, below = int((values_S > 0).sum()), int((values_S < 0).sum())
    return min(1.0, 2 * float(special.bdtr(min(above, below), above + below, 0.5)))


def holm(p_values: Sequence[float]) -> NDArray:
    """Holm's adjusted p-values of one family (Holm 1979). A NaN (a test that had no data) counts and stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    stepped = np.nan_to_num(p[order], nan=1.0) * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> NDArray:
    """q-values: the share of false findings among those at least as sure (Benjamini and Hochberg 1995). Shape: (M,).

    To the bit what `scipy.stats.false_discovery_control` gives.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    stepped = p[order] * (len(p) / np.arange(1, len(p) + 1))
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return q


def wilson(successes: int, n: int) -> Interval:
    """A rate with Wilson's score interval (Wilson 1927); NaN without trials."""
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
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
    from scipy import stats

    return float(stats.fisher_exact([[first, first_n - first], [second, second_n - second]]).pvalue)


def rate_difference(first: int, first_n: int, second: int, second_n: int) -> Difference:
    """Difference of two counts of runs as rates: Newcombe's interval (1998, method 10) and Fisher's p; both unpaired.

    The interval lies between -1 and 1; `n` is the smaller number of runs. NaN without runs.
    """
    of, minus = wilson(first, first_n), wilson(second, second_n)
    effect = of.mean - minus.mean
    below = np.hypot(of.mean - of.low, minus.high - minus.mean)
    above = np.hypot(of.high - of.mean, minus.mean - minus.low)
    sd = float(np.sqrt(sum(rate.mean * (1 - rate.mean) for rate in (of, minus))))
    p = fisher(first, first_n, second, second_n)
    return Difference(effect, float(effect - below), float(effect + above), p, min(first_n, second_n), sd)


def label_difference(of_ST: ArrayLike, minus_ST: ArrayLike) -> tuple[float, float]:
    """Difference of two rates of labelled runs over T tasks, and its exact two-sided p, with the seed as the unit.

    A seed's runs of all tasks go to one arm or to the other together: how often one half of the 2S numbers of labelled
    runs has a sum as far from the other half's? Of one task that is Fisher's test. Shapes: (S, T) of 0 and 1.
    """
    of, minus = np.asarray(of_ST, dtype=int), np.asarray(minus_ST, dtype=int)
    seeds, labelled = len(of), np.concatenate([of.sum(axis=1), minus.sum(axis=1)])
    ways_KL = np.zeros((2 * seeds + 1, labelled.sum() + 1))  # how many choices of K numbers sum up to L
    ways_KL[0, 0] = 1
    for number in labelled:
        ways_KL[1:, number:] += ways_KL[:-1, : ways_KL.shape[1] - number].copy()
    ways_L = ways_KL[seeds]
    distance_L = np.abs(2 * np.arange(len(ways_L)) - labelled.sum())
    as_far = distance_L >= abs(of.sum() - minus.sum())
    return float(of.mean() - minus.mean()), float(ways_L[as_far].sum() / ways_L.sum())


@lru_cache
def _signs(seeds: int) -> NDArray:
    """Every combination of signs: (2**S, S)."""
    return 1.0 - 2 * (np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1)


def sign_flip(values_S: ArrayLike) -> float:
    """Exact two-sided p that values are symmetric about 0: how often flipped signs give as large a sum; (S,).

    Half of the signs against the other half, so that 20 seeds are two tables of 1,024 sums. Above FLIPPED_SEEDS by
    10,000 random flips, always the same.
    """
    values = np.asarray(values_S, dtype=np.float64)
    least = abs(values.sum()) * (1 - 1e-12)
    if len(values) > FLIPPED_SEEDS:
        flips = np.random.default_rng(0).choice([-1.0, 1.0], (9999, len(values)))
        return float((1 + (np.abs(flips @ values) >= least).sum()) / 10_000)
    first, second = np.array_split(values, 2)
    sums = np.add.outer(_signs(len(first)) @ first, _signs(len(second)) @ second)
    return float((np.abs(sums) >= least).mean())


def welch_difference(of: pd.Series, minus: pd.Series) -> Difference:
    """Difference of the means of `of` and `minus` with its interval and p (Welch 1947): the spreads may differ.

    Values that are not finite are left out; `n` is the smaller group. No interval and no p below two values a side.
    Groups without any spread differ surely, or not at all.
    """
    sides = _finite(of, minus)
    n = min(map(len, sides))
    effect = float(sides[0].mean() - sides[1].mean()) if n else np.nan
    if n < 2:
        return Difference(effect, np.nan, np.nan, np.nan, n)
    if not any(np.ptp(side) for side in sides):
        return Difference(effect, effect, effect, float(effect == 0), n, 0.0)
    from scipy import stats

    test = stats.ttest_ind(*sides, equal_var=False)
    low, high = test.confidence_interval(CONFIDENCE)
    sd = float(np.sqrt(sum(side.var(ddof=1) for side in sides)))
    return Difference(effect, float(low), float(high), float(test.pvalue), n, sd)


def welch_error(of: pd.Series, minus: pd.Series) -> tuple[float, float]:
    """Standard error of the difference of means and its degrees of freedom (Welch and Satterthwaite).

    Needs two values a side. Without any spread the error is 0, and the freedom that of the smaller group.
    """
    sides = _finite(of, minus)
    terms = [side.var(ddof=1) / len(side) for side in sides]
    if not sum(terms):
        return 0.0, min(map(len, sides)) - 1
    freedom = sum(terms) ** 2 / sum(term**2 / (len(side) - 1) for term, side in zip(terms, sides, strict=True))
    return float(np.sqrt(sum(terms))), float(freedom)


def _finite(*sides: pd.Series) -> list[NDArray]:
    return [side[np.isfinite(side)].to_numpy(dtype=np.float64) for side in sides]


def page_trend(values_SL: ArrayLike) -> float:
    """p of Page's test that values rise along L ordered levels, ranked within each seed (Page 1963). Shape: (S, L).

    Seeds with a gap (NaN) are left out, an infinity is a largest value; NaN with fewer than two seeds or three levels.
    """
    values = np.asarray(values_SL, dtype=np.float64)
    complete = values[~np.isnan(values).any(axis=1)]
    if complete.shape[0] < 2 or values.shape[1] < 3:
        return np.nan
    from scipy import stats

    return float(stats.page_trend_test(complete).pvalue)


def rank_trend(values_STL: ArrayLike) -> Difference:
    """Kendall's tau of the values with the order of the levels, mean over seeds and tasks, with Page's p, two-sided.

    Shape: (S, T, L) or (S, L), every seed complete. tau is the share of pairs of levels that rise minus the share that
    fall: 1 where every seed rises throughout. The unit is the seed: p is exact where all orders of its levels, the same
    in all tasks, are equally likely; of one task without ties it is that of `page_trend`. NaN p with fewer than two
    seeds or three levels.
    """
    values = np.asarray(values_STL, dtype=np.float64)
    values = values[:, None] if values.ndim == 2 else values
    seeds, _, levels = values.shape
    lower, upper = np.triu_indices(levels, k=1)
    rises, falls = values[..., lower] < values[..., upper], values[..., lower] > values[..., upper]
    tau_S = (rises.astype(float) - falls).mean(axis=(1, 2))
    mean, low, high, n = share_interval((tau_S + 1) / 2)  # tau lies between -1 and 1
    mean, low, high = (2 * bound - 1 for bound in (mean, low, high))
    p = _page_by_seed(values) if seeds > 1 and levels > 2 else np.nan
    return Difference(mean, low, high, p, n, float(np.std(tau_S, ddof=1)) if n > 1 else np.nan)


def _page_by_seed(values_STL: NDArray) -> float:
    """Two-sided p of Page's statistic, the sum over seeds of levels times ranks: exact up to EXACT_LEVELS."""
    of, than = values_STL[..., :, None], values_STL[..., None, :]
    # Twice the ranks, for ties have halves: of L values, those below plus those not above, plus 1.
    ranks_SL = ((of > than).sum(axis=3) + (of >= than).sum(axis=3) + 1).sum(axis=1)
    levels = ranks_SL.shape[1]
    if levels > EXACT_LEVELS:
        rank_S, place_L = ranks_SL.var(axis=1, ddof=1), np.arange(levels) - (levels - 1) / 2
        spread = np.sqrt(rank_S.sum() * (place_L**2).sum())
        return float(2 * special.ndtr(-abs((ranks_SL @ place_L).sum()) / spread)) if spread else 1.0
    orders_OL = np.array(list(permutations(range(levels))))
    sums_SO = ranks_SL @ orders_OL.T
    chance_K = np.ones(1)
    for sums_O in sums_SO:
        counts_K = np.bincount(sums_O - sums_O.min())
        chance_K = np.convolve(chance_K, counts_K / len(sums_O))
    found = int((sums_SO[:, 0] - sums_SO.min(axis=1)).sum())  # the first order is the levels' own
    return float(min(1.0, 2 * min(chance_K[: found + 1].sum(), chance_K[found:].sum())))
