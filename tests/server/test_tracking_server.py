"""MLflow on PostgreSQL, behind its server and without: refused, killed, restarted, filled; equal to the journals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy
from fake_runs import STUDY, FakeRun, study
from fake_sweep import wait_for
from mlflow_server import MlflowServer
from postgres import PASSWORD, Postgres

from grpolab.cli import main
from grpolab.paths import Results, read_json
from grpolab.run.tracking.check import problem_of
from grpolab.run.tracking.colours import colours
from grpolab.run.tracking.points import course_of, labels_of, params_of
from grpolab.run.tracking.store import Store, logged_runs
from grpolab.run.tracking.verify import verify

pytestmark = pytest.mark.optional
PATIENCE = 600.0
RUNS, STEPS = 1000, 30
LOAD_SECONDS = 10.0


def test_a_database_that_refuses_is_one_sentence_and_nothing_is_left_behind(
    cluster: Postgres, results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = cluster.database("refusing")
    other = cluster.database("photos")
    cluster.query("create table photos (name text)", "photos")
    cluster.query(f"create role reader login password '{PASSWORD}'")
    wrong = {
        empty.replace("/refusing", "/none"): 'database "none" does not exist',
        empty.replace("lab@", "nobody@"): 'password authentication failed for user "nobody"',
        empty.replace("lab@", "reader@"): "its user may not create tables in it",
        empty.replace(cluster.address, "127.0.0.1:9"): "Connection refused",
        other: "it is the database of another program",
    }
    for uri, said in wrong.items():
        assert said in str(problem_of(uri)), uri
    assert problem_of(empty) is None
    assert cluster.query("select count(*) from pg_tables where schemaname = 'public'", "refusing") == "0"
    monkeypatch.setenv("PGPASSWORD", "wrong-passw0rd")
    assert main(["sweep", "smoke", f"machine.results={results.root}", f"machine.tracking_uri={empty}"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert 'password authentication failed for user "lab"' in sentence
    assert "wrong-passw0rd" not in sentence
    assert not list(results.root.glob("*/*"))


def test_a_database_of_another_version_is_refused_and_left_alone(cluster: Postgres, database: str) -> None:
    name = database.rpartition("/")[2]
    cluster.query("drop table logged_model_tags", name)  # a table that an older version lacks, which MLflow would make
    before = cluster.dump(name)
    for version, said in (("0584bdc529eb", "of an older version"), ("deadbeef0000", "of a newer version")):
        cluster.query(f"update alembic_version set version_num = '{version}'", name)
        assert said in str(problem_of(database))
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError, match=said):
            Store(database, Path("/nowhere"))
    head = cluster.query("select version_num from alembic_version", "template_mlflow")
    cluster.query(f"update alembic_version set version_num = '{head}'", name)
    assert cluster.dump(name) == before


def sweep(results: Results, uri: str, log: Path, on_first_run: Callable[[], None]) -> str:
    """What a sweep of four real runs says, while something happens after the first of them."""
    overrides = [
        f"machine.results={results.root}",
        f"machine.tracking_uri={uri}",
        "rollout_steps=20",
        "warm_start.max_steps=40",
    ]
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


def assert_equal(results: Results, uri: str, said: str, every_point: bool) -> None:
    """The store has what the run folders have; after a sync, if the sweep said that the store was not back in time."""
    where = ["smoke", "--uri", uri, "--results", str(results.root)]
    if "`grpolab track sync` catches up" in said:
        assert main(["track", "sync", *where]) == 0
    assert main(["track", "verify", *where]) == 0
    (checked,) = verify(results, Store(uri, results.artifacts), ["smoke"])
    assert (checked.runs, checked.every_point, checked.differences) == (4, every_point, [])
    print(f"{uri.partition(':')[0]}: 4 runs, {checked.points} {'' if every_point else 'last '}points, equal")


def test_the_server_is_killed_and_restarted_in_the_middle_of_a_sweep(
    cluster: Postgres, server: MlflowServer, database: str, results: Results, tmp_path: Path
) -> None:
    def restart() -> None:
        server.kill()
        time.sleep(10)  # longer than the pause between two looks at the run folders
        server.start()

    said = sweep(results, server.uri, tmp_path / "said.txt", restart)
    assert_equal(results, server.uri, said, every_point=False)
    # The database itself, where each point can be seen; artefacts are the server's.
    (checked,) = verify(results, Store(database, results.artifacts), ["smoke"])
    assert [text for text in checked.differences if "artefact" not in text] == []
    assert checked.points > 4 * 20 * 20
    written = [file.read_bytes() for file in results.root.rglob("*") if file.is_file()]
    assert not any(PASSWORD.encode() in content for content in written)
    assert PASSWORD not in said
    assert PASSWORD not in cluster.dump(database.rpartition("/")[2])


def test_the_database_is_killed_and_restarted_in_the_middle_of_a_sweep(
    cluster: Postgres, database: str, results: Results, tmp_path: Path
) -> None:
    def restart() -> None:
        cluster.kill()
        time.sleep(10)
        cluster.start()

    said = sweep(results, database, tmp_path / "said.txt", restart)
    assert_equal(results, database, said, every_point=True)


def fill(results: Results, database: str) -> None:
    """A study of a thousand finished runs, each of them in the database and with its journal among its artefacts."""
    plan = study(results, seeds=RUNS // 2)
    store = Store(database, results.artifacts)
    experiment = store.experiment(STUDY)
    first = FakeRun(results, plan["cells"][0], updates=1).take(STEPS)
    first.end()
    points = course_of(first.folder, read_json(first.folder / "outcome.json")).points.values()
    params = {**params_of(first.folder), **{f"param.{number}": "1" for number in range(60)}}
    rows: dict[str, list[dict[str, object]]] = {"runs": [], "tags": [], "params": []}
    for number, cell in enumerate(plan["cells"]):
        folder, run_id = results.run(cell["signature"]), f"{number:032x}"
        if folder != first.folder:
            folder.mkdir()
            for name in ("journal.jsonl", "timing.jsonl", "outcome.json", "settings.yaml"):
                shutil.copyfile(first.folder / name, folder / name)
        artifacts = results.artifacts / STUDY / run_id / "artifacts"
        artifacts.mkdir(parents=True)
        shutil.copyfile(folder / "journal.jsonl", artifacts / "journal.jsonl")
        about = {
            "run_uuid": run_id,
            "name": f"{cell['variant']}, seed {cell['seed']}",
            "artifact_uri": artifacts.as_uri(),
        }
        rows["runs"].append({**about, "experiment_id": int(experiment), "user_id": "lab"})
        tags = {**labels_of(plan, cell, colours(plan)[cell["variant"]]), "outcome": "completed"}
        rows["tags"] += [{"run_uuid": run_id, "key": key, "value": value} for key, value in tags.items()]
        rows["params"] += [{"run_uuid": run_id, "key": key, "value": value} for key, value in params.items()]
    with sqlalchemy.create_engine(database).begin() as connection:
        for table, content in rows.items():
            columns = [sqlalchemy.column(name) for name in content[0]]
            connection.execute(sqlalchemy.insert(sqlalchemy.table(table, *columns)), content)
        finished = (
            "status = 'FINISHED', lifecycle_stage = 'active', start_time = 1, end_time = 2, source_type = 'LOCAL'"
        )
        connection.execute(sqlalchemy.text(f"update runs set {finished}"))
        connection.execute(sqlalchemy.text("create table one (key text, value float8, time bigint, step bigint)"))
        columns = [sqlalchemy.column(name) for name in ("key", "value", "time", "step")]
        values = [{"key": p.name, "value": p.value, "time": p.milliseconds, "step": p.step} for p in points]
        connection.execute(sqlalchemy.insert(sqlalchemy.table("one", *columns)), values)
        into = "(key, value, timestamp, step, is_nan, run_uuid) select key, value, time, step, false, run_uuid"
        connection.execute(sqlalchemy.text(f"insert into metrics {into} from runs cross join one"))
        last = "(select distinct on (key) * from one order by key, step desc) last"
        connection.execute(sqlalchemy.text(f"insert into latest_metrics {into} from runs cross join {last}"))
        connection.execute(sqlalchemy.text("drop table one"))
    with sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sqlalchemy.text("analyze"))


def timed(what: str, work: Callable[[], int]) -> float:
    """Print how long the work takes; the seconds of this process's CPU, which other programs do not change much."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{what}: {count:,} in {wall:.1f} s ({cpu:.1f} s of this process's CPU; load {os.getloadavg()[0]:.1f})")
    return cpu


def test_a_thousand_runs_are_loaded_in_ten_seconds(
    database: str, server: MlflowServer, results: Results, tmp_path: Path
) -> None:
    fill(results, database)
    store, behind = Store(database, results.artifacts), Store(server.uri, results.artifacts)
    experiment = store.experiment(STUDY)

    def load(one: Store) -> int:
        return sum(len(points) for points, _ in one.contents(one.stored_runs(experiment)))

    loaded = timed("points of 1000 runs, by SQL", lambda: load(store))
    timed("the same, for the report of others' runs", lambda: sum(len(run.rows) for run in logged_runs(database)))
    (checked,) = verify(results, store, [STUDY])
    assert (checked.runs, checked.differences) == (RUNS, [])
    timed("track verify of all that", lambda: verify(results, store, [STUDY])[0].points)
    with sqlalchemy.create_engine(database).begin() as connection:
        proxied = "artifact_uri = 'mlflow-artifacts:/' || experiment_id || '/' || run_uuid || '/artifacts'"
        connection.execute(sqlalchemy.text(f"update runs set {proxied}"))
    shutil.copytree(results.artifacts / STUDY, tmp_path / "remote" / experiment)
    timed("runs and last values of 1000 runs, from a server", lambda: len(behind.stored_runs(experiment)))
    (checked,) = verify(results, behind, [STUDY])
    assert (checked.runs, checked.every_point, checked.differences) == (RUNS, False, [])
    timed("track verify through the server", lambda: verify(results, behind, [STUDY])[0].points)
    assert loaded < LOAD_SECONDS
