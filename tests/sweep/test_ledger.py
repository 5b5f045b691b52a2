"""The ledger is what the folders say: outcomes, live and dead owners, what is missing, and what came out."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from sweep_journals import RUN, write_journal

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import write_json_atomic
from grpolab.run.lease import HERE, LEASE_SECONDS, Lease
from grpolab.studies.facts import JournalReader, average_runs, duration, format_row
from grpolab.studies.status import status

NOW = 1_800_000_000.0


@pytest.fixture
def plan(results):
    """A planned study of six cells, none of which has run."""
    cells = [{"variant": f"v{i}", "seed": 0, "signature": f"{i:016x}"} for i in range(6)]
    write_json_atomic(results.plan("mine"), {"includes": [], "cells": cells})
    write_json_atomic(results.plan("all"), {"includes": ["mine"], "cells": []})
    return [cell["signature"] for cell in cells]


def beat(results, signature, silent=0.0, where=None, **holder):
    """A run that this process does, or the `holder`, who has touched its lease so many seconds ago."""
    folder = results.run(signature)
    progress = {"host": socket.gethostname(), "pid": os.getpid(), "rollout_step": 3, "rollout_steps": 9, "time": NOW}
    write_json_atomic(folder / "running.json", progress | (where or {}))
    if not holder:
        assert Lease(folder).attempt()
        return
    write_json_atomic(folder / ".lease-1", HERE.holder() | holder)
    os.utime(folder / ".lease-1", (time.time() - silent,) * 2)


def timing(results, signature, *rows, torn=""):
    file = results.run(signature) / "timing.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"rollout_step": step, "seconds/elapsed": seconds, "x": "-" * 200}) for step, seconds in rows]
    file.write_text("\n".join([*lines, torn]))


def test_states_of_all_kinds(results, plan):
    for signature, outcome in zip(plan, ("completed", "stopped", "failed"), strict=False):
        write_json_atomic(results.run(signature) / "outcome.json", {"outcome": outcome, "reason": "because\nof it"})
    beat(results, plan[0])  # an outcome counts more than a heartbeat that was left behind
    beat(results, plan[3])
    (results.run(plan[4])).mkdir(parents=True)
    (results.run(plan[4]) / "outcome.json").write_text('{"outcome": "comp')
    rows = status(results, "all", NOW)["mine"]["cells"]
    assert [row["state"] for row in rows] == ["completed", "stopped", "failed", "running", "damaged", "missing"]
    assert (rows[3]["rollout_step"], rows[3]["rollout_steps"]) == (3, 9)


def test_a_dead_owner_does_not_run(results, plan):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    beat(results, plan[0], pid=gone.pid)
    beat(results, plan[1], process_start=1.0)  # the number was given to another process
    beat(results, plan[2], host="elsewhere", silent=LEASE_SECONDS + 1)
    beat(results, plan[3], host="elsewhere", silent=5)
    found = [row["state"] for row in status(results, "mine", NOW)["mine"]["cells"]]
    assert found == ["missing", "missing", "missing", "running", "missing", "missing"]


def test_status_prints_counts_failures_and_who_runs(results, plan, capsys):
    write_json_atomic(results.run(plan[2]) / "outcome.json", {"outcome": "failed", "reason": "because\nof it"})
    beat(results, plan[3])
    assert main(["status", "mine", "--results", str(results.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: 6 planned: 1 failed, 4 missing, 1 running"
    assert f"  failed: v2, seed 0 ({plan[2]}): because" in lines
    where = f"step 3 of 9 on {socket.gethostname()} (pid {os.getpid()}), heartbeat 0 s ago, no estimate yet"
    assert f"  running: v3, seed 0 ({plan[3]}): {where}" in lines


def test_time_left_follows_the_mean_step_and_the_age_of_the_heartbeat(results, plan):
    beat(results, plan[0], where={"rollout_step": 100, "rollout_steps": 150, "time": NOW - 4})
    timing(results, plan[0], *((step, 2.0 * (step + 1)) for step in range(100)), torn='{"rollout_step": 100, "sec')
    row = status(results, "mine", NOW)["mine"]["cells"][0]
    assert (row["heartbeat_seconds_ago"], row["seconds_left"]) == (4.0, 96.0)


def test_an_interrupted_run_is_missing_and_says_where_it_stands(results, plan, capsys):
    beat(results, plan[0], process_start=1.0)
    timing(results, plan[0], (0, 2.0), (1, 4.0))
    timing(results, plan[1], torn='{"roll')
    rows = status(results, "mine", NOW)["mine"]["cells"]
    assert (rows[0]["state"], rows[0]["interrupted_at_step"]) == ("missing", 2)
    assert "interrupted_at_step" not in rows[1]
    main(["status", "mine", "--results", str(results.root)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "mine: 6 planned: 6 missing",
        f"  missing: v0, seed 0 ({plan[0]}): interrupted at step 2, will go on",
    ]


def test_unplanned_study_is_refused_with_those_that_are(results, plan):
    with pytest.raises(RequestError, match="planned are all, mine"):
        status(results, "mime", NOW)


def test_status_of_a_thousand_runs_takes_two_seconds_and_no_heavy_import(results):
    cells = [{"variant": "v", "seed": i, "signature": f"{i:016x}"} for i in range(1000)]
    write_json_atomic(results.plan("big"), {"includes": [], "cells": cells})
    for cell in cells:
        folder = results.run(cell["signature"])
        folder.mkdir(parents=True)
        if cell["seed"] % 2:
            (folder / "outcome.json").write_text(json.dumps({"outcome": "completed"}))
        else:
            beat(results, cell["signature"])
            timing(results, cell["signature"], *((step, step) for step in range(100)))
    code = f"""
import sys, time
from grpolab.cli import main
assert main(["status", "big", "--results", {str(results.root)!r}]) == 0
print([name for name in ("torch", "hydra", "omegaconf", "mlflow", "numpy", "rich") if name in sys.modules])
print(time.process_time())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *_, heavy, seconds = done.stdout.splitlines()
    assert first == "big: 1000 planned: 500 completed, 500 running"
    assert heavy == "[]"
    assert float(seconds) < 2, "imports included"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")]
)
def test_duration(seconds, said):
    assert duration(seconds) == said


def test_a_journal_is_read_as_it_grows_and_anew_where_it_was_cut_back(results):
    write_journal(results, "a" * 16, *RUN[:3])
    reader = JournalReader(results.run("a" * 16))
    assert reader.read().facts() == {
        **{"accuracy_start": 0.3, "accuracy_end": 0.3, "clip_low": 0.01, "clip_high": 0.02},
        **{"ratio_min": 0.5, "ratio_max": 1.5},
    }
    file = results.run("a" * 16) / "journal.jsonl"
    before = file.read_bytes()
    write_journal(results, "a" * 16, *RUN[3:])
    file.write_bytes(file.read_bytes() + b'{"kind": "half a li')
    facts = reader.read().facts()
    assert {name: facts[name] for name in ("accuracy_end", "reward_start", "reward_end", "entropy_end")} == {
        **{"accuracy_end": 0.45, "reward_start": 0.2, "reward_end": 0.5, "entropy_end": 0.6}
    }
    assert facts["clip_low"] == pytest.approx(0.02), "the mean over the optimiser steps after the first of a batch"
    assert (facts["ratio_min"], facts["ratio_max"]) == (0.25, 4.0)
    file.write_bytes(before)
    assert reader.read().facts()["ratio_max"] == 1.5


def test_a_reward_that_never_moves_is_seen_and_one_that_does_is_not(results):
    still = [{"kind": "rollout", "reward/mean": 0.0, "reward/std": 0.0}] * 3
    write_journal(results, "a" * 16, *still)
    reader = JournalReader(results.run("a" * 16))
    assert reader.read().constant_reward == 0
    write_journal(results, "b" * 16, *still, {"kind": "rollout", "reward/mean": 0.01, "reward/std": 0.1})
    assert JournalReader(results.run("b" * 16)).read().constant_reward is None
    write_journal(results, "c" * 16, {"kind": "rollout", "reward/mean": 0.5, "reward/std": 0.5})
    assert JournalReader(results.run("c" * 16)).read().constant_reward is None, "one batch, and its rewards differ"
    write_journal(results, "d" * 16, {"kind": "evaluation", "eval/accuracy_expected": 0.5})
    assert JournalReader(results.run("d" * 16)).read().constant_reward is None, "none is known"


def test_a_table_has_the_means_of_a_variant_over_its_runs(results):
    write_journal(results, "a" * 16, *RUN)
    facts = JournalReader(results.run("a" * 16)).read().facts()
    other = {**facts, "accuracy_end": 0.55, "ratio_max": 8.0}
    row = average_runs([({"outcome": "completed", "seconds": 2.0}, facts), ({"outcome": "diverged"}, other)])
    assert format_row("wide", row) == [
        *("wide", "1 completed, 1 diverged", "0.300 -> 0.500", "0.200 -> 0.500"),
        *("2.0%, 3.0%", "0.700 -> 0.600", "0.25 to 8", "2 s"),
    ]
