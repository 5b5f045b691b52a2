"""What would have been found, against statsmodels, exact sums and the power table."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from grpolab.report.statistics.power import POWER, detectable_difference, detectable_rate_difference
from grpolab.report.statistics.tests import fisher


@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (2, 0.005), (10, 0.05), (10, 0.001), (400, 0.01)])
def test_a_detectable_difference_is_found_with_the_power_of_statsmodels(n, alpha):
    found = detectable_difference(1 / n**0.5, n - 1, alpha)
    assert TTestPower().power(found, n, alpha) == pytest.approx(POWER, abs=1e-3)


def test_the_power_table():
    # claims-and-figures.md, section 4.3: pairs for power .8 at d = effect / sd.
    for d, n in {0.5: 34, 0.8: 15, 1: 10, 1.5: 6, 2: 5, 3: 4}.items():
        assert detectable_difference(1 / n**0.5, n - 1) <= d < detectable_difference(1 / (n - 1) ** 0.5, n - 2)
    assert detectable_difference(1 / 3**0.5, 2) == pytest.approx(3.26, abs=0.01)  # three pairs, in deviations


def test_a_detectable_rate_is_far_enough_for_fishers_test():
    assert detectable_rate_difference(3, 0, 3) is None  # 3 of 3 against 0 has p = .1
    gap = detectable_rate_difference(10, 0, 10)
    chance = stats.binom.pmf(np.arange(11), 10, gap)
    power = sum(chance[k] for k in range(11) if fisher(k, 10, 0, 10) < 0.05)
    assert power >= POWER > power - 0.05
    assert detectable_rate_difference(10, 10, 10) == gap
