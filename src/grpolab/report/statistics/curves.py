"""Curves of single runs: the time until a score is reached, and how accuracy saturates with compute.

A run that never reaches the score is censored at its end, not left out.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.report.statistics.intervals import CONFIDENCE, TooFewError


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


def kaplan_meier(time_S: ArrayLike, reached_S: ArrayLike) -> Survival:
    """Kaplan and Meier's estimate (1958), with Greenwood's variance and intervals on the log(-log) scale.

    Shapes: (S,). `time` is when a run reached the threshold, or how long it was watched where `reached` is False.

    Raises TooFewError below two runs.
    """
    time, reached = np.asarray(time_S, dtype=np.float64), np.asarray(reached_S, dtype=bool)
    if len(time) < 2:
        raise TooFewError(f"a Kaplan-Meier curve needs at least two runs, has {len(time)}")
    from scipy import stats

    curve = stats.ecdf(stats.CensoredData.right_censored(time, ~reached)).sf
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the share is 0 or 1 there is no bound
        bounds = curve.confidence_interval(CONFIDENCE, method="log-log")
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


PARAMETERS = ("asymptote", "exponent", "midpoint")
# A parameter is identified where its 95% interval reaches less far than this: accuracy; logarithms of the others.
LARGEST_ERROR = (0.1, np.log(2), np.log(2))
_EXPONENTS = (0.1, 10.0)
_BEYOND = 100.0  # the midpoint is looked for up to this many times beyond the run, and before its first evaluation
_STARTS = 15  # of the search, along each of two parameters


class Saturation(NamedTuple):
    """R(C) = start + (asymptote - start) / (1 + (midpoint/C)^exponent), and which parameters the run identifies.

    How accuracy saturates with compute: ScaleRL's sigmoid (Khatri et al. 2025, arXiv:2510.13786), fitted to one run.
    """

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

    from scipy import optimize

    guess = _best_on_grid(log_compute, score - start, low, high) + np.array([start, 0, 0])
    fit = optimize.least_squares(residuals, np.clip(guess, low + 1e-6, high - 1e-6), jacobian, bounds=(low, high))
    reach = np.full(len(PARAMETERS), np.inf)  # of the t-intervals; infinite where nothing is left to tell
    freedom = len(score) - len(PARAMETERS)
    if freedom > 0 and np.linalg.matrix_rank(fit.jac) == len(PARAMETERS):
        variance = (fit.fun**2).sum() / freedom
        errors = np.sqrt(variance * np.diag(np.linalg.inv(fit.jac.T @ fit.jac)))
        reach = special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * errors
    identified = (fit.x > low + 1e-3) & (fit.x < high - 1e-3) & (reach < LARGEST_ERROR)
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
