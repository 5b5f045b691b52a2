"""MLflow is a mirror of the run folders: nothing is lost, nothing is there twice, whatever happens in between."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_runs import STUDY, FakeRun, assert_equal_to_journals, mirror, points, study, tracked, uri
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from grpolab.paths import Results
from grpolab.run.tracking import mirror as mirror_module
from grpolab.run.tracking import synchronise
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import Store


@pytest.fixture
def results(tracked_results: Results) -> Results:
    """A results folder with an empty store."""
    return tracked_results


def test_restarts_in_the_middle_double_nothing(results: Results) -> None:
    plan = study(results)
    runs = [FakeRun(results, cell) for cell in plan["cells"]]
    for steps in (1, 0, 2, 3):
        for run in runs:
            run.take(steps)
        mirror(results, last=False)
        assert {run.info.status for run in tracked(results).values()} == {"RUNNING"}
    for run in runs:
        run.end()
    mirror(results)
    mirror(results)
    assert len(tracked(results)) == len(runs) + 1
    assert_equal_to_journals(results)


def test_steps_that_a_resumed_run_takes_again_are_there_once(results: Results) -> None:
    """Killed, it is cut back to its checkpoint; it writes the same journal again, at other times."""
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(1)
    files = [run.folder / name for name in ("journal.jsonl", "timing.jsonl")]
    checkpoint = [file.read_bytes() for file in files]
    run.take(2)
    follower = StudyMirror(results, uri(results), [STUDY])
    assert follower.attempt() is None
    journal, timing = (file.read_text() for file in files)
    for file, content in zip(files, checkpoint, strict=True):
        file.write_bytes(content)
    assert follower.attempt() is None
    files[0].write_text(journal)
    files[1].write_text(timing)
    run.delay(after=0, milliseconds=60_123)
    assert follower.attempt() is None
    mirror(results, last=False)
    assert_equal_to_journals(results)
    run.take(1).end()
    mirror(results)
    assert_equal_to_journals(results)


@pytest.mark.parametrize("batches", [0, 1, 5, 7])
def test_a_store_that_goes_away_between_two_batches(
    results: Results, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """The mirror says so, goes on, and catches up."""
    plan = study(results, seeds=1)
    for cell in plan["cells"]:
        FakeRun(results, cell).take(4).end()
    monkeypatch.setattr(mirror_module, "MAX_POINTS", 20)
    log_batch, calls = MlflowClient.log_batch, []

    def failing(self: MlflowClient, run_id: str, *batch: list, **more: list) -> None:
        calls.append(batch)
        if len(calls) == batches + 1:
            raise MlflowException("connection lost")
        log_batch(self, run_id, *batch, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    follower = StudyMirror(results, uri(results), [STUDY])
    assert "connection lost" in str(follower.attempt())
    assert follower.attempt(last=True) is None
    assert_equal_to_journals(results)


def test_a_model_that_was_half_made_is_finished(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRun(results, study(results, seeds=1, arms=("low",))["cells"][0]).take(1).end()

    def failing(*_: object) -> None:
        raise MlflowException("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifact", failing)
        assert StudyMirror(results, uri(results), [STUDY]).attempt()
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    (model,) = MlflowClient(uri(results)).search_logged_models([run.info.experiment_id])
    assert model.status == "READY"
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_kill_9_of_the_process_and_another_one_finishes_its_work(results: Results) -> None:
    plan = study(results, seeds=1)
    for cell in plan["cells"]:
        FakeRun(results, cell).take(60).end()
    arguments = json.dumps({"results": str(results.root), "uri": uri(results), "studies": [STUDY]})
    command = [sys.executable, "-m", "grpolab.run.tracking", arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin
    process.stdin.close()
    deadline = time.monotonic() + 200
    with sqlite3.connect(results.store) as connection:
        while not connection.execute("select count(*) from metrics").fetchone()[0]:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(run.info.status == "RUNNING" for run in tracked(results).values()), "killed too late to show anything"
    assert synchronise(results, uri(results), [STUDY]) is None
    assert_equal_to_journals(results)
    assert all(run.info.status == "FINISHED" for run in tracked(results).values())
    models = MlflowClient(uri(results)).search_logged_models([tracked(results)["summary"].info.experiment_id])
    assert len(models) == len(plan["cells"])


def test_a_lost_store_is_rebuilt_from_the_folders(results: Results, empty_store: Path, tmp_path: Path) -> None:
    plan = study(results)
    runs = [FakeRun(results, cell).take(3) for cell in plan["cells"]]
    mirror(results, last=False)
    for run in runs:
        run.take(2).end()
    mirror(results)

    copy = Results(tmp_path / "copy")  # of the folders alone
    for name in ("runs", "studies"):
        shutil.copytree(tmp_path / name, copy.root / name)
    shutil.copy(empty_store, copy.store)
    mirror(copy)

    def content(of: Results) -> dict:
        return {
            name: (points(of, run), run.data.params, run.info.start_time, run.info.end_time, run.data.tags)
            for name, run in tracked(of).items()
        }

    assert content(copy) == content(results)


@pytest.mark.slow
def test_two_commands_take_turns_at_one_study(results: Results) -> None:
    plan = study(results)
    runs = [FakeRun(results, cell).take(1) for cell in plan["cells"]]
    mine = StudyMirror(results, uri(results), [STUDY])
    assert mine.attempt() is None
    for run in runs:
        run.take(2)
    assert synchronise(results, uri(results), [STUDY]) is None  # another process
    for run in runs:
        run.delay(after=0, milliseconds=60_123)  # killed and resumed since, it has points like those, at other times
        run.take(2).end()
    assert mine.attempt(last=True) is None
    assert_equal_to_journals(results)


def test_a_run_whose_process_died_is_killed_until_it_goes_on(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(1)
    run.lease.release()
    follower = StudyMirror(results, uri(results), [STUDY])
    for goes_on, status in ((False, "KILLED"), (True, "RUNNING")):
        if goes_on:
            run.beat()
        assert follower.attempt() is None
        assert tracked(results)["low/addition, seed 0"].info.status == status
    run.take(1).end()
    mirror(results)
    assert tracked(results)["low/addition, seed 0"].info.status == "FINISHED"
    assert_equal_to_journals(results)


def test_a_failed_run_that_is_tried_again(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(2)
    (run.folder / "outcome.json").write_text('{"outcome": "failed", "reason": "OSError: no space", "error": "..."}')
    follower = StudyMirror(results, uri(results), [STUDY])
    follower.attempt()
    failed = tracked(results)["low/addition, seed 0"]
    assert (failed.info.status, failed.data.tags["outcome"]) == ("FAILED", "failed")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", lambda *_: pytest.fail("its files are copied at every pass"))
        assert follower.attempt() is None
    (run.folder / "outcome.json").unlink()
    run.take(1)
    mirror(results, last=False)
    again = tracked(results)["low/addition, seed 0"]
    assert (again.info.status, "outcome" in again.data.tags) == ("RUNNING", False)
    run.end()
    assert follower.attempt(last=True) is None
    assert tracked(results)["low/addition, seed 0"].data.tags["outcome"] == "completed"
    assert_equal_to_journals(results)


def test_a_store_that_was_killed_while_it_was_made_is_made_again(tmp_path: Path) -> None:
    """What a killed creation leaves lies under another name, and is no reason to fail."""
    file = tmp_path / "mlflow.db"
    for suffix in (".part", ".part-journal"):
        Path(f"{file}{suffix}").write_bytes(b"half a migration")
    assert Store(f"sqlite:///{file}", Results(tmp_path)).open_experiment("anything", {})
    assert not list(tmp_path.glob("*.part*"))
