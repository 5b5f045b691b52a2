"""The smallest size of each benchmark, by its target's code: what it prints adds up, however fast the machine is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_policy
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import doctor_check  # noqa: E402
import gpu_check  # noqa: E402
import language_model_vs_trl as language_model  # noqa: E402
import loss_cost  # noqa: E402
import self_check  # noqa: E402

from grpolab.cli import main as grpolab  # noqa: E402

pytestmark = pytest.mark.timeout(900)  # scripts start processes that import torch
TRL_PYTHON = ROOT / ".venv-bench" / "bin" / "python"


class Operations(TorchDispatchMode):
    count = 0  # in place of seconds: the same every time

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return operation(*args, **(kwargs or {}))


def test_loss_cost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def counted(timed: dict[str, Any], rounds: int) -> dict[str, list[int]]:
        counts: dict[str, list[int]] = {name: [] for name in timed}
        for name, call in ((name, call) for name, calls in timed.items() for call in calls):
            with Operations() as operations:
                call()
            counts[name].append(operations.count)
        return counts

    assert 0 < loss_cost.in_turns({"": [partial(sum, range(10**5))]}, 1)[""][0] < 5
    monkeypatch.setattr(loss_cost, "in_turns", counted)
    kept = ("default", "both off", "dialect=trl", loss_cost.CONVENTIONS)
    monkeypatch.setattr(loss_cost, "CASES", {name: loss_cost.CASES[name] for name in kept})
    code = loss_cost.main([])
    lines = capsys.readouterr().out.splitlines()[1:]
    cells = {name: line.removeprefix(name).split() for name, line in zip(loss_cost.CASES, lines, strict=True)}
    shares = {name: [float(cell.rstrip("%")) / 100 for cell in row[2:]] for name, row in cells.items()}
    for loss, metrics, both, at_once in shares.values():
        assert both == at_once == pytest.approx(loss + metrics, abs=2e-3)
    off, default, all_of_them = (shares[name][1] for name in ("both off", "default", loss_cost.CONVENTIONS))
    assert 0 < off <= default < all_of_them, "what is switched off costs nothing"
    assert code == int(max(both for name, (*_, both, _) in shares.items() if name in kept[:3]) > loss_cost.MOST_SHARE)


@pytest.mark.slow
def test_doctor_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One fault and one healthy run, trained and told apart."""
    cases = "four_passes,aliased_old_policy"
    assert doctor_check.main(["--runs", "quick", "--cases", cases, "--jobs", "1", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "faulty: 1 of 1 right" in shown
    assert "healthy: 1 of 1 right" in shown
    answers = pd.read_csv(tmp_path / "doctor" / "doctor_quick.csv").set_index("case")
    assert answers.named.to_dict() == {"four_passes": "(none)", "aliased_old_policy": "aliased_old_policy"}
    matrix = pd.read_csv(tmp_path / "doctor" / "doctor_quick_confusion.csv", index_col=0)
    assert matrix.loc["aliased_old_policy", "aliased_old_policy"] == matrix.loc["(none)", "(none)"] == 1
    assert matrix.sum(axis=None) == 2


@pytest.mark.slow
def test_self_check_finds_the_promise_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Holm's correction a family of six rejects something in a quarter of all studies."""
    monkeypatch.setattr(self_check, "REPLICATES", 20)
    monkeypatch.setattr(self_check.tests, "holm", np.asarray)
    assert self_check.main(["--studies", "600", "--results", str(tmp_path)]) == 1
    *broken, page = capsys.readouterr().out.splitlines()
    holm = [line for line in broken if line.startswith("Holm, any of 6")]
    rates = [float(re.findall(r"false positives ([\d.]+)", line)[0]) for line in holm]
    assert rates == [pytest.approx(1 - 0.95**6, abs=0.08)]
    assert not any("paired" in line or "sign test" in line for line in broken)
    assert "| **no** |" in Path(page).read_text()


@pytest.mark.slow
def test_planned_looks_keep_their_promises_and_a_looser_level_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = self_check.planned_looks(4000, np.random.default_rng(0))
    assert [check.name for check in checks if not check.holds] == []
    monkeypatch.setattr(self_check.looks, "ALPHA", 0.1)
    loose = self_check.planned_looks(4000, np.random.default_rng(0))
    of_runs = {f"planned looks, m={m}, residuals of runs" for m in (1, 5, 10)}
    assert of_runs <= {check.name for check in loose if not check.holds}


def with_trl(script: str, *arguments: str) -> str:
    """What a script of benchmarks/ prints in TRL's own environment."""
    command = [TRL_PYTHON, ROOT / "benchmarks" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_language_models_table_adds_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of made-up costs; what the products of a step's layers alone take is measured, on a tiny model."""
    monkeypatch.setattr(language_model, "print_versions", lambda: None)
    parts = language_model.PARTS
    trl, ours = language_model.Run(peak=4000, tokens=100), language_model.Run(peak=3000, tokens=90)
    trl.costs |= dict(zip(parts, ([6.0], [3.0], [21.0], [30.0], [9.0]), strict=True))
    ours.costs |= dict(zip(parts, ([4.0], [0.5], [5.5], [10.0], [6.0]), strict=True))
    ours.rows |= {(3, False, False): 4, (5, True, True): 2}
    model = tiny_policy().model
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda path: model)
    options = Namespace(**dict.fromkeys(("prompts", "minibatches", "micro", "items", "rounds", "model"), 1))
    options.ours, options.steps, options.every = ["scale=cpu"], 2, 3
    found = language_model.products(ours, options)
    head = model.lm_head.weight.numel()
    body = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear)) - head
    gflop = {"without gradient, layers": 12 * body * 2e-9 / 2, "with gradient, head": 30 * head * 2e-9 / 2}
    for kind, (work, alone, best) in found.items():
        assert work == pytest.approx(gflop.get(kind, sum(gflop.values())))
        assert 0 < best <= alone * (1 + 1e-9)  # the best rate's own time is divided twice
    language_model.report({"TRL": [trl], "scale=cpu": [ours]}, found, options)
    shown = capsys.readouterr().out
    cells = {line[:58].strip(): re.findall(r"[\d.]+ \([\d.]+\)", line[58:]) for line in shown.splitlines()}
    assert cells["a rollout step"] == ["30.0 (1.00)", "10.0 (3.00)"]
    assert cells["a step with its share of an evaluation every 3"] == ["33.0 (1.00)", "12.0 (2.75)"]
    assert cells["peak memory of the process, MiB"] == ["4000.0 (1.00)", "3000.0 (0.75)"]


@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="no TRL: make bench WHAT=conformance makes its environment")
def test_conformance_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs of a seed that is nowhere else."""
    with_trl("trl_vectors.py", str(tmp_path), "12", "5")
    assert grpolab(["conformance", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replayed"] == 5


def test_gpu_check_rehearses_on_the_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A check says what it saw, one that fails says why, and what only a GPU has is left out."""
    only = ["--device", "cpu", "--only", "sampler and trainer agree", "waits for the GPU", "vLLM"]
    assert gpu_check.main(only) == 0
    rows = capsys.readouterr().out.partition("| --- |")[2]
    assert re.search(
        r"agree \| largest log ratio of a first pass 0.0e\+00, sampler against trainer \d\.\de-0[5-8] nat", rows
    )
    assert "| waits for the GPU | left out: a GPU's alone |" in rows

    def is_wrong(place: gpu_check.Place) -> str:
        gpu_check.expect(False, "k3 .3 nat")
        return ""

    monkeypatch.setitem(gpu_check.CHECKS, "vLLM", is_wrong)
    assert gpu_check.main(["--device", "cpu", "--only", "vLLM"]) == 1
    assert "| vLLM | FAILED: AssertionError: k3 .3 nat |" in capsys.readouterr().out
    if not gpu_check.torch.cuda.is_available():
        assert gpu_check.main([]) == 2
