"""Tests that values rise along ordered levels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from grpolab.report.statistics.intervals import TooFewError, share_interval
from grpolab.report.statistics.paired import Difference


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


def jonckheere_trend(groups_L: Sequence[ArrayLike]) -> float:
    """p of the Jonckheere-Terpstra test that values rise along L groups that share no seeds (Jonckheere 1954).

    Exact; with ties the normal approximation with their variance (Hollander and Wolfe 1999, section 6.2). Where the
    groups do share seeds, `page_trend` sees more.

    Raises TooFewError for fewer than three groups, or a group of fewer than two.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in groups_L]
    sizes = np.array([len(group) for group in groups])
    if len(sizes) < 3 or sizes.min() < 2:
        raise TooFewError(f"a trend needs three levels with two runs each, has levels of {', '.join(map(str, sizes))}")
    rises = sum(_rises(lower, upper) for lower, upper in combinations(groups, 2))
    ties = np.unique(np.concatenate(groups), return_counts=True)[1]
    if (ties == 1).all():
        chance = _null_distribution(sizes)
        return float(chance[int(rises) :].sum())
    mean = (sizes.sum() ** 2 - (sizes**2).sum()) / 4
    return float(stats.norm.sf((rises - mean) / np.sqrt(_tied_variance(sizes, ties))))


def _rises(lower: NDArray, upper: NDArray) -> float:
    """Pairs (one of each) that rise; a tie is half of one."""
    return float(((lower[:, None] < upper) + 0.5 * (lower[:, None] == upper)).sum())


def _null_distribution(sizes_L: NDArray) -> NDArray:
    """P(number of rising pairs = 0, 1, ...) under the null: each group against all before it, independently."""
    before = np.cumsum(sizes_L)[:-1]
    return reduce(np.convolve, (_rank_sums(n, m) for n, m in zip(sizes_L[1:], before, strict=True)))


def _rank_sums(n: int, m: int) -> NDArray:
    """P(Mann and Whitney's U = 0 .. nm), from its generating function: the product of (1 - q^(m+i)) / (1 - q^i)."""
    counts = np.array([1, *[0] * (n * m)], dtype=object)  # whole numbers: they grow, and are subtracted
    for i in range(1, n + 1):
        counts[m + i :] -= counts[: -(m + i)].copy()
        for power in range(i, n * m + 1):
            counts[power] += counts[power - i]
    return (counts / counts.sum()).astype(np.float64)


def _tied_variance(sizes_L: NDArray, ties: NDArray) -> float:
    """Variance of the number of rising pairs (Hollander and Wolfe 1999, equation 6.19)."""
    n = sizes_L.sum()

    def sums(power: int) -> tuple[float, float]:
        """Sums of k(k-1) or k(k-1)(k-2) over groups and over ties."""
        falling = [np.prod([counts - k for k in range(power)], axis=0).sum() for counts in (sizes_L, ties)]
        return float(falling[0]), float(falling[1])

    whole = sum((c * (c - 1) * (2 * c + 5)).sum() * sign for c, sign in ((n, 1), (sizes_L, -1), (ties, -1)))
    (pairs, tied_pairs), (triples, tied_triples) = sums(2), sums(3)
    return float(
        whole / 72 + triples * tied_triples / (36 * n * (n - 1) * (n - 2)) + pairs * tied_pairs / (8 * n * (n - 1))
    )
