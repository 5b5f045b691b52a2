"""Hypotheses decided at planned looks: supported, opposite, negligible or inconclusive, at few seeds or at more.

A look happens when the first 5, 10, 15, 20 seeds are there. Three-sided testing (Goeman, Solari and Stijnen 2010,
arXiv:1012.1200): a direction where the difference is surely not 0, negligible where it is surely inside the margin.
The chance of a false decision is spent as alpha (n / 20)^2 over the looks (Lan and DeMets 1983), and both kinds of
decision have a Holm procedure of their own over the hypotheses of a study: at most 5% of studies with a wrong
direction, at most 5% with a wrong 'negligible'. What is decided stays decided, whatever later seeds say; to look no
further is always safe.

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
# Two-sided levels of the t-test at each look that together spend `a`: the first is a / 16, the others by `simulated`
# with ten million paths. `spent[a]` between the rows is interpolated in logarithms; below the last in proportion.
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
    """The tests of each hypothesis at each look; p-values are two-sided and NaN where a look has not happened."""

    direction_p: NDArray  # (..., M, K): that the difference is 0, or no larger than is claimed
    margin_p: NDArray  # (..., M, K): that it is at the margin or beyond; 1 where the estimate is
    claimed: NDArray  # (..., M, K): whether the estimate lies on the side that is claimed


class Decisions(NamedTuple):
    """The decision of each hypothesis (..., M); of an open one the state at the last look that happened."""

    verdict: NDArray  # a word
    by_margin: NDArray  # whether the test of the margin decided
    look: NDArray  # index of the look that decided, or the last one; -1: none has happened
    level: NDArray  # what of ALPHA the hypothesis had: ALPHA over the hypotheses that Holm's procedure had left
    repeated_p: NDArray  # comparable with `level`: of the direction, or of the margin where that decided


def level_at(spent: ArrayLike, look: int, looks: int = len(LOOKS)) -> NDArray:
    """Return the two-sided level of the test at a look, where `spent` is the chance of all looks together.

    A plan with a single look has the level itself.
    """
    spent = np.asarray(spent, dtype=np.float64)
    if looks == 1:
        return spent
    return np.exp(_log_log(spent, _SPENT, _LEVELS[:, look]))


def repeated_p(p: ArrayLike, look: int, looks: int = len(LOOKS)) -> NDArray:
    """Return the chance of all looks together at which a test with this p just rejects at this look; 1 beyond .7."""
    p = np.asarray(p, dtype=np.float64)
    if looks == 1:
        return p
    levels = _LEVELS[:, look]
    with np.errstate(divide="ignore"):
        repeated = np.exp(_log_log(p, levels, _SPENT))
    return np.where(np.isnan(p), np.nan, np.where(p > levels[0], 1.0, repeated))


def _log_log(value: NDArray, falling: NDArray, there: NDArray) -> NDArray:
    """Look up a value in a table of two falling columns, in logarithms; below the last row in proportion."""
    log = np.log(np.maximum(value, np.finfo(float).tiny))
    inside = np.interp(log, np.log(falling[::-1]), np.log(there[::-1]))
    return np.where(value < falling[-1], log + np.log(there[-1] / falling[-1]), inside)


def run_tests(
    values_MS: ArrayLike,
    margin_M: ArrayLike,
    claimed_M: ArrayLike,
    beyond_M: ArrayLike = 0.0,
    looks: tuple[int, ...] = LOOKS,
    equal_M: ArrayLike = False,
) -> LookTests:
    """Run t-tests of the first seeds at each look. `values_MS`: a difference a seed, in order; (..., M, S).

    `claimed_M` is 1 where the difference should be above `beyond_M`, -1 where below -`beyond_M`: a direction is that
    the mean lies on one side of that. `margin_M`: the smallest difference that matters; NaN: every one does. Where
    `equal_M`, a direction is that the mean lies beyond the margin, on either side.
    Seeds that are not there yet are NaN, and stand last. Values without any spread decide nothing.
    """
    values_MS, margin_M, claimed_M, beyond_M = (
        np.asarray(given, dtype=np.float64) for given in (values_MS, margin_M, claimed_M, beyond_M)
    )
    tests, equal_M = [], np.asarray(equal_M, dtype=bool)
    for n in looks:
        there_MS = values_MS[..., :n]
        if there_MS.shape[-1] < n:
            there_MS = np.full((*values_MS.shape[:-1], n), np.nan)
        mean_M, sd_M = there_MS.mean(-1), there_MS.std(-1, ddof=1)
        error_M = np.where(sd_M > 0, sd_M, np.nan) / np.sqrt(n)
        distance_M = np.where(equal_M, np.abs(mean_M) - margin_M, claimed_M * mean_M - beyond_M)
        towards_M = distance_M / error_M
        direction_M = 2 * special.stdtr(n - 1, -np.abs(towards_M))
        direction_M = np.where(equal_M & ~np.isnan(error_M) & ~(towards_M >= 0), 1.0, direction_M)
        inside_M = 2 * special.stdtr(n - 1, -(margin_M - np.abs(mean_M)) / error_M)
        inside_M = np.where(np.isnan(margin_M) & ~np.isnan(direction_M), 1.0, np.minimum(inside_M, 1.0))
        tests.append((direction_M, inside_M, towards_M >= 0))
    return LookTests(*(np.stack(column, axis=-1) for column in zip(*tests, strict=True)))


def decide(found: LookTests, alpha: float = ALPHA, equal_M: ArrayLike = False, gone: int = 0) -> Decisions:
    """Decide by two Holm procedures, a look after the other; a hypothesis is asked at the current look alone.

    A direction is decided where its repeated p is at most alpha over the hypotheses whose direction is not decided yet;
    once no direction falls any more, 'negligible' by the same rule with a count of its own. The counts go down as
    decisions fall, never with what is undecided: that would not hold its level. Where `equal_M`, a difference inside
    the margin is what is claimed: the margin supports it, and a difference that is surely beyond the margin
    (`run_tests`) is the opposite. `gone`: hypotheses that count besides these, and are not asked.
    """
    *leading, M, K = found.direction_p.shape
    equal_M = np.broadcast_to(np.asarray(equal_M, dtype=bool), (*leading, M))
    verdict = np.full((*leading, M), INCONCLUSIVE, dtype=object)
    look, by_margin = np.full((*leading, M), -1), np.zeros((*leading, M), bool)
    level, shown_p = np.full((*leading, M), np.nan), np.full((*leading, M), np.nan)
    directions, margins = np.zeros((*leading, 1), int), np.zeros((*leading, 1), int)
    for k in range(K):
        open_M = (verdict == INCONCLUSIVE) & ~np.isnan(found.direction_p[..., k])
        direction_p = repeated_p(found.direction_p[..., k], k, K)
        margin_p = repeated_p(found.margin_p[..., k], k, K) / 2  # of its two one-sided tests one alone can be wrong
        look = np.where(open_M, k, look)
        while True:
            of_direction, of_margin = (alpha / np.maximum(M + gone - decided, 1) for decided in (directions, margins))
            turned_M, inside_M = open_M & (direction_p <= of_direction), open_M & (margin_p <= of_margin)
            inside_M = inside_M & ~turned_M.any(-1, keepdims=True)  # a direction that falls may free another one
            for chosen_M, limit, p in ((open_M, of_direction, direction_p), (inside_M, of_margin, margin_p)):
                level, shown_p = np.where(chosen_M, limit, level), np.where(chosen_M, p, shown_p)
            if not (turned_M | inside_M).any():
                break
            supports_M = np.where(inside_M, equal_M, found.claimed[..., k] & ~equal_M)
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
    """Return the repeated confidence interval of the mean at the level of the decision, from that look's seeds; (S,).

    It excludes the claimed bound (of an equality the whole margin) exactly where a direction was decided, and lies
    inside the margin exactly where the margin decided (`by_margin`).
    """
    values = np.asarray(values_S, dtype=np.float64)
    n = len(values)
    local = float(level_at(min(2 * level, 0.7) if by_margin else level, look, looks))
    half = float(-special.stdtrit(n - 1, local / 2) * values.std(ddof=1) / np.sqrt(n))
    return float(values.mean()) - half, float(values.mean()) + half


def disagreement(values_TS: ArrayLike) -> float:
    """Return p of Hotelling's test (1931) that all tasks have one mean; differences share their seeds; (T, S).

    NaN for a single task, or with no more seeds than tasks.
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


def simulated(spent: float, paths: int, generator: np.random.Generator, looks: tuple[int, ...] = LOOKS) -> list[float]:
    """Simulate the levels of `level_at` anew, so that each look rejects its share of paths without effect."""
    sums, squares, seen = np.zeros(paths), np.zeros(paths), 0
    alive, levels, before = np.ones(paths, bool), list[float](), 0.0
    for n in looks:
        new = n - seen
        mean = generator.normal(size=paths) / np.sqrt(new)
        sums = sums + new * mean
        squares = squares + generator.chisquare(new - 1, paths) + new * mean**2
        seen = n
        sd = np.sqrt((squares - sums**2 / n) / (n - 1))
        p = 2 * special.stdtr(n - 1, -np.abs(sums / n / sd * np.sqrt(n)))
        share = spent * (n / looks[-1]) ** 2
        count = round((share - before) * paths)
        level = float(np.partition(p[alive], count)[count])
        levels.append(level)
        alive, before = alive & (p > level), share
    return levels
