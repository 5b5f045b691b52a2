"""Power against statsmodels, the power table and simulated studies."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from grpolab.report.statistics.power import (
    detectable_difference,
    detectable_rate_difference,
    equivalence_power,
    paired_t_power,
    rate_seeds_to_decide,
    seeds_to_decide,
)
from grpolab.report.statistics.tests import Difference, fisher

RNG = np.random.default_rng(0)


def test_what_a_test_would_have_found():
    assert detectable_difference(1 / 3**0.5, 2) == pytest.approx(3.26, abs=0.01)  # three pairs, in deviations
    assert paired_t_power(detectable_difference(0.1 / 10**0.5, 9), 0.1, 10) == pytest.approx(0.8)
    assert detectable_difference(1, 9, alpha=0.001) > detectable_difference(1, 9)
    assert detectable_rate_difference(3, 0, 3) is None  # 3 of 3 against 0 has p = .1
    gap = detectable_rate_difference(10, 0, 10)
    chance = stats.binom.pmf(np.arange(11), 10, gap)
    power = sum(chance[k] for k in range(11) if fisher(k, 10, 0, 10) < 0.05)
    assert power >= 0.8 > power - 0.05
    assert detectable_rate_difference(10, 10, 10) == gap


def observed(effect, sd=1.0):
    return Difference(effect, np.nan, np.nan, 0.5, 3, sd)


def test_power_is_statsmodels_and_the_power_table():
    for d, n, alpha in ((0.5, 34, 0.05), (2, 3, 0.05), (3, 2, 0.005), (0.1, 400, 0.01)):
        assert paired_t_power(d, 1, n, alpha) == pytest.approx(TTestPower().power(d, n, alpha), abs=1e-4)
    # claims-and-figures.md, section 4.3: pairs for power .8 at d = effect / sd.
    table = {0.5: 34, 0.8: 15, 1: 10, 1.5: 6, 2: 5, 3: 4}
    assert {d: seeds_to_decide(observed(d), "greater", 0) for d in table} == table
    assert {d: seeds_to_decide(observed(-d / 2, 0.5), "greater", 0) for d in table} == table  # refuting is deciding


def decided(effect, n, direction, margin, alpha):
    """Share of 20,000 simulated studies of unit spread in which the claim's own test rejects."""
    studies = RNG.normal(effect, 1, size=(20_000, n))
    mean, error = studies.mean(axis=1), studies.std(axis=1, ddof=1) / np.sqrt(n)
    if direction == "equal" and abs(effect) < margin:
        return np.mean((margin - np.abs(mean)) / error > stats.t.isf(alpha, n - 1))
    null = {"less": -margin, "greater": margin, "equal": np.copysign(margin, effect)}[direction]
    return np.mean(np.abs(mean - null) / error > stats.t.isf(alpha / 2, n - 1))


@pytest.mark.parametrize(("effect", "n", "margin"), [(0.0, 6, 1.5), (0.6, 6, 1.5), (-0.2, 3, 3.0), (0.3, 20, 0.9)])
def test_power_of_equivalence_is_the_simulated_one(effect, n, margin):
    assert equivalence_power(effect, 1, n, margin) == pytest.approx(
        decided(effect, n, "equal", margin, 0.05), abs=0.015
    )


@pytest.mark.parametrize(
    "claim", [(0.9, "less", 0.1), (0.2, "equal", 1.0), (-1.6, "equal", 0.5), (0.5, "greater", 0.0)]
)
def test_so_many_seeds_decide_four_times_in_five(claim):
    effect, direction, margin = claim
    n = seeds_to_decide(observed(effect), direction, margin, alpha=0.02)
    assert decided(effect, n - 1, direction, margin, 0.02) < 0.81
    assert decided(effect, n, direction, margin, 0.02) > 0.79


def test_what_no_number_of_seeds_decides():
    assert seeds_to_decide(observed(0.001), "greater", 0) is None
    assert seeds_to_decide(observed(0.03, 0.1), "equal", 0.03) is None
    assert seeds_to_decide(observed(0.0, 0.0), "less", 0) is None
    assert seeds_to_decide(observed(1.0, np.nan), "greater", 0) is None
    assert seeds_to_decide(observed(1.0, 0.0), "greater", 0) == 6  # the sign test's: 2 / 2**6 < .05
    assert rate_seeds_to_decide(0.4, 0.4) is None


@pytest.mark.parametrize(("first", "second"), [(0.0, 1.0), (0.1, 0.8), (0.2, 0.6)])
def test_runs_for_fishers_test_have_the_exact_power(first, second):
    def power(n):
        chance = [stats.binom.pmf(np.arange(n + 1), n, rate) for rate in (first, second)]
        counts = [(a, b) for a, b in product(range(n + 1), repeat=2) if chance[0][a] * chance[1][b] > 1e-5]
        return sum(chance[0][a] * chance[1][b] * (fisher(a, n, b, n) < 0.05) for a, b in counts)

    n = rate_seeds_to_decide(first, second)
    assert power(n) >= 0.79
    assert power(n - max(1, n // 5)) < 0.8
