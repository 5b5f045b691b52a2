"""The ledger is what the folders say: outcomes, live and dead owners, and what is missing."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import write_json_atomic
from grpolab.run.heartbeat import LEASE_SECONDS
from grpolab.sweep.ledger import status

NOW = 1_800_000_000.0


@pytest.fixture
def plan(results):
    """A planned study of six cells, none of which has run."""
    cells = [{"variant": f"v{i}", "seed": 0, "signature": f"{i:016x}"} for i in range(6)]
    write_json_atomic(results.plan("mine"), {"includes": [], "cells": cells})
    write_json_atomic(results.plan("all"), {"includes": ["mine"], "cells": []})
    return [cell["signature"] for cell in cells]


def beat(results, signature, **changes):
    me = {"pid": os.getpid(), "process_start": psutil.Process().create_time(), "host": socket.gethostname()}
    where = {"rollout_step": 3, "rollout_steps": 9, "time": NOW}
    write_json_atomic(results.run(signature) / "running.json", me | where | changes)


def test_states_of_all_kinds(results, plan):
    for signature, outcome in zip(plan, ("completed", "diverged", "failed"), strict=False):
        write_json_atomic(results.run(signature) / "outcome.json", {"outcome": outcome, "reason": "because\nof it"})
    beat(results, plan[0])  # an outcome counts more than a heartbeat that was left behind
    beat(results, plan[3])
    (results.run(plan[4])).mkdir(parents=True)
    (results.run(plan[4]) / "outcome.json").write_text('{"outcome": "comp')
    rows = status(results, "all", NOW)["mine"]["cells"]
    assert [row["state"] for row in rows] == ["completed", "diverged", "failed", "running", "missing", "missing"]
    assert (rows[3]["rollout_step"], rows[3]["rollout_steps"]) == (3, 9)


def test_a_dead_owner_does_not_run(results, plan):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    beat(results, plan[0], pid=gone.pid)
    beat(results, plan[1], process_start=1.0)  # the number was given to another process
    beat(results, plan[2], host="elsewhere", time=NOW - LEASE_SECONDS - 1)
    beat(results, plan[3], host="elsewhere", time=NOW - 5)
    found = [row["state"] for row in status(results, "mine", NOW)["mine"]["cells"]]
    assert found == ["missing", "missing", "missing", "running", "missing", "missing"]


def test_status_prints_counts_failures_and_who_runs(results, plan, capsys):
    write_json_atomic(results.run(plan[2]) / "outcome.json", {"outcome": "failed", "reason": "because\nof it"})
    beat(results, plan[3])
    assert main(["status", "mine", "--results", str(results.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: 6 planned: 1 failed, 4 missing, 1 running"
    assert f"  failed: v2, seed 0 ({plan[2]}): because" in lines
    assert any("step 3 of 9" in line for line in lines)


def test_unplanned_study_is_refused_with_those_that_are(results, plan):
    with pytest.raises(RequestError, match="planned are all, mine"):
        status(results, "mime", NOW)


def test_a_thousand_runs_are_read_in_two_seconds(results):
    cells = [{"variant": "v", "seed": i, "signature": f"{i:016x}"} for i in range(1000)]
    write_json_atomic(results.plan("big"), {"includes": [], "cells": cells})
    for cell in cells:
        folder = results.run(cell["signature"])
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(json.dumps({"outcome": "completed"}))
    started = time.process_time()
    assert status(results, "big", NOW)["big"]["states"] == {"completed": 1000}
    assert time.process_time() - started < 2
