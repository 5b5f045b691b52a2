"""The smallest size of each benchmark, by its target's code: what it prints adds up, however fast the machine is."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "sweep" / "tuning")]

import checkpoint_cost  # noqa: E402
import doctor_check  # noqa: E402
import doctor_peers  # noqa: E402
import loss_cost  # noqa: E402
import overhead  # noqa: E402

from grpolab.cli import main as grpolab  # noqa: E402

pytestmark = pytest.mark.timeout(900)  # scripts start processes that import torch
TRL_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
TINY = [
    *("model.hidden_size=16", "model.layers=1", "prompts_per_step=2", "num_generations=4", "evaluation.items=20"),
    *("warm_start.max_steps=4", "warm_start.check_every=2", "warm_start.check_items=20"),
]


def test_loss_cost(capsys: pytest.CaptureFixture[str]) -> None:
    code = loss_cost.main(["--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()[1:]
    cells = {name: line.removeprefix(name).split() for name, line in zip(loss_cost.CASES, lines, strict=True)}
    shares = {name: [float(cell.rstrip("%")) / 100 for cell in row[2:]] for name, row in cells.items()}
    for loss, metrics, both, at_once in shares.values():
        assert both == pytest.approx(loss + metrics, abs=2e-3)
        assert both > 0
        assert 0 < at_once < 20
    assert shares["both off"][1] < shares[loss_cost.CONVENTIONS][1], "what is switched off costs nothing"
    worst = max(both for name, (*_, both, _) in shares.items() if name != loss_cost.CONVENTIONS)
    assert code == int(worst > loss_cost.MOST_SHARE) or worst == pytest.approx(loss_cost.MOST_SHARE, abs=1e-3)


@pytest.mark.slow
def test_checkpoint_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint at every rollout boundary, which is dearer than 2%: the run is short."""
    code = checkpoint_cost.main(["task=addition", *TINY, "rollout_steps=12", "machine.checkpoint_seconds=0.001"])
    run, *parts, start = capsys.readouterr().out.splitlines()
    assert ", 12 rollout steps, interrupted before its outcome" in run
    found = [re.fullmatch(r"  (.+?) +([\d.]+) % of it \((\d+) of .*\)", line).groups() for line in parts]
    shares = {name: (float(share), int(calls)) for name, share, calls in found}
    assert 10 <= shares["checkpoints"][1] <= 13
    assert all(0 <= share < 100 for share, _ in shares.values())
    seconds = float(start.split(": ")[1].split()[0])
    assert 0 < seconds < 60
    assert code == int(shares["checkpoints"][0] > 2 or seconds > 3)


@pytest.mark.slow
def test_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts are the whole: workers x wall time."""
    code = overhead.main(["smoke", "--seeds", "1", "--jobs", "1", *TINY, "task.length=3", "machine.tracking_uri=null"])
    shown = capsys.readouterr().out
    wall = float(re.search(r"smoke: 2 runs on 1 workers, ([\d.]+) s", shown)[1])
    work, rest = (float(seconds) for seconds in re.findall(r"([\d.]+) s +\S+  together", shown))
    assert work + rest == pytest.approx(wall, abs=0.2)
    parts = re.findall(r"%  ([a-z ]+)$", shown, re.MULTILINE)
    assert {"warm starts", "rollout", "update", "evaluation"} <= set(parts)
    assert code == 0, "the bound is for the whole reference"
    overhead_percent = float(re.search(r"^overhead: ([\d.]+)%", shown, re.MULTILINE)[1])
    assert overhead_percent == pytest.approx(100 * (wall / work - 1), rel=0.1)


@pytest.mark.slow
def test_doctor_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One fault and one healthy run, trained and told apart."""
    cases = "four_passes,aliased_old_policy"
    assert doctor_check.main(["--quick", "--cases", cases, "--jobs", "1", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "faulty: 1 of 1 right" in shown
    assert "healthy: 1 of 1 right" in shown
    answers = pd.read_csv(tmp_path / "doctor" / "doctor_quick.csv").set_index("case")
    assert answers.named.to_dict() == {"four_passes": "(none)", "aliased_old_policy": "aliased_old_policy"}
    assert (tmp_path / "doctor" / "doctor_quick_confusion.png").stat().st_size > 1000


def test_doctor_peers_gives_every_tool_the_log_that_trl_would_have_written(tmp_path: Path) -> None:
    rows = [
        {"kind": "rollout", "rollout_step": 0, "optimizer_step": 0, "reward/mean": 0.5, "zero_variance/share": 0.25},
        {"kind": "update", "rollout_step": 0, "optimizer_step": 0, "loss": 0.1, "grad_norm": 0.4, "clip/active": 0.0},
        {"kind": "update", "rollout_step": 0, "optimizer_step": 1, "loss": 0.2, "ratio/token_max": 1.5},
        {"kind": "evaluation", "rollout_step": 1, "optimizer_step": 2, "eval/accuracy_expected": 0.3},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "outcome.json").write_text(json.dumps({"outcome": "diverged"}))
    *log, last = doctor_peers.trl_log(tmp_path)
    assert last["step"] == 3
    assert math.isnan(last["loss"])
    assert log == [
        {"step": 1, "loss": 0.1, "grad_norm": 0.4, "clip_ratio/region_mean": 0.0, "reward": 0.5}
        | {"frac_reward_zero_std": 0.25},
        {"step": 2, "loss": 0.2},
        {"step": 2, "eval_reward": 0.3},
    ]


def test_doctor_peers_counts_what_each_tool_names() -> None:
    answers = pd.DataFrame({"planted": ["kl_explosion", "dropout", doctor_check.NO_CAUSE]})
    answers[doctor_peers.FOLDER] = [["kl_explosion"], ["dropout"], []]
    answers[doctor_peers.OURS] = [["destroyed_policy", "kl_explosion"], [], []]
    answers[doctor_peers.RLDOCTOR] = [["kl_drift"], ["kl_drift"], ["plateau"]]
    answers[doctor_peers.HARNESS] = [[], [], []]
    scores = doctor_peers.scores(answers).set_index("tool")
    assert scores.loc[doctor_peers.OURS].tolist() == ["1 of 2", "0 of 2", "1 of 2", "0 of 1"]
    assert scores.loc[doctor_peers.RLDOCTOR].tolist() == ["1 of 2", "1 of 2", "1 of 1", "1 of 1"]
    assert scores.loc[doctor_peers.HARNESS].tolist() == ["0 of 2", "0 of 2", "0 of 0", "0 of 1"]


def with_trl(script: str, *arguments: str) -> str:
    """What a script of benchmarks/ prints in TRL's own environment."""
    command = [TRL_PYTHON, ROOT / "benchmarks" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # three processes that import TRL, torch and MLflow
@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="no TRL: make bench WHAT=trl makes its environment")
def test_step_vs_trl() -> None:
    shown = with_trl("step_vs_trl.py", "--steps", "8", "--rounds", "1")
    rows = re.findall(
        r"^(bare|bare, diagnostics off|tracking) +([14]) +([\d.]+) ms +([\d.]+) ms +([\d.]+)x$", shown, re.M
    )
    assert len(rows) == 6
    for _, _, theirs, ours, ratio in rows:
        assert float(ratio) == pytest.approx(float(theirs) / float(ours), rel=0.02)
        assert 0.2 < float(ratio) < 50
    least = min(float(ratio) for name, *_, ratio in rows if name == "tracking")
    assert shown.endswith(f"the smaller ratio: {least:.1f}x\n")


@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="no TRL: make bench WHAT=conformance makes its environment")
def test_conformance_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs of a seed that is nowhere else."""
    with_trl("trl_vectors.py", str(tmp_path), "12", "5")
    assert grpolab(["conformance", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replayed"] == 5
