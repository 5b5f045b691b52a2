"""Tests: differences of two arms by seed, rates of runs, groups without shared seeds, trends along ordered levels.

Sign, Wilcoxon and Wilson are written out: scipy's differ in the last bits, or are exact only without ties, and
committed tables hold these. Holm's is four lines; only statsmodels has it, which nothing else here needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from grpolab.report.statistics.intervals import CONFIDENCE, Interval, share_interval, t_interval

Alternative = Literal["two-sided", "less", "greater"]
EXACT_SEEDS = 14  # of Wilcoxon's test: 2**14 signs are tried; above, the normal approximation
# Differences closer to each other than this share of the values are one number, rounded.
ROUNDING = 1e-12


class Difference(NamedTuple):
    """Mean of the differences over `n` shared seeds, its interval, and p for `effect == null`.

    `sd` is the differences' standard deviation; `sign_p` and `wilcoxon_p` test the same null without assuming a normal
    distribution. NaN where there is none.
    """

    effect: float
    low: float
    high: float
    p: float
    n: int
    sd: float = np.nan
    sign_p: float = np.nan
    wilcoxon_p: float = np.nan


def paired_difference(
    of: pd.Series, minus: pd.Series, null: float = 0.0, alternative: Alternative = "two-sided"
) -> Difference:
    """`of - minus` by seed (the index of both): t-interval, paired t-test of `effect == null`, and both rank tests.

    Seeds that only one side has are left out, and p is NaN below two shared seeds. Where the t-test has nothing to work
    with, the sign test gives p: differences without spread (labels, counts), or an infinite one (a run that diverged;
    the effect is then the median). Only arms that agree to the last bit in every seed, while the seeds differ among
    themselves, are known to be one function: they get the p of a difference without error, 1 or 0.
    """
    pairs = pd.DataFrame({"of": of, "minus": minus}).astype("float64").dropna()
    of_S, minus_S = pairs["of"].to_numpy(), pairs["minus"].to_numpy()
    difference_S = np.subtract(of_S, minus_S, out=np.zeros(len(pairs)), where=of_S != minus_S)  # inf - inf is a tie
    n, effect = len(pairs), float(np.mean(difference_S)) if len(pairs) else np.nan
    if n < 2:
        return Difference(effect, np.nan, np.nan, np.nan, n)
    ranks = _sign_test(difference_S - null, alternative), _wilcoxon(difference_S - null, alternative)
    if not np.isfinite(difference_S).all():
        return Difference(float(np.median(difference_S)), np.nan, np.nan, ranks[0], n, np.nan, *ranks)
    if np.ptp(difference_S) <= ROUNDING * np.abs(pairs.to_numpy()).max():
        one_function = not difference_S.any() and pairs["of"].nunique() == n
        return Difference(effect, effect, effect, float(null == 0) if one_function else ranks[0], n, 0.0, *ranks)
    _, low, high, _ = t_interval(difference_S)
    sd = float(np.std(difference_S, ddof=1))
    t = (effect - null) / sd * np.sqrt(n)
    p = _p_of_tails(float(special.stdtr(n - 1, t)), float(special.stdtr(n - 1, -t)), alternative)
    return Difference(effect, low, high, p, n, sd, *ranks)


def equivalence(of: pd.Series, minus: pd.Series, margin: float) -> Difference:
    """The paired difference, with the p of two one-sided tests (TOST, Schuirmann 1987) where it lies within the margin.

    The margin that is nearer decides. Where the difference lies outside, p says how surely (two-sided).
    """
    effect = paired_difference(of, minus).effect
    alternative: Alternative = "two-sided" if abs(effect) > margin else "less" if effect > 0 else "greater"
    return paired_difference(of, minus, margin if effect > 0 else -margin, alternative)


def _sign_test(shifted_S: NDArray, alternative: Alternative) -> float:
    """Exact binomial test that differences are as often above 0 as below; ties count for neither."""
    above, below = int((shifted_S > 0).sum()), int((shifted_S < 0).sum())
    few_above, few_below = (float(special.bdtr(count, above + below, 0.5)) for count in (above, below))
    return _p_of_tails(few_above, few_below, alternative)


def _wilcoxon(shifted_S: NDArray, alternative: Alternative) -> float:
    """Wilcoxon's signed-rank test (1945), exact up to EXACT_SEEDS, with ties too; zeros are left out."""
    apart_S = shifted_S[shifted_S != 0]
    signed_ranks_S = np.sign(apart_S) * stats.rankdata(np.abs(apart_S))
    total, seeds = signed_ranks_S.sum(), len(signed_ranks_S)
    if not seeds:
        return 1.0
    if seeds > EXACT_SEEDS:
        z = total / np.linalg.norm(signed_ranks_S)
        return _p_of_tails(float(special.ndtr(z)), float(special.ndtr(-z)), alternative)
    sums_R = _signs(seeds) @ signed_ranks_S
    return _p_of_tails(float((sums_R <= total).mean()), float((sums_R >= total).mean()), alternative)


@lru_cache
def _signs(seeds: int) -> NDArray:
    """Every combination of signs: (2**S, S)."""
    return 1.0 - 2 * (np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1)


def _p_of_tails(less: float, greater: float, alternative: Alternative) -> float:
    """The p-value, from the chances of a statistic as small and as large as the observed one."""
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[alternative]


def holm(p_values: Sequence[float]) -> NDArray:
    """Holm's adjusted p-values of one family (Holm 1979). A NaN (a test that had no data) counts and stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    stepped = np.nan_to_num(p[order], nan=1.0) * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)


def wilson(successes: int, n: int) -> Interval:
    """A rate with Wilson's score interval (Wilson 1927); NaN without trials."""
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
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
    return float(stats.page_trend_test(complete).pvalue)


def rank_trend(values_SL: ArrayLike) -> Difference:
    """Kendall's tau of the values with the order of the levels, mean over seeds, with Page's p, two-sided.

    Shape: (S, L), every seed complete. tau is the share of pairs of levels that rise minus the share that fall: 1 where
    every seed rises throughout. NaN p with fewer than two seeds or three levels.
    """
    values = np.asarray(values_SL, dtype=np.float64)
    lower, upper = np.triu_indices(values.shape[1], k=1)
    rises_SP = values[:, lower] < values[:, upper]
    falls_SP = values[:, lower] > values[:, upper]
    tau_S = (rises_SP.astype(float) - falls_SP).mean(axis=1)
    mean, low, high, n = share_interval((tau_S + 1) / 2)  # tau lies between -1 and 1
    mean, low, high = (2 * bound - 1 for bound in (mean, low, high))
    p = np.minimum(1, 2 * min(page_trend(values), page_trend(values[:, ::-1])))
    return Difference(mean, low, high, float(p), n, float(np.std(tau_S, ddof=1)) if n > 1 else np.nan)
