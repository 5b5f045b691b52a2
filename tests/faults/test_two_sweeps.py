"""Several commands on one results folder: no cell is run twice at once, none is lost, both end well."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import pytest
from fake_sweep import FAKE, wait_for

from grpolab.paths import write_json_atomic
from grpolab.run import lease
from grpolab.run.lease import LEASE_SECONDS, leased
from grpolab.sweep.ledger import set_failure_aside
from grpolab.sweep.plan import plans


def smoke_cells(fake_sweep, *overrides):
    (plan,) = plans("smoke", [*overrides, f"machine.results={fake_sweep.root}", "machine.tracking_uri=null"])
    return [cell.signature for cell in plan.cells]


@pytest.mark.slow
def test_two_sweeps_at_the_same_time_share_the_work(fake_sweep):
    commands = [fake_sweep.start("--jobs", "1", seconds=1.5) for _ in range(2)]
    said = [command.communicate(timeout=60) for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    runs = [job for job in fake_sweep.begun() if job[0] == "run"]
    assert Counter(job[1] for job in runs) == Counter(smoke_cells(fake_sweep)), "each cell once"
    assert len({job[4] for job in runs}) == 2, "both took part"
    assert Counter(job[1] for job in fake_sweep.begun() if job[0] == "warm_start").most_common(1)[0][1] == 1
    for out, _ in said:
        assert "4 runs: 4 completed" in out
        assert out.count("[4/4]") == 1, "each cell is counted once by each of them"


@pytest.mark.slow
def test_a_cell_that_runs_elsewhere_is_passed_over_and_awaited(fake_sweep):
    """The first of four cells is held by somebody else, who finishes it at last."""
    assert fake_sweep("smoke", "rollout_steps=11")[0] == 0  # the warm starts are there
    first = smoke_cells(fake_sweep)[0]
    with leased(fake_sweep.results.run(first)):
        command = fake_sweep.start("--jobs", "1")
        done = wait_for(lambda: len(done := [job[1] for job in fake_sweep.begun() if job[3] == "12"]) == 3 and done)
        assert first not in done, "the others were done meanwhile"
        time.sleep(0.5)
        assert command.poll() is None
        write_json_atomic(fake_sweep.results.run(first) / "outcome.json", {"outcome": "diverged", "reason": "nan"})
    out, _ = command.communicate(timeout=90)
    assert command.returncode == 0
    assert "4 runs: 3 completed, 1 diverged" in out
    assert "1 left, which another command runs: waiting for their outcomes" in out
    assert first not in [job[1] for job in fake_sweep.begun() if job[3] == "12"]


def beat_elsewhere(fake_sweep, signature, age):
    file = fake_sweep.results.run(signature) / ".lease-1"
    write_json_atomic(file, {**lease.HERE.holder(), "host": "another-machine"})
    os.utime(file, (time.time() - age,) * 2)


@pytest.mark.slow
def test_a_lease_of_another_machine_is_awaited_and_taken_over_when_it_ends(fake_sweep):
    signatures = smoke_cells(fake_sweep)
    quick_watch = "import runpy, sys; from grpolab.run import lease; lease.WATCH_SECONDS = 0.5; "
    quick_watch += "runpy.run_path(sys.argv[1], run_name='__main__')"
    beat_elsewhere(fake_sweep, signatures[0], age=LEASE_SECONDS - 3)
    beat_elsewhere(fake_sweep, signatures[1], age=LEASE_SECONDS + 1)
    started = time.monotonic()
    code, jobs = fake_sweep(jobs=1, command=(FAKE[0], "-c", quick_watch, FAKE[1]))
    assert code == 0
    assert time.monotonic() - started > 2
    assert [job[1] for job in jobs if job[0] == "run"][-1] == signatures[0], "when everything else was done"


def test_two_that_retry_failures_at_once_set_each_aside_once(fake_sweep):
    folder = fake_sweep.results.run("0" * 16)
    write_json_atomic(folder / "outcome.json", {"outcome": "failed", "reason": "x"})
    set_failure_aside(folder)
    set_failure_aside(folder)  # the slower of the two
    assert [file.name for file in folder.glob("outcome*")] == ["outcome.failed-1.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("machine.hang_seconds=1", "no sign of life for 1 s (machine.hang_seconds)"),
        ("machine.cell_timeout_seconds=1", "longer than machine.cell_timeout_seconds=1"),  # has no second attempt
    ],
)
def test_a_worker_that_waits_behind_somebody_else_is_not_the_cells_failure(limit, said, fake_sweep):
    """It was handed out in the moment before the other began: ended at a limit, the cell is awaited instead."""
    fake_sweep("smoke", "rollout_steps=11", seeds=[0])
    first = smoke_cells(fake_sweep)[0]
    command = fake_sweep.start("--jobs", "1", "--seeds", "1", limit, lag=0.7)
    wait_for(lambda: any(job[0] == "asked" and job[1] == first for job in fake_sweep.begun()))
    with leased(fake_sweep.results.run(first)):
        time.sleep(3)
        assert not (fake_sweep.results.run(first) / "outcome.json").exists()
        write_json_atomic(fake_sweep.results.run(first) / "outcome.json", {"outcome": "completed", "reason": None})
    out, _ = command.communicate(timeout=90)
    assert command.returncode == 0, out
    assert json.loads((fake_sweep.results.run(first) / "outcome.json").read_text())["outcome"] == "completed"
    assert f"{said}; it is tried again" in out
