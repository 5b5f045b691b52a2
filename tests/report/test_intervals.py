"""Intervals over seeds, bootstrapped aggregates over tasks, times to a threshold: scipy, definitions, coverage."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.duration.survfunc import SurvfuncRight

from grpolab.errors import RequestError
from grpolab.report.statistics import intervals
from grpolab.report.statistics.intervals import TooFewError, resample, share_band, share_interval, t_band, t_interval

RNG = np.random.default_rng(0)
BANDS = (t_band, share_band)
SCORES_ATS = RNG.random((2, 3, 6))


def test_t_interval_is_scipys():
    values = RNG.normal(2, 3, size=7)
    expected = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    interval = t_interval(values)
    assert interval.mean == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx(expected)
    assert interval.n == 7


def test_band_ignores_absent_seeds_and_has_no_bounds_for_one():
    mean, low, high, n = t_band([[1.0, 3.0, np.nan], [5.0, np.nan, np.nan], [np.nan] * 3])
    assert mean[:2].tolist() == [2.0, 5.0]
    assert np.isnan(mean[2])
    assert n.tolist() == [2, 1, 0]
    assert np.isnan([low[1], high[1], low[2]]).all()
    assert low[0] < 2 < high[0]


def test_geometric_interval_is_that_of_the_logarithms_of_what_is_above_zero():
    values = np.array([0.01, 0.1, 1.0])
    expected = np.exp(t_interval(np.log(values))[:3])
    assert intervals.geometric_interval([*values, 0.0])[:3] == pytest.approx(expected)
    assert intervals.geometric_interval([*values, 0.0]).n == 3


def test_the_interval_of_a_share_stays_within_0_and_1_and_holds_what_it_says():
    few = share_interval([0.0, 0.02, 0.3])
    assert t_interval([0.0, 0.02, 0.3]).low < 0 < few.low < few.mean < few.high < 1
    assert share_interval([0.5, 0.5])[:3] == (0.5, 0.5, 0.5)
    assert share_interval([0.0, 0.0])[:3] == (0, 0, 0)
    assert np.isnan(share_interval([0.3]).low)
    # far from 0 and 1 it is Student's, and Wilson's where the seeds spread as a count of n trials does
    narrow = [0.500, 0.502, 0.504]
    assert share_interval(narrow)[:3] == pytest.approx(t_interval(narrow)[:3], abs=1e-6)
    rng = np.random.default_rng(0)
    for mean, size in ((0.01, 100), (0.1, 8), (0.3, 60), (0.97, 40)):
        shares_XS = rng.beta(mean * size, (1 - mean) * size, (4000, 3))
        held = [((low <= mean) & (mean <= high)).mean() for _, low, high, _ in (band(shares_XS) for band in BANDS)]
        assert held[1] >= max(0.925, held[0])
        _, low, high, _ = share_band(shares_XS)
        assert (low >= 0).all()
        assert (high <= 1).all()


def test_aggregates_are_rliables_definitions():
    """Re-stated from rliable/metrics.py and library.py (3ccd9f4): pooled over runs and tasks."""
    first, _ = SCORES_ATS
    pooled = sorted(first.ravel())
    assert intervals.iqm(first) == pytest.approx(np.mean(pooled[len(pooled) // 4 : len(pooled) - len(pooled) // 4]))
    assert intervals.optimality_gap(first, 0.8) == pytest.approx(0.8 - np.mean([min(score, 0.8) for score in pooled]))


@pytest.mark.parametrize("aggregate", [intervals.iqm, intervals.optimality_gap])
def test_too_few_runs_are_refused_with_the_reason(aggregate):
    with pytest.raises(TooFewError, match="at least 3 tasks with 5 runs each, has 3 with 3"):
        aggregate(SCORES_ATS[0, :, :3])
    with pytest.raises(RequestError, match="has 2 with 6"):  # what the command line turns into a sentence
        aggregate(SCORES_ATS[0, :2])


def mean_of_all(scores_RTS):
    return scores_RTS.mean(axis=(-2, -1))


def test_bootstrap_of_one_task_is_scipys():
    values = RNG.normal(size=12)
    value, low, high = resample(values[None], mean_of_all, np.random.default_rng(1), 20_000)
    expected = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert value == pytest.approx(values.mean())
    assert (low, high) == pytest.approx(tuple(expected), abs=0.02)


def test_bootstrap_draws_within_tasks_and_the_same_seeds_for_every_arm():
    between_tasks = np.repeat([[0.1], [0.5], [0.9]], 5, axis=1)
    assert np.allclose(resample(between_tasks, mean_of_all, RNG, 500), 0.5)
    arms = np.stack([SCORES_ATS[0] + 0.25, SCORES_ATS[0]])
    assert np.allclose(resample(arms, lambda s: mean_of_all(s[:, 0] - s[:, 1]), RNG, 500), 0.25)
    free = resample(SCORES_ATS, lambda s: mean_of_all(s[:, 0] - s[:, 1]), RNG, 500)
    assert free[2] - free[1] > 0.1


def test_bootstrap_refuses_gaps_and_too_few_runs():
    with pytest.raises(TooFewError, match="a score of every run, 1 are missing"):
        resample(np.where(SCORES_ATS[0] == SCORES_ATS[0].max(), np.nan, SCORES_ATS[0]), mean_of_all, RNG)
    assert np.isnan(intervals.estimate_with_bounds(RNG.random((3, 9)), mean_of_all)[1:]).all(), (
        "it would hold less than 92%"
    )
    value, low, high = intervals.estimate_with_bounds(RNG.random((3, 10)), mean_of_all)
    assert low < value < high


@pytest.mark.parametrize(("runs", "covered"), intervals.COVERAGE["mean"].items())
def test_bootstrap_covers_what_the_table_says(runs, covered):
    hits, generator = 0, np.random.default_rng(2)
    for _ in range(400):
        _, low, high = resample(generator.normal(size=(3, runs)), mean_of_all, generator, 300)
        hits += bool(low < 0 < high)
    assert hits / 400 == pytest.approx(covered, abs=0.05)


# Freireich et al. (1963): weeks in remission on 6-MP (0: still in remission), in every textbook.
MERCAPTOPURINE = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]

RELAPSED = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], dtype=bool)


def test_kaplan_meier_is_the_textbook_example():
    curve = intervals.kaplan_meier(MERCAPTOPURINE, RELAPSED)
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    found = dict(zip(curve.time_X, curve.share_X, strict=True))
    assert {week: round(found[week], 3) for week in published} == published
    assert (curve.median, curve.n, curve.censored) == (23, 21, 12)
    # The interval on the log(-log) scale, from statsmodels' Greenwood errors.
    other = SurvfuncRight(MERCAPTOPURINE, RELAPSED.astype(int))
    at = np.searchsorted(curve.time_X, other.surv_times)
    scale = 1.96 * other.surv_prob_se / (other.surv_prob * np.log(other.surv_prob))
    assert np.allclose(curve.low_X[at], other.surv_prob ** np.exp(-scale), atol=1e-4)
    assert np.allclose(curve.high_X[at], other.surv_prob ** np.exp(scale), atol=1e-4)


def test_a_run_that_never_reaches_the_threshold_is_censored_at_its_end():
    steps = [0, 10, 20, 30]
    assert intervals.time_to_threshold(steps, [0.1, 0.6, 0.4, 0.7], 0.5) == (10, True)
    assert intervals.time_to_threshold(steps, [0.1, 0.2, 0.4, 0.4], 0.5) == (30, False)
    assert intervals.kaplan_meier([10, 30, 30], [True, False, False]).median == np.inf
    with pytest.raises(TooFewError, match="at least two runs, has 1"):
        intervals.kaplan_meier([10], [True])
