"""Exact tests of arms that share seeds: if the arms are equal, they may be swapped within any seed."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Alternative = Literal["two-sided", "less", "greater"]
EXACT_SEEDS = 14  # 2**14 ways to swap; above, the normal approximation


def swap_test(terms_S: NDArray, alternative: Alternative = "two-sided") -> float:
    """p of a sum of terms, one a seed, each of which may as well have the other sign. Shape: (S,).

    With signed ranks for terms it is Wilcoxon's test, with log-rank excesses the log-rank test.
    """
    total, seeds = terms_S.sum(), len(terms_S)
    scale = np.linalg.norm(terms_S)
    if scale == 0:
        return 1.0
    if seeds > EXACT_SEEDS:
        return p_of_tails(float(special.ndtr(total / scale)), float(special.ndtr(-total / scale)), alternative)
    sums_R = _signs(seeds) @ terms_S
    slack = 1e-9 * scale  # equal sums, added up in another order
    return p_of_tails(float((sums_R <= total + slack).mean()), float((sums_R >= total - slack).mean()), alternative)


def p_of_tails(less: float, greater: float, alternative: Alternative) -> float:
    """The p-value, from the chances of a statistic as small and as large as the observed one."""
    return {"less": less, "greater": greater, "two-sided": min(1.0, 2 * min(less, greater))}[alternative]


@lru_cache
def _signs(seeds: int) -> NDArray:
    """Every combination of signs: (2**S, S)."""
    return 1.0 - 2 * (np.arange(2**seeds)[:, None] >> np.arange(seeds) & 1)
