"""Sweeps with workers that cost nothing: what is run, in which order, how often, and what an edit to a study costs."""

import hashlib
import json
import os
import shutil
import signal
import sys
from collections import Counter

import psutil
import pytest
import yaml
from fake_sweep import FAKE, wait_for

from grpolab.cli import main
from grpolab.paths import REPORT_FILES, Results, project_root, read_json, write_text_atomic
from grpolab.studies import drawing
from grpolab.studies.progress import Progress
from grpolab.studies.sweep import sweep
from grpolab.sweep import engine
from grpolab.sweep.engine import worker_slots
from grpolab.sweep.jobs import Job, Schedule
from grpolab.sweep.plan import plans


def test_every_cell_and_every_warm_start_is_run_once(fake_sweep, tmp_path):
    code, jobs = fake_sweep("reference", seeds=[0, 1], jobs=2)
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


def test_what_is_committed_in_compact_form_is_not_trained_again(fake_sweep, capsys, tmp_path):
    results = Results(tmp_path)
    fake_sweep(seeds=[0])
    kept = fake_sweep.commit_outcomes()
    capsys.readouterr()
    code, jobs = fake_sweep(seeds=[0, 1])
    assert code == 0
    assert {job[2] for job in jobs if job[0] == "run"} == {"1"}
    said = capsys.readouterr().out
    assert f"{kept} done ({kept} of them in {results.reference})" in said
    assert main(["status", "smoke", "--results", str(results.root)]) == 0
    assert f"smoke: {2 * kept} planned: {2 * kept} completed ({kept} of them committed)" in (capsys.readouterr().out)


def test_what_is_committed_is_repeated_where_that_is_asked(fake_sweep, capsys, tmp_path):
    results, empty = Results(tmp_path), hashlib.sha256().hexdigest()
    fake_sweep(seeds=[0])
    kept = fake_sweep.commit_outcomes(empty)
    capsys.readouterr()
    code, jobs = fake_sweep(seeds=[0], repeat=True)
    assert (code, sum(job[0] == "run" for job in jobs)) == (0, kept)
    same = f"of {kept} runs that are committed too,"
    assert f"{same} 0 are equal to the bit; `grpolab compare" in capsys.readouterr().out
    for run in results.runs.iterdir():
        (run / "outcome.json").write_text(
            json.dumps({**(read_json(run / "outcome.json") or {}), "journal_sha256": empty})
        )
        (run / "journal.jsonl").write_text("")
        (run / "provenance.json").write_text('{"dataset": {"evaluation_items": 1}}')
    assert fake_sweep(seeds=[0], repeat=True) == (0, [])
    assert f"{same} {kept} are equal to the bit\n" in capsys.readouterr().out


def test_a_damaged_run_is_named_and_trained_anew_where_that_is_asked(fake_sweep, capsys, tmp_path):
    fake_sweep(seeds=[0])
    file = min(Results(tmp_path).runs.iterdir()) / "outcome.json"
    file.write_text('{"a": 1}')
    capsys.readouterr()
    assert fake_sweep(seeds=[0]) == (1, [])
    said = capsys.readouterr().out
    assert f"({file.parent.name}): {file} has no outcome that is one of" in said
    assert "--retry-failed trains them anew" in said
    code, jobs = fake_sweep(seeds=[0], retry_failed=True)
    assert (code, [job[1] for job in jobs]) == (0, [file.parent.name])


def test_a_damaged_warm_start_is_made_anew(fake_sweep, tmp_path):
    fake_sweep(seeds=[0])
    (made,) = Results(tmp_path).warm_starts.iterdir()
    (made / "outcome.json").write_text("")
    shutil.rmtree(Results(tmp_path).runs)
    code, jobs = fake_sweep(seeds=[0])
    assert (code, jobs[0][:2]) == (0, ["warm_start", made.name])


def test_a_sweep_ends_with_what_its_runs_lack_and_where_the_report_is(tmp_path, monkeypatch, capsys):
    def draw(results, study):
        for name in REPORT_FILES:
            write_text_atomic(results.output(study) / name, "")

    monkeypatch.setattr(drawing, "draw_all", draw)
    monkeypatch.setattr(drawing, "unmet", lambda results, study: [f"1 NOT met by {study}"])
    monkeypatch.setenv("FAKE_WORKER", json.dumps({"log": str(tmp_path / "jobs.txt")}))
    asked = plans("smoke", [f"machine.results={tmp_path}", "machine.tracking_uri=null"], [0])
    for _ in range(2):  # also when there was nothing left to train
        assert sweep(asked, 1, command=FAKE) == 0
        *_, lacks, _, places = capsys.readouterr().out.splitlines()
        assert lacks == "precondition 1 NOT met by smoke"
        assert places == "look: " + ", ".join(str(tmp_path / "studies" / "smoke" / name) for name in REPORT_FILES)


def test_more_workers_than_cells_are_not_started(fake_sweep, capsys):
    code, jobs = fake_sweep(seeds=[0], jobs=50)
    assert (code, len({job[4] for job in jobs}) <= 3) == (0, True)
    assert "workers: 3;" in capsys.readouterr().out, "two cells and their warm start"


def test_an_edit_to_a_study_trains_only_what_is_new(fake_sweep, tmp_path, monkeypatch):
    """A new level or seed costs its cells; a removed one leaves its runs to the bit, and they count when it is back."""
    project = tmp_path / "project"
    (project / "experiments").mkdir(parents=True)
    shutil.copytree(project_root() / "conf", project / "conf")
    study = yaml.safe_load((project_root() / "experiments" / "smoke.yaml").read_text()) | {"hypotheses": []}
    monkeypatch.chdir(project)

    def edit(**levels):
        study["factors"]["clip"] = {"symmetric": []} | levels
        (project / "experiments" / "mine.yaml").write_text(yaml.safe_dump(study, sort_keys=False))

    def sweep(seeds):
        code, jobs = fake_sweep("mine", seeds=seeds)
        assert code == 0
        return Counter(job[0] for job in jobs)

    edit(no_clip=["kernel=ratio"])
    assert sweep([0, 1]) == {"warm_start": 2, "run": 4}
    edit(no_clip=["kernel=ratio"], wide=["epsilon=0.4"])
    assert sweep([0, 1]) == {"run": 2}, "the new level, on the warm starts that are there"
    assert sweep([0, 1, 2]) == {"warm_start": 1, "run": 3}
    before = {file: file.read_bytes() for file in tmp_path.glob("runs/*/outcome.json")}
    edit(wide=["epsilon=0.4"])
    assert sweep([0, 1, 2]) == {}
    assert {file: file.read_bytes() for file in tmp_path.glob("runs/*/outcome.json")} == before
    edit(no_clip=["kernel=ratio"], wide=["epsilon=0.4"])
    assert sweep([0, 1, 2]) == {}


def test_workers_that_cannot_start_end_the_sweep(fake_sweep, capsys, tmp_path):
    code, _ = fake_sweep(jobs=2, command=(sys.executable, "-c", "raise SystemExit('no torch here')"))
    assert code == 1
    assert "before it was ready" in capsys.readouterr().out
    assert fake_sweep.outcomes() == []
    assert "no torch here" in (Results(tmp_path).studies / "smoke" / "worker-0.log").read_text()


@pytest.fixture
def sweeping(fake_sweep):
    """A command, and its two workers at work."""
    command = fake_sweep.start("--jobs", "2", seconds=60)
    return command, wait_for(lambda: len(found := fake_sweep.workers()) == 2 and found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_cleanly(fake_sweep, sweeping, number):
    command, workers = sweeping
    os.killpg(command.pid, number) if number == signal.SIGINT else command.send_signal(number)
    _, errors = command.communicate(timeout=90)
    assert command.returncode == 130
    assert errors == "interrupted: what has an outcome stays, the same command goes on from here\n"
    assert fake_sweep.outcomes() == []
    assert not any(psutil.pid_exists(worker) for worker in workers)


def test_a_run_with_long_steps_has_twice_as_long_to_reach_its_checkpoint(fake_sweep, monkeypatch, capsys):
    def stepped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "stepped", stepped)
    monkeypatch.setattr(engine, "GRACE_SECONDS", 0.1)
    for farewell, times in ((1.0, 1), (60.0, 0)):
        with pytest.raises(KeyboardInterrupt):
            fake_sweep(seeds=[0], lag=1, farewell=farewell)
        assert (fake_sweep.root / "jobs.txt").read_text().count("asked-to-stop") == times
        assert "to end its step with a checkpoint; Ctrl-C skips that" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_workers_die_with_their_parent(fake_sweep, sweeping):
    command, workers = sweeping
    command.kill()
    command.communicate(timeout=90)
    wait_for(lambda: not any(psutil.pid_exists(worker) for worker in workers))
    code, jobs = fake_sweep()
    assert (code, len(jobs)) == (0, 4), "the next launch begins what was begun, and makes no warm start again"


def job(kind, name, cost, warm_start=None):
    return Job(kind, name, name, {}, cost, 1, warm_start)


def test_schedule_gives_warm_starts_first_and_then_the_longest():
    a, b, c = job("run", "a", 1, "w"), job("run", "b", 9, "v"), job("run", "c", 5, "w")
    v, w = job("warm_start", "v", 3), job("warm_start", "w", 2)
    schedule = Schedule([a, b, c, w, v])
    assert list(schedule.ready()) == [v, w], "all that is left waits for them"
    for one in (v, w):
        schedule.hand_out(one)
    assert list(schedule.ready()) == []
    assert schedule.finished(w, succeeded=True) == []
    assert list(schedule.ready()) == [c, a]
    schedule.finished(v, succeeded=True)
    assert list(schedule.ready()) == [b, c, a]
    for one in (a, b, c):
        schedule.hand_out(one)
    assert (schedule.waiting, bool(schedule)) == (0, True)


def test_schedule_tries_again_as_often_as_it_may():
    a = job("run", "a", 2)
    schedule = Schedule([a])
    for may_again in (True, True, False):
        schedule.hand_out(a)
        assert schedule.retry(a, attempts=3) == may_again
        assert list(schedule.ready()) == [a] * may_again


@pytest.fixture
def fake_gpus(tmp_path, monkeypatch):
    """`nvidia-smi -L` lists two GPUs."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: a)'\necho 'GPU 1: H200 (UUID: b)'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_one_worker_per_core_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr("grpolab.run.memory.CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(8))
    assert [len(worker_slots(*given)) for given in ((None, False, 1), (None, False, 3), (3, False, 1))] == [8, 2, 3]
    for quota, workers in (("250000 100000", 2), ("max 100000", 8)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert len(worker_slots(None, False, 1)) == workers
    assert worker_slots(1, False, 2)[0]["OMP_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("fake_gpus")
def test_one_worker_per_gpu_and_each_its_own(monkeypatch):
    def devices(jobs):
        return [variables["CUDA_VISIBLE_DEVICES"] for variables in worker_slots(jobs, True, 1)]

    assert devices(None) == ["0", "1"]
    assert devices(3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert devices(None) == ["5"]
    assert "CUDA_VISIBLE_DEVICES" not in worker_slots(None, False, 1)[0]
