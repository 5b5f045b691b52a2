"""Intervals and tests against scipy, statsmodels, published values and a simulation of their coverage."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from grpolab.report.statistics import holm, page_trend, paired_difference, t_band, t_interval, wilson

RNG = np.random.default_rng(0)


def test_t_interval_is_scipys():
    values = RNG.normal(2, 3, size=7)
    expected = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    interval = t_interval(values)
    assert interval.mean == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx(expected)
    assert interval.n == 7


def test_three_seeds_have_the_half_width_of_the_power_table():
    # claims-and-figures.md, section 4.3: 2.48 standard deviations at n=3, 1.24 at n=5.
    for n, half_width in ((3, 2.48), (5, 1.24), (10, 0.72)):
        values = RNG.normal(size=n)
        interval = t_interval(values)
        assert (interval.high - interval.mean) / values.std(ddof=1) == pytest.approx(half_width, abs=0.006)


def test_band_ignores_absent_seeds_and_has_no_bounds_for_one():
    mean, low, high, n = t_band([[1.0, 3.0, np.nan], [5.0, np.nan, np.nan], [np.nan] * 3])
    assert mean[:2].tolist() == [2.0, 5.0]
    assert np.isnan(mean[2])
    assert n.tolist() == [2, 1, 0]
    assert np.isnan([low[1], high[1], low[2]]).all()
    assert low[0] < 2 < high[0]


def test_paired_difference_is_the_paired_t_test_of_shared_seeds():
    of = pd.Series(RNG.normal(1, 1, 6), index=range(6))
    minus = pd.Series(RNG.normal(0, 1, 6), index=range(6))
    paired = paired_difference(of.drop(0), minus.drop(5))
    shared = [1, 2, 3, 4]
    assert paired.p == pytest.approx(stats.ttest_rel(of[shared], minus[shared]).pvalue)
    assert paired.effect == pytest.approx((of[shared] - minus[shared]).mean())
    assert paired.n == 4
    # Another null moves p, not the interval.
    shifted = paired_difference(of.drop(0), minus.drop(5), null=0.5)
    assert shifted.p == pytest.approx(stats.ttest_1samp(of[shared] - minus[shared], 0.5).pvalue)
    assert shifted[:3] == paired[:3]


def test_paired_difference_without_spread_or_seeds():
    same = pd.Series([1.0, 1.0, 1.0])
    assert paired_difference(same, same) == (0, 0, 0, 1, 3)
    assert paired_difference(same + 2, same).p == 0
    lonely = paired_difference(same[:1], same)
    assert lonely.n == 1
    assert np.isnan(lonely.p)
    assert paired_difference(same, pd.Series([1.0], index=[9])).n == 0


def test_paired_intervals_cover_and_test_at_their_level():
    """2,000 studies of 3 seeds without an effect: 95% coverage and 5% false positives, within sampling error."""
    differences = RNG.normal(0.3, 1, size=(2000, 3))
    _, low, high, _ = t_band(differences)
    assert 0.935 < np.mean((low < 0.3) & (high > 0.3)) < 0.965
    p = [paired_difference(pd.Series(row), pd.Series(np.zeros(3)), null=0.3).p for row in differences[:1000]]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.07


def test_holm_is_statsmodels():
    p = [0.01, 0.04, 0.03, 0.005, 0.8]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_holm_counts_tests_without_data():
    adjusted = holm([0.01, np.nan])
    assert adjusted[0] == pytest.approx(0.02)
    assert np.isnan(adjusted[1])
    assert len(holm([])) == 0


def test_wilson_is_statsmodels_and_never_leaves_the_unit_interval():
    for successes, n in ((0, 3), (1, 5), (4, 10), (3, 3)):
        rate = wilson(successes, n)
        assert (rate.low, rate.high) == pytest.approx(proportion_confint(successes, n, method="wilson"), abs=1e-12)
        assert 0 <= rate.low <= rate.mean <= rate.high <= 1
    assert np.isnan(wilson(0, 0).mean)


def test_page_trend_is_the_published_example():
    # Siegel and Castellan's example as quoted in scipy's documentation: p = .0018.
    table = [
        [3, 4, 3],
        [2, 2, 4],
        [3, 3, 5],
        [1, 3, 2],
        [2, 3, 2],
        [2, 4, 5],
        [1, 2, 4],
        [3, 4, 4],
        [2, 4, 5],
        [1, 3, 4],
    ]
    assert page_trend(table) == pytest.approx(0.0018191161948127822)
    assert page_trend([row[::-1] for row in table]) > 0.9
    assert np.isnan(page_trend([[1, 2, 3]]))
    assert np.isnan(page_trend([[1, 2], [1, 2]]))
