"""The self-check sees a statistic that breaks its promise, and one arm that is not one arm."""

import json

import numpy as np
import pytest
from report_results import write_study

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.report import self_check
from grpolab.report.self_check import Check, simulate


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("aa"), factors={"clip": ["symmetric"], "task": ["addition"]}, seeds=8)


def named(checks, *names):
    return [check for check in checks if check.name in names]


@pytest.mark.slow
def test_promises_hold_in_a_small_simulation_from_one_generator(monkeypatch):
    monkeypatch.setattr(self_check, "REPLICATES", 20)
    first, again = (simulate(300, np.random.default_rng(0)) for _ in range(2))
    assert first == again
    paired = named(first, "paired t-test", "paired t-interval", "sign test", "Wilcoxon's test")
    assert len(paired) == 3 * 2 + 2 + 2  # of three numbers of seeds; of the largest; power
    assert all(abs(check.rate - (check.kind == "coverage")) < 0.1 for check in paired if check.kind != "power")


@pytest.mark.slow
def test_a_test_that_rejects_too_often_is_found(monkeypatch):
    """Without Holm's correction a family of six rejects something in a quarter of all studies."""
    monkeypatch.setattr(self_check, "REPLICATES", 20)
    monkeypatch.setattr(self_check, "holm", np.asarray)
    (family,) = named(simulate(300, np.random.default_rng(0)), "Holm, any of 6")
    assert not family.holds
    assert family.rate == pytest.approx(1 - 0.95**6, abs=0.08)


def test_every_kind_of_promise_is_made(results, monkeypatch, capsys):
    monkeypatch.setattr(self_check, "REPLICATES", 20)
    monkeypatch.setattr(self_check, "SPLITS", 100)
    checks = simulate(4, np.random.default_rng(0))
    assert {check.kind for check in checks} == set(self_check.KINDS)
    counts = {(check.name, check.n) for check in checks if check.name.startswith("bootstrap of the mean")}
    assert {n for _, n in counts} == {3, 5, 10, 20}
    monkeypatch.setattr(self_check, "simulate", lambda studies, rng: checks)
    made, page = self_check.write(results, "clip_range", 4, 0)
    twice = [check for check in made if check.name.startswith("one arm twice")]
    assert len(twice) == len(self_check.METRICS)
    assert all(check.n == 4 and not check.promised and check.rate < 0.15 for check in twice)
    numbers = json.loads(page.with_suffix(".json").read_text())["numbers"]
    assert [entry["rate"] for entry in numbers] == pytest.approx([check.rate for check in made], abs=1e-4)
    assert page.with_suffix(".png").stat().st_size > 1000
    broken = [check for check in made if not check.holds]
    assert ("**no**" in page.read_text()) == bool(broken)
    # The command says the same.
    assert main(["self-check", "clip_range", "--studies", "4", "--results", str(results.root)]) == bool(broken)
    *lines, where = capsys.readouterr().out.splitlines()
    assert where == str(page)
    assert [line.partition(":")[0] for line in lines] == [f"{check.name}, n={check.n}" for check in broken]


def test_one_arm_needs_seeds_for_two_halves_which_is_said_before_anything_is_simulated(tmp_path, monkeypatch):
    monkeypatch.delattr(self_check, "simulate")
    few = write_study(tmp_path, factors={"clip": ["symmetric"], "task": ["addition"]}, seeds=5)
    with pytest.raises(RequestError, match="an A/A study of its runs needs 6 seeds of symmetric"):
        self_check.write(few, "clip_range", 1000, 0)


def test_a_promise_is_kept_between_its_bounds():
    check = Check("false positives", "x", 5, 0.08, 0.03, 0.07, 1000)
    assert (check.promised, check.holds) == (True, False)
    assert check.promise == ".030 to .070"
