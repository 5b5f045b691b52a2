"""Group-sequential tests: hypotheses are decided at planned looks, after the first 5, 10, 15 and 20 seeds.

Tests are three-sided (Goeman, Solari and Stijnen 2010, arXiv:1012.1200): a direction if the difference is significantly
not 0, 'negligible' if it is significantly inside the margin, else inconclusive. The error rate is spent as
alpha (n / 20)^2 over the looks (Lan and DeMets 1983). Directions and 'negligible' have a Holm procedure each over the
hypotheses of a study: at most 5% of studies have a wrong direction, at most 5% a wrong 'negligible'. Later seeds do not
change a decision, and looking may stop at any time.

Letters: M hypotheses, S seeds, K looks, T tasks; leading axes are replicates of a simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.vocabulary import LOOKS

ALPHA = 0.05
SUPPORTED, OPPOSITE, NEGLIGIBLE, INCONCLUSIVE = "supported", "opposite", "negligible", "inconclusive"
# Two-sided levels of the t-test at each look (columns) that together spend _SPENT (rows). The first is a sixteenth of
# it; the others are from ten million simulated paths without effect (`simulate_levels` in tests/report/test_looks.py).
# Between rows they are interpolated in logarithms, below the last one in proportion.
_SPENT = np.array([
    *(0.7, 0.4, 0.2, 0.1, 0.05, 0.05 / 1.5, 0.05 / 2, 0.05 / 2.5, 0.05 / 3, 0.05 / 3.5, 0.05 / 4, 0.05 / 4.5),
    *(0.05 / 5, 0.05 / 5.5, 0.05 / 6, 0.05 / 7, 0.05 / 8, 0.05 / 9, 0.05 / 10, 0.05 / 11, 0.05 / 12),
])  # fmt: skip
_LEVELS = np.array([
    [0.043750, 0.152640, 0.345179, 0.644910],
    [0.025000, 0.084585, 0.186531, 0.340592],
    [0.012500, 0.041047, 0.087756, 0.156746],
    [0.006250, 0.020063, 0.041623, 0.072907],
    [0.003125, 0.009859, 0.019884, 0.034195],
    [0.002083, 0.006521, 0.012958, 0.022045],
    [0.001563, 0.004864, 0.009563, 0.016145],
    [0.001250, 0.003878, 0.007572, 0.012704],
    [0.001042, 0.003223, 0.006257, 0.010444],
    [0.000893, 0.002756, 0.005325, 0.008850],
    [0.000781, 0.002406, 0.004630, 0.007667],
    [0.000694, 0.002136, 0.004097, 0.006761],
    [0.000625, 0.001920, 0.003673, 0.006042],
    [0.000568, 0.001743, 0.003327, 0.005457],
    [0.000521, 0.001596, 0.003040, 0.004973],
    [0.000446, 0.001366, 0.002594, 0.004223],
    [0.000391, 0.001193, 0.002261, 0.003666],
    [0.000347, 0.001060, 0.002004, 0.003236],
    [0.000312, 0.000953, 0.001798, 0.002894],
    [0.000284, 0.000865, 0.001630, 0.002616],
    [0.000260, 0.000792, 0.001491, 0.002385],
])  # fmt: skip


class LookTests(NamedTuple):
    """The tests of each hypothesis at each look, (..., M, K); p-values are two-sided, NaN at future looks."""

    direction_p: NDArray  # of the null that the difference is 0, or no larger than claimed
    margin_p: NDArray  # of the null that the difference is at the margin or beyond; 1 if the estimate is
    claimed: NDArray  # whether the estimate lies on the claimed side


class Decisions(NamedTuple):
    """The decision on each hypothesis, (..., M); for an undecided one, its state at the last look so far."""

    verdict: NDArray  # one of the four words
    by_margin: NDArray  # whether the test of the margin decided
    look: NDArray  # index of the look that decided, or of the last one; -1: no look yet
    level: NDArray  # ALPHA over the number of hypotheses that Holm's procedure still had
    repeated_p: NDArray  # to compare with `level`: of the margin if that decided, else of the direction


def level_at(spent: ArrayLike, look: int, looks: int = len(LOOKS)) -> NDArray:
    """Return the two-sided level of the test at a look if all looks together spend `spent`.

    With a single look it is `spent` itself.
    """
    spent = np.asarray(spent, dtype=np.float64)
    if looks == 1:
        return spent
    return np.exp(_interpolate_log(spent, _SPENT, _LEVELS[:, look]))


def repeated_p(p: ArrayLike, look: int, looks: int = len(LOOKS)) -> NDArray:
    """Return the inverse of `level_at`: the level of all looks together at which this p just rejects; 1 beyond .7."""
    p = np.asarray(p, dtype=np.float64)
    if looks == 1:
        return p
    levels = _LEVELS[:, look]
    with np.errstate(divide="ignore"):
        repeated = np.exp(_interpolate_log(p, levels, _SPENT))
    return np.where(np.isnan(p), np.nan, np.where(p > levels[0], 1.0, repeated))


def _interpolate_log(x: NDArray, known_x: NDArray, known_y: NDArray) -> NDArray:
    """Return log y at x by log-log interpolation between falling knots; below the last knot, y is proportional to x."""
    log_x = np.log(np.maximum(x, np.finfo(float).tiny))
    inside = np.interp(log_x, np.log(known_x[::-1]), np.log(known_y[::-1]))
    return np.where(x < known_x[-1], log_x + np.log(known_y[-1] / known_x[-1]), inside)


def run_tests(
    values_MS: ArrayLike,
    margin_M: ArrayLike,
    claimed_M: ArrayLike,
    beyond_M: ArrayLike = 0.0,
    looks: tuple[int, ...] = LOOKS,
    equal_M: ArrayLike = False,
) -> LookTests:
    """Run t-tests of the first seeds at each look. `values_MS` has a difference for each seed, in order; (..., M, S).

    `claimed_M` is 1 if the difference is claimed to be above `beyond_M`, -1 if below -`beyond_M`. `margin_M` is the
    smallest difference that matters; NaN: every difference does. If `equal_M`, equality is claimed, and the direction
    is tested against the margin, on the side of the mean. Future seeds are NaN, and come last. Values without any
    spread decide nothing.
    """
    values_MS, margin_M, claimed_M, beyond_M = (
        np.asarray(given, dtype=np.float64) for given in (values_MS, margin_M, claimed_M, beyond_M)
    )
    tests, equal_M = [], np.asarray(equal_M, dtype=bool)
    for n in looks:
        first_MS = values_MS[..., :n]
        if first_MS.shape[-1] < n:
            first_MS = np.full((*values_MS.shape[:-1], n), np.nan)
        mean_M, sd_M = first_MS.mean(-1), first_MS.std(-1, ddof=1)
        error_M = np.where(sd_M > 0, sd_M, np.nan) / np.sqrt(n)
        distance_M = np.where(equal_M, np.abs(mean_M) - margin_M, claimed_M * mean_M - beyond_M)
        towards_M = distance_M / error_M
        direction_M = 2 * special.stdtr(n - 1, -np.abs(towards_M))
        direction_M = np.where(equal_M & ~np.isnan(error_M) & ~(towards_M >= 0), 1.0, direction_M)
        inside_M = 2 * special.stdtr(n - 1, -(margin_M - np.abs(mean_M)) / error_M)
        inside_M = np.where(np.isnan(margin_M) & ~np.isnan(direction_M), 1.0, np.minimum(inside_M, 1.0))
        tests.append((direction_M, inside_M, towards_M >= 0))
    return LookTests(*(np.stack(column, axis=-1) for column in zip(*tests, strict=True)))


def decide(tests: LookTests, equal_M: ArrayLike = False, gone: int = 0) -> Decisions:
    """Decide by two Holm procedures, one look after the other.

    A direction is decided if its repeated p is at most ALPHA over the number of hypotheses without a direction yet.
    When no further direction can be decided at a look, 'negligible' is, by the same rule with its own count. Only
    decisions lower the counts: undecided hypotheses must keep counting, or the error rate would exceed ALPHA. If
    `equal_M`, the claim is that the difference is inside the margin, so 'negligible' supports it, and a direction is
    the opposite. `gone` more hypotheses (void ones) are counted, but not tested.
    """
    *leading, M, K = tests.direction_p.shape
    equal_M = np.broadcast_to(np.asarray(equal_M, dtype=bool), (*leading, M))
    verdict = np.full((*leading, M), INCONCLUSIVE, dtype=object)
    look, by_margin = np.full((*leading, M), -1), np.zeros((*leading, M), bool)
    level, shown_p = np.full((*leading, M), np.nan), np.full((*leading, M), np.nan)
    directions, margins = np.zeros((*leading, 1), int), np.zeros((*leading, 1), int)
    for k in range(K):
        open_M = (verdict == INCONCLUSIVE) & ~np.isnan(tests.direction_p[..., k])
        direction_p = repeated_p(tests.direction_p[..., k], k, K)
        margin_p = repeated_p(tests.margin_p[..., k], k, K) / 2  # only one of its two one-sided tests can be wrong
        look = np.where(open_M, k, look)
        while True:
            of_direction, of_margin = (ALPHA / np.maximum(M + gone - decided, 1) for decided in (directions, margins))
            turned_M, inside_M = open_M & (direction_p <= of_direction), open_M & (margin_p <= of_margin)
            inside_M = inside_M & ~turned_M.any(-1, keepdims=True)  # directions first: one may allow another
            for chosen_M, limit, p in ((open_M, of_direction, direction_p), (inside_M, of_margin, margin_p)):
                level, shown_p = np.where(chosen_M, limit, level), np.where(chosen_M, p, shown_p)
            if not (turned_M | inside_M).any():
                break
            supports_M = np.where(inside_M, equal_M, tests.claimed[..., k] & ~equal_M)
            word_M = np.where(supports_M, SUPPORTED, np.where(inside_M, NEGLIGIBLE, OPPOSITE))
            verdict = np.where(turned_M | inside_M, word_M, verdict)
            by_margin = by_margin | inside_M
            directions = directions + turned_M.sum(-1, keepdims=True)
            margins = margins + inside_M.sum(-1, keepdims=True)
            open_M = open_M & ~turned_M & ~inside_M
    return Decisions(verdict, by_margin, look, level, shown_p)


def interval(
    values_S: ArrayLike, by_margin: bool, level: float, look: int, looks: int = len(LOOKS)
) -> tuple[float, float]:
    """Return the repeated confidence interval of the mean at the decision's level, from that look's seeds; (S,).

    It lies beyond the claimed bound (for an equality: beyond the margin) exactly if a direction was decided, and inside
    the margin exactly if the margin decided (`by_margin`).
    """
    values = np.asarray(values_S, dtype=np.float64)
    n = len(values)
    local = float(level_at(min(2 * level, 0.7) if by_margin else level, look, looks))
    half = float(-special.stdtrit(n - 1, local / 2) * values.std(ddof=1) / np.sqrt(n))
    return float(values.mean()) - half, float(values.mean()) + half


def t_power(shift: float, freedom: float, alpha: float = ALPHA) -> float:
    """Return the chance that a two-sided t-test rejects if the true effect is `shift` standard errors from 0.

    It is the noncentral t distribution's, to three digits; scipy's `nctdtr` has no value for few seeds at small alpha.
    """
    # Observed over true standard deviation of normal values, at K equally likely points.
    spread_K = np.sqrt(2 * special.gammaincinv(freedom / 2, (np.arange(1000) + 0.5) / 1000) / freedom)
    reach_K = -special.stdtrit(freedom, alpha / 2) * spread_K
    return float(np.mean(special.ndtr(shift - reach_K) + special.ndtr(-shift - reach_K)))


def disagreement(values_TS: ArrayLike) -> float:
    """Return p of Hotelling's test (1931) that all tasks have one mean; values (T, S) of one seed are dependent.

    NaN for a single task, or if there are not more seeds than tasks.
    """
    values = np.asarray(values_TS, dtype=np.float64)
    tasks, n = values.shape
    if tasks < 2 or n <= tasks:
        return np.nan
    contrasts = values[1:] - values[0]
    mean, covariance = contrasts.mean(-1), np.atleast_2d(np.cov(contrasts))
    if np.linalg.matrix_rank(covariance) < tasks - 1:
        return np.nan
    squared = n * mean @ np.linalg.solve(covariance, mean)
    freedom = tasks - 1, n - tasks + 1
    return float(special.fdtrc(*freedom, squared * freedom[1] / ((n - 1) * freedom[0])))
