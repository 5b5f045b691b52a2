"""Tests of differences by seed, rates of runs, unpaired groups and trends; and the differences that they could detect.

Some are written out although scipy has them. `scipy.stats` takes three quarters of a second to import, most of the
time of a report's first screen, so functions that need it import it when they are called. And scipy's sign test and
Wilson interval differ from these in the last bits, which committed tables hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.report.statistics.intervals import CONFIDENCE, Interval, share_interval, t_interval
from grpolab.report.statistics.looks import ALPHA, POWER

EXACT_LEVELS = 7  # for up to so many levels all orders are tried; beyond, the normal approximation
ROUNDING = 1e-12  # if the range of differences is below this share of the values, they differ only by rounding


class Difference(NamedTuple):
    """The mean difference over `n` shared seeds, its interval, p that it is 0, and the differences' standard deviation.

    NaN marks what cannot be computed.
    """

    effect: float
    low: float
    high: float
    p: float
    n: int
    sd: float = np.nan


def paired_difference(of: pd.Series, minus: pd.Series) -> Difference:
    """Return `of - minus` by seed (the index of both) with t-interval and paired t-test.

    Seeds that only one side has are left out; below two shared seeds p is NaN. If the differences have no spread
    (labels, counts), or one is infinite (a run that diverged), the sign test gives p, and the effect is the median.
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
    """Return the exact two-sided p that values are as often above 0 as below; ties are left out. Shape: (S,)."""
    above, below = int((values_S > 0).sum()), int((values_S < 0).sum())
    return min(1.0, 2 * float(special.bdtr(min(above, below), above + below, 0.5)))


def holm(p_values: Sequence[float]) -> NDArray:
    """Return Holm's adjusted p-values of one family (1979). A NaN (a test without data) counts and stays NaN; (M,)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    stepped = np.nan_to_num(p[order], nan=1.0) * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> NDArray:
    """Return q-values (Benjamini and Hochberg 1995): the expected share of false findings at this p or less; (M,).

    They are bit-identical to those of `scipy.stats.false_discovery_control`.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    stepped = p[order] * (len(p) / np.arange(1, len(p) + 1))
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return q


def wilson(successes: int, n: int) -> Interval:
    """Return a rate with Wilson's score interval (1927); NaN without trials."""
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    rate, scale = successes / n, 1 + z**2 / n
    centre = (rate + z**2 / (2 * n)) / scale
    half = z * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / scale
    # For 0 or n successes a bound is exactly 0 or 1; rounding must not push it beyond.
    low = 0.0 if successes == 0 else float(centre - half)
    return Interval(rate, low, 1.0 if successes == n else float(centre + half), n)


def fisher(first: int, first_n: int, second: int, second_n: int) -> float:
    """Return the two-sided p of Fisher's exact test (1922) that two arms have one rate; NaN if an arm has no runs.

    The test ignores pairing: if runs of one seed tend to fail together, its p is too large, never too small.
    """
    if not first_n or not second_n:
        return np.nan
    from scipy import stats

    return float(stats.fisher_exact([[first, first_n - first], [second, second_n - second]]).pvalue)


def rate_difference(first: int, first_n: int, second: int, second_n: int) -> Difference:
    """Return the difference of two rates with Newcombe's interval (1998, method 10) and Fisher's p; both unpaired.

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
    """Return the difference of two rates of labelled runs over T tasks, and its exact two-sided p.

    Shapes: (S, T) of 0 and 1. The unit is the seed: a seed's runs on all tasks are permuted between the arms together.
    Each arm has S counts of labelled runs. p is the share of the ways to split these 2S counts into two arms in which
    the arms' sums differ by at least as much as observed. For one task this is Fisher's test.
    """
    of, minus = np.asarray(of_ST, dtype=int), np.asarray(minus_ST, dtype=int)
    seeds, labelled = len(of), np.concatenate([of.sum(axis=1), minus.sum(axis=1)])
    ways_KL = np.zeros((2 * seeds + 1, labelled.sum() + 1))  # number of ways to choose K counts whose sum is L
    ways_KL[0, 0] = 1
    for number in labelled:
        ways_KL[1:, number:] += ways_KL[:-1, : ways_KL.shape[1] - number].copy()
    ways_L = ways_KL[seeds]
    distance_L = np.abs(2 * np.arange(len(ways_L)) - labelled.sum())
    as_far = distance_L >= abs(of.sum() - minus.sum())
    return float(of.mean() - minus.mean()), float(ways_L[as_far].sum() / ways_L.sum())


def welch_difference(of: pd.Series, minus: pd.Series) -> Difference:
    """Return the difference of two means with the interval and p of Welch's test (1947), which allows unequal spreads.

    Values that are not finite are left out; `n` is the size of the smaller group. With fewer than two values a side,
    interval and p are NaN. If neither group has any spread, p is 1 if they are equal, else 0.
    """
    sides = _finite(of, minus)
    n = min(map(len, sides))
    effect = float(sides[0].mean() - sides[1].mean()) if n else np.nan
    if n < 2:
        return Difference(effect, np.nan, np.nan, np.nan, n)
    if not any(np.ptp(side) for side in sides):
        return Difference(effect, effect, effect, float(effect == 0), n, 0.0)
    error, freedom = welch_error(of, minus)
    half = special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    p = 2 * special.stdtr(freedom, -abs(effect / error))
    sd = float(np.sqrt(sum(side.var(ddof=1) for side in sides)))
    return Difference(effect, float(effect - half), float(effect + half), float(p), n, sd)


def welch_error(of: pd.Series, minus: pd.Series) -> tuple[float, float]:
    """Return the standard error of a difference of means and its degrees of freedom (Welch and Satterthwaite).

    Needs two values a side. Without any spread the error is 0, and the degrees of freedom are the smaller group's.
    """
    sides = _finite(of, minus)
    terms = [side.var(ddof=1) / len(side) for side in sides]
    if not sum(terms):
        return 0.0, min(map(len, sides)) - 1
    freedom = sum(terms) ** 2 / sum(term**2 / (len(side) - 1) for term, side in zip(terms, sides, strict=True))
    return float(np.sqrt(sum(terms))), float(freedom)


def _finite(*sides: pd.Series) -> list[NDArray]:
    return [side[np.isfinite(side)].to_numpy(dtype=np.float64) for side in sides]


def rank_trend(values_STL: ArrayLike) -> Difference:
    """Return Kendall's tau of the values with the order of L levels, mean over seeds and tasks, and Page's p (1963).

    Shape: (S, T, L) or (S, L), without gaps. tau is the share of pairs of levels that rise minus the share that fall: 1
    if every seed rises throughout. p is two-sided and exact, with the seed as unit: under the null hypothesis all
    orders of a seed's levels, equal in all tasks, are equally likely. p is NaN below two seeds or three levels.
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
    """Return two-sided p of Page's statistic, the sum over seeds of levels times ranks: exact up to EXACT_LEVELS."""
    of, than = values_STL[..., :, None], values_STL[..., None, :]
    # Twice the ranks, because ties have half ranks: the number of values below, plus those not above, plus 1.
    ranks_SL = ((of > than).sum(axis=3) + (of >= than).sum(axis=3) + 1).sum(axis=1)
    levels = ranks_SL.shape[1]
    if levels > EXACT_LEVELS:
        rank_S, place_L = ranks_SL.var(axis=1, ddof=1), np.arange(levels) - (levels - 1) / 2
        spread = np.sqrt(rank_S.sum() * (place_L**2).sum())
        return float(2 * special.ndtr(-abs((ranks_SL @ place_L).sum()) / spread)) if spread else 1.0
    orders_OL = np.array(list(permutations(range(levels))))
    sums_SO = ranks_SL @ orders_OL.T
    chance_K = np.ones(1)  # of each total over the seeds so far, counted from the smallest
    for sums_O in sums_SO:
        counts_K = np.bincount(sums_O - sums_O.min())
        chance_K = np.convolve(chance_K, counts_K / len(sums_O))
    observed = int((sums_SO[:, 0] - sums_SO.min(axis=1)).sum())  # the first order is the levels' own
    return float(min(1.0, 2 * min(chance_K[: observed + 1].sum(), chance_K[observed:].sum())))


def detectable_rate_difference(first_n: int, second: int, second_n: int, alpha: float = ALPHA) -> float | None:
    """Return how far the first arm's true rate must lie from the second's observed one for Fisher's test to detect it.

    In steps of 0.01, on the side with more room, with probability POWER. None if no rate is far enough for so few runs.
    """
    from scipy import stats

    rate = second / second_n
    direction = 1 if rate <= 0.5 else -1
    rejects_KM = np.array(
        [[fisher(k, first_n, m, second_n) < alpha for m in range(second_n + 1)] for k in range(first_n + 1)]
    )
    chance_M = stats.binom.pmf(np.arange(second_n + 1), second_n, rate)
    for gap in np.arange(1, int(100 * max(rate, 1 - rate)) + 1) / 100:
        chance_K = stats.binom.pmf(np.arange(first_n + 1), first_n, np.clip(rate + direction * gap, 0, 1))
        if chance_K @ rejects_KM @ chance_M >= POWER:
            return float(gap)
    return None
