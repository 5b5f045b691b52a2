"""Group-sequential tests: hypotheses are decided at planned looks, after the first 5, 10, 15 and 20 seeds.

Tests are three-sided (Goeman, Solari and Stijnen 2010, arXiv:1012.1200): a direction if the mean over tasks is
significantly not 0, 'negligible' if every task is significantly inside its margin, else inconclusive. The error rate is
split over the looks, as growth of alpha (n / 20)^2, so that a wrong decision at any look has at most the whole.
Directions and 'negligible' have a Holm procedure each over the hypotheses of a study: at most 5% of studies have a
wrong direction, at most 5% a wrong 'negligible'. Later seeds do not change a decision, and looking may stop any time.

Student's t is read with n / 2 degrees of freedom, not n - 1: differences of runs are skewed, and the far tails that
few seeds and many hypotheses need are then heavier than normal ones (`make bench WHAT=self-check`).

Letters: M hypotheses, S seeds, K looks, T tasks; leading axes are replicates of a simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.vocabulary import LOOKS

ALPHA = 0.05
POWER = 0.8
FEWEST_VALUES = 4  # different values that a t-test needs
SUPPORTED, OPPOSITE, NEGLIGIBLE, INCONCLUSIVE = "supported", "opposite", "negligible", "inconclusive"


class LookTests(NamedTuple):
    """The tests of each hypothesis at each look, (..., M, K); p-values are NaN at future looks."""

    direction_p: NDArray  # two-sided, of the null that the difference is 0, or no larger than claimed
    margin_p: NDArray  # of the null that the difference of a task is at its margin or beyond
    claimed: NDArray  # whether the estimate lies on the claimed side


class Decisions(NamedTuple):
    """The decision on each hypothesis, (..., M); for an undecided one, its state at the last look so far."""

    verdict: NDArray  # one of the four words
    by_margin: NDArray  # whether the test of the margin decided
    look: NDArray  # index of the look that decided, or of the last one; -1: no look yet
    level: NDArray  # ALPHA over the number of hypotheses that Holm's procedure still had
    repeated_p: NDArray  # to compare with `level`: p over the look's share, of the margin if that decided


def shares(looks: tuple[int, ...] = LOOKS) -> NDArray:
    """Return the part of the error rate that each look may spend, (K,): 1, 3, 5 and 7 sixteenths; 1 of a single one."""
    return np.diff(np.array([0, *looks]) ** 2 / looks[-1] ** 2)


def degrees(n: int) -> float:
    """Return the degrees of freedom with which t of n seeds is read."""
    return n / 2


def few_values(values_S: ArrayLike) -> NDArray:
    """Return whether fewer than FEWEST_VALUES differ (with fewer seeds: not all), for a t-test; (..., S) -> (...)."""
    values = np.sort(np.asarray(values_S, dtype=np.float64), axis=-1)
    return 1 + (np.diff(values, axis=-1) > 0).sum(-1) < min(FEWEST_VALUES, values.shape[-1])


def critical(level: ArrayLike, n: int) -> NDArray:
    """Return the size of t beyond which a two-sided test of n seeds rejects at this level."""
    return -special.stdtrit(degrees(n), np.asarray(level, dtype=np.float64) / 2)


def run_tests(
    values_MTS: ArrayLike,
    margin_M: ArrayLike,
    claimed_M: ArrayLike,
    beyond_M: ArrayLike = 0.0,
    looks: tuple[int, ...] = LOOKS,
    equal_M: ArrayLike = False,
) -> LookTests:
    """Run t-tests of the first seeds at each look. `values_MTS`: each task's difference for each seed; (..., M, T, S).

    A direction is that of the mean over tasks. `claimed_M` is 1 if it is claimed to be above `beyond_M`, -1 if below
    -`beyond_M`. `margin_M` is the smallest difference that matters; NaN: every difference does. If `equal_M`, equality
    is claimed, and the direction is tested against the margin, on the side of the mean. Future seeds are NaN, and come
    last. Where few values differ (`few_values`) they decide nothing.
    """
    margin_M, claimed_M, beyond_M = (np.asarray(of, dtype=np.float64) for of in (margin_M, claimed_M, beyond_M))
    values_MTS, equal_M, tests = np.asarray(values_MTS, dtype=np.float64), np.asarray(equal_M, dtype=bool), []
    for n in looks:
        first_MTS = values_MTS[..., :n]
        if first_MTS.shape[-1] < n:
            first_MTS = np.full((*values_MTS.shape[:-1], n), np.nan)
        (mean_M, error_M), (mean_MT, error_MT) = _mean_and_error(first_MTS.mean(-2)), _mean_and_error(first_MTS)
        distance_M = np.where(equal_M, np.abs(mean_M) - margin_M, claimed_M * mean_M - beyond_M)
        direction_M = 2 * special.stdtr(degrees(n), -np.abs(distance_M) / error_M)
        claimed = distance_M >= 0
        direction_M = np.where(equal_M & ~np.isnan(direction_M) & ~claimed, 1.0, direction_M)
        # Every task must be inside: the largest of its p-values counts, and needs no correction (intersection-union).
        inside_M = special.stdtr(degrees(n), -(margin_M[..., None] - np.abs(mean_MT)) / error_MT).max(-1)
        inside_M = np.where(np.isnan(inside_M) & ~np.isnan(direction_M), 1.0, inside_M)
        tests.append((direction_M, inside_M, claimed))
    return LookTests(*(np.stack(column, axis=-1) for column in zip(*tests, strict=True)))


def _mean_and_error(values_S: NDArray) -> tuple[NDArray, NDArray]:
    """Return mean and standard error over the last axis; where few values differ the error is NaN."""
    error = values_S.std(-1, ddof=1) / np.sqrt(values_S.shape[-1])
    return values_S.mean(-1), np.where(few_values(values_S), np.nan, error)


def decide(tests: LookTests, equal_M: ArrayLike = False, gone: int = 0, looks: tuple[int, ...] = LOOKS) -> Decisions:
    """Decide by two Holm procedures, one look after the other.

    A direction is decided if its p over the look's share is at most ALPHA over the number of hypotheses without a
    direction yet. When no further direction can be decided at a look, 'negligible' is, by the same rule with its own
    count. Only decisions lower the counts: undecided hypotheses must keep counting, or the error rate would exceed
    ALPHA. If `equal_M`, the claim is that the difference is inside the margin, so 'negligible' supports it, and a
    direction is the opposite. `gone` more hypotheses (void ones) are counted, but not tested.
    """
    *leading, M, _ = tests.direction_p.shape
    equal_M = np.broadcast_to(np.asarray(equal_M, dtype=bool), (*leading, M))
    verdict = np.full((*leading, M), INCONCLUSIVE, dtype=object)
    look, by_margin = np.full((*leading, M), -1), np.zeros((*leading, M), bool)
    level, shown_p = np.full((*leading, M), np.nan), np.full((*leading, M), np.nan)
    directions, margins = np.zeros((*leading, 1), int), np.zeros((*leading, 1), int)
    for k, share in enumerate(shares(looks)):
        open_M = (verdict == INCONCLUSIVE) & ~np.isnan(tests.direction_p[..., k])
        direction_p, margin_p = (np.minimum(p[..., k] / share, 1.0) for p in tests[:2])
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


def interval(values_S: ArrayLike, level: float) -> tuple[float, float]:
    """Return the confidence interval of the mean at a two-sided level: the test's, with its degrees of freedom; (S,).

    At the share of a decision's level it lies beyond the claimed bound (for an equality: beyond the margin) exactly if
    a direction was decided, and at twice that, in every task, inside the margin exactly if the margin decided.
    """
    values = np.asarray(values_S, dtype=np.float64)
    half = float(critical(level, len(values)) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def t_power(shift: float, freedom: float, reach: float) -> float:
    """Return the chance that t is beyond +-`reach` if the true effect is `shift` standard errors from 0.

    It is the noncentral t distribution's, to three digits; scipy's `nctdtr` has no value for few seeds at small alpha.
    """
    # Observed over true standard deviation of normal values, at K equally likely points.
    spread_K = np.sqrt(2 * special.gammaincinv(freedom / 2, (np.arange(1000) + 0.5) / 1000) / freedom)
    return float(np.mean(special.ndtr(shift - reach * spread_K) + special.ndtr(-shift - reach * spread_K)))


def detectable_difference(error: float, freedom: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the true difference that a two-sided t-test detects with this power, given its standard error."""
    from scipy import optimize

    reach = float(-special.stdtrit(freedom, alpha / 2))

    def surplus(shift: float) -> float:
        return t_power(shift, freedom, reach) - power

    farthest = 2.0
    while surplus(farthest) < 0:
        farthest *= 2
    return error * float(optimize.brentq(surplus, 0.0, farthest))


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
