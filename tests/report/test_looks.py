"""Verdicts at planned looks: the levels hold, the intervals agree with the verdicts, and scipy alone says the same."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from grpolab.report.statistics import looks
from grpolab.report.statistics.looks import ALPHA, LOOKS, Decisions, decide, disagreement, interval, level_at, run_tests

DIRECTIONS = ("supported", "opposite")


def decided(values_MS: NDArray, margin: float = 1.0, claimed: float = 1.0, beyond: float = 0.0) -> Decisions:
    return decide(run_tests(values_MS, margin, claimed, beyond))


def sharing_a_baseline(studies: int, hypotheses: int, effect: float, rng: np.random.Generator) -> NDArray:
    """Differences of spread 1 to one baseline, which correlate by a half: (R, M, 20)."""
    noise = rng.normal(size=(studies, hypotheses + 1, LOOKS[-1])) * 0.5**0.5
    return noise[:, 1:] - noise[:, :1] + effect


def simulate_levels(spent: float, paths: int, generator: np.random.Generator) -> list[float]:
    """Compute the levels of `level_at` anew: each look rejects its share of simulated paths without effect."""
    sums, squares, seen = np.zeros(paths), np.zeros(paths), 0
    alive, levels, before = np.ones(paths, bool), list[float](), 0.0
    for n in LOOKS:
        new = n - seen
        mean = generator.normal(size=paths) / np.sqrt(new)
        sums = sums + new * mean
        squares = squares + generator.chisquare(new - 1, paths) + new * mean**2
        seen = n
        sd = np.sqrt((squares - sums**2 / n) / (n - 1))
        p = 2 * special.stdtr(n - 1, -np.abs(sums / n / sd * np.sqrt(n)))
        share = spent * (n / LOOKS[-1]) ** 2
        count = round((share - before) * paths)
        level = float(np.partition(p[alive], count)[count])
        levels.append(level)
        alive, before = alive & (p > level), share
    return levels


@pytest.mark.slow
@pytest.mark.parametrize("spent", [0.1, 0.05])
def test_the_levels_are_those_of_paths_without_effect(spent: float) -> None:
    found = simulate_levels(spent, 2_000_000, np.random.default_rng(0))
    assert found == pytest.approx([float(level_at(spent, look)) for look in range(len(LOOKS))], rel=0.03)


@pytest.mark.parametrize("look", range(4))
def test_a_repeated_p_is_the_level_that_its_p_just_passes(look: int) -> None:
    for spent in (0.5, 0.07, 0.05, 0.011, 0.004, 1e-5):
        assert float(looks.repeated_p(level_at(spent, look), look)) == pytest.approx(spent)
        assert float(looks.repeated_p(level_at(spent, look, 1), look, 1)) == spent
    assert float(looks.repeated_p(0.9, look)) == 1
    assert np.isnan(looks.repeated_p(np.nan, look))
    assert float(looks.repeated_p(0.0, look)) == pytest.approx(0, abs=1e-100)


def test_one_hypothesis_with_one_look_is_three_t_tests_of_scipy() -> None:
    rng, seen = np.random.default_rng(1), set()
    for effect in (0.0, 0.3, 1.5, -1.5):
        for values_S in rng.normal(effect, 1, (200, 5)):
            verdict = decide(run_tests(values_S[None], 1.4, 1.0, looks=(5,))).verdict[0]
            direction = stats.ttest_1samp(values_S, 0).pvalue
            inside = max(
                stats.ttest_1samp(values_S, -1.4, alternative="greater").pvalue,
                stats.ttest_1samp(values_S, 1.4, alternative="less").pvalue,
            )
            side = "supported" if values_S.mean() > 0 else "opposite"
            assert verdict == (side if direction <= ALPHA else "negligible" if inside <= ALPHA else "inconclusive")
            seen.add(verdict)
    assert seen == {"supported", "opposite", "negligible", "inconclusive"}


def test_false_directions_stay_rare_and_effects_are_found_as_published() -> None:
    """Family-wise error .045 to .049, and power and seeds of `sequential-tests` at d = 1 (m = 1, 4)."""
    rng = np.random.default_rng(2)
    for m, power, seeds in ((1, 0.985, 12.7), (4, 0.97, 14.2)):
        null = decided(sharing_a_baseline(20_000, m, 0.0, rng), margin=np.nan).verdict
        assert 0.04 <= np.isin(null, DIRECTIONS).any(-1).mean() <= 0.053
        found = decided(sharing_a_baseline(8000, m, 1.0, rng), margin=np.nan)
        assert (found.verdict == "supported").mean() == pytest.approx(power, abs=0.012)
        assert np.array(LOOKS)[found.look].mean() == pytest.approx(seeds, abs=0.25)
        assert (found.verdict == "opposite").mean() < 1e-3


def test_negligible_is_wrong_as_rarely() -> None:
    rng = np.random.default_rng(3)
    at_margin = decided(sharing_a_baseline(20_000, 4, 1.0, rng), margin=1.0).verdict
    assert (at_margin == "negligible").any(-1).mean() <= 0.053
    inside = decided(rng.normal(size=(8000, 1, 20)), margin=1.0).verdict
    assert (inside == "negligible").mean() == pytest.approx(0.96, abs=0.015)


def test_the_interval_says_what_the_verdict_says_and_holds_the_truth() -> None:
    rng, holds = np.random.default_rng(4), []
    for effect in (0.0, 0.5, 1.0):
        studies = rng.normal(effect, 1, (400, 2, 20))
        found = decided(studies)
        for values_MS, *decisions in zip(studies, *found[:4], strict=True):
            for values_S, verdict, by_margin, look, level in zip(values_MS, *decisions, strict=True):
                n = LOOKS[look]
                low, high = interval(values_S[:n], by_margin, level, look)
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
    return decide(run_tests(values_MS, 1.0, 1.0, equal_M=True), equal_M=True)


def test_where_equality_is_claimed_a_small_difference_supports_it_and_one_beyond_the_margin_does_not() -> None:
    rng = np.random.default_rng(9)
    values_MS = rng.normal([[0.02], [2.0], [-2.0], [0.0]], [[0.05], [0.05], [0.05], [4.0]], (4, 20))
    found = equalities(values_MS)
    assert found.verdict.tolist() == ["supported", "opposite", "opposite", "inconclusive"]
    assert found.by_margin.tolist() == [True, False, False, False]
    small = rng.normal(0.3, 0.05, (1, 20))  # surely above 0, and surely inside the margin
    assert equalities(small).verdict.tolist() == ["supported"]
    assert decided(small).verdict.tolist() == ["supported"]  # of a claimed direction
    assert decide(run_tests(small, np.nan, 1.0, equal_M=True), equal_M=True).verdict.tolist() == ["inconclusive"]


def test_a_difference_that_is_not_0_does_not_refute_an_equality_that_holds() -> None:
    """The truth lies just inside the margin: 'opposite' is false, and stays rare. At 1.5 margins it is found."""
    rng = np.random.default_rng(10)
    inside = equalities(rng.normal(0.99, 0.5, (4000, 1, 20)))
    assert (inside.verdict == "opposite").mean() <= 0.055
    assert (equalities(rng.normal(-1.5, 0.5, (4000, 1, 20))).verdict == "opposite").mean() > 0.9
    for values_S in rng.normal(1.5, 0.5, (200, 20)):
        found = equalities(values_S[None])
        low, high = interval(values_S[: LOOKS[found.look[0]]], found.by_margin[0], found.level[0], found.look[0])
        assert (low > 1 or high < -1) == (found.verdict[0] == "opposite")


def test_two_tasks_disagree_as_a_paired_t_test_says() -> None:
    values_TS = np.random.default_rng(7).normal([[0], [1]], 1, (2, 12))
    assert disagreement(values_TS) == pytest.approx(stats.ttest_rel(*values_TS).pvalue)
    three = np.random.default_rng(8).normal(size=(2000, 3, 10)) * np.array([1, 1, 3])[:, None]
    assert np.mean([disagreement(values) < 0.05 for values in three]) == pytest.approx(0.05, abs=0.015)
    assert np.isnan(disagreement(values_TS[:1]))
    assert np.isnan(disagreement(values_TS[:, :2]))
