"""How many seeds a claim needs: what papers with few seeds would claim of known runs, and what a test would find.

A paper is imagined: it compares two arms with n of the S seeds that were run, either the same n of both arms (paired:
they share warm start, prompts and noise) or other n of each (unpaired). The truth is the mean over all S seeds. A paper
claims a difference if its 95% interval excludes 0 (Student's t, or Welch's); with one seed, which has no interval, if
the difference is at least as large as `shown`. Type S and type M errors: Gelman and Carlin 2014.

Letters: S seeds, A two arms (of, minus), P papers, N seeds that a paper has of an arm, D assumed true differences,
K rates.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.intervals import share_bounds
from grpolab.report.statistics.looks import ALPHA, LOOKS, SUPPORTED, t_power

PAPERS = 10_000  # all there can be if they are fewer
RATES = ("wrong_sign", "ahead", "claimed", "wrong_if_claimed", "exaggeration")
MOST_SEEDS = 100_000
STUDIES = 4_000  # simulated for the chance at each look


def draw_seeds(
    seeds: int, n: int, paired: bool, generator: np.random.Generator, papers: int = PAPERS
) -> tuple[NDArray, NDArray]:
    """Return which seeds each paper has of the first arm and of the second; (P, N) each.

    All ways to choose them, if there are at most `papers`; else so many drawn ones, without replacement. Raises
    ValueError if there are too few seeds.
    """
    needed = n if paired else 2 * n
    if not 0 < needed <= seeds:
        raise ValueError(f"{seeds} seeds are too few for papers with {n} {'pairs' if paired else 'seeds of each arm'}")
    if comb(seeds, n) * (1 if paired else comb(seeds - n, n)) > papers:
        drawn_PS = generator.random((papers, seeds)).argsort(axis=1)
        return drawn_PS[:, :n], drawn_PS[:, needed - n : needed]
    every = list(combinations(range(seeds), n))
    if paired:
        return np.array(every), np.array(every)
    both = [(of, minus) for of in every for minus in combinations(sorted({*range(seeds)} - {*of}), n)]
    return np.array([of for of, _ in both]), np.array([minus for _, minus in both])


def estimate(score_SA: NDArray, of_PN: NDArray, minus_PN: NDArray, paired: bool) -> tuple[NDArray, NDArray]:
    """Return each paper's difference and half the width of its 95% interval (NaN for one seed); (P,) each."""
    of_PN, minus_PN = score_SA[of_PN, 0], score_SA[minus_PN, 1]
    n = of_PN.shape[1]
    estimate_P = of_PN.mean(axis=1) - minus_PN.mean(axis=1)
    if n == 1:
        return estimate_P, np.full_like(estimate_P, np.nan)
    if paired:
        error_P, freedom = (of_PN - minus_PN).std(axis=1, ddof=1) / sqrt(n), np.float64(n - 1)
    else:
        one_P, two_P = of_PN.var(axis=1, ddof=1) / n, minus_PN.var(axis=1, ddof=1) / n
        error_P = np.sqrt(one_P + two_P)
        with np.errstate(invalid="ignore"):
            freedom = np.nan_to_num((one_P + two_P) ** 2 / (one_P**2 + two_P**2) * (n - 1), nan=n - 1)
    return estimate_P, -special.stdtrit(freedom, ALPHA / 2) * error_P


def rates(estimate_P: NDArray, half_P: NDArray, difference: float, shown: float) -> NDArray:
    """Return the RATES of papers, if the true difference is `difference`; (K,), NaN for what does not exist.

    wrong_sign: the wrong arm is ahead (equal arms count half). ahead: the first arm is ahead by `shown` or more.
    claimed: the paper claims a difference. wrong_if_claimed: the share of these claims with the wrong sign (type S).
    exaggeration: the mean size of the claimed differences over the true one (type M).
    """
    claimed_P = np.abs(estimate_P) > half_P if np.isfinite(half_P).all() else np.abs(estimate_P) >= shown
    wrong_P = np.where(estimate_P == 0, 0.5, estimate_P * np.sign(difference) < 0)
    claims = claimed_P.sum()
    of_claims = [np.nan, np.nan]
    if difference and claims:
        size = np.abs(estimate_P[claimed_P]).mean() / abs(difference)
        of_claims = [wrong_P[claimed_P].mean(), size]
    wrong = wrong_P.mean() if difference else np.nan
    return np.array([wrong, (estimate_P >= shown).mean(), claims / len(claimed_P), *of_claims])


def paper_rates(
    score_SA: NDArray, of_PN: NDArray, minus_PN: NDArray, paired: bool, difference_D: ArrayLike, shown: float
) -> tuple[NDArray, NDArray]:
    """Return the RATES of papers at each assumed true difference, and the same without each seed; (D, K), (S, D, K).

    A NaN in `difference_D` is the difference as it is. Any other one is assumed: all estimates are moved so that it is
    true, and keep their noise. What the rates would be without a seed (papers that have it are left out, and the truth
    is the mean over the others) is for the jackknife's intervals.
    """
    differences = [None if np.isnan(difference) else float(difference) for difference in np.asarray(difference_D)]
    estimate_P, half_P = estimate(score_SA, of_PN, minus_PN, paired)
    pair_S = score_SA[:, 0] - score_SA[:, 1]
    seeds = len(pair_S)

    def at_each(kept_P: NDArray, truth: float) -> NDArray:
        found_P, of_P = estimate_P[kept_P], half_P[kept_P]
        if not len(found_P):
            return np.full((len(differences), len(RATES)), np.nan)
        return np.array(
            [
                rates(found_P, of_P, truth, shown) if d is None else rates(found_P + (d - truth), of_P, d, shown)
                for d in differences
            ]
        )

    values_DK = at_each(np.ones(len(estimate_P), dtype=bool), float(pair_S.mean()))
    without_SDK = np.array(
        [
            at_each(
                ~((of_PN == seed).any(axis=1) | (minus_PN == seed).any(axis=1)),
                float((pair_S.sum() - pair_S[seed]) / (seeds - 1)),
            )
            for seed in range(seeds)
        ]
    )
    return values_DK, without_SDK


def bounds(values_K: NDArray, without_SK: NDArray, papers: int) -> tuple[NDArray, NDArray]:
    """Return the 95% bounds of RATES from the rates without each seed; shapes (..., K) and (S, ..., K).

    Tukey's jackknife (1958) with Student's t. A share has Wilson's interval at its effective sample size
    m(1 - m) / se^2: at most the number of papers, and the number of seeds where all papers
    agree, so that 0 of 60 is not known to be never. (Of claims: their share of it.)
    """
    seeds, is_share_K = len(without_SK), np.array([rate != "exaggeration" for rate in RATES])
    squared_K = (seeds - 1) * without_SK.var(axis=0)
    t = -special.stdtrit(seeds - 1, ALPHA / 2)
    claimed = values_K[..., RATES.index("claimed")]
    known_K = np.stack([claimed if rate == "wrong_if_claimed" else np.ones_like(claimed) for rate in RATES], axis=-1)
    with np.errstate(all="ignore"):
        effective_K = np.minimum(values_K * (1 - values_K) / squared_K, papers * known_K)
        effective_K = np.where((values_K == 0) | (values_K == 1), seeds * known_K, effective_K)
        low_K, high_K = share_bounds(values_K, t**2 / effective_K)
        low_K, high_K = np.clip(low_K, 0.0, values_K), np.clip(high_K, values_K, 1.0)
    plain_K = t * np.sqrt(squared_K)
    return np.where(is_share_K, low_K, values_K - plain_K), np.where(is_share_K, high_K, values_K + plain_K)


def wrong_sign(difference: float, sd: float, n: int) -> float:
    """Return the chance that the mean of n normal differences, of this standard deviation, has the wrong sign."""
    return float(special.ndtr(-abs(difference) * sqrt(n) / sd)) if sd else 0.0


def seeds_needed(difference: float, sd: float, power: float, paired: bool, hypotheses: int | None = None) -> int | None:
    """Return the fewest seeds (of each arm) with which a t-test finds the difference with this power; None: too many.

    `sd`: of the difference of two runs, of one seed if they are paired, else of different seeds. With a number of
    hypotheses the test is that of this project at a single look, else Student's at .05.
    """

    def finds(n: int) -> bool:
        freedom = degrees(n, paired)
        reach = student(freedom) if hypotheses is None else float(planned.critical(ALPHA / hypotheses, n))
        return t_power(abs(difference) * sqrt(n) / sd, freedom, reach) >= power

    if not sd or finds(2):
        return 2
    few, many = 2, 4
    while not finds(many):
        few, many = many, 2 * many
        if many > MOST_SEEDS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if finds(middle) else (middle, many)
    return many


def degrees(n: int, paired: bool) -> int:
    """Return the degrees of freedom of a t-test with n seeds of each arm."""
    return (n - 1) * (1 if paired else 2)


def student(freedom: float) -> float:
    """Return the size of Student's t beyond which a two-sided test rejects at .05."""
    return float(-special.stdtrit(freedom, ALPHA / 2))


def chance_by_look(
    effect: float,
    hypotheses: int,
    looks: tuple[int, ...] = LOOKS,
    generator: np.random.Generator | None = None,
    studies: int = STUDIES,
) -> NDArray:
    """Return the chance that the rule of this project has found an effect by each look; (K,).

    `effect`: in standard deviations of the paired differences. Simulated normal differences of one task, decided as
    `looks.decide` does while none of the study's other hypotheses has been decided.
    """
    generator = generator or np.random.default_rng(0)
    values_RMTS = generator.normal(abs(effect), 1.0, size=(studies, 1, 1, looks[-1]))
    tests = planned.run_tests(values_RMTS, np.nan, 1.0, looks=looks)
    decided = planned.decide(tests, gone=hypotheses - 1, looks=looks)
    found_R, look_R = (decided.verdict == SUPPORTED)[:, 0], decided.look[:, 0]
    return np.array([(found_R & (look_R <= k)).mean() for k in range(len(looks))])
