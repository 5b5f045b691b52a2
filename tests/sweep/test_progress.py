"""A progress that adds up; `--json-lines`: a program follows a sweep by standard output, and nothing else is there."""

import io
import json
import signal
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from fake_sweep import wait_for
from rich.console import Console
from sweep_journals import RUN, evaluation, write_journal

from grpolab.studies import progress
from grpolab.studies.progress import Estimate, EventStream, Progress, json_lines, send, show_progress
from grpolab.sweep.jobs import Job


def jobs(kind="run"):
    return [Job(kind, name * 16, f"study {name}, seed 0", {}, 10.0, 5) for name in ("a", "b", "c")]


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
    run = Job("run", "d" * 16, "study r, seed 0", {}, 10.0, 5)
    shown = Progress([warm, other, run], Estimate(workers=1), results)
    shown.started(warm, 0)
    shown.stepped(warm, 1)
    clock[0] = 2.0
    shown.stepped(warm, 2)  # 2 s for a fifth of it: at most 6 s more, and 10 s for the other
    assert shown.left() == "warm starts: at most 16 s left, runs: no estimate yet"
    # It was good enough early, and went back to an earlier step than its journal's last, if it has one.
    shown.finished(warm, {"outcome": "completed", "seconds": 3.0, "accuracy": 0.233})
    assert shown.left() == "warm starts: about 3 s left, runs: no estimate yet"
    said = "[warm start 1/2] completed: study a, seed 0, 3 s, accuracy 0.233 on training prompts"
    assert capsys.readouterr().out == f"{said} (warm starts: about 3 s left, runs: no estimate yet)\n"
    shown.estimate.learn("run", 10.0, 30.0, whole=True)
    assert shown.left() == "about 33 s left"


@pytest.mark.parametrize(
    ("kind", "record", "said"),
    [
        ("warm_start", lambda step, accuracy: {"step": step, "accuracy": accuracy}, "0.300 on training prompts ("),
        ("run", evaluation, "0.300 ("),  # of the same weights, on held-out prompts
    ],
)
def test_the_accuracy_of_a_warm_start_says_that_it_is_of_other_prompts(results, capsys, kind, record, said):
    job, other, _ = jobs(kind)
    job.folder(results).mkdir(parents=True)
    rows = [record(0, 0.1), record(5, 0.3)]
    (job.folder(results) / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = Progress([job, other], Estimate(workers=1), results)
    shown.started(job, 0)
    shown.finished(job, {"outcome": "completed", "seconds": 3.0})
    assert f"0.100 -> {said}" in capsys.readouterr().out


@pytest.mark.parametrize("is_live", [False, True])
def test_a_warm_start_that_did_not_take_says_so(results, capsys, is_live):
    (warm, *_) = jobs("warm_start")
    reason = "accuracy 0.000, its target is 0.3"
    short = {"outcome": "completed", "reason": reason, "seconds": 3.0}
    Progress([warm], Estimate(1), results, is_live).finished(warm, short)
    assert f"completed: study a, seed 0: {reason}" in capsys.readouterr().out


def test_plain_progress_is_not_silent_for_long_and_says_how_it_goes(clock, results, capsys):
    (job, *_) = jobs()
    shown = Progress([job], Estimate(1), results)
    shown.started(job, 0)
    write_journal(results, job.signature, *RUN)
    shown.stepped(job, 1)
    clock[0] = 61.0
    shown.stepped(job, 2)
    where = "study a, seed 0 step 2/5, accuracy 0.300 -> 0.450, clip 7.0%"
    assert capsys.readouterr().out == f"[0/1] running: {where} (about 3 min left)\n"


def test_live_table_shows_counts_and_each_worker(clock, results, monkeypatch):
    first, second, third = jobs()
    (warm, *_) = jobs("warm_start")
    warm = replace(warm, signature="e" * 16, label="warm start addition, seed 0")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with show_progress([warm, first, second, third], Estimate(2), results) as shown:
        shown.console = Console(file=io.StringIO(), width=200)
        shown.started(first, 0)
        shown.started(second, 1)
        shown.started(warm, 2)
        write_journal(results, first.signature, *RUN)
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


def follow(command):
    """Events, standard error and exit code of a command."""
    out, errors = command.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()], errors, command.returncode


def test_a_sweep_as_events(fake_sweep):
    events, errors, code = follow(
        fake_sweep.start("--json-lines", "--jobs", "1", misdeeds={"1": ["crash"], "0": ["kill"]})
    )
    assert (code, errors) == (1, "")
    plan, *middle, end = events
    assert {key: plan[key] for key in ("event", "runs", "done", "to_train", "warm_starts")} == {
        **{"event": "plan", "runs": 4, "done": 0, "to_train": 4, "warm_starts": 2}
    }
    assert plan["studies"] == [{"study": "smoke", "cells": 4, "seeds": [0, 1], "done": 0}]
    assert (end["event"], end["counts"], end["exit_code"]) == ("end", {"completed": 2, "failed": 2}, 1)
    finished = [event for event in middle if event["event"] == "finished"]
    assert Counter((event["kind"], event["outcome"]) for event in finished) == {
        ("warm_start", "completed"): 2,
        ("run", "completed"): 2,
        ("run", "failed"): 2,
    }
    assert {event["reason"] for event in finished} == {None, "worker died (signal 11)"}
    assert [event["reason"] for event in middle if event["event"] == "returned"] == [
        "worker died (signal 9), perhaps out of memory"
    ] * 2
    begun = [event["signature"] for event in middle if event["event"] == "started"]
    assert Counter(begun) == Counter([job[1] for job in fake_sweep.begun()])
    (results,) = (event for event in middle if event["event"] == "results")
    assert [row["runs"] for row in results["variants"].values()] == [{"completed": 1, "failed": 1}] * 2
    steps = [event for event in middle if event["event"] == "step"]
    assert {(event["step"], event["steps"]) for event in steps} == {(1, 12)}
    assert any(note["text"].startswith("4 runs: ") for note in middle if note["event"] == "note")
    assert {event["event"] for event in middle} == {"started", "step", "returned", "finished", "results", "note"}


def test_an_interrupted_sweep_says_so_in_its_last_event(fake_sweep):
    command = fake_sweep.start("--json-lines", "--jobs", "1", seconds=60)
    wait_for(fake_sweep.workers)
    command.send_signal(signal.SIGTERM)
    events, errors, code = follow(command)
    assert (events[-1]["event"], code) == ("interrupted", 130)
    assert errors.startswith("interrupted: ")


def test_a_wrong_request_has_no_event(fake_sweep):
    assert follow(fake_sweep.start("--json-lines", "epsilon=-1"))[::2] == ([], 2)


def test_steps_are_thinned_but_for_the_last(clock, results):
    out, job = io.StringIO(), Job("run", "a" * 16, "study a, seed 0", {}, 10.0, 30)
    write_journal(results, "a" * 16, evaluation(0, 0.25))
    with redirect_stdout(EventStream(out)), show_progress([job], Estimate(1), results) as shown:
        shown.started(job, 0)
        for step in range(1, 31):
            clock[0] += 0.1
            shown.stepped(job, step)
    steps = [event for event in map(json.loads, out.getvalue().splitlines()) if event["event"] == "step"]
    assert (steps[0]["step"], steps[-1]["step"], steps[-1]["accuracy"]) == (1, 30, 0.25)
    assert 3 <= len(steps) <= 5


def test_what_is_printed_is_a_note_a_line(capsys):
    assert not send("end"), "people read the output"
    with json_lines():
        print("one", end="")
        print(" and the same\n\ntwo")
        assert send("end", exit_code=0, left=float("inf"))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event.get("text") for event in said] == ["one and the same", "two", None]
    assert said[-1]["left"] == "inf"
    assert all(event["time"] > 1.7e9 for event in said)
