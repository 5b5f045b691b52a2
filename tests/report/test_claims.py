"""Hypotheses are decided by the test of their kind, undecided where the data cannot tell; no run is left out unsaid."""

import dataclasses
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from report_results import FACTORS, HYPOTHESES, write_run, write_study
from scipy import stats
from statsmodels.stats.power import TTestPower

from grpolab.errors import RequestError
from grpolab.paths import write_json_atomic
from grpolab.report import claims, measures
from grpolab.report.claims import REFUTED, SUPPORTED, UNDECIDED, decide
from grpolab.report.load import load
from grpolab.report.statistics.power import trend_seeds_to_decide
from grpolab.report.statistics.tests import page_trend, paired_difference, rank_trend


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results"))


def decided(results, **changes):
    """The claims of the study, had its only hypothesis been another."""
    plan = json.loads(results.plan("clip_range").read_text())
    study = load(results, "clip_range")[-1]
    return decide(dataclasses.replace(study, plan=plan | {"hypotheses": [HYPOTHESES[0] | changes]}))


EQUAL = {"direction": "equal", "test": "equivalence"}


def test_each_facet_that_where_leaves_open_is_decided_apart(results):
    healthy, stressed = decided(results)
    assert (healthy.facet, stressed.facet) == ("addition/healthy", "addition/stressed")
    assert (healthy.verdict, stressed.verdict) == (UNDECIDED, SUPPORTED)
    assert stressed.effect.effect == pytest.approx(-0.4, abs=0.05)
    assert stressed.effect.high < 0
    assert f"{stressed.effect.effect:+.3f}" in stressed.sentence
    assert "3 seeds" in stressed.sentence


def test_where_direction_and_margin(results):
    where = {"regime": "stressed"}
    only = partial(decided, results, where=where)
    assert [claim.verdict for claim in only()] == [SUPPORTED]
    assert [claim.verdict for claim in only(direction="greater")] == [REFUTED]
    assert [claim.verdict for claim in only(margin=0.3)] == [SUPPORTED]
    assert [claim.verdict for claim in only(margin=0.5)] == [REFUTED]
    assert [claim.verdict for claim in only(**EQUAL, margin=0.1)] == [REFUTED]
    assert [claim.verdict for claim in only(**EQUAL, margin=0.6)] == [SUPPORTED]


def test_the_family_is_corrected(results, monkeypatch):
    monkeypatch.setattr(claims, "holm", lambda p: np.ones_like(np.asarray(p)))
    assert {claim.verdict for claim in decided(results)} == {UNDECIDED}


def test_a_missing_pair_leaves_it_undecided(tmp_path):
    results = write_study(tmp_path)
    for cell in json.loads(results.plan("clip_range").read_text())["cells"]:
        if cell["variant"].startswith("no_clip/addition/stressed"):
            (results.run(cell["signature"]) / "outcome.json").unlink()
    stressed = decide(load(results, "clip_range")[-1])[1]
    assert stressed.verdict == UNDECIDED
    assert "no seed has both runs" in stressed.sentence


def test_journal_metrics_and_stability_quantities_can_be_claimed(results):
    (claim,) = decided(results, metric="clip/active", where={"regime": "healthy"})
    assert claim.verdict == SUPPORTED
    with pytest.raises(RequestError, match=r"metric=final_scor .*did you mean final_score"):
        decided(results, metric="final_scor")


def placebo_study(tmp_path):
    results = write_study(tmp_path, "placebo", {"form": ["a", "b"], "task": ["addition"]}, placebo=[["a", "b"]])
    cells = json.loads(results.plan("placebo").read_text())["cells"]
    hashes = {
        cell["seed"]: json.loads((results.run(cell["signature"]) / "outcome.json").read_text()) for cell in cells[:3]
    }
    for cell in cells[3:]:
        path = results.run(cell["signature"]) / "outcome.json"
        same = {key: hashes[cell["seed"]][key] for key in ("journal_sha256", "policy_sha256")}
        write_json_atomic(path, json.loads(path.read_text()) | same)
    return results, cells


def test_placebo_arms_are_compared_by_their_bits(tmp_path):
    results, cells = placebo_study(tmp_path)
    (claim,) = decide(load(results, "placebo")[-1])
    assert claim.verdict == SUPPORTED
    assert "bit-identical (whole journal and final weights) in 3 of 3 planned pairs" in claim.sentence
    path = results.run(cells[-1]["signature"]) / "outcome.json"
    write_json_atomic(path, json.loads(path.read_text()) | {"policy_sha256": "another"})
    (claim,) = decide(load(results, "placebo")[-1])
    assert claim.verdict == REFUTED
    assert "addition seed 2" in claim.sentence
    path.unlink()
    assert decide(load(results, "placebo")[-1])[0].verdict == UNDECIDED


def test_placebo_dialects_are_compared_by_their_weights(tmp_path):
    """Their journals have other names: each its framework's."""
    results, cells = placebo_study(tmp_path)
    plan = json.loads(results.plan("placebo").read_text())
    for cell in plan["cells"]:
        cell["settings"]["framework"] = {"a": None, "b": "roll"}[cell["levels"]["form"]]
    write_json_atomic(results.plan("placebo"), plan)
    path = results.run(cells[-1]["signature"]) / "outcome.json"
    write_json_atomic(path, json.loads(path.read_text()) | {"journal_sha256": "another"})
    (claim,) = decide(load(results, "placebo")[-1])
    assert claim.verdict == SUPPORTED
    assert "bit-identical (final weights) in 3 of 3 planned pairs" in claim.sentence
    write_json_atomic(path, json.loads(path.read_text()) | {"policy_sha256": "another"})
    assert decide(load(results, "placebo")[-1])[0].verdict == REFUTED


def test_undecided_says_how_many_seeds_would_decide(results):
    healthy, stressed = decided(results)
    assert stressed.needed is None
    assert "would decide" not in stressed.sentence
    size = abs(healthy.effect.effect) / healthy.effect.sd
    assert healthy.needed == np.ceil(TTestPower().solve_power(size, power=0.8, alpha=0.05))
    assert f"; about {healthy.needed} seeds in all would decide it (power .8, were" in healthy.sentence


def test_undecided_claims_share_the_level_that_holm_leaves_them(results):
    (alone,) = decided(results, where={"regime": "healthy"}, metric="mean_score")
    plan = json.loads(results.plan("clip_range").read_text())
    claim = HYPOTHESES[0] | {"metric": "mean_score", "where": {"regime": "healthy"}}
    twice = dataclasses.replace(
        load(results, "clip_range")[-1], plan=plan | {"hypotheses": [claim, claim | {"id": "H"}]}
    )
    assert [again.needed > alone.needed for again in decide(twice)] == [True, True]


def test_more_seeds_are_not_promised_where_they_would_not_help(results):
    (claim,) = decided(results, metric="truncation", where={"regime": "healthy"})
    assert claim.needed is None
    assert claim.sentence.endswith("no seed shows a difference, and more seeds like these would not decide it.")


def test_where_the_effect_is_tiny_no_number_of_seeds_is_promised(claimed):
    hopeless = claimed({"no_clip": [1, -1, 1, -1, 1e-6], "symmetric": np.zeros(5)})
    assert hopeless.needed is None
    assert "; not even 1,000 seeds would decide it" in hopeless.sentence


def test_a_claim_may_ask_for_seeds(results):
    (claim,) = decided(results, where={"regime": "stressed"}, seeds=5)
    assert (claim.verdict, claim.needed) == (UNDECIDED, 5)
    assert "3 seeds of the 5 that it asks for" in claim.sentence


def test_labels_are_counted_with_fishers_test(results, tmp_path):
    (three,) = decided(results, metric="collapsed", test="fisher", direction="greater", where={"regime": "stressed"})
    assert (three.verdict, three.effect.p, three.needed) == (UNDECIDED, pytest.approx(0.1), 4)
    assert "+1 [" in three.sentence
    more = write_study(tmp_path, factors=FACTORS | {"clip": ["symmetric", "no_clip"], "regime": ["stressed"]}, seeds=4)
    (four,) = decided(more, metric="collapsed", test="fisher", direction="greater")
    assert (four.verdict, four.effect.p) == (SUPPORTED, pytest.approx(0.029, abs=0.001))


ARMS = FACTORS["clip"]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Three arms, one task, five seeds."""
    results = write_study(tmp_path_factory.mktemp("kinds"), factors={"clip": ARMS, "task": ["addition"]}, seeds=5)
    return load(results, "clip_range")[-1]


@pytest.fixture
def claimed(study, monkeypatch):
    """The one claim of a hypothesis, where the metric of each arm's runs is given by seed."""

    def claim(values, **hypothesis):
        series = pd.concat(
            {("addition", arm): pd.Series(list(of), dtype=float) for arm, of in values.items()},
            names=["facet", "arm", "seed"],
        )
        monkeypatch.setattr(measures, "measure", lambda _study, _metric: series)
        plan = study.plan | {"hypotheses": [HYPOTHESES[0] | hypothesis]}
        (found,) = decide(dataclasses.replace(study, plan=plan))
        return found

    return claim


LOG = {"test": "paired_log_t", "direction": "greater", "margin": 1.0}


def test_a_ratio_is_tested_on_its_logarithm_and_shown_as_a_ratio(claimed):
    of, minus = RNG.lognormal(1.5, 0.3, 5), RNG.lognormal(0, 0.3, 5)
    found = claimed({"no_clip": of, "symmetric": minus}, **LOG)
    log = np.log(of / minus)
    assert found.effect.effect == pytest.approx(stats.gmean(of / minus))
    assert (found.effect.low, found.effect.high) == pytest.approx(
        np.exp(stats.t.interval(0.95, 4, loc=log.mean(), scale=stats.sem(log)))
    )
    assert found.effect.p == pytest.approx(stats.ttest_1samp(log, 0).pvalue)
    assert (found.verdict, found.contrast) == (SUPPORTED, "no_clip / symmetric")
    assert found.size.startswith(f"{found.effect.effect:.2f} [")


def test_the_margin_of_a_ratio_is_a_factor(claimed):
    values = {"no_clip": 6 * np.exp(RNG.normal(0, 0.05, 5)), "symmetric": np.ones(5)}
    assert claimed(values, **LOG | {"margin": 5.0}).verdict == SUPPORTED
    over = claimed(values, **LOG | {"margin": 9.0})
    assert over.verdict == REFUTED
    assert "claimed: above 9)" in over.sentence
    turned = {"no_clip": values["symmetric"], "symmetric": values["no_clip"]}
    under = claimed(turned, **LOG | {"margin": 5.0, "direction": "less"})
    assert under.verdict == SUPPORTED
    assert "claimed: below 1/5)" in under.sentence


def test_a_share_of_zero_is_infinitely_smaller_and_a_negative_number_has_no_ratio(claimed):
    values = {"no_clip": [0, 1, 1, 1, 1], "symmetric": [2, 2, 3, 4, 5]}
    found = claimed(values, **LOG | {"direction": "less"})
    assert found.effect.n == 5
    assert found.effect.p == paired_difference(pd.Series([-1] * 5), pd.Series([0] * 5)).p == 2 / 2**5
    found = claimed({"no_clip": [-1, 1, 1, 1, 1], "symmetric": [2, 2, 3, 4, 5]}, **LOG)
    assert found.effect.n == 4
    assert "; 1 seed without a value of it" in found.sentence


def test_one_arm_is_tested_against_zero(claimed):
    values = RNG.normal(1, 0.4, 5)
    found = claimed({"no_clip": values}, contrast={"of": "no_clip", "minus": None}, direction="greater", margin=0.2)
    assert found.effect.p == pytest.approx(stats.ttest_1samp(values, 0.2).pvalue)
    assert found.effect.effect == pytest.approx(values.mean())
    assert found.contrast == "no_clip"


TREND = {"contrast": None, "trend": ARMS, "test": "page", "direction": "greater"}


def test_a_trend_is_pages_with_all_pairs_reported(claimed):
    values_SL = RNG.normal(0, 0.4, (5, 3)) + np.arange(3)
    values = dict(zip(ARMS, values_SL.T, strict=True))
    found = claimed(values, **TREND)
    assert found.verdict == SUPPORTED
    assert found.effect.p == pytest.approx(2 * page_trend(values_SL))
    taus = [stats.kendalltau(range(3), row).statistic for row in values_SL]
    assert found.effect.effect == pytest.approx(np.mean(taus))
    for lower, upper in ((0, 1), (0, 2), (1, 2)):
        mean = (values_SL[:, upper] - values_SL[:, lower]).mean()
        assert f"{ARMS[upper]} - {ARMS[lower]} +{mean:.{3 if mean < 1 else 2}f} [" in found.sentence
    assert claimed(values, **TREND | {"direction": "less"}).verdict == REFUTED
    assert claimed(values, **TREND | {"seeds": 9}).verdict == UNDECIDED


def test_a_diverged_run_is_the_largest_of_its_seed_in_a_trend():
    values_SL = np.array([[0.0, 1.0, np.inf], [0.0, 1.0, 2.0], [0.0, 0.5, 0.6]])
    assert rank_trend(values_SL) == rank_trend(np.where(np.isinf(values_SL), 9, values_SL))
    assert np.isnan(rank_trend(values_SL[:1]).p)


@pytest.mark.parametrize(("slope", "levels"), [(0.5, 4), (0.9, 3)])
def test_so_many_seeds_decide_a_trend_four_times_in_five(slope, levels):
    rising = slope * np.arange(levels)
    n = trend_seeds_to_decide(RNG.normal(rising, 1, (2000, levels)))
    found = [rank_trend(values_SL).p < 0.05 for values_SL in RNG.normal(rising, 1, (300, n, levels))]
    assert np.mean(found) == pytest.approx(0.8, abs=0.1)


def test_seeds_in_perfect_order_still_have_to_be_enough():
    assert trend_seeds_to_decide(np.tile([1.0, 2, 3], (2, 1))) == 3  # 2 / 6^2 = .056
    assert trend_seeds_to_decide(np.array([[1.0, 2, 3], [3, 2, 1]])) is None


def test_a_range_is_taken_over_a_factor_and_not_where_a_level_is_missing(tmp_path, monkeypatch):
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"], "grid": ["r1", "r2", "r3"]}
    loaded = load(write_study(tmp_path, factors=factors, seeds=4), "clip_range")[-1]
    base = loaded.done.set_index(["facet", "arm", "seed"]).index
    wide = {"no_clip": [0.0, 0.5, 1.0], "symmetric": [0.1, 0.2, 0.1]}
    values = pd.Series(
        [wide[arm][int(facet[-1]) - 1] + 0.01 * seed * (facet[-1] == "2") for facet, arm, seed in base], index=base
    )
    monkeypatch.setattr(measures, "measure", lambda _study, _metric: values)
    hypothesis = HYPOTHESES[0] | {"direction": "greater", "range_over": "grid"}
    plan = loaded.plan | {"hypotheses": [hypothesis]}
    (found,) = decide(dataclasses.replace(loaded, plan=plan))
    assert found.facet == "addition"
    assert found.effect.effect == pytest.approx(1 - 0.1 - 0.015)
    assert "the range over grid of `final_score` of no_clip - symmetric" in found.sentence
    values[("addition/r3", "no_clip", 2)] = np.nan
    (gap,) = decide(dataclasses.replace(loaded, plan=plan))
    assert gap.effect.n == 3
    assert "1 seed without a value of it" in gap.sentence


def test_a_void_test_decides_nothing_whatever_its_p(claimed):
    values = {"no_clip": [1.0, 1.1, 1.2, 1.1, 1.0], "symmetric": np.zeros(5)}
    condition = {"metric": "clip/active", "of": "no_clip", "above": 1.0}
    assert claimed(values, direction="greater", provided=condition).verdict == SUPPORTED
    void = claimed(values, direction="greater", provided=condition | {"above": 1.5})
    assert (void.verdict, void.needed) == (UNDECIDED, None)
    assert void.sentence.endswith("; its condition fails: `clip/active` of no_clip is 1.08, not above 1.5.")
    assert np.isnan(void.holm_p)


def test_a_diverged_run_counts_as_far_as_it_came(tmp_path):
    results = write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]}, seeds=6)
    for cell in load(results, "clip_range")[-1].plan["cells"]:
        if cell["levels"]["clip"] == "no_clip" and cell["seed"] < 2:
            write_run(results, cell, outcome="diverged", last_step=6)

    def found(**hypothesis):
        loaded = load(results, "clip_range")[-1]
        return decide(dataclasses.replace(loaded, plan=loaded.plan | {"hypotheses": [HYPOTHESES[0] | hypothesis]}))[0]

    score = found()
    assert score.effect.n == 6  # the last finite evaluation is carried forward
    assert "; 2 runs that diverged counted as far as they came" in score.sentence
    norm = found(metric="grad_norm_max", direction="greater")
    assert (norm.effect.n, norm.effect.sd) == (6, pytest.approx(np.nan, nan_ok=True))  # an infinite norm is a norm
    lost = found(metric="lost", test="fisher", direction="greater")
    assert lost.effect.effect == pytest.approx(2 / 6)
    labelled = found(metric="diverged", test="fisher", direction="greater")
    assert labelled.effect.effect == pytest.approx(2 / 6)


def test_plans_of_older_programs_are_still_decided(study):
    old = {key: value for key, value in HYPOTHESES[0].items() if key not in ("test", "budget", "power")}
    tests = []
    for changes in ({}, {"direction": "equal", "margin": 0.1}, {"metric": "collapsed"}):
        plan = study.plan | {"hypotheses": [old | changes]}
        tests.append(decide(dataclasses.replace(study, plan=plan))[0].test)
    assert tests == ["paired t-test", "two one-sided t-tests", "Fisher's exact test, unpaired"]
