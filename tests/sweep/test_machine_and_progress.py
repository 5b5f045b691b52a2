"""Slots for the cores and GPUs that there are, and a progress that adds up."""

import io
import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from grpolab.sweep import pool, progress
from grpolab.sweep.jobs import Job
from grpolab.sweep.ledger import JournalReader, cells_of_row, duration, variant_row
from grpolab.sweep.pool import slots
from grpolab.sweep.progress import Estimate, Progress, show_progress


@pytest.fixture
def fake_gpus(tmp_path, monkeypatch):
    """`nvidia-smi -L` lists two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho 'GPU 1: H200 (UUID: b)'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_one_worker_per_core_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8))
    assert len(slots(None, False, 1, tmp_path)) == 8
    assert len(slots(None, False, 3, tmp_path)) == 2
    assert len(slots(3, False, 1, tmp_path)) == 3
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert len(slots(None, False, 1, tmp_path)) == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert len(slots(None, False, 1, tmp_path)) == 8
    assert slots(1, False, 2, tmp_path)[0].environment["OMP_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("fake_gpus")
def test_one_worker_per_gpu_and_each_its_own(tmp_path, monkeypatch):
    def devices(jobs):
        return [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots(jobs, True, 1, tmp_path)]

    assert devices(None) == ["0", "1"]
    assert devices(3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert devices(None) == ["5"]
    assert "CUDA_VISIBLE_DEVICES" not in slots(None, False, 1, tmp_path)[0].environment


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")]
)
def test_duration(seconds, said):
    assert duration(seconds) == said


def jobs(kind="run"):
    return [Job(kind, name, f"study {name}, seed 0", {}, 10.0, 5) for name in ("a", "b", "c")]


def journal(results, signature, *records):
    """Add records to a run's journal."""
    results.run(signature).mkdir(parents=True, exist_ok=True)
    with (results.run(signature) / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def evaluation(step, accuracy):
    return {"kind": "evaluation", "rollout_step": step, "eval/accuracy_expected": accuracy}


def update(iteration, low, high, least, most):
    clipped = {"clip/active_low": low, "clip/active_high": high, "clip/active": low + high}
    ratios = {"ratio/token_min": least, "ratio/token_max": most}
    return {"kind": "update", "rollout_step": 0, "iteration": iteration, "minibatch": 0, **clipped, **ratios}


RUN = [
    evaluation(0, 0.3),
    update(0, 0.0, 0.0, 1.0, 1.0),
    update(1, 0.01, 0.02, 0.5, 1.5),
    update(2, 0.03, 0.04, 0.25, 4.0),
    {"kind": "rollout", "rollout_step": 0, "reward/mean": 0.2, "entropy/behaviour": 0.7},
    {"kind": "rollout", "rollout_step": 1, "reward/mean": 0.5, "entropy/behaviour": 0.6},
    evaluation(2, 0.45),
]


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_follows_the_speed_of_the_steps_and_then_of_whole_runs(clock, results):
    first, second, third = jobs()
    shown = Progress([first, second, third], Estimate(workers=2), results)
    assert shown.left() == "no estimate yet", "nothing that was done here says how long a run takes"
    shown.started(first, 0)
    clock[0] = 4.0
    shown.stepped(first, 1)
    assert shown.left() == "no estimate yet", "a run's first step has a model to make and to evaluate"
    clock[0] = 6.0
    shown.stepped(first, 2)  # a fifth of a cost of 10 in 2 s: 1 s a unit; 26 units are left for two workers
    assert shown.left() == "about 13 s left"
    shown.finished(first, {"outcome": "completed", "seconds": 20.0})  # 2 s a unit, with all that it did
    assert shown.left() == "about 20 s left"
    shown.finished(second, {"outcome": "failed", "reason": "x"})  # one that was never started
    assert shown.left() == "about 10 s left"
    assert shown.count() == "[2/3]"
    shown.finished(third, {"outcome": "completed"})
    assert shown.left() == "", "and never about 0 s of nothing"


def test_warm_starts_count_by_themselves_and_have_their_own_speed(clock, results, capsys):
    warm, other, _ = jobs("warm_start")
    run = Job("run", "r", "study r, seed 0", {}, 10.0, 5)
    shown = Progress([warm, other, run], Estimate(workers=1), results)
    shown.started(warm, 0)
    shown.stepped(warm, 1)
    clock[0] = 2.0
    shown.stepped(warm, 2)  # 2 s for a fifth of it: at most 6 s more, and 10 s for the other
    assert shown.left() == "warm starts: at most 16 s left, runs: no estimate yet"
    shown.finished(warm, {"outcome": "completed", "seconds": 3.0})  # it was good enough early
    assert shown.left() == "warm starts: about 3 s left, runs: no estimate yet"
    said = "[warm start 1/2] completed: study a, seed 0, 3 s (warm starts: about 3 s left, runs: no estimate yet)\n"
    assert capsys.readouterr().out == said
    shown.estimate.speed["run"].learn(10.0, 30.0, whole=True)
    assert shown.left() == "about 33 s left"


def test_plain_progress_is_not_silent_for_long_and_says_how_it_goes(clock, results, capsys):
    (job, *_) = jobs()
    shown = Progress([job], Estimate(1), results)
    shown.started(job, 0)
    journal(results, job.signature, *RUN)
    shown.stepped(job, 1)
    clock[0] = 61.0
    shown.stepped(job, 2)
    where = "study a, seed 0 step 2/5, accuracy 0.300 -> 0.450, clip 7.0%"
    assert capsys.readouterr().out == f"[0/1] running: {where} (about 3 min left)\n"


def test_the_steps_of_an_earlier_sitting_are_not_thought_fast(clock, results):
    (job, *_) = jobs()
    shown = Progress([job], Estimate(1), results)
    shown.started(job, 0)
    clock[0] = 3.0
    shown.stepped(job, 3)  # the first word of this sitting
    clock[0] = 5.0
    shown.stepped(job, 4)
    assert shown.left() == "about 2 s left"


def test_live_table_shows_counts_and_each_worker(clock, results, monkeypatch):
    first, second, third = jobs()
    (warm, *_) = jobs("warm_start")
    warm = replace(warm, signature="w", label="warm start addition, seed 0")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with show_progress([warm, first, second, third], Estimate(2), results) as shown:
        shown.console = Console(file=io.StringIO(), width=200)
        shown.started(first, 0)
        shown.started(second, 1)
        shown.started(warm, 2)
        journal(results, first.signature, *RUN)
        shown.stepped(warm, 4)
        shown.stepped(first, 2)
        clock[0] = 2.0
        shown.stepped(first, 3)
        shown.finished(second, {"outcome": "diverged", "reason": "loss\nis nan"})
        screen = Console(file=io.StringIO(), width=200)
        screen.print(shown.draw())
        text = " ".join(screen.file.getvalue().split())
        said = shown.console.file.getvalue()
    assert "[1/3] · warm starts 0/1 · diverged 1 · running 2 · " in text
    assert "worker 0 study a, seed 0 step 3/5 2 s a step accuracy 0.300 -> 0.450, clip 7.0%" in text
    assert "worker 2 warm start addition, seed 0 step 4/5 at most" in text
    assert said == "diverged: study b, seed 0: loss\n", "what is not as it should be scrolls by, with its first line"


def test_a_journal_is_read_as_it_grows_and_anew_where_it_was_cut_back(results):
    journal(results, "a", *RUN[:3])
    reader = JournalReader(results.run("a"))
    assert reader.read().facts() == {
        **{"accuracy_start": 0.3, "accuracy_end": 0.3, "clip_low": 0.01, "clip_high": 0.02},
        **{"ratio_min": 0.5, "ratio_max": 1.5},
    }
    file = results.run("a") / "journal.jsonl"
    before = file.read_bytes()
    journal(results, "a", *RUN[3:])
    file.write_bytes(file.read_bytes() + b'{"kind": "half a li')
    facts = reader.read().facts()
    assert {name: facts[name] for name in ("accuracy_end", "reward_start", "reward_end", "entropy_end")} == {
        **{"accuracy_end": 0.45, "reward_start": 0.2, "reward_end": 0.5, "entropy_end": 0.6}
    }
    assert facts["clip_low"] == pytest.approx(0.02), "the mean over the optimiser steps after the first of a batch"
    assert (facts["ratio_min"], facts["ratio_max"]) == (0.25, 4.0)
    file.write_bytes(before)
    assert reader.read().facts()["ratio_max"] == 1.5


def test_a_table_has_the_means_of_a_variant_over_its_runs(results):
    journal(results, "a", *RUN)
    facts = JournalReader(results.run("a")).read().facts()
    other = {**facts, "accuracy_end": 0.55, "ratio_max": 8.0}
    row = variant_row([({"outcome": "completed", "seconds": 2.0}, facts), ({"outcome": "diverged"}, other)])
    assert cells_of_row("wide", row) == [
        *("wide", "1 completed, 1 diverged", "0.300 -> 0.500", "0.200 -> 0.500"),
        *("2.0%, 3.0%", "0.700 -> 0.600", "0.25 to 8", "2 s"),
    ]
