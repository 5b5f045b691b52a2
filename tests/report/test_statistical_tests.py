"""Tests of differences, rates and trends against scipy, statsmodels and published values."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.descriptivestats import sign_test
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint
from statsmodels.stats.weightstats import ttost_paired

from grpolab.report.statistics.tests import (
    equivalence,
    fisher,
    holm,
    page_trend,
    paired_difference,
    rate_difference,
    wilson,
)

RNG = np.random.default_rng(0)


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


def differences(*values):
    """A paired difference with these values."""
    return paired_difference(pd.Series(values, dtype=float), pd.Series(np.zeros(len(values))))


def test_paired_difference_without_seeds():
    same = pd.Series([1.0, 1.0, 1.0])
    lonely = paired_difference(same[:1], same)
    assert lonely.n == 1
    assert np.isnan(lonely.p)
    assert paired_difference(same, pd.Series([1.0], index=[9])).n == 0


def test_without_spread_only_the_signs_are_evidence():
    """Three labels of three say p = .25, not p = 0; rounding is no spread."""
    for values in ((1, 1, 1), (0.1, 0.1 + 1e-17, 0.3 - 0.2)):
        constant = differences(*values)
        assert (constant.p, constant.sign_p, constant.sd) == (0.25, 0.25, 0)
    assert differences(0, 0, 0).p == 1


def test_arms_equal_to_the_bit_in_different_seeds_are_one_function():
    scores = pd.Series([0.31, 0.35, 0.29])
    assert paired_difference(scores, scores).p == 1
    assert equivalence(scores, scores, 0.03).p == 0
    counts = pd.Series([0.0, 0.0, 0.0])  # nothing happened in either arm: not known to be one function
    assert equivalence(counts, counts, 0.03).p == 0.125


def test_a_diverged_run_counts_in_the_paired_difference():
    diverged = differences(np.inf, 3.0, 2.0, 5.0, 1.0, 4.0)
    assert (diverged.n, diverged.effect, diverged.p) == (6, 3.5, 2 / 2**6)
    both = paired_difference(pd.Series([np.inf, np.inf, 2.0]), pd.Series([np.inf, 1.0, 1.0]))
    assert (both.n, both.effect, both.p) == (3, 1.0, 0.5)  # infinite in both: a tie


def test_rank_checks_are_statsmodels_and_an_enumeration_of_signs():
    for n in (3, 6, 9):
        values = RNG.normal(0.8, 1, n)
        found = differences(*values)
        assert found.sign_p == pytest.approx(sign_test(values)[1])
        ranks = np.argsort(np.argsort(np.abs(values))) + 1
        sums = [ranks @ signs for signs in product((-1, 1), repeat=n)]
        assert found.wilcoxon_p == pytest.approx(np.mean(np.abs(sums) >= abs(ranks @ np.sign(values))))
    # The claim of the reference: six seeds are the fewest with which a check can fall below .05.
    assert [differences(*np.arange(1.0, n + 1)).wilcoxon_p < 0.05 for n in (5, 6)] == [False, True]


def test_equivalence_is_two_one_sided_tests():
    of, minus = pd.Series([0.51, 0.52, 0.49, 0.515]), pd.Series([0.5, 0.5, 0.5, 0.5])
    expected = ttost_paired(of.to_numpy(), minus.to_numpy(), -0.03, 0.03)[0]
    assert equivalence(of, minus, 0.03).p == pytest.approx(expected)
    assert equivalence(minus, of, 0.03).p == pytest.approx(expected)
    outside = equivalence(of + 0.2, minus, 0.03)
    assert outside.p == pytest.approx(stats.ttest_1samp(of + 0.2 - minus, 0.03).pvalue)


@pytest.mark.slow
def test_equivalence_and_rank_tests_reject_at_most_six_percent():
    """A true difference at the margin is called equivalent, and no difference is called one, at most 6 times in 100."""
    zeros = pd.Series(np.zeros(6))
    studies = [pd.Series(row) for row in np.random.default_rng(1).normal(0.5, 1, size=(400, 6))]
    inside = [equivalence(row, zeros, 0.5) for row in studies]
    assert np.mean([found.p < 0.05 and abs(found.effect) < 0.5 for found in inside]) <= 0.06
    plain = [paired_difference(row - 0.5, zeros) for row in studies]
    for name in ("sign_p", "wilcoxon_p"):
        assert np.mean([getattr(found, name) < 0.05 for found in plain]) <= 0.06


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


def test_fisher_has_the_values_of_the_power_table():
    # claims-and-figures.md, section 4.3
    table = {(0, 4, 4, 4): 0.029, (0, 5, 5, 5): 0.008, (0, 5, 4, 5): 0.048, (0, 10, 5, 10): 0.033}
    for counts, p in table.items():
        assert fisher(*counts) == pytest.approx(p, abs=0.0005)
    assert np.isnan(fisher(0, 0, 1, 3))


def test_fisher_rejects_equal_rates_at_most_at_its_level():
    for n, rate in product((5, 10), (0.2, 0.5)):
        chance = stats.binom.pmf(np.arange(n + 1), n, rate)
        size = sum(chance[a] * chance[b] * (fisher(a, n, b, n) < 0.05) for a, b in product(range(n + 1), repeat=2))
        assert size <= 0.05


def test_rate_difference_is_newcombes():
    for of, minus, n in ((3, 0, 3), (7, 2, 10), (4, 4, 5)):
        found = rate_difference(of, n, minus, n)
        expected = confint_proportions_2indep(of, n, minus, n, method="newcomb")
        assert (found.low, found.high) == pytest.approx(expected)
        assert (found.effect, found.n) == (pytest.approx((of - minus) / n), n)
        assert found.p == fisher(of, n, minus, n)


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
