"""Hypotheses are decided by paired differences, and undecided where the data cannot tell."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
from report_results import FACTORS, HYPOTHESES, write_study
from statsmodels.stats.power import TTestPower

from grpolab.errors import RequestError
from grpolab.paths import write_json_atomic
from grpolab.report import claims
from grpolab.report.claims import REFUTED, SUPPORTED, UNDECIDED, decide, questions
from grpolab.report.load import load


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
    effect = claim.effect._replace(effect=1e-9, sd=1.0, p=0.9)
    question = next(iter(questions(load(results, "clip_range")[-1])))
    assert "not even 1,000 seeds" in claims._outlook(question, effect, None)


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
