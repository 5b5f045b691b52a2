"""MLflow on PostgreSQL, behind its server and without: refused, killed and restarted; equal to the run folders."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_sweep import wait_for
from postgres import PASSWORD

from grpolab.cli import main
from grpolab.paths import Results
from grpolab.run.tracking.store import Store, find_problem
from grpolab.studies.stored_runs import verify

pytestmark = pytest.mark.optional
PATIENCE = 600.0


def test_a_database_that_refuses_is_one_sentence_and_nothing_is_left_behind(cluster, results, monkeypatch, capsys):
    empty = cluster.database("refusing")
    other = cluster.database("photos")
    cluster.query("create table photos (name text)", "photos")
    wrong = {
        empty.replace("/refusing", "/none"): 'database "none" does not exist',
        empty.replace("lab@", "nobody@"): 'password authentication failed for user "nobody"',
        empty.replace(cluster.address, "127.0.0.1:9"): "Connection refused",
        other: "it is the database of another program",
    }
    for uri, said in wrong.items():
        assert said in str(find_problem(uri)), uri
    assert find_problem(empty) is None
    assert cluster.query("select count(*) from pg_tables where schemaname = 'public'", "refusing") == "0"
    monkeypatch.setenv("PGPASSWORD", "wrong-passw0rd")
    assert main(["sweep", "smoke", f"machine.results={results.root}", f"machine.tracking_uri={empty}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert 'password authentication failed for user "lab"' in sentence
    assert "wrong-passw0rd" not in sentence
    assert not list(results.root.glob("*/*"))


def test_a_database_of_another_version_is_refused(cluster, database):
    cluster.query("update alembic_version set version_num = 'deadbeef0000'", database.rpartition("/")[2])
    assert "Detected out-of-date database schema" in str(find_problem(database))


def sweep(results: Results, uri: str, log: Path, on_first_run: Callable[[], None]) -> str:
    """What a sweep of four real runs says, while something happens after the first of them."""
    overrides = [f"machine.results={results.root}", f"machine.tracking_uri={uri}"]
    overrides += ["rollout_steps=20", "warm_start.max_steps=40"]
    with log.open("wb") as said:
        command = [sys.executable, "-m", "grpolab", "sweep", "smoke", "--jobs", "1", *overrides]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            wait_for(lambda: list(results.runs.glob("*/outcome.json")) or process.poll() is not None, PATIENCE)
            on_first_run()
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            process.kill()
    return log.read_text()


def assert_equal(results: Results, uri: str, said: str) -> None:
    """The store has what the run folders have; after a sync, if the sweep said that the store was not back in time."""
    where = ["smoke", "--uri", uri, "--results", str(results.root)]
    if "`grpolab track sync` catches up" in said:
        assert main(["track", "sync", *where]) == 0
    assert main(["track", "verify", *where]) == 0
    (comparison,) = verify(results, Store(uri, results), ["smoke"])
    assert (comparison.runs, comparison.differences) == (4, [])


def test_the_server_is_killed_and_restarted_in_the_middle_of_a_sweep(cluster, server, database, results, tmp_path):
    def restart() -> None:
        server.kill()
        time.sleep(10)  # longer than the pause between two looks at the run folders
        server.start()

    said = sweep(results, server.uri, tmp_path / "said.txt", restart)
    assert_equal(results, server.uri, said)
    written = [file.read_bytes() for file in results.root.rglob("*") if file.is_file()]
    assert not any(PASSWORD.encode() in content for content in written)
    assert PASSWORD not in said
    assert PASSWORD not in cluster.dump(database.rpartition("/")[2])


def test_the_database_is_killed_and_restarted_in_the_middle_of_a_sweep(cluster, database, results, tmp_path):
    def restart() -> None:
        cluster.kill()
        time.sleep(10)
        cluster.start()

    said = sweep(results, database, tmp_path / "said.txt", restart)
    assert_equal(results, database, said)
