"""A tracking store that is absent, deleted, locked, full, refused, dropped or slow: training never minds.

One sentence says so, the mirror catches up when the store is back, and then it is what the journals say: no point
doubled, none missing.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fake_runs import STUDY, FakeRun, assert_equal_to_journals, expected_points, study, tracked, uri, wait_for_server
from fake_sweep import FAKE, wait_for
from sqlalchemy import event
from sqlalchemy.engine import Engine
from unwell import HOST, Broken, Dropping, Forbidding, LossyProxy, Passing, Slow, serving

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.run.tracking import ENVIRONMENT, __main__, synchronise
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import Store, find_problem
from grpolab.studies import ui
from grpolab.studies.stored_runs import compare_store, verify
from grpolab.studies.sweep import sweep
from grpolab.sweep.jobs import Request
from grpolab.sweep.plan import plans


@pytest.fixture
def results(tracked_results: Results, monkeypatch: pytest.MonkeyPatch) -> Results:
    """A results folder with an empty store, and the mirror's own settings of MLflow, but less patience."""
    for name, value in {**ENVIRONMENT, "MLFLOW_HTTP_REQUEST_TIMEOUT": "1"}.items():
        monkeypatch.setenv(name, value)
    return tracked_results


def finished_runs(results: Results, steps: int = 3) -> list[FakeRun]:
    runs = [FakeRun(results, cell).take(steps) for cell in study(results, seeds=1)["cells"]]
    for run in runs:
        run.end()
    return runs


# --- an SQLite store ------------------------------------------------------------------------------------------------


def test_locked_by_another_process(results: Results) -> None:
    finished_runs(results)
    mirror = StudyMirror(results, uri(results), [STUDY])

    def impatient(_conn: object, _cursor: object, statement: str, parameters: object, *_: object) -> tuple:
        return statement.replace("busy_timeout = 20000", "busy_timeout = 100"), parameters

    event.listen(Engine, "before_cursor_execute", impatient, retval=True)
    other = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(results.store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout
        assert other.stdout.readline() == "locked\n"
        said = [mirror.attempt() for _ in range(2)]
        other.communicate("release")
    finally:
        other.kill()
        event.remove(Engine, "before_cursor_execute", impatient)
    assert all("cannot be used (database is locked), the run folders have everything" in str(one) for one in said)
    assert mirror.attempt(last=True) is None
    assert_equal_to_journals(results)


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("pages", [0, 4, 16])
def test_disk_full_for_the_store(results: Results, pages: int) -> None:
    """SQLite's own 'database or disk is full', after some more pages were written."""
    finished_runs(results, steps=30)
    with sqlite3.connect(results.store) as connection:
        size = connection.execute("pragma page_count").fetchone()[0]

    def fill(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"pragma max_page_count = {size + pages}")

    event.listen(Engine, "connect", fill)
    try:
        said = StudyMirror(results, uri(results), [STUDY]).attempt()
    finally:
        event.remove(Engine, "connect", fill)
    assert "(database or disk is full)" in str(said)
    assert StudyMirror(results, uri(results), [STUDY]).attempt(last=True) is None
    assert_equal_to_journals(results)


def test_artifacts_that_cannot_be_written_hold_no_point_back(results: Results) -> None:
    finished_runs(results)
    results.artifacts.write_text("a file where the folder should be")  # root may write into a read-only folder
    mirror = StudyMirror(results, uri(results), [STUDY])
    assert "cannot be copied" in str(mirror.attempt())
    assert_equal_to_journals(results)
    assert {run.info.status for run in tracked(results).values()} == {"RUNNING"}
    results.artifacts.unlink()
    assert mirror.attempt() is None
    assert {run.info.status for run in tracked(results).values()} == {"FINISHED"}
    assert_equal_to_journals(results)


def test_deleted_in_the_middle_it_is_made_anew(results: Results) -> None:
    """Its log is left; SQLite would take that for the new database's, and have its tables there."""
    runs = [FakeRun(results, cell).take(2) for cell in study(results, seeds=1)["cells"]]
    mirror = StudyMirror(results, uri(results), [STUDY])
    assert mirror.attempt() is None
    log = Path(f"{results.store}-wal")
    with closing(sqlite3.connect(results.store)) as connection:
        connection.execute("create table photos (name text)")
        left = log.read_bytes()
    assert b"photos" in left
    results.store.unlink()
    log.write_bytes(left)
    for run in runs:
        run.take(2).end()
    assert mirror.attempt(last=True) is None
    assert_equal_to_journals(results)
    with closing(sqlite3.connect(results.store)) as connection:
        assert connection.execute("select count(*) from sqlite_master where name = 'photos'").fetchone() == (0,)


def test_replaced_by_an_older_copy_it_catches_up(results: Results, tmp_path: Path, empty_store: Path) -> None:
    finished_runs(results)
    mirror = StudyMirror(results, uri(results), [STUDY])
    assert mirror.attempt() is None
    shutil.copy(empty_store, tmp_path / "older.db")
    (tmp_path / "older.db").replace(results.store)
    for end in ("-wal", "-shm"):
        Path(f"{results.store}{end}").unlink(missing_ok=True)
    assert mirror.attempt(last=True) is None
    assert_equal_to_journals(results)


# --- a server -------------------------------------------------------------------------------------------------------


LOGIN = base64.b64encode(b"lab:sUp3rs3cret").decode()


@pytest.fixture(params=["refused", "dropped", pytest.param("slow", marks=pytest.mark.slow), "broken"])
def unwell_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "refused":
        yield f"http://{HOST}:9"
        return
    with serving({"dropped": Dropping, "slow": Slow, "broken": Broken}[request.param]) as address:
        yield address


def test_a_server_that_is_not_well_is_given_up_on_in_one_sentence(
    results: Results, unwell_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, and by the mirror; `test_a_sweep_begins_only_...` has the whole way."""
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "sUp3rs3cret")
    started = time.monotonic()
    problem = find_problem(unwell_uri)
    with pytest.raises(RequestError, match="cannot be used: "):
        compare_store(results, unwell_uri, [STUDY])
    assert not list(results.root.glob("*/*"))
    finished_runs(results)
    said = str(StudyMirror(results, unwell_uri, [STUDY]).attempt(last=True))
    assert time.monotonic() - started < 40
    assert "the tracking store cannot be used (" in said
    assert "the run folders have everything" in said
    for text, most in ((problem, 200), (said, 300)):
        assert text
        assert len(text.splitlines()) == 1
        assert len(text) <= most
        assert "sUp3rs3cret" not in text


def test_it_is_said_once_and_not_at_every_poll(
    results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_runs(results)
    attempts = iter([None, "locked", "locked", "full", None, None, "away", "away", "away", "away"])
    polls = iter([False] * 7 + [True])
    monkeypatch.setattr(StudyMirror, "attempt", lambda self, last=False: next(attempts))
    monkeypatch.setattr(__main__, "_input_ended", lambda seconds: next(polls))
    assert __main__.follow(str(results.root), uri(results), [STUDY]) == "away"
    assert capsys.readouterr().out.splitlines() == [
        "locked; it is tried again",
        "the tracking store can be used again and is up to date",
        "away; it is tried again",
    ]


def test_wrong_credentials_are_refused_and_not_repeated(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "lab")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "sUp3rs3cret")
    with serving(Forbidding) as address:
        problem = str(find_problem(address))
    assert "401" in problem
    assert LOGIN not in problem
    assert "sUp3rs3cret" not in problem


@pytest.mark.slow
def test_a_sweep_begins_only_where_its_server_answers_and_does_not_mind_when_that_goes_away(
    results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WORKER", json.dumps({"log": str(results.root / "jobs.txt")}))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "lab")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "sUp3rs3cret")
    before = sorted(results.root.rglob("*"))
    asked = plans("smoke", [f"machine.results={results.root}", f"machine.tracking_uri=http://{HOST}:9"])
    with pytest.raises(RequestError, match=r"machine\.tracking_uri=http://127.0.0.1:9 cannot be used: .*refused"):
        sweep(asked, 1, report=False)
    assert sorted(results.root.rglob("*")) == before, "something was started"

    class Leaving(Passing):
        asked, logins = [], set()

    with serving(Leaving) as address:
        asked = plans("smoke", [f"machine.results={results.root}", f"machine.tracking_uri={address}"])
        write_plans = Request.write_plans

        def leave(request: Request, *more: bool) -> None:
            write_plans(request, *more)
            Leaving.away = True

        monkeypatch.setattr(Request, "write_plans", leave)
        assert sweep(asked, 1, report=False, command=FAKE) == 0
    assert len(list(results.root.glob("runs/*/outcome.json"))) == 4
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tracking: ")]
    assert said[-1].endswith("the run folders have everything; `grpolab track sync` catches up")
    assert len(said) <= 2, "when it begins, and at the end"
    assert Leaving.logins == {f"Basic {LOGIN}"}
    written = [file.read_bytes() for file in results.root.rglob("*") if file.is_file()]
    assert not any(b"sUp3rs3cret" in content for content in written)
    assert not any("sUp3rs3cret" in request for request in Leaving.asked)


@pytest.fixture
def server(tmp_path: Path, empty_store: Path) -> Iterator[int]:
    """The port of a real MLflow server with an empty store."""
    shutil.copy(empty_store, tmp_path / "server.db")
    port = ui.free_port(45_000)
    where = f"--backend-store-uri sqlite:///{tmp_path}/server.db --artifacts-destination {tmp_path}/remote"
    command = [sys.executable, *f"-m mlflow server {where} --host {HOST} --port {port} --workers 1".split()]
    quiet: dict = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, env={**os.environ, **ui.ENVIRONMENT}, cwd=tmp_path, **quiet)
    try:
        wait_for_server(process, port)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_lost_requests_and_lost_answers_double_nothing(
    results: Results, server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer is lost has been obeyed; the mirror must find out instead of asking again."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    finished_runs(results, steps=5)

    class Lossy(LossyProxy):
        backend, lost = server, {}

    with serving(Lossy) as address:
        mirror = StudyMirror(results, address, [STUDY])
        wait_for(lambda: mirror.attempt(last=True) is None, seconds=60)
    assert min(Lossy.lost.get("request", 0), Lossy.lost.get("answer", 0)) > 0, "nothing was lost"
    real = f"http://{HOST}:{server}"
    store = Store(real, results)
    assert [comparison.differences for comparison in verify(results, store, [STUDY])] == [[]]
    runs = tracked(results, real).values()
    for cell in json.loads(results.plan(STUDY).read_text())["cells"]:
        (run,) = (run for run in runs if run.data.tags.get("signature") == cell["signature"])
        names = run.data.metrics
        points = [(p.key, p.step) for name in names for p in store.client.get_metric_history(run.info.run_id, name)]
        assert sorted(points) == sorted(expected_points(results.run(cell["signature"]))), "one is missing or doubled"
    for journal in (tmp_path / "remote").glob("*/*/artifacts/journal.jsonl"):
        journal.write_text("{}")
    assert sum("journal.jsonl" in text for text in verify(results, store, [STUDY])[0].differences) == 2
    assert synchronise(results, real, [STUDY], rebuild=True) is None
    assert verify(results, store, [STUDY])[0].differences == []


# --- the process ----------------------------------------------------------------------------------------------------

PARENT = """
import sys, time
from pathlib import Path
from grpolab.paths import Results
from grpolab.run.tracking import MirrorProcess
mirror = MirrorProcess(Results(Path(sys.argv[1])), sys.argv[2], [sys.argv[3]])
print(mirror._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_killed_with_all_its_group_the_command_leaves_a_store_that_is_up_to_date(results: Results) -> None:
    """The mirror makes its last pass and ends: Ctrl-C does not reach its session, and its input has ended."""
    finished_runs(results)
    command = [sys.executable, "-c", PARENT, str(results.root), uri(results), STUDY]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0, text=True)
    assert parent.stdout
    child = psutil.Process(int(parent.stdout.readline()))
    os.killpg(parent.pid, signal.SIGINT)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    child.wait(timeout=60)
    assert_equal_to_journals(results)
    assert tracked(results)["summary"].info.status == "FINISHED"
