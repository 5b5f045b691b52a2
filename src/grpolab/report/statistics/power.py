"""How large a difference would have been found, had there been one. Nothing is simulated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from grpolab.report.statistics.tests import fisher

ALPHA, POWER = 0.05, 0.8
_POINTS = 1000  # of the integral over the observed spread; power is then right to three digits


def _t_power(shift: float, freedom: float, alpha: float) -> float:
    """P(p < alpha) of a two-sided t-test where the true effect is `shift` standard errors."""
    reach = -special.stdtrit(freedom, alpha / 2) * _relative_spread(freedom)
    return float(np.mean(special.ndtr(shift - reach) + special.ndtr(-shift - reach)))


def detectable_difference(error: float, freedom: float, alpha: float = ALPHA) -> float:
    """The true difference that a two-sided t-test with this standard error and freedom would find with that power."""
    from scipy import optimize

    farthest = 2.0
    while _t_power(farthest, freedom, alpha) < POWER:
        farthest *= 2
    return error * float(optimize.brentq(lambda shift: _t_power(shift, freedom, alpha) - POWER, 0.0, farthest))


def detectable_rate_difference(first_n: int, second: int, second_n: int, alpha: float = ALPHA) -> float | None:
    """How far the first arm's true rate must lie from the second's (as observed), for Fisher's test to find it.

    In hundredths, and to the side where there is more room. None where no rate is far enough with so few runs.
    """
    from scipy import stats

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


def _relative_spread(freedom: float) -> NDArray:
    """Observed over true standard deviation of normal values, at equally likely points: (K,)."""
    share_K = (np.arange(_POINTS) + 0.5) / _POINTS
    return np.sqrt(2 * special.gammaincinv(freedom / 2, share_K) / freedom)
