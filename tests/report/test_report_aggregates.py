"""Aggregates over tasks, bootstrap, time to threshold and power: published values, second implementations, coverage."""

from itertools import product
from time import process_time

import numpy as np
import pytest
from scipy import stats
from statsmodels.duration.survfunc import SurvfuncRight
from statsmodels.stats.power import TTestPower

from grpolab.errors import RequestError
from grpolab.report.statistics.curves import kaplan_meier, time_to_threshold
from grpolab.report.statistics.intervals import (
    COVERAGE,
    TooFewError,
    bootstrap,
    iqm,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    resample,
)
from grpolab.report.statistics.power import (
    equivalence_power,
    paired_t_power,
    rate_seeds_to_decide,
    seeds_to_decide,
)
from grpolab.report.statistics.tests import Difference, fisher

RNG = np.random.default_rng(0)
SCORES_ATS = RNG.random((2, 3, 6))


def test_aggregates_are_rliables_definitions():
    """Re-stated from rliable/metrics.py and library.py (3ccd9f4): pooled over runs and tasks."""
    first, second = SCORES_ATS
    pooled = sorted(first.ravel())
    assert iqm(first) == pytest.approx(np.mean(pooled[len(pooled) // 4 : len(pooled) - len(pooled) // 4]))
    assert optimality_gap(first, 0.8) == pytest.approx(0.8 - np.mean([min(score, 0.8) for score in pooled]))
    profile = performance_profile(first, [0.0, pooled[4], 2.0])
    assert profile.tolist() == [1, 13 / 18, 0]
    wins = [stats.mannwhitneyu(x, y).statistic / 36 for x, y in zip(first, second, strict=True)]
    assert probability_of_improvement(SCORES_ATS) == pytest.approx(np.mean(wins))
    assert probability_of_improvement([first, first]) == 0.5


def test_aggregates_keep_replicates_apart():
    replicates = RNG.random((4, 2, 3, 5))
    for whole, each in (
        (iqm(replicates[:, 0]), [iqm(r[0]) for r in replicates]),
        (probability_of_improvement(replicates), [probability_of_improvement(r) for r in replicates]),
        (
            performance_profile(replicates[:, 0], [0.2, 0.6]),
            [performance_profile(r[0], [0.2, 0.6]) for r in replicates],
        ),
    ):
        assert np.allclose(whole, each)


@pytest.mark.parametrize("aggregate", [iqm, optimality_gap, lambda s: performance_profile(s, [0.5])])
def test_too_few_runs_are_refused_with_the_reason(aggregate):
    with pytest.raises(TooFewError, match="at least 3 tasks with 5 runs each, has 3 with 3"):
        aggregate(SCORES_ATS[0, :, :3])
    with pytest.raises(RequestError, match="has 2 with 6"):  # what the command line turns into a sentence
        probability_of_improvement(SCORES_ATS[:, :2])


def mean_of_all(scores_RTS):
    return scores_RTS.mean(axis=(-2, -1))


def test_bootstrap_of_one_task_is_scipys():
    values = RNG.normal(size=12)
    value, low, high = bootstrap(values[None], mean_of_all, np.random.default_rng(1), 20_000)
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


def test_bootstrap_is_its_generators_and_fast():
    start = process_time()
    resample(SCORES_ATS, probability_of_improvement, RNG)
    assert process_time() - start < 2  # 50,000 replicates
    first, again, other = (resample(SCORES_ATS[0], iqm, np.random.default_rng(seed), 500) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_bootstrap_refuses_gaps_and_too_few_runs():
    with pytest.raises(TooFewError, match="a score of every run, 1 are missing"):
        resample(np.where(SCORES_ATS[0] == SCORES_ATS[0].max(), np.nan, SCORES_ATS[0]), mean_of_all, RNG)
    with pytest.raises(TooFewError, match="at least 10 runs of each task, has 9: it would hold less than 92%"):
        bootstrap(RNG.random((3, 9)), mean_of_all, RNG)
    assert bootstrap(RNG.random((3, 10)), mean_of_all, RNG, 100)[0] > 0


@pytest.mark.parametrize(("runs", "covered"), COVERAGE["mean"].items())
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
    curve = kaplan_meier(MERCAPTOPURINE, RELAPSED)
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
    assert time_to_threshold(steps, [0.1, 0.6, 0.4, 0.7], 0.5) == (10, True)
    assert time_to_threshold(steps, [0.1, 0.2, 0.4, 0.4], 0.5) == (30, False)
    assert kaplan_meier([10, 30, 30], [True, False, False]).median == np.inf
    with pytest.raises(TooFewError, match="at least two runs, has 1"):
        kaplan_meier([10], [True])


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
