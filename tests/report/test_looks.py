"""Verdicts at planned looks: wrong ones are rare, intervals agree with them, and scipy alone says the same."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from grpolab.report.statistics import looks
from grpolab.report.statistics.looks import ALPHA, LOOKS, Decisions, decide, disagreement, interval, run_tests

DIRECTIONS = ("supported", "opposite")


def decided(values_MS: NDArray, margin: float = 1.0, claimed: float = 1.0, beyond: float = 0.0) -> Decisions:
    return decide(run_tests(values_MS[..., None, :], margin, claimed, beyond))


def test_looks_share_the_error_and_a_t_has_half_as_many_degrees_of_freedom_as_seeds() -> None:
    assert looks.shares().tolist() == [1 / 16, 3 / 16, 5 / 16, 7 / 16]
    assert looks.shares((7,)).tolist() == [1]
    assert looks.critical(0.01, 15) == pytest.approx(stats.t.isf(0.005, 7.5))


def test_one_hypothesis_with_one_look_is_three_t_tests_of_scipy() -> None:
    rng, seen = np.random.default_rng(1), set()
    for effect in (0.0, 0.3, 1.5, -1.5):
        for values_S in rng.normal(effect, 1, (200, 5)):
            verdict = decide(run_tests(values_S[None, None], 2.0, 1.0, looks=(5,)), looks=(5,)).verdict[0]
            mean, error = values_S.mean(), stats.sem(values_S)
            turned = 2 * stats.t.sf(abs(mean) / error, 2.5) <= ALPHA
            inside = max(stats.t.sf((2 - mean) / error, 2.5), stats.t.sf((2 + mean) / error, 2.5)) <= ALPHA
            side = "supported" if mean > 0 else "opposite"
            assert verdict == (side if turned else "negligible" if inside else "inconclusive")
            seen.add(verdict)
    assert seen == {"supported", "opposite", "negligible", "inconclusive"}


def test_false_directions_stay_rare_for_skewed_values_and_for_ten_hypotheses() -> None:
    """Skewness 1 (a lognormal of sigma .3) and 10 hypotheses, where n - 1 degrees of freedom give .11."""
    rng = np.random.default_rng(2)
    skewed = rng.lognormal(0, 0.3, (4000, 10, 20)) - np.exp(0.045)
    assert np.isin(decided(skewed, margin=np.nan).verdict, DIRECTIONS).any(-1).mean() < 0.05
    found = decided(rng.normal(1, 1, (2000, 1, 20)), margin=np.nan)
    assert (found.verdict == "supported").mean() == pytest.approx(0.95, abs=0.02)
    assert np.array(LOOKS)[found.look].mean() == pytest.approx(14.8, abs=0.4)


def test_negligible_is_wrong_as_rarely_in_one_task_of_several() -> None:
    """One of three tasks is at its margin, the others are not: their mean is inside, and that is not enough."""
    rng = np.random.default_rng(3)
    for margins in ([[1.0]], [[0.0], [0.0], [1.0]]):
        at_margin = decide(run_tests(rng.normal(margins, 0.3, (4000, 1, len(margins), 20)), 1.0, 1.0, equal_M=True))
        assert (at_margin.verdict == "negligible").mean() <= 0.05
    inside = decided(rng.normal(size=(2000, 1, 20)), margin=1.0).verdict
    assert (inside == "negligible").mean() == pytest.approx(0.958, abs=0.015)


def test_the_interval_says_what_the_verdict_says_and_holds_the_truth() -> None:
    rng, holds = np.random.default_rng(4), []
    for effect in (0.0, 0.5, 1.0):
        studies = rng.normal(effect, 1, (400, 2, 20))
        found = decided(studies)
        for values_MS, *decisions in zip(studies, *found[:4], strict=True):
            for values_S, verdict, by_margin, look, level in zip(values_MS, *decisions, strict=True):
                local = level * looks.shares()[look]
                low, high = interval(values_S[: LOOKS[look]], 2 * local if by_margin else local)
                assert (low > 0 or high < 0) == (verdict in DIRECTIONS) or verdict == "negligible"
                assert verdict != "negligible" or (low > -1 and high < 1)
                holds.append(low <= effect <= high)
    assert np.mean(holds) >= 0.94


def test_what_is_decided_stays_and_what_is_not_there_is_not_looked_at() -> None:
    rng = np.random.default_rng(5)
    values_S = np.concatenate([rng.normal(5, 0.5, 5), rng.normal(-9, 1, 15)])
    unseen_S = np.where(np.arange(20) < 12, rng.normal(0, 1, 20), np.nan)
    found = decided(np.stack([values_S, unseen_S, np.full(20, np.nan), np.zeros(20)]))
    assert found.verdict[0] == "supported"
    assert found.look.tolist() == [0, 1, -1, -1]
    assert found.verdict[1:].tolist() == ["inconclusive"] * 3


def test_more_than_so_much_is_claimed_and_less_is_the_opposite() -> None:
    values_S = np.random.default_rng(6).normal(1, 0.05, 20)
    assert decided(values_S[None], margin=np.nan, beyond=0.5).verdict.tolist() == ["supported"]
    assert decided(values_S[None], margin=np.nan, beyond=1.5).verdict.tolist() == ["opposite"]
    assert decided(values_S[None], margin=np.nan, claimed=-1.0, beyond=0.5).verdict.tolist() == ["opposite"]
    assert decided(-values_S[None], margin=np.nan, claimed=-1.0, beyond=0.5).verdict.tolist() == ["supported"]


def equalities(values_MS: NDArray) -> Decisions:
    return decide(run_tests(values_MS[..., None, :], 1.0, 1.0, equal_M=True), equal_M=True)


def test_where_equality_is_claimed_a_small_difference_supports_it_and_one_beyond_the_margin_does_not() -> None:
    rng = np.random.default_rng(9)
    values_MS = rng.normal([[0.02], [2.0], [-2.0], [0.0]], [[0.05], [0.05], [0.05], [4.0]], (4, 20))
    found = equalities(values_MS)
    assert found.verdict.tolist() == ["supported", "opposite", "opposite", "inconclusive"]
    assert found.by_margin.tolist() == [True, False, False, False]
    small = rng.normal(0.3, 0.05, (1, 20))  # surely above 0, and surely inside the margin
    assert equalities(small).verdict.tolist() == ["supported"]
    assert decided(small).verdict.tolist() == ["supported"]  # of a claimed direction
    assert decide(run_tests(small[:, None], np.nan, 1.0, equal_M=True), equal_M=True).verdict.tolist() == [
        "inconclusive"
    ]


def test_a_difference_that_is_not_0_does_not_refute_an_equality_that_holds() -> None:
    """The truth lies just inside the margin: 'opposite' is false, and stays rare. At 1.5 margins it is found."""
    rng = np.random.default_rng(10)
    inside = equalities(rng.normal(0.99, 0.5, (4000, 1, 20)))
    assert (inside.verdict == "opposite").mean() <= 0.055
    assert (equalities(rng.normal(-1.5, 0.5, (4000, 1, 20))).verdict == "opposite").mean() > 0.9
    for values_S in rng.normal(1.5, 0.5, (200, 20)):
        found = equalities(values_S[None])
        share = looks.shares()[found.look[0]] * (2 if found.by_margin[0] else 1)
        low, high = interval(values_S[: LOOKS[found.look[0]]], found.level[0] * share)
        assert (low > 1 or high < -1) == (found.verdict[0] == "opposite")


def test_two_tasks_disagree_as_a_paired_t_test_says() -> None:
    values_TS = np.random.default_rng(7).normal([[0], [1]], 1, (2, 12))
    assert disagreement(values_TS) == pytest.approx(stats.ttest_rel(*values_TS).pvalue)
    three = np.random.default_rng(8).normal(size=(2000, 3, 10)) * np.array([1, 1, 3])[:, None]
    assert np.mean([disagreement(values) < 0.05 for values in three]) == pytest.approx(0.05, abs=0.015)
    assert np.isnan(disagreement(values_TS[:1]))
    assert np.isnan(disagreement(values_TS[:, :2]))
