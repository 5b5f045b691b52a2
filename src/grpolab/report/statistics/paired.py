"""Differences of two arms seed by seed: the t-test that decides, the rank tests that check it, Holm over a family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special, stats

from grpolab.report.statistics.intervals import CONFIDENCE, t_interval
from grpolab.report.statistics.swaps import Alternative, p_of_tails, swap_test

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
    of: pd.Series,
    minus: pd.Series,
    null: float = 0.0,
    alternative: Alternative = "two-sided",
    confidence: float = CONFIDENCE,
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
    _, low, high, _ = t_interval(difference_S, confidence)
    sd = float(np.std(difference_S, ddof=1))
    return Difference(effect, low, high, _t_test((effect - null) / sd * np.sqrt(n), n, alternative), n, sd, *ranks)


def equivalence(of: pd.Series, minus: pd.Series, margin: float) -> Difference:
    """The paired difference, with the p of two one-sided tests (TOST, Schuirmann 1987) where it lies within the margin.

    The margin that is nearer decides. Where the difference lies outside, p says how surely (two-sided).
    """
    effect = paired_difference(of, minus).effect
    inside: Alternative = "less" if effect > 0 else "greater"
    return paired_difference(
        of, minus, margin if effect > 0 else -margin, "two-sided" if abs(effect) > margin else inside
    )


def _t_test(t: float, n: int, alternative: Alternative) -> float:
    return p_of_tails(float(special.stdtr(n - 1, t)), float(special.stdtr(n - 1, -t)), alternative)


def _sign_test(shifted_S: NDArray, alternative: Alternative) -> float:
    """Exact binomial test that differences are as often above 0 as below; ties count for neither."""
    above, below = int((shifted_S > 0).sum()), int((shifted_S < 0).sum())
    few_above, few_below = (float(special.bdtr(count, above + below, 0.5)) for count in (above, below))
    return p_of_tails(few_above, few_below, alternative)


def _wilcoxon(shifted_S: NDArray, alternative: Alternative) -> float:
    """Wilcoxon's signed-rank test (1945), exact up to 14 seeds, with ties too; zeros are left out."""
    apart_S = shifted_S[shifted_S != 0]
    return swap_test(np.sign(apart_S) * stats.rankdata(np.abs(apart_S)), alternative)


def holm(p_values: Sequence[float]) -> NDArray:
    """Holm's adjusted p-values of one family (Holm 1979). A NaN (a test that had no data) counts and stays NaN."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)  # NaN last
    stepped = np.nan_to_num(p[order], nan=1.0) * (len(p) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)
