"""Sweeps with workers that cost nothing: what is run, in which order, how often, and what a death costs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from grpolab.paths import Results, write_text_atomic
from grpolab.sweep.launch import sweep
from grpolab.sweep.ledger import record_failure
from grpolab.sweep.plan import plans
from grpolab.sweep.schedule import Job, Schedule

FAKE = (sys.executable, str(Path(__file__).parent / "fake_worker.py"))


def draw(results: Results, study: str) -> None:
    """Instead of the report."""
    write_text_atomic(results.output(study) / "report.md", f"drawn at {time.monotonic()}")


@pytest.fixture
def fake_sweep(tmp_path, monkeypatch):
    """Run a study with fake workers: returns the exit code and the jobs that they were given."""
    log = tmp_path / "jobs.txt"

    def run(name="smoke", *, jobs=2, die_in=(), overrides=(), seeds=None, retry_failed=False, command=FAKE):
        monkeypatch.setenv("FAKE_WORKER", json.dumps({"log": str(log), "die_in": die_in}))
        log.write_text("")
        asked = plans(name, [*overrides, f"machine.results={tmp_path}", "machine.tracking_uri=null"], seeds)
        code = sweep(asked, draw, jobs, retry_failed, command)
        return code, [line.split() for line in log.read_text().splitlines()]

    return run


def outcomes(root: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(root.glob("runs/*/outcome.json"))]


def test_every_cell_and_every_warm_start_is_run_once(fake_sweep, tmp_path):
    code, jobs = fake_sweep("reference", seeds=[0, 1])
    assert code == 0
    signatures = {cell.signature for plan in plans("reference", seeds=[0, 1]) for cell in plan.cells}
    assert Counter(job[1] for job in jobs if job[0] == "run") == Counter(signatures)
    assert set(Counter(job[1] for job in jobs if job[0] == "warm_start").values()) == {1}
    assert len({job[4] for job in jobs}) == 2, "two workers that live through the whole sweep"
    assert Results(tmp_path).plan("reference").exists()


def test_a_second_sweep_trains_nothing_and_says_so(fake_sweep, capsys, tmp_path):
    fake_sweep()
    files = [Results(tmp_path).plan("smoke"), Results(tmp_path).output("smoke") / "report.md"]
    before = [file.read_bytes() for file in files]
    capsys.readouterr()
    assert fake_sweep() == (0, [])
    assert "0 cells to train" in capsys.readouterr().out
    assert [file.read_bytes() for file in files] == before


def test_another_study_shares_the_cells(fake_sweep):
    fake_sweep("clip_range", seeds=[0])
    _, jobs = fake_sweep("loss_form", seeds=[0])
    assert [job[0] for job in jobs] == ["run", "run"], "only the second arm, on two tasks"


def test_a_workers_death_costs_only_its_cell(fake_sweep, tmp_path, capsys):
    code, jobs = fake_sweep(die_in=[1], jobs=1)
    assert code == 1
    assert Counter(outcome["outcome"] for outcome in outcomes(tmp_path)) == {"completed": 2, "failed": 2}
    assert {outcome["reason"] for outcome in outcomes(tmp_path)} == {None, "worker died (signal 9)"}
    assert len({job[4] for job in jobs}) == 2, "the worker was replaced while there was work"
    assert "failed: smoke symmetric/sorting, seed 1" in capsys.readouterr().out

    assert fake_sweep() == (1, []), "a failure is not retried unasked"
    code, jobs = fake_sweep(retry_failed=True)
    assert code == 0
    assert [job[2] for job in jobs] == ["1", "1"]
    kept = list(tmp_path.glob("runs/*/outcome.failed-1.json"))
    assert [json.loads(file.read_text())["reason"] for file in kept] == ["worker died (signal 9)"] * 2


def test_an_outcome_that_was_written_before_the_death_stands(fake_sweep, tmp_path):
    _, jobs = fake_sweep(seeds=[1])
    folder = Results(tmp_path).run(jobs[-1][1])
    assert record_failure(folder, "worker died (signal 9)", 3)["outcome"] == "completed"
    assert json.loads((folder / "outcome.json").read_text())["outcome"] == "completed"


def test_a_warm_start_is_tried_twice_and_then_fails_its_cells(fake_sweep, tmp_path):
    code, jobs = fake_sweep(die_in=["warm_start"], seeds=[0])
    assert code == 1
    assert [job[0] for job in jobs] == ["warm_start", "warm_start"]
    assert [outcome["reason"] for outcome in outcomes(tmp_path)] == [
        "its warm start failed: worker died (signal 9)"
    ] * 2


def test_workers_that_cannot_start_end_the_sweep(fake_sweep, capsys, tmp_path):
    code, _ = fake_sweep(command=(sys.executable, "-c", "raise SystemExit('no torch here')"))
    assert code == 1
    assert "before it was ready" in capsys.readouterr().out
    assert outcomes(tmp_path) == []
    assert "no torch here" in (Results(tmp_path).studies / "smoke" / "worker-0.log").read_text()


def test_plain_lines_count_and_estimate(fake_sweep, capsys):
    fake_sweep()
    lines = capsys.readouterr().out.splitlines()
    assert any("4 different runs, 0 done, 4 to train, 2 warm starts to make" in line for line in lines)
    assert any(line.startswith("[4/4] completed: smoke ") for line in lines)
    assert any("about" in line and "left" in line for line in lines)


def start_command(tmp_path: Path, **orders) -> subprocess.Popen:
    """The same sweep as a command of its own, in a process group of its own."""
    code = f"""
import functools, sys
from grpolab.cli import main
from grpolab.sweep import launch
launch.sweep = functools.partial(launch.sweep, command={FAKE!r})
sys.exit(main(["sweep", "smoke", "--jobs", "2", "machine.results={tmp_path}", "machine.tracking_uri=null"]))
"""
    environment = {**os.environ, "FAKE_WORKER": json.dumps({"log": str(tmp_path / "jobs.txt"), **orders})}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def running_workers(tmp_path: Path) -> list[int]:
    """Worker processes that have begun a run."""
    log = tmp_path / "jobs.txt"
    lines = log.read_text().splitlines() if log.exists() else []
    return sorted({int(line.split()[4]) for line in lines if line.startswith("run")})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_cleanly(tmp_path, number):
    command = start_command(tmp_path, hang=60)
    workers = wait_for(lambda: len(found := running_workers(tmp_path)) == 2 and found)
    os.killpg(command.pid, number) if number == signal.SIGINT else command.send_signal(number)
    _, errors = command.communicate(timeout=20)
    assert command.returncode == 130
    assert b"interrupted" in errors
    assert b"Traceback" not in errors
    assert outcomes(tmp_path) == []
    assert not any(psutil.pid_exists(worker) for worker in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_workers_die_with_their_parent(tmp_path):
    command = start_command(tmp_path, hang=60)
    workers = wait_for(lambda: len(found := running_workers(tmp_path)) == 2 and found)
    command.kill()
    command.communicate(timeout=20)
    wait_for(lambda: not any(psutil.pid_exists(worker) for worker in workers))


def job(kind, name, cost, warm_start=None):
    return Job(kind, name, name, {}, cost, 1, warm_start)


def test_schedule_gives_warm_starts_first_and_then_the_longest():
    jobs = [job("run", "a", 1, "w"), job("run", "b", 9, "v"), job("run", "c", 5, "w"), job("warm_start", "w", 2)]
    schedule = Schedule([*jobs, job("warm_start", "v", 3)])
    v, w = schedule.next(), schedule.next()
    assert (v.signature, w.signature) == ("v", "w")
    assert schedule.next() is None, "all that is left waits for them"
    schedule.finished(w, succeeded=True)
    assert schedule.next().signature == "c"
    schedule.finished(v, succeeded=True)
    assert [schedule.next().signature for _ in range(2)] == ["b", "a"]
    assert schedule.waiting == 0
    assert schedule
