"""A store that cannot be used is refused in one sentence, before anything starts and without touching it."""

from __future__ import annotations

import os
import queue
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from fake_runs import FakeRun, study, uri

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.run import tracking
from grpolab.run.tracking import MirrorProcess, check_answer, check_store, sqlite_file, store_uri
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import find_problem

NO_STORES = [
    *("file:///tmp/x", "mlruns", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:////tmp/a.db?mode=ro"),
    *("sqlite+pysqlite:////tmp/a.db", "sqlite:////no/such/folder/a.db", "ftp://host", "http://", "http:/host"),
    *("https://host:port", "postgresql://", "postgresql"),
]


@pytest.mark.parametrize("bad", NO_STORES)
def test_no_store_is_refused_in_one_sentence(bad: str) -> None:
    with pytest.raises(RequestError) as refusal:
        check_store(bad)
    (sentence,) = refusal.value.problems
    assert sentence.startswith(f"machine.tracking_uri={bad} ")


@pytest.mark.parametrize("other", ["text", "database", "folder"])
def test_a_file_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, other: str) -> None:
    file = tmp_path / "store.db"
    if other == "text":
        file.write_text("my thesis " * 100)
    elif other == "folder":
        file.mkdir()
    else:
        with sqlite3.connect(file) as connection:
            connection.execute("create table photos (name text)")
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(RequestError, match="cannot be opened"):
        check_store(f"sqlite:///{file}")
    assert (file.read_bytes() if file.is_file() else None) == before
    assert os.listdir(tmp_path) == ["store.db"]


def test_a_store_of_another_version_is_one_sentence(results: Results) -> None:
    FakeRun(results, study(results)["cells"][0]).take(1)
    with sqlite3.connect(results.store) as connection:
        connection.execute("update alembic_version set version_num = 'deadbeef0000'")
    connection.close()
    problem = StudyMirror(results, uri(results), ["clip_range"]).attempt() or ""
    assert problem.startswith("the tracking store cannot be used (Detected out-of-date database schema")
    assert len(problem.splitlines()) == 1


def test_a_database_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as where it is not installed
    missing, unknown = (str(find_problem(f"postgresql{driver}://me@host/db")) for driver in ("", "+nothing"))
    assert missing == "the Python package psycopg is missing: `make extras WHAT=server` installs it"
    assert unknown.startswith("SQLAlchemy does not know it: Can't load plugin")


def test_what_does_not_answer_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "ANSWER_SECONDS", 0.01)
    with pytest.raises(RequestError, match=r"http://127.0.0.1:9 cannot be used: no answer within 0 s"):
        check_answer("http://127.0.0.1:9")


def test_stores_that_may_be_used_and_what_the_setting_means(results: Results, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    for store in (uri(results), new, "http://127.0.0.1:9", "postgresql+psycopg2://me@host/db"):
        check_store(store)
    assert not (tmp_path / "new.db").exists()
    meanings = {None: None, "": None, "auto": f"sqlite:///{results.store.resolve()}", "http://host": "http://host"}
    assert {setting: store_uri(setting, results) for setting in meanings} == meanings


@pytest.mark.slow
def test_a_locked_store_is_not_refused(results: Results) -> None:
    """A lock passes; the mirror waits for it."""
    with sqlite3.connect(results.store, isolation_level=None) as owner:
        owner.execute("pragma journal_mode=delete")  # with a write-ahead log readers would not be kept out
        owner.execute("begin exclusive")
        other = sqlite3.connect(results.store, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("select name from sqlite_master").fetchall()
        check_store(uri(results))


def test_what_the_process_says_meanwhile_is_heard_at_once(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = tmp_path / "process"
    process.write_text("#!/bin/sh\necho it is away\ncat\necho traceback >&2\necho it is still away >&2\nexit 1\n")
    process.chmod(0o700)
    monkeypatch.setattr(tracking, "PYTHON", (str(process),))
    heard: queue.Queue[str] = queue.Queue()
    mirror = MirrorProcess(results, uri(results), ["clip_range"], heard.put)
    assert heard.get(timeout=90) == "it is away"
    assert mirror.close() == "it is still away"


ODD = ("a b", "a%20b", "a%b", "a#b", "a?b", "a:b", "ä日")


def test_a_results_folder_may_have_any_name(tmp_path: Path, empty_store: Path) -> None:
    """A URI's path is decoded: `a%20b` was sought, for minutes, in the folder `a b`."""
    results = Results.open(tmp_path.joinpath(*ODD))
    shutil.copy(empty_store, results.store)
    check_store(uri(results))
    assert sqlite_file(uri(results)) == results.store
    FakeRun(results, study(results)["cells"][0]).take(1).end()
    for rebuild in (False, True):
        assert StudyMirror(results, uri(results), ["clip_range"], rebuild).attempt(last=True) is None
    assert len(list(results.artifacts.rglob("outcome.json"))) == 1
    # MLflow makes the folder of a URI that it has not decoded, and leaves it empty.
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(results.root)]
    assert outside == []
