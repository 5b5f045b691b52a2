"""A tracking store, opened: what takes more than one call of MLflow's client; what is said of one that is not well."""

from __future__ import annotations

import gc
import hashlib
import math
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import sqlalchemy
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from grpolab.errors import RequestError
from grpolab.run.database import connected, reason_of
from grpolab.run.tracking import is_server, sqlite_file, sqlite_uri
from grpolab.run.tracking.check import check_tables
from grpolab.run.tracking.pages import REPORT, SUMMARY_NAME
from grpolab.run.tracking.places import bring_home
from grpolab.run.tracking.points import Stored

gc.freeze()  # mlflow's half a million objects need not be searched for garbage again and again
MOST_RUNS = 50_000  # that MLflow gives in one answer
READ_ATTEMPTS = 3
READ_AT_ONCE = 50  # runs: their points are a few hundred thousand rows
DOWNLOADS_AT_ONCE = 8
JOURNAL = "journal.jsonl"
# What a store raises that is away, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)


class StoredRun(NamedTuple):
    """What a store has of a run besides its points."""

    id: str
    name: str
    status: str
    tags: dict[str, str]
    artifacts: str  # URI of their folder
    last: Stored  # last point of each metric; only from a server, which tells them along with the rest


class Store:
    """A tracking store; an SQLite file that does not exist yet is created, the tables of an empty database too.

    `client` is MLflow's own, `is_server` says whether MLflow's server stands before the database. When the store cannot
    be used, the constructor and every method raise one of `UNUSABLE`.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._uri, self._file = uri, sqlite_file(uri)
        if self._file and (not self._file.exists() or not self._file.stat().st_size):
            _create(self._file)
        self.is_server = is_server(uri)
        if not (self._file or self.is_server):
            check_tables(uri)
        self.client = MlflowClient(uri)
        self._inode = self._file.stat().st_ino if self._file else None
        # A server keeps artefacts where it likes; otherwise they would land in the working directory.
        self._artifacts = None if self.is_server else artifacts.resolve()
        self._pragma("journal_mode=wal")  # readers do not block the writer; the file remembers it

    def is_there(self) -> bool:
        """False where the SQLite file that was opened is gone: what is written to it now would be lost."""
        return self._file is None or (self._file.exists() and self._file.stat().st_ino == self._inode)

    def bring_home(self, repair: bool) -> str | None:
        """Keep artefacts below this results folder, also when it was moved; one sentence where that must be asked."""
        return None if self._artifacts is None else bring_home(self._uri, self._artifacts, repair)

    def settle(self) -> None:
        """Make an SQLite store whole in its one file, so that it can be copied."""
        self._pragma("wal_checkpoint(truncate)")

    def _pragma(self, command: str) -> None:
        if self._file:
            with closing(sqlite3.connect(self._file)) as connection:
                connection.execute(f"pragma {command}")

    def experiment(self, name: str) -> str:
        """Id of the experiment, created, or restored from MLflow's bin, where needed."""
        experiment = ask(self.client.get_experiment_by_name, name)
        if experiment is None:
            location = None if self._artifacts is None else (self._artifacts / name).as_uri()
            return str(self.client.create_experiment(name, artifact_location=location))
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def runs(self, experiment_id: str, where: str = "") -> list[Run]:
        """The experiment's runs that MLflow's search finds, except those in its bin."""
        return list(ask(self.client.search_runs, [experiment_id], where, max_results=MOST_RUNS))

    def history(self, run: Run) -> Stored:
        """All points of a run."""
        if not self.is_server:
            return points_of(self._uri, [run.info.run_id])[run.info.run_id]
        points: Stored = defaultdict(list)
        for name in run.data.metrics:
            for metric in ask(self.client.get_metric_history, run.info.run_id, name):
                points[name, metric.step].append(metric.value)
        return points

    def stored_runs(self, experiment_id: str) -> list[StoredRun]:
        """All runs of an experiment except those in its bin; from a database as they stand in its tables.

        MLflow's search makes an object of every param and metric, which takes a database of a thousand runs a minute.
        """
        if self.is_server:
            runs = self.runs(experiment_id)
            last = [{(point.key, point.step): [point.value] for point in run.data._metric_objs} for run in runs]
            about = [(run.info.run_id, run.info.run_name, run.info.status, run.data.tags) for run in runs]
            return [
                StoredRun(*known, run.info.artifact_uri, points)
                for known, run, points in zip(about, runs, last, strict=True)
            ]
        with connected(self._uri) as connection:
            table = _active_runs("name, status, artifact_uri", f"experiment_id = {int(experiment_id)}")
            rows = connection.execute(sqlalchemy.text(f"{table} order by start_time")).all()
            tags = _by_run(connection, "tags", [run_id for run_id, *_ in rows])
        return [StoredRun(run_id, name, status, tags[run_id], uri, {}) for run_id, name, status, uri in rows]

    def contents(self, runs: Sequence[StoredRun]) -> Iterator[tuple[Stored, str | None]]:
        """Of each run its points, and the SHA-256 of the journal among its artefacts, None where that is not there.

        A database gives all points, a server the last one of each metric: MLflow's history asks once per metric, which
        takes minutes for a study.
        """
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE if self.is_server else 1) as downloads:
            for at in range(0, len(runs), READ_AT_ONCE):
                some = runs[at : at + READ_AT_ONCE]
                digests = downloads.map(self.journal_sha256, [run.artifacts for run in some])
                if self.is_server:
                    points = {run.id: run.last for run in some}
                else:
                    points = points_of(self._uri, [run.id for run in some])
                yield from zip((points[run.id] for run in some), digests, strict=True)

    def journal_sha256(self, artifacts: str) -> str | None:
        """Of the journal in a run's folder of artefacts; None where there is none."""
        if artifacts.startswith("file:"):
            here = Path(url2pathname(urlsplit(artifacts).path), JOURNAL)
            return hashlib.sha256(here.read_bytes()).hexdigest() if here.exists() else None
        with tempfile.TemporaryDirectory() as folder:
            try:
                file = download_artifacts(f"{artifacts}/{JOURNAL}", dst_path=folder, tracking_uri=self._uri)
            except (MlflowException, OSError) as error:
                if isinstance(_cause(error), ConnectionError):
                    raise
                return None
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def points_of(uri: str, run_ids: Sequence[str]) -> dict[str, Stored]:
    """The points of runs in a database, as they stand in its table `metrics`, in the order of their times."""
    columns: list[sqlalchemy.ColumnClause[Any]] = [
        sqlalchemy.column(name) for name in ("run_uuid", "key", "step", "value", "is_nan")
    ]
    query = sqlalchemy.select(*columns).select_from(sqlalchemy.table("metrics", *columns))
    query = query.where(columns[0].in_(run_ids)).order_by(sqlalchemy.column("timestamp"))
    points: dict[str, Stored] = {run_id: defaultdict(list) for run_id in run_ids}
    with connected(uri) as connection:
        for run_id, name, step, value, is_nan in connection.execute(query):
            points[run_id][name, step].append(math.nan if is_nan else value)
    return points


def _active_runs(columns: str, where: str = "1 = 1") -> str:
    return f"select run_uuid, {columns} from runs where lifecycle_stage = 'active' and {where}"


def _by_run(connection: sqlalchemy.Connection, table: str, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Names and values of some runs in a table of tags or params."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    columns: list[sqlalchemy.ColumnClause[Any]] = [sqlalchemy.column(name) for name in ("run_uuid", "key", "value")]
    query = sqlalchemy.select(*columns).select_from(sqlalchemy.table(table, *columns))
    for at in range(0, len(run_ids), READ_AT_ONCE):
        for run_id, name, value in connection.execute(query.where(columns[0].in_(run_ids[at : at + READ_AT_ONCE]))):
            found[run_id][name] = value
    return found


def server_problem(uri: str) -> str | None:
    """Why a server cannot be used now; None where it can."""
    client = MlflowClient(uri)
    try:
        experiments = client.search_experiments(max_results=1)
        # A server that is older than MLflow 3 has no models that are logged.
        client.search_logged_models([experiment.experiment_id for experiment in experiments] or ["0"], max_results=1)
    except UNUSABLE as error:
        return reason_of(_cause(error))
    return None


def _create(file: Path) -> None:
    """A new store, made under another name: killed in the middle, it leaves nothing that looks whole."""
    part = file.with_name(f"{file.name}.part")
    # The log of a deleted database, too: SQLite would take it for the new one's.
    for leftover in [*part.parent.glob(f"{part.name}*"), *(Path(f"{file}{end}") for end in ("-wal", "-shm"))]:
        leftover.unlink(missing_ok=True)
    MlflowClient(sqlite_uri(part)).search_experiments(max_results=1)
    part.rename(file)


def ask(question: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Asked again where the connection was dropped, which a question, unlike an order, allows."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return question(*arguments, **options)
        except MlflowException as error:
            if not isinstance(_cause(error), ConnectionError):
                raise
    return question(*arguments, **options)


def unusable(error: BaseException) -> str:
    """One sentence about a store that raised one of `UNUSABLE`."""
    return f"the tracking store cannot be used ({reason_of(_cause(error))}), the run folders have everything"


def _cause(error: BaseException) -> BaseException:
    """The deepest error of the system or of a database beneath an exception: MLflow says it last."""
    cause: BaseException = error
    below: BaseException | None = error
    while below is not None:
        wrapped = (argument for argument in below.args if isinstance(argument, BaseException))  # urllib3 puts it there
        below = below.__cause__ or below.__context__ or next(wrapped, None)
        cause = below if isinstance(below, OSError | sqlite3.Error | DBAPIError) else cause
    return cause


def experiment_id(uri: str, name: str) -> str | None:
    """Of the experiment of that name; None where the store has none. Raises RequestError where it does not answer."""
    try:
        experiment = ask(MlflowClient(uri).get_experiment_by_name, name)
    except UNUSABLE as error:
        raise RequestError(f"the MLflow server {uri} does not answer: {reason_of(_cause(error))}") from error
    return str(experiment.experiment_id) if experiment else None


def summary_of(uri: str, study: str) -> tuple[str, str] | None:
    """Experiment and run that hold the report of a study; None where the store has none. Raises as `experiment_id`."""
    if (experiment := experiment_id(uri, study)) is None:
        return None
    where = f"attributes.run_name = '{SUMMARY_NAME}'"
    runs = ask(MlflowClient(uri).search_runs, [experiment], where, max_results=1)
    has_report = runs and any(
        file.path == REPORT for file in ask(MlflowClient(uri).list_artifacts, runs[0].info.run_id)
    )
    return (experiment, runs[0].info.run_id) if has_report else None


class LoggedRun(NamedTuple):
    """A run in a store, whoever logged it."""

    id: str
    name: str
    params: dict[str, str]
    rows: list[dict[str, float]]  # its metrics in the order of their steps, each with its `step`


def logged_runs(uri: str) -> Iterator[LoggedRun]:
    """The runs of all experiments of a store. Raises RequestError where it does not answer."""
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"FOLDER={file} is not there")
    try:
        if not _is_database(uri):
            client = MlflowClient(uri)
            ids = [experiment.experiment_id for experiment in ask(client.search_experiments)]
            for run in ask(client.search_runs, ids, max_results=MOST_RUNS) if ids else []:
                rows = logged(uri, run.info.run_id)[1]
                yield LoggedRun(run.info.run_id, run.info.run_name or run.info.run_id, run.data.params, rows)
            return
        with connected(uri) as connection:
            runs = connection.execute(sqlalchemy.text(_active_runs("name") + " order by start_time")).all()
            params = _by_run(connection, "params", [run_id for run_id, _ in runs])
        for at in range(0, len(runs), READ_AT_ONCE):
            some = runs[at : at + READ_AT_ONCE]
            points = points_of(uri, [run_id for run_id, _ in some])
            yield from (
                LoggedRun(run_id, name or run_id, params[run_id], _rows(points[run_id])) for run_id, name in some
            )
    except UNUSABLE as error:
        raise RequestError(f"FOLDER={uri} is no store that MLflow opens: {reason_of(_cause(error))}") from error


def _is_database(uri: str) -> bool:
    """Rather than a server, or a folder of files, which MLflow wrote until 2025."""
    return not is_server(uri) and not uri.startswith("file:")


def _rows(points: Stored) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for (name, step), values in points.items():
        rows[step][name] = values[-1]
    return [{"step": step, **rows[step]} for step in sorted(rows)]


def logged(uri: str, run_id: str) -> tuple[dict[str, str], list[dict[str, float]]]:
    """The tags of a run, whoever logged it, and its metrics as rows in the order of their steps, each with its `step`.

    Raises RequestError where the store has no such run, or does not answer.
    """
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"--uri={uri}: there is no such file")
    client = MlflowClient(uri)
    try:
        run = client.get_run(run_id)
        points: Stored = defaultdict(list)
        if _is_database(uri):
            points = points_of(uri, [run_id])[run_id]
        else:
            for name in run.data.metrics:
                for point in client.get_metric_history(run_id, name):
                    points[name, point.step].append(point.value)
    except UNUSABLE as error:
        raise RequestError(f"run {run_id} cannot be read from {uri}: {reason_of(_cause(error))}") from error
    return dict(run.data.tags), _rows(points)
