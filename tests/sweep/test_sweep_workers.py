"""Real workers on a study of seconds, and a parent that stays light. Their number and their deaths: the kill storm."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpolab.paths import write_text_atomic
from grpolab.sweep.launch import sweep, train_here
from grpolab.sweep.ledger import JournalReader
from grpolab.sweep.plan import expand_single, plans
from grpolab.sweep.progress import Progress

TINY = [
    "task.length=3",
    "model.hidden_size=16",
    "model.layers=1",
    "warm_start.max_steps=4",
    "warm_start.check_every=2",
    "warm_start.check_items=20",
    "prompts_per_step=2",
    "num_generations=4",
    "rollout_steps=2",
    "evaluation.items=20",
    "machine.tracking_uri=null",
]


def run(root: Path) -> dict[str, bytes]:
    """Sweep the smoke study's seed 1, made smaller, into a folder: the journals by signature."""
    assert sweep(plans("smoke", [*TINY, f"machine.results={root}"], seeds=[1]), lambda *_: None, jobs=1) == 0
    return {file.parent.name: file.read_bytes() for file in root.glob("runs/*/journal.jsonl")}


def on_first_step(monkeypatch, act):
    """Call `act` once, when the first step of a run is told; the list that is returned has an item then."""
    stepped, done = Progress.stepped, []

    def also(progress, job, step):
        stepped(progress, job, step)
        if job.kind == "run" and not done:
            done.append(step)
            act()

    monkeypatch.setattr(Progress, "stepped", also)
    return done


@pytest.mark.slow
def test_a_run_of_train_is_the_run_of_the_sweep_also_when_it_was_interrupted(tmp_path, monkeypatch, capsys):
    journals = run(tmp_path / "swept")
    same = ["task=sorting", "warm_start.batch_size=64", "max_completion_length=6", "evaluation.every=3", "kernel=ratio"]
    plan = expand_single([*same, *TINY, "seed=1", f"machine.results={tmp_path}"])
    on_first_step(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        train_here(plan)
    assert "[warm start 1/1] completed: warm start sorting, seed 1, " in capsys.readouterr().out
    write_text_atomic(report := tmp_path / "studies" / "adhoc" / "report.md", "of a sweep before")
    (checkpoint,) = tmp_path.glob("runs/*/checkpoint/latest.pt")
    assert not (checkpoint.parents[1] / "outcome.json").exists()
    assert train_here(plan) == 0
    (file,) = tmp_path.glob("runs/*/journal.jsonl")
    assert file.read_bytes() == journals[file.parent.name]
    said = capsys.readouterr().out
    assert "[1/1] completed: adhoc task=sorting,warm_start.batch_size=64,+" in said, "a label is short"
    facts = JournalReader(file.parent).read().facts()
    course = f"{facts['accuracy_start']:.3f} -> {facts['accuracy_end']:.3f}"
    assert [line.split("  ")[1].strip() for line in said.splitlines() if line.startswith("  ")] == [
        *("accuracy", "reward", "clip fraction", "entropy", "token ratio"),
    ]
    assert f"accuracy       {course}" in said, "what came out of it"
    assert str(report) not in said, "it draws none: what lies there is another sweep's"


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
import grpolab.cli, grpolab.sweep.launch, grpolab.sweep.plan, grpolab.sweep.compose
from grpolab.sweep.plan import expand_single, plans
plans("clip_range")
print([name for name in ("torch", "transformers", "mlflow", "datasets", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
