"""How surely a test with n seeds would find an effect, and how many seeds that takes. Nothing is simulated."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError
from grpolab.report.statistics.tests import Difference, fisher, swap_test

POWER = 0.8
# Nobody trains more seeds than this to settle one claim.
MOST_NEEDED = 1000
_POINTS = 1000  # of the integral over the observed spread; power is then right to three digits


def paired_t_power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided paired t-test: P(p < alpha) where differences have this mean and standard deviation."""
    return _t_power(effect / sd * np.sqrt(n), n - 1, alpha)


def detectable_difference(error: float, freedom: float, alpha: float = 0.05, power: float = POWER) -> float:
    """The true difference that a two-sided t-test with this standard error and freedom would find with that power."""
    farthest = 2.0
    while _t_power(farthest, freedom, alpha) < power:
        farthest *= 2
    return error * float(optimize.brentq(lambda shift: _t_power(shift, freedom, alpha) - power, 0.0, farthest))


def detectable_rate_difference(
    first_n: int, second: int, second_n: int, alpha: float = 0.05, power: float = POWER
) -> float | None:
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
        if chance_K @ found @ chance_M >= power:
            return float(gap)
    return None


def _t_power(shift: float, freedom: float, alpha: float) -> float:
    """P(p < alpha) of a two-sided t-test where the true effect is `shift` standard errors."""
    reach = stats.t.isf(alpha / 2, freedom) * _relative_spread(freedom)
    return float(np.mean(special.ndtr(shift - reach) + special.ndtr(-shift - reach)))


def equivalence_power(effect: float, sd: float, n: int, margin: float, alpha: float = 0.05) -> float:
    """Power of the two one-sided t-tests (TOST) to show that a difference of mean `effect` is within the margin."""
    reach = stats.t.isf(alpha, n - 1) * _relative_spread(n - 1)
    above, below = ((margin - side * effect) / sd * np.sqrt(n) for side in (1, -1))
    return float(np.mean(np.maximum(special.ndtr(above - reach) - special.ndtr(reach - below), 0)))


def seeds_to_decide(
    difference: Difference, direction: str, margin: float, alpha: float = 0.05, power: float = POWER
) -> int | None:
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
    if inside:
        return _fewest(lambda n: equivalence_power(effect, sd, n, margin, alpha), power)
    return _fewest(lambda n: paired_t_power(effect - nearer, sd, n, alpha), power)


def rate_seeds_to_decide(first: float, second: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """How many runs of each arm Fisher's exact test needs to tell two rates apart.

    The formula of Casagrande, Pike and Smith (1978), a few too many rather than too few. None above MOST_NEEDED.
    """
    if first == second:
        return None
    gap, mean = abs(first - second), (first + second) / 2
    spread = np.sqrt(2 * mean * (1 - mean)), np.sqrt(first * (1 - first) + second * (1 - second))
    rough = (stats.norm.isf(alpha / 2) * spread[0] + stats.norm.ppf(power) * spread[1]) ** 2 / gap**2
    n = int(np.ceil(rough / 4 * (1 + np.sqrt(1 + 4 / (rough * gap))) ** 2))
    return n if n <= MOST_NEEDED else None


def trend_seeds_to_decide(values_SL: ArrayLike, alpha: float = 0.05, power: float = POWER) -> int | None:
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
    n = (reach + stats.norm.ppf(power) * spread) ** 2 / shift**2
    perfect = np.log(2 / alpha) / special.gammaln(levels + 1)
    needed = max(int(np.ceil(n)), int(np.floor(perfect)) + 1, 2)
    return needed if needed <= MOST_NEEDED else None


def _fewest(power_of: Callable[[int], float], power: float) -> int | None:
    """The smallest n from 2 on with that power, which rises with n."""
    n = bisect_left(range(MOST_NEEDED + 1), power, lo=2, key=power_of)
    return n if n <= MOST_NEEDED else None


def _relative_spread(freedom: float) -> NDArray:
    """Observed over true standard deviation of normal values, at equally likely points: (K,)."""
    share_K = (np.arange(_POINTS) + 0.5) / _POINTS
    return np.sqrt(stats.chi2.ppf(share_K, freedom) / freedom)


# ----------------------------------------------------------------------------------------------------------------------
# Time until a run reaches a threshold. A run that never does is censored at its end, not left out.


class Survival(NamedTuple):
    """Share of runs that have not reached the threshold by each time X; before the first time it is 1.

    Shapes: (X,). Bounds are NaN where the share is 0 or 1. `median` is infinite where half the runs never reach it.
    """

    time_X: NDArray
    share_X: NDArray
    low_X: NDArray
    high_X: NDArray
    median: float
    n: int
    censored: int


def time_to_threshold(time_E: ArrayLike, score_E: ArrayLike, threshold: float) -> tuple[float, bool]:
    """When a run's score first reaches the threshold, and whether it does; if not, its last time. Shapes: (E,).

    A run that ended early must be carried forward to its planned end: it did not reach the threshold until there.
    """
    reached = np.flatnonzero(np.asarray(score_E, dtype=np.float64) >= threshold)
    time = np.asarray(time_E, dtype=np.float64)
    return (float(time[reached[0]]), True) if len(reached) else (float(time[-1]), False)


def kaplan_meier(time_S: ArrayLike, reached_S: ArrayLike, confidence: float = CONFIDENCE) -> Survival:
    """Kaplan and Meier's estimate (1958), with Greenwood's variance and intervals on the log(-log) scale.

    Shapes: (S,). `time` is when a run reached the threshold, or how long it was watched where `reached` is False.

    Raises TooFewError below two runs.
    """
    time, reached = np.asarray(time_S, dtype=np.float64), np.asarray(reached_S, dtype=bool)
    if len(time) < 2:
        raise TooFewError(f"a Kaplan-Meier curve needs at least two runs, has {len(time)}")
    curve = stats.ecdf(stats.CensoredData.right_censored(time, ~reached)).sf
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the share is 0 or 1 there is no bound
        bounds = curve.confidence_interval(confidence, method="log-log")
    below_half = curve.quantiles[curve.probabilities <= 0.5]
    return Survival(
        time_X=curve.quantiles,
        share_X=curve.probabilities,
        low_X=bounds.low.probabilities,
        high_X=bounds.high.probabilities,
        median=float(below_half[0]) if len(below_half) else np.inf,
        n=len(time),
        censored=int((~reached).sum()),
    )


class LogRank(NamedTuple):
    """Runs of the first arm that reached the threshold, how many would if arms were equal, and p that they are."""

    observed: int
    expected: float
    p: float


def log_rank(time_AS: ArrayLike, reached_AS: ArrayLike) -> LogRank:
    """The log-rank comparison (Mantel 1966) of two arms that share seeds: are they equally fast? Shapes: (2, S).

    p is two-sided, from swapping the arms within seeds in every possible way: the usual chi-squared distribution
    rejects 7% where it says 5% with few runs, and knows nothing of pairs.

    Raises TooFewError below two seeds, or where no run of either arm reaches the threshold.
    """
    time, reached = np.asarray(time_AS, dtype=np.float64), np.asarray(reached_AS, dtype=bool)
    seeds = time.shape[1]
    if seeds < 2 or not reached.any():
        lack = f"{seeds} shared seeds" if seeds < 2 else "none that reaches the threshold"
        raise TooFewError(f"a log-rank test needs two shared seeds and a run that reaches the threshold, has {lack}")
    events, counts = np.unique(time[reached], return_counts=True)
    hazard = counts / (time[:, :, None] >= events).sum(axis=(0, 1))
    expected_AS = ((time[:, :, None] >= events) * hazard).sum(axis=-1)
    first, second = reached - expected_AS
    observed, expected = int(reached[0].sum()), float(expected_AS[0].sum())
    return LogRank(observed, expected, swap_test((first - second) / 2))


# ----------------------------------------------------------------------------------------------------------------------
# How accuracy saturates with compute: ScaleRL's sigmoid (Khatri et al. 2025, arXiv:2510.13786), fitted to one run.


PARAMETERS = ("asymptote", "exponent", "midpoint")
# A parameter is identified where its 95% interval reaches less far than this: accuracy; logarithms of the others.
LARGEST_ERROR = (0.1, np.log(2), np.log(2))
_EXPONENTS = (0.1, 10.0)
_BEYOND = 100.0  # the midpoint is looked for up to this many times beyond the run, and before its first evaluation
_STARTS = 15  # of the search, along each of two parameters


class Saturation(NamedTuple):
    """R(C) = start + (asymptote - start) / (1 + (midpoint/C)^exponent), and which parameters the run identifies."""

    start: float
    asymptote: float
    exponent: float
    midpoint: float
    identified: dict[str, bool]

    def at(self, compute_X: ArrayLike) -> NDArray:
        """The curve at a compute above 0. Shape: (X,) -> (X,)."""
        theta = np.array([self.asymptote, np.log(self.exponent), np.log(self.midpoint)])
        return self.start + (self.asymptote - self.start) * _share(theta, np.log(np.asarray(compute_X)))


def fit_saturation(compute_E: ArrayLike, score_E: ArrayLike) -> Saturation:
    """Least squares over a run's evaluations, of which the first, at compute 0, is the start. Shapes: (E,).

    The asymptote lies in [0, 1]. A parameter that ends at a bound, or whose t-interval reaches further than
    LARGEST_ERROR, is not identified; through three evaluations after the start a curve can go without error: none is.

    Raises TooFewError below three evaluations after the start.
    """
    start, *later = np.asarray(score_E, dtype=np.float64)
    log_compute, score = np.log(np.asarray(compute_E, dtype=np.float64)[1:]), np.array(later)
    if len(score) < len(PARAMETERS):
        raise TooFewError(f"a saturation curve needs three evaluations after the start, has {len(score)}")
    low = np.array([0.0, np.log(_EXPONENTS[0]), log_compute[0] - np.log(_BEYOND)])
    high = np.array([1.0, np.log(_EXPONENTS[1]), log_compute[-1] + np.log(_BEYOND)])

    def residuals(theta: NDArray) -> NDArray:
        return start + (theta[0] - start) * _share(theta, log_compute) - score

    def jacobian(theta: NDArray) -> NDArray:
        share = _share(theta, log_compute)
        steepness = (theta[0] - start) * share * (1 - share) * np.exp(theta[1])
        return np.stack([share, steepness * (log_compute - theta[2]), -steepness], axis=1)

    guess = _best_on_grid(log_compute, score - start, low, high) + np.array([start, 0, 0])
    fit = optimize.least_squares(residuals, np.clip(guess, low + 1e-6, high - 1e-6), jacobian, bounds=(low, high))
    inside = (fit.x > low + 1e-3) & (fit.x < high - 1e-3)
    identified = inside & (_errors(fit.jac, fit.fun) < LARGEST_ERROR)
    known = dict(zip(PARAMETERS, identified.tolist(), strict=True))
    exponent, midpoint = np.exp(fit.x[1:])
    return Saturation(float(start), float(fit.x[0]), float(exponent), float(midpoint), known)


def _share(theta: NDArray, log_compute: NDArray) -> NDArray:
    """Share of the gain that is reached; theta is (asymptote, log exponent, log midpoint)."""
    return special.expit(np.exp(theta[1]) * (log_compute - theta[2]))


def _best_on_grid(log_compute: NDArray, gain: NDArray, low: NDArray, high: NDArray) -> NDArray:
    """Where the search begins: (gain of the asymptote, log exponent, log midpoint); the first follows from the rest."""
    exponents, midpoints = (np.linspace(low[i], high[i], _STARTS) for i in (1, 2))
    theta = np.stack([np.zeros((_STARTS, _STARTS)), *np.meshgrid(exponents, midpoints, indexing="ij")])
    share_BCE = _share(theta[..., None], log_compute)
    top_BC = (share_BCE * gain).sum(axis=-1) / np.maximum((share_BCE**2).sum(axis=-1), 1e-12)
    top_BC = np.clip(top_BC, gain.min() - 0.2, gain.max() + 0.2)
    errors_BC = ((top_BC[..., None] * share_BCE - gain) ** 2).sum(axis=-1)
    best = np.unravel_index(errors_BC.argmin(), errors_BC.shape)
    return np.array([top_BC[best], *theta[(slice(1, None), *best)]])


def _errors(jacobian_EP: NDArray, residual_E: NDArray) -> NDArray:
    """How far the t-intervals of the parameters reach; infinite where nothing is left to tell."""
    points, parameters = jacobian_EP.shape
    if points <= parameters or np.linalg.matrix_rank(jacobian_EP) < parameters:
        return np.full(parameters, np.inf)
    variance = (residual_E**2).sum() / (points - parameters)
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, points - parameters)
    return reach * np.sqrt(variance * np.diag(np.linalg.inv(jacobian_EP.T @ jacobian_EP)))
