"""Tests of differences, rates and trends, and their power: scipy, statsmodels, exact sums, published values."""

import subprocess
import sys
from itertools import combinations, permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.descriptivestats import sign_test
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from grpolab.report.statistics import tests
from grpolab.report.statistics.intervals import interquartile_range
from grpolab.report.statistics.looks import POWER, detectable_difference
from grpolab.report.statistics.tests import fisher, holm, paired_difference, rank_trend, wilson

RNG = np.random.default_rng(0)


def test_paired_difference_is_the_paired_t_test_of_shared_seeds():
    of = pd.Series(RNG.normal(1, 1, 6), index=range(6))
    minus = pd.Series(RNG.normal(0, 1, 6), index=range(6))
    paired = paired_difference(of.drop(0), minus.drop(5))
    shared = [1, 2, 3, 4]
    assert paired.p == pytest.approx(stats.ttest_rel(of[shared], minus[shared]).pvalue)
    assert paired.effect == pytest.approx((of[shared] - minus[shared]).mean())
    assert paired.n == 4
    bounds = stats.ttest_rel(of[shared], minus[shared]).confidence_interval()
    assert (paired.low, paired.high) == pytest.approx(bounds)


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
        assert (constant.p, constant.sd) == (0.25, 0)
    assert differences(0, 0, 0).p == 1


def test_a_diverged_run_counts_in_the_paired_difference():
    diverged = differences(np.inf, 3.0, 2.0, 5.0, 1.0, 4.0)
    assert (diverged.n, diverged.effect, diverged.p) == (6, 3.5, 2 / 2**6)
    both = paired_difference(pd.Series([np.inf, np.inf, 2.0]), pd.Series([np.inf, 1.0, 1.0]))
    assert (both.n, both.effect, both.p) == (3, 1.0, 0.5)  # infinite in both: a tie


def test_signs_are_statsmodels():
    for n in (3, 6, 9, 20):
        values = RNG.normal(0.5, 1, n).round(n % 2)  # with ties, and without
        assert tests.sign_test(values) == pytest.approx(sign_test(values)[1])


def test_holm_is_statsmodels_and_counts_tests_without_data():
    p = [0.01, 0.04, 0.03, 0.005, 0.8]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
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


def test_rate_difference_is_newcombes():
    for of, minus, n in ((3, 0, 3), (7, 2, 10), (4, 4, 5)):
        found = tests.rate_difference(of, n, minus, n)
        expected = confint_proportions_2indep(of, n, minus, n, method="newcomb")
        assert (found.low, found.high) == pytest.approx(expected)
        assert (found.effect, found.n) == (pytest.approx((of - minus) / n), n)
        assert found.p == fisher(of, n, minus, n)


def test_labels_of_one_task_are_fishers_and_tasks_of_a_seed_move_together():
    for n in (4, 5, 10, 20):
        of, minus = RNG.integers(0, 2, (2, n, 1))
        table = [[of.sum(), n - of.sum()], [minus.sum(), n - minus.sum()]]
        difference, p = tests.label_difference(of, minus)
        assert p == pytest.approx(stats.fisher_exact(table).pvalue)
        assert difference == pytest.approx((of.sum() - minus.sum()) / n)
        assert tests.label_difference(of.repeat(3, axis=1), minus.repeat(3, axis=1))[1] == pytest.approx(p)
    of, minus = RNG.integers(0, 2, (2, 4, 2))
    numbers, found = np.concatenate([of, minus]).sum(axis=1), abs(of.sum() - minus.sum())
    chosen = [numbers[list(seeds)].sum() for seeds in combinations(range(8), 4)]
    expected = np.mean([abs(2 * part - numbers.sum()) >= found for part in chosen])
    assert tests.label_difference(of, minus)[1] == pytest.approx(expected)


def test_a_trend_is_pages_and_tasks_of_a_seed_move_together():
    for n, levels in ((3, 3), (5, 4), (12, 5)):
        values = RNG.normal(size=(n, levels)) + 0.2 * np.arange(levels)
        sides = (stats.page_trend_test(side, method="exact").pvalue for side in (values, values[:, ::-1]))
        found = rank_trend(values)
        assert found.p == pytest.approx(min(1, 2 * min(sides)))
        assert rank_trend(values[:, None].repeat(3, axis=1)) == pytest.approx(found)
        taus = [stats.kendalltau(range(levels), row).statistic for row in values]
        assert found.effect == pytest.approx(np.mean(taus))
    values = RNG.integers(0, 3, (3, 2, 3))  # tied ranks, and two tasks that differ
    ranks = stats.rankdata(values, axis=2).sum(axis=1)
    orders = product(list(permutations(range(3))), repeat=3)
    sums = np.array([sum(row[list(order)] @ np.arange(3) for row, order in zip(ranks, o, strict=True)) for o in orders])
    tails = (sums >= sums[0]).mean(), (sums <= sums[0]).mean()
    assert rank_trend(values).p == pytest.approx(min(1, 2 * min(tails)))
    wide = RNG.normal(size=(9, 8)) + 0.2 * np.arange(8)  # 8! orders are too many: the normal approximation
    assert rank_trend(wide).p == pytest.approx(2 * stats.page_trend_test(wide, method="asymptotic").pvalue, rel=0.01)
    assert np.isnan(rank_trend(wide[:1]).p)
    diverged = np.array([[0.0, 1.0, np.inf], [0.0, 1.0, 2.0], [0.0, 0.5, 0.6]])  # the largest of its seed
    assert rank_trend(diverged) == rank_trend(np.where(np.isinf(diverged), 9, diverged))


def test_benjamini_and_hochberg_and_the_interquartile_range_are_scipys_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 90):
        p_values = rng.random(n)
        assert np.array_equal(tests.benjamini_hochberg(p_values.tolist()), stats.false_discovery_control(p_values))
        values = np.round(rng.normal(size=n), 2)
        assert interquartile_range(values) == stats.iqr(values)


def test_the_first_screen_does_not_wait_for_scipys_statistics() -> None:
    code = "import sys, grpolab.report.brief; print('scipy.stats' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (2, 0.005), (10, 0.05), (10, 0.001), (400, 0.01)])
def test_a_detectable_difference_is_found_with_the_power_of_statsmodels(n, alpha):
    found = detectable_difference(1 / n**0.5, n - 1, alpha)
    assert TTestPower().power(found, n, alpha) == pytest.approx(POWER, abs=1e-3)


def test_a_detectable_rate_is_far_enough_for_fishers_test():
    assert tests.detectable_rate_difference(3, 0, 3) is None  # 3 of 3 against 0 has p = .1
    gap = tests.detectable_rate_difference(10, 0, 10)
    chance = stats.binom.pmf(np.arange(11), 10, gap)
    power = sum(chance[k] for k in range(11) if fisher(k, 10, 0, 10) < 0.05)
    assert power >= POWER > power - 0.05
    assert tests.detectable_rate_difference(10, 10, 10) == gap
