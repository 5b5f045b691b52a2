"""Slots for the cores and GPUs that there are, and a progress that adds up."""

import io
import os

import pytest
from rich.console import Console

from grpolab.sweep import machine, progress
from grpolab.sweep.estimate import Estimate
from grpolab.sweep.schedule import Job
from grpolab.sweep.wording import duration


@pytest.fixture
def fake_gpus(tmp_path, monkeypatch):
    """`nvidia-smi -L` lists two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho 'GPU 1: H200 (UUID: b)'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_one_worker_per_core_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8))
    assert len(machine.slots(None, False, 1, tmp_path)) == 8
    assert len(machine.slots(None, False, 3, tmp_path)) == 2
    assert len(machine.slots(3, False, 1, tmp_path)) == 3
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert len(machine.slots(None, False, 1, tmp_path)) == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert len(machine.slots(None, False, 1, tmp_path)) == 8
    assert machine.slots(1, False, 2, tmp_path)[0].environment["OMP_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("fake_gpus")
def test_one_worker_per_gpu_and_each_its_own(tmp_path, monkeypatch):
    def devices(jobs):
        return [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in machine.slots(jobs, True, 1, tmp_path)]

    assert devices(None) == ["0", "1"]
    assert devices(3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert devices(None) == ["5"]
    assert "CUDA_VISIBLE_DEVICES" not in machine.slots(None, False, 1, tmp_path)[0].environment


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")]
)
def test_duration(seconds, said):
    assert duration(seconds) == said


def jobs():
    return [Job("run", name, f"study {name}, seed 0", {}, 10.0, 5) for name in ("a", "b", "c")]


def test_time_left_follows_the_speed_of_the_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    first, second, third = jobs()
    shown = progress.Progress([first, second, third], Estimate(None, workers=2))
    assert shown.left() == "no estimate yet"
    shown.started(first, 0)
    now[0] = 4.0
    shown.stepped(first, 1)  # a fifth of a cost of 10 in 4 s: 2 s a unit; 28 units are left for two workers
    assert shown.left() == "about 28 s"
    shown.finished(first, {"outcome": "completed"})
    shown.finished(second, {"outcome": "failed", "reason": "x"})  # one that was never started
    assert shown.left() == "about 10 s"
    assert shown.count() == "[2/3]"


def test_plain_progress_is_not_silent_for_long(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    (job, *_) = jobs()
    shown = progress.Progress([job], Estimate(1.0, 1))
    shown.started(job, 0)
    shown.stepped(job, 1)
    now[0] = 61.0
    shown.stepped(job, 2)
    assert capsys.readouterr().out == "[0/1] running: study a, seed 0 at step 2/5 (about 2 min left)\n"


def test_the_steps_of_an_earlier_sitting_are_not_thought_fast(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    (job, *_) = jobs()
    shown = progress.Progress([job], Estimate(None, 1))
    shown.started(job, 0)
    now[0] = 3.0
    shown.stepped(job, 4)  # the first step of this sitting: a fifth of a cost of 10 in 3 s, and another is left
    assert shown.left() == "about 3 s"


def test_live_table_shows_counts_and_each_worker(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    first, second, third = jobs()
    with progress.LiveProgress([first, second, third], Estimate(1.0, 2)) as shown:
        shown.console = Console(file=io.StringIO(), width=200)
        shown.started(first, 0)
        shown.started(second, 1)
        shown.stepped(first, 2)
        now[0] = 2.0
        shown.stepped(first, 3)
        shown.finished(second, {"outcome": "diverged", "reason": "loss\nis nan"})
        screen = Console(file=io.StringIO(), width=200)
        screen.print(shown.draw())
        text = screen.file.getvalue()
        said = shown.console.file.getvalue()
    assert "[1/3] · diverged 1 · running 1 · " in text
    assert "worker 0" in text
    assert "study a, seed 0" in text
    assert "step 3/5  2 s a step" in text
    assert said == "diverged: study b, seed 0: loss\n", "what is not as it should be scrolls by, with its first line"
