"""The self-check sees a statistic that breaks its promise, and one arm that is not one arm."""

import json
from functools import partial

import numpy as np
import pytest
from report_results import write_study
from scipy import stats

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.report import self_check
from grpolab.report.load import load
from grpolab.report.self_check import Check, one_arm, one_arm_twice, planned_looks, simulate

FACETS = {"task": ["addition", "sorting"], "regime": ["healthy", "stressed"]}
METRICS = ("final_score", "clip/active", "grad_norm_max")  # the invented journals have no spread of the others


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One arm, 40 runs in four facets."""
    return write_study(tmp_path_factory.mktemp("aa"), factors={"clip": ["symmetric"], **FACETS}, seeds=10)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(self_check, "REPLICATES", 20)
    monkeypatch.setattr(self_check, "METRICS", METRICS)


def named(checks, *names):
    return [check for check in checks if check.name in names]


@pytest.mark.slow
def test_promises_hold_in_a_small_simulation_from_one_generator():
    first, again = (simulate(300, np.random.default_rng(0)) for _ in range(2))
    assert [check for check in first if check.counted] == [check for check in again if check.counted]
    paired = named(first, "paired t-test", "paired t-interval", "sign test, a third ties")
    assert len(paired) == 3 * 2 + 1 + 2  # of three numbers of seeds; of one; power
    assert all(abs(check.rate - (check.kind == "coverage")) < 0.1 for check in paired if check.kind != "power")


@pytest.mark.slow
def test_a_test_that_rejects_too_often_is_found(monkeypatch):
    """Without Holm's correction a family of six rejects something in a quarter of all studies."""
    monkeypatch.setattr(self_check, "holm", np.asarray)
    (family,) = named(simulate(300, np.random.default_rng(0)), "Holm, any of 6")
    assert not family.holds
    assert family.rate == pytest.approx(1 - 0.95**6, abs=0.08)


@pytest.mark.slow
def test_planned_looks_are_as_good_as_their_recipe_says_and_a_looser_level_is_found(monkeypatch):
    checks = planned_looks(4000, np.random.default_rng(0))
    assert {check.kind for check in checks} == set(self_check.KINDS)
    assert [check.name for check in checks if not check.holds] == []
    exponential = [check for check in checks if "exponential" in check.name]
    assert all(check.rate > 0.1 and not check.promised for check in exponential)  # which is why skew is flagged
    decide = self_check.looks.decide
    monkeypatch.setattr(self_check.looks, "decide", partial(decide, alpha=0.1))
    loose = planned_looks(4000, np.random.default_rng(0))
    assert {"planned looks, m=1, normal", "planned looks, m=4, normal"} <= {c.name for c in loose if not c.holds}


@pytest.mark.slow
def test_every_kind_of_promise_is_made(results, monkeypatch, capsys):
    checks = simulate(4, np.random.default_rng(0))
    assert {check.kind for check in checks} == set(self_check.KINDS)
    counts = {(check.name, check.n) for check in checks if check.name.startswith("bootstrap of the mean")}
    assert {n for _, n in counts} == {3, 5, 10, 20}
    monkeypatch.setattr(self_check, "simulate", lambda studies, rng: checks)
    made, page = self_check.write(results, "clip_range", 4, 0)
    twice = [check for check in made if check.name.startswith("one arm twice")]
    assert [check.name.partition(": ")[2] for check in twice] == [*METRICS, "any of these"]
    assert all(check.n == 20 and not check.promised and check.rate < 0.15 for check in twice)
    whole = json.loads(page.with_suffix(".json").read_text())
    assert [entry["rate"] for entry in whole["numbers"]] == pytest.approx([check.rate for check in made], abs=1e-4)
    assert len(whole["signatures"]) == 40
    assert page.with_suffix(".png").stat().st_size > 1000
    assert "40 runs" in page.read_text()
    assert "too narrow" in page.read_text()
    broken = [check for check in made if not check.holds]
    assert ("**no**" in page.read_text()) == bool(broken)
    # The command says the same.
    assert main(["self-check", "clip_range", "--studies", "4", "--results", str(results.root)]) == bool(broken)
    *lines, where = capsys.readouterr().out.splitlines()
    assert where == str(page)
    assert [line.partition(":")[0] for line in lines] == [f"{check.name}, n={check.n}" for check in broken]


def test_each_run_is_in_one_pair_of_its_facet(results):
    study = load(results, "clip_range")[-1]
    used, facets = one_arm([study, study])  # what studies share counts once
    assert sorted(used["signature"]) == sorted(study.cells["signature"])
    assert [values.shape for values in facets] == [(10, len(METRICS))] * 4
    assert all(values.std(axis=0, ddof=1) == pytest.approx(1) for values in facets)
    # Seeds that differ from facet to facet by a hundred never meet: all differences stay small.
    apart = [values + 100 * place for place, values in enumerate(facets)]
    rates = [[check.rate for check in one_arm_twice(of, np.random.default_rng(0))] for of in (facets, apart)]
    assert rates[0] == rates[1]


def test_few_pairs_have_one_look_and_a_share_its_exact_interval(results):
    _, facets = one_arm(load(results, "clip_range"))
    checks = one_arm_twice(facets[:2], np.random.default_rng(0))  # ten pairs
    assert {check.n for check in checks} == {5}
    first = checks[0]
    k, n = round(first.rate * first.studies), first.studies
    assert first.interval == pytest.approx((stats.beta.ppf(0.025, k, n - k + 1), stats.beta.ppf(0.975, k + 1, n - k)))


def test_one_arm_needs_forty_runs_which_is_said_before_anything_is_simulated(tmp_path, monkeypatch):
    monkeypatch.delattr(self_check, "simulate")
    few = write_study(tmp_path, factors={"clip": ["symmetric"], "task": ["addition"]}, seeds=5)
    with pytest.raises(RequestError, match=r"an A/A study of its runs needs 40 runs of a baseline .* it has 5"):
        self_check.write(few, "clip_range", 1000, 0)


def test_a_promise_is_kept_between_its_bounds():
    check = Check("false positives", "x", 5, 0.08, 0.03, 0.07, 1000)
    assert (check.promised, check.holds) == (True, False)
    assert check.promise == ".030 to .070"
