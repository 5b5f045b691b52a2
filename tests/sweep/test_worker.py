"""Real workers on a study of seconds, and a parent that stays light. Their number and their deaths: the kill storm."""

import os
import signal
import subprocess
import sys

import pytest

from grpolab.cli import main
from grpolab.paths import Results, read_json, write_text_atomic
from grpolab.run.train import run
from grpolab.run.warm_start import ensure
from grpolab.studies.command_line import cell_of, expand_multirun
from grpolab.studies.progress import Progress
from grpolab.studies.sweep import sweep
from grpolab.studies.train import train
from grpolab.sweep.compose import compose
from grpolab.sweep.engine import WorkerPool, worker_slots
from grpolab.sweep.jobs import Request, Schedule
from grpolab.sweep.plan import plans

TINY = [
    *("task.length=3", "model.hidden_size=16", "model.layers=1", "prompts_per_step=2", "num_generations=4"),
    *("warm_start.max_steps=4", "warm_start.check_every=2", "warm_start.check_items=20", "evaluation.items=20"),
    *("rollout_steps=2", "machine.tracking_uri=null"),
]
SIX_STEPS = [*TINY, "rollout_steps=6", "evaluation.every=1"]


def interrupt_at_first_step(monkeypatch):
    """SIGTERM once, when the first step of a run is told."""
    stepped, interrupted = Progress.stepped, []

    def also(progress, job, step):
        stepped(progress, job, step)
        if job.kind == "run" and not interrupted:
            interrupted.append(step)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Progress, "stepped", also)


@pytest.mark.slow
def test_a_run_of_train_is_the_run_of_the_sweep_also_when_it_was_interrupted(tmp_path, monkeypatch, capsys):
    assert sweep(plans("smoke", [*TINY, f"machine.results={tmp_path / 'swept'}"], seeds=[1]), 1, report=False) == 0
    journals = {file.parent.name: file.read_bytes() for file in tmp_path.glob("swept/runs/*/journal.jsonl")}
    same = ["task=sorting", "warm_start.batch_size=64", "max_completion_length=6", "evaluation.every=3", "kernel=ratio"]
    overrides = [*same, *TINY, "seed=1", f"machine.results={tmp_path}"]
    cell = cell_of(compose(overrides), overrides)
    interrupt_at_first_step(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        train(cell, "adhoc", overrides)
    assert "[warm start 1/1] completed: warm start sorting, seed 1: accuracy 0.000, its" in capsys.readouterr().out
    write_text_atomic(report := tmp_path / "studies" / "adhoc" / "report.md", "of a sweep before")
    (checkpoint,) = tmp_path.glob("runs/*/checkpoint/latest.pt")
    assert not (checkpoint.parents[1] / "outcome.json").exists()
    assert train(cell, "adhoc", overrides) == 0
    (file,) = tmp_path.glob("runs/*/journal.jsonl")
    assert file.read_bytes() == journals[file.parent.name]
    said = capsys.readouterr().out
    assert "[1/1] completed: adhoc task=sorting,warm_start.batch_size=64,+" in said, "a label is short"
    columns = [line.split("  ")[1].strip() for line in said.splitlines() if line.startswith("  ")]
    assert columns == ["accuracy", "reward", "clip low, high", "entropy", "token ratio"], "what came out of it"
    assert str(report) not in said, "it draws none: what lies there is another sweep's"


def test_a_run_that_cannot_learn_says_so_before_and_after(tmp_path, capsys):
    small = ["model.hidden_size=8", "model.heads=2", "model.intermediate_size=8", "prompts_per_step=2"]
    small += ["num_generations=2", "rollout_steps=2", "evaluation.items=2", "warm_start.max_steps=0"]
    small += [f"machine.results={tmp_path}", "machine.tracking_uri=null"]
    assert main(["train", *small]) == 0
    (folder,) = tmp_path.glob("runs/*")
    said = capsys.readouterr()
    assert said.err.startswith("warning nothing-to-start-from: model=tiny has random weights, and no warm start")
    of_all = "it is 0 for every completion of the run"
    why = f"`grpolab diagnose {folder.name} --results {tmp_path}` says why"
    assert f"\nthe reward never moved: {of_all}; {why}\nrun folder: " in said.out
    assert ", the reward never moved\n" in said.out, "in the line of the run that is done"
    assert sweep([expand_multirun([*small, "seed=0"])], report=False) == 0
    assert f"\nthe reward never moved: {of_all}; {why}\n1 run: 1 completed" in capsys.readouterr().out
    assert main(["train", *small, "seed=1"]) == 0
    capsys.readouterr()
    assert sweep([expand_multirun([*small, "seed=0,1"])], report=False) == 0
    assert "the reward never moved in 2 of 2 runs, first adhoc " in capsys.readouterr().out


def test_what_a_library_prints_does_not_reach_the_protocol():
    code = """
import os
from grpolab.sweep.worker import claim_stdout
send = claim_stdout()
print("noise", flush=True)
os.system("echo more noise")
send({"event": "ready"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == '{"event": "ready"}\n'
    assert done.stderr == "noise\nmore noise\n"


def test_the_parent_imports_nothing_heavy():
    code = """
import sys
import grpolab.run.tracking, grpolab.studies.ui
assert "hydra" not in sys.modules
import grpolab.cli, grpolab.studies.sweep, grpolab.studies.train, grpolab.sweep.plan, grpolab.sweep.compose
from grpolab.studies.command_line import cell_of, expand_multirun
from grpolab.sweep.plan import plans
plans("clip_range")
print([name for name in ("torch", "transformers", "mlflow", "datasets", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Leaver:
    """Has the first run left after its second step."""

    def __init__(self, pool, leave):
        self.pool, self.leave, self.left = pool, leave, None
        self.outcomes, self.workers = {}, set()

    def started(self, job, _slot):
        self.workers.add(self.pool.workers[0].process.pid)

    def stepped(self, job, step):
        if job.kind == "run" and self.leave and self.left in (None, job.signature) and step >= 2:
            self.left = job.signature
            self.pool.leave(job.signature)

    def finished(self, job, outcome):
        self.outcomes[job.signature] = outcome["outcome"]


def train_and_leave(root, leave):
    request = Request(plans("smoke", [*SIX_STEPS, f"machine.results={root}"], seeds=[0]))
    pool = WorkerPool(request.results, worker_slots(1, uses_gpu=False, threads=1), root)
    leaver = Leaver(pool, leave)
    pool.run(Schedule(request.jobs()), leaver)
    return request.results, leaver


@pytest.mark.slow
def test_a_run_that_is_left_has_no_outcome_and_goes_on_bit_for_bit(tmp_path):
    results, leaver = train_and_leave(tmp_path / "left", leave=True)
    folder = results.run(leaver.left)
    assert sorted(leaver.outcomes.values()) == ["completed", "completed", "missing"]  # a warm start and two runs
    assert len(leaver.workers) == 1, "the worker lives on"
    assert not (folder / "outcome.json").exists()
    begun = (folder / "journal.jsonl").read_bytes()
    assert 2 <= begun.count(b'"kind":"rollout"') < 6
    train_and_leave(tmp_path / "left", leave=False)
    straight = Results.open(tmp_path / "straight")  # in this process
    for cell in plans("smoke", SIX_STEPS, seeds=[0])[0].cells:
        ensure(cell.settings, straight)
        assert run(cell.settings, straight)["outcome"] == "completed"
    assert (folder / "journal.jsonl").read_bytes().startswith(begun)
    for name in filter(lambda name: results.run(name).exists(), leaver.outcomes):
        left, whole = results.run(name), straight.run(name)
        assert (left / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()
        assert read_json(left / "outcome.json")["policy_sha256"] == read_json(whole / "outcome.json")["policy_sha256"]
