"""How surely a test with n seeds would find an effect, and how many seeds that takes. Nothing is simulated."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from grpolab.report.statistics.tests import Difference, fisher

ALPHA, POWER = 0.05, 0.8
# Nobody trains more seeds than this to settle one claim.
MOST_NEEDED = 1000
_POINTS = 1000  # of the integral over the observed spread; power is then right to three digits


def paired_t_power(effect: float, sd: float, n: int, alpha: float = ALPHA) -> float:
    """Power of the two-sided paired t-test: P(p < alpha) where differences have this mean and standard deviation."""
    return _t_power(effect / sd * np.sqrt(n), n - 1, alpha)


def _t_power(shift: float, freedom: float, alpha: float) -> float:
    """P(p < alpha) of a two-sided t-test where the true effect is `shift` standard errors."""
    reach = stats.t.isf(alpha / 2, freedom) * _relative_spread(freedom)
    return float(np.mean(special.ndtr(shift - reach) + special.ndtr(-shift - reach)))


def detectable_difference(error: float, freedom: float, alpha: float = ALPHA) -> float:
    """The true difference that a two-sided t-test with this standard error and freedom would find with that power."""
    farthest = 2.0
    while _t_power(farthest, freedom, alpha) < POWER:
        farthest *= 2
    return error * float(optimize.brentq(lambda shift: _t_power(shift, freedom, alpha) - POWER, 0.0, farthest))


def detectable_rate_difference(first_n: int, second: int, second_n: int, alpha: float = ALPHA) -> float | None:
    """How far the first arm's true rate must lie from the second's (as observed), for Fisher's test to find it.

    In hundredths, and to the side where there is more room. None where no rate is far enough with so few runs.
    """
    rate = second / second_n
    away = 1 if rate <= 0.5 else -1
    counts = [(k, m) for k in range(first_n + 1) for m in range(second_n + 1)]
    found = np.array([fisher(k, first_n, m, second_n) < alpha for k, m in counts]).reshape(first_n + 1, second_n + 1)
    chance_M = stats.binom.pmf(np.arange(second_n + 1), second_n, rate)
    for gap in np.arange(1, int(100 * max(rate, 1 - rate)) + 1) / 100:
        chance_K = stats.binom.pmf(np.arange(first_n + 1), first_n, np.clip(rate + away * gap, 0, 1))
        if chance_K @ found @ chance_M >= POWER:
            return float(gap)
    return None


def equivalence_power(effect: float, sd: float, n: int, margin: float, alpha: float = ALPHA) -> float:
    """Power of the two one-sided t-tests (TOST) to show that a difference of mean `effect` is within the margin."""
    reach = stats.t.isf(alpha, n - 1) * _relative_spread(n - 1)
    above, below = ((margin - side * effect) / sd * np.sqrt(n) for side in (1, -1))
    return float(np.mean(np.maximum(special.ndtr(above - reach) - special.ndtr(reach - below), 0)))


def seeds_to_decide(difference: Difference, direction: str, margin: float, alpha: float = ALPHA) -> int | None:
    """How many seeds in all would decide a claim, were the true effect and spread those that were observed.

    `direction` and `margin` as in the claim (less, greater: by more than the margin; equal: within it); decided means
    supported or refuted. None where no number up to MOST_NEEDED would: the effect is (nearly) at the margin.
    NaN effects and fewer than two seeds give None too.
    """
    effect, sd = difference.effect, difference.sd
    nearer = np.copysign(margin, effect) if direction == "equal" else margin if direction == "greater" else -margin
    inside = direction == "equal" and abs(effect) < margin
    if sd == 0:  # the sign test decides, and all seeds lie on one side
        return None if effect == nearer else int(np.ceil(np.log2((1 if inside else 2) / alpha)))
    if not np.isfinite(sd):
        return None

    gap = effect - nearer

    def power(n: int) -> float:  # rises with n
        return equivalence_power(effect, sd, n, margin, alpha) if inside else paired_t_power(gap, sd, n, alpha)

    n = bisect_left(range(MOST_NEEDED + 1), POWER, lo=2, key=power)
    return n if n <= MOST_NEEDED else None


def rate_seeds_to_decide(first: float, second: float, alpha: float = ALPHA) -> int | None:
    """How many runs of each arm Fisher's exact test needs to tell two rates apart.

    The formula of Casagrande, Pike and Smith (1978), a few too many rather than too few. None above MOST_NEEDED.
    """
    if first == second:
        return None
    gap, mean = abs(first - second), (first + second) / 2
    spread = np.sqrt(2 * mean * (1 - mean)), np.sqrt(first * (1 - first) + second * (1 - second))
    rough = (stats.norm.isf(alpha / 2) * spread[0] + stats.norm.ppf(POWER) * spread[1]) ** 2 / gap**2
    n = int(np.ceil(rough / 4 * (1 + np.sqrt(1 + 4 / (rough * gap))) ** 2))
    return n if n <= MOST_NEEDED else None


def trend_seeds_to_decide(values_SL: ArrayLike, alpha: float = ALPHA) -> int | None:
    """How many seeds Page's test, two-sided, needs in all, were they like the observed ones. Shape: (S, L).

    By the normal distribution of Page's L, and never fewer than seeds in perfect order need: 2 / (L!)^n < alpha. None
    above MOST_NEEDED, as where no trend is seen.
    """
    values = np.asarray(values_SL, dtype=np.float64)
    levels = values.shape[1]
    trend_S = stats.rankdata(values, axis=1) @ np.arange(1, levels + 1) - levels * (levels + 1) ** 2 / 4
    shift, spread = abs(trend_S.mean()), float(np.std(trend_S, ddof=1))
    reach = stats.norm.isf(alpha / 2) * levels * (levels + 1) * np.sqrt(levels - 1) / 12  # in the null's deviations
    if shift == 0:
        return None
    n = (reach + stats.norm.ppf(POWER) * spread) ** 2 / shift**2
    perfect = np.log(2 / alpha) / special.gammaln(levels + 1)
    needed = max(int(np.ceil(n)), int(np.floor(perfect)) + 1, 2)
    return needed if needed <= MOST_NEEDED else None


def _relative_spread(freedom: float) -> NDArray:
    """Observed over true standard deviation of normal values, at equally likely points: (K,)."""
    share_K = (np.arange(_POINTS) + 0.5) / _POINTS
    return np.sqrt(stats.chi2.ppf(share_K, freedom) / freedom)
