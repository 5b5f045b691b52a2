"""`--json-lines`: a program can follow a sweep from standard output alone, and nothing else is there."""

from __future__ import annotations

import io
import json
import signal
from collections import Counter

from fake_sweep import wait_for

from grpolab.sweep import progress
from grpolab.sweep.jobs import Job
from grpolab.sweep.progress import Estimate, Events, json_lines


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
        **{"event": "plan", "runs": 4, "done": 0, "to_train": 4, "warm_starts": 2},
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


def test_steps_are_thinned_but_for_the_last(monkeypatch, results):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    job = Job("run", "a", "study a, seed 0", {}, 10.0, 30)
    results.run("a").mkdir(parents=True)
    (results.run("a") / "journal.jsonl").write_text('{"kind": "evaluation", "eval/accuracy_expected": 0.25}\n')
    shown = progress.EventProgress([job], Estimate(1), results, Events(out))
    shown.started(job, 0)
    for step in range(1, 31):
        now[0] += 0.1
        shown.stepped(job, step)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert (events[-1]["accuracy"], events[-1]["clip"]) == (0.25, None)
    assert steps[0] == 1
    assert steps[-1] == 30
    assert 3 <= len(steps) <= 5


def test_what_is_printed_is_a_note_a_line(capsys):
    with json_lines() as events:
        print("one", end="")
        print(" and the same\n\ntwo")
        events.send("end", exit_code=0, left=float("inf"))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event.get("text") for event in said] == ["one and the same", "two", None]
    assert said[-1]["left"] == "inf"
    assert all(event["time"] > 1.7e9 for event in said)
