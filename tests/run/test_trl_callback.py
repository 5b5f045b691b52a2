"""The callback that writes a run folder while TRL trains: its rows, its outcome, resuming, and the installed TRL."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tiny import records as journal
from transformers import TrainerControl, TrainerState

from grpolab.cli import main
from grpolab.doctor import examine
from grpolab.doctor.other_runs import find_gaps, find_runs, make_study
from grpolab.doctor.run_folder import read_run
from grpolab.meanings import METRICS, POSITIONS
from grpolab.paths import Results, project_root
from grpolab.readers.log_folders import find_all
from grpolab.readers.trl_callback import RunFolder
from grpolab.studies import housekeeping
from grpolab.studies.housekeeping import find_unneeded

PYTHON = Path(os.environ.get("TRL_PYTHON", project_root() / ".venv-bench" / "bin" / "python"))


def arguments(**changes: Any) -> SimpleNamespace:
    """What the callback reads of a GRPOConfig: two passes over a batch, in two minibatches."""
    given = {
        **{"seed": 3, "beta": 0.04, "num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2},
        **{"learning_rate": 1e-6, "num_generations": 8, "epsilon": 0.2, "max_grad_norm": 1.0, "logging_steps": 1},
        **{"output_dir": "out", "hub_token": "secret"},
        **changes,
    }
    return SimpleNamespace(**given, to_sanitized_dict=lambda: given)


class FakeTraining:
    """TRL's trainer as its callbacks see it."""

    def __init__(self, results: Path, args: SimpleNamespace, begin: int = 0, steps: int = 8) -> None:
        self.args, self.state = args, TrainerState(global_step=begin, max_steps=steps)
        self.callback, self.control = RunFolder(results), TrainerControl()
        self.callback.on_train_begin(args, self.state, self.control)

    @property
    def folder(self) -> Path:
        assert self.callback.folder
        return self.callback.folder

    def steps(self, n: int, **logged: float) -> FakeTraining:
        for _ in range(n):
            logs = {"loss": 0.01, "grad_norm": 0.5, "clip_ratio/region_mean": 0.02, "entropy": 1.0, **logged}
            if self.state.global_step % 4 == 0:
                logs |= {"reward": 0.5, "frac_reward_zero_std": 0.25, "completions/max_length": 9.0}
            self.state.global_step += 1
            self.callback.on_log(self.args, self.state, self.control, logs=logs)
        return self

    def end(self) -> dict[str, Any]:
        folder = self.folder
        self.callback.on_log(self.args, self.state, self.control, logs={"train_runtime": 1.0, "train_loss": 0.1})
        self.callback.on_train_end(self.args, self.state, self.control)
        return json.loads((folder / "outcome.json").read_text())


def test_a_relative_folder_is_below_the_scripts_and_is_said_with_what_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = FakeTraining(Path("my results"), arguments()).steps(4).folder
    assert folder.parent == tmp_path / "my results" / "runs"
    assert f"`grpolab diagnose '{folder}'` reads it" in capsys.readouterr().err
    assert main(["diagnose", str(folder), "--results", str(tmp_path / "others")]) == 0


def test_rows_are_in_our_vocabulary_and_say_their_place_in_the_batch(tmp_path: Path) -> None:
    training = FakeTraining(tmp_path, arguments()).steps(8)
    rows = journal(training.folder)
    assert {name for row in rows for name in row} <= {*METRICS, *POSITIONS}
    updates = [row for row in rows if row["kind"] == "update"]
    places = [(row["rollout_step"], row["iteration"], row["minibatch"]) for row in updates]
    assert places == [(step, iteration, minibatch) for step in (0, 1) for iteration in (0, 1) for minibatch in (0, 1)]
    assert [row["clip/active"] for row in updates] == [0.02] * 8
    rollouts = [(row["rollout_step"], row["reward/mean"]) for row in rows if row["kind"] == "rollout"]
    assert rollouts == [(0, 0.5), (1, 0.5)]


def test_the_doctor_reads_it_live_and_the_outcome_comes_last(tmp_path: Path) -> None:
    training = FakeTraining(tmp_path, arguments()).steps(5)
    folder = training.folder
    assert examine(read_run(folder)).state.startswith("still going, after 2 rollout steps of 2")
    assert not (folder / "outcome.json").exists()
    outcome = training.steps(3).end()
    assert (outcome["outcome"], outcome["reason"], outcome["rollout_steps"]) == ("completed", None, 2)
    assert not (folder / "running.json").exists()
    run = read_run(folder)
    assert (run.framework, run.updates_per_batch, run.settings["num_minibatches"]) == ("trl", 4, 2)
    provenance = json.loads((folder / "provenance.json").read_text())
    assert "hub_token" not in provenance["framework"]["arguments"]
    found, _ = find_runs("trl", find_all([str(tmp_path / "runs")]))
    _, runs, _ = make_study(Results(tmp_path), "x", found, {}, None)
    assert not any("may still train" in gap for gap in find_gaps(runs))
    assert found[0].log.config["seed"] == yaml.safe_load((folder / "settings.yaml").read_text())["seed"] == 3


def test_a_mean_over_several_updates_has_no_place_and_a_run_that_is_not_finite_diverged(tmp_path: Path) -> None:
    training = FakeTraining(tmp_path, arguments(logging_steps=4)).steps(1)
    assert "iteration" not in journal(training.folder)[0]
    outcome = FakeTraining(tmp_path, arguments()).steps(2, grad_norm=float("nan")).end()
    assert (outcome["outcome"], outcome["reason"]) == ("diverged", "grad_norm is not finite in the last log")


def test_a_resumed_run_goes_on_from_its_checkpoint_and_nothing_is_twice(tmp_path: Path) -> None:
    killed = FakeTraining(tmp_path, arguments()).steps(6)
    resumed = FakeTraining(tmp_path, arguments(), begin=4)
    assert resumed.folder == killed.folder
    outcome = resumed.steps(4).end()
    assert [row["optimizer_step"] for row in journal(killed.folder) if row["kind"] == "update"] == list(range(8))
    assert outcome["optimizer_steps"] == 8


def test_a_run_is_never_written_over_nor_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "available", list)  # to plan every study takes a minute
    first = FakeTraining(tmp_path, arguments()).steps(1)
    again = FakeTraining(tmp_path, arguments(output_dir="elsewhere"))
    other = FakeTraining(tmp_path, arguments(beta=0.0))
    assert again.folder.name == f"{first.folder.name}-2"
    assert other.folder.name not in (first.folder.name, again.folder.name)
    assert journal(first.folder)
    first.steps(7).end()
    assert list(find_unneeded(Results(tmp_path))) == []


def test_a_disk_that_refuses_stops_the_record_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = FakeTraining(tmp_path, arguments()).steps(1)

    def refuse() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training.callback._journal, "flush", refuse)
    training.steps(3)
    training.callback.on_train_end(training.args, training.state, training.control)
    assert capsys.readouterr().err.count("No space left on device") == 1


TRAINING = """
import sys
sys.path.insert(0, sys.argv[1])
import run_vs_trl as bench
from pathlib import Path
from datasets import load_dataset
from peer_trl import begin, make_trainer
from grpolab.readers.trl_callback import RunFolder
folder = Path(sys.argv[2])
begin()
bench.prepare(folder, "addition")
trainer = make_trainer(
    folder, folder / "addition", bench.score_exactly,
    {"train_dataset": load_dataset("json", data_files=str(folder / "addition" / "train.jsonl"), split="train")},
    seed=1, per_device_train_batch_size=32, num_generations=8, max_completion_length=8, num_iterations=2, max_steps=6,
    epsilon=0.02, learning_rate=1e-3, logging_steps=1, report_to="none",
)
trainer.add_callback(RunFolder(folder / "results"))
trainer.train()
"""


@pytest.mark.optional
@pytest.mark.skipif(not PYTHON.exists(), reason="no TRL: make bench WHAT=trl makes one")
def test_the_installed_trl(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(project_root() / "src"), "OMP_NUM_THREADS": "1"}
    words = [str(PYTHON), "-c", TRAINING, str(project_root() / "benchmarks"), str(tmp_path)]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=280)
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    run = read_run(folder)
    assert run.state.startswith("completed after 3 rollout steps")
    assert run.first["clip/active"].tolist() == [0.0] * 3, "before the first step on a batch every ratio is 1"
    assert run.later["clip/active"].min() > 0
    assert {"reward/mean", "zero_variance/share", "length/mean", "entropy/behaviour"} <= set(run.rollouts)
    assert json.loads((folder / "provenance.json").read_text())["framework"]["version"]
