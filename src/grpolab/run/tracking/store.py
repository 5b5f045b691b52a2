"""A tracking store, opened: what takes more than one call of MLflow's client; what is said of one that is not well."""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from grpolab.errors import RequestError
from grpolab.run.tracking import SQLITE, sqlite_file
from grpolab.run.tracking.points import Stored

MOST_RUNS = 50_000  # that MLflow gives in one answer
MAX_REASON = 200  # characters
READ_ATTEMPTS = 3
# What a store raises that is away, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)


class Store:
    """A tracking store; an SQLite file that does not exist yet is created.

    `client` is MLflow's own. When the store cannot be used, the constructor and every method raise one of `UNUSABLE`.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._uri, self._file = uri, sqlite_file(uri)
        if self._file and (not self._file.exists() or not self._file.stat().st_size):
            _create(self._file)
        self.client = MlflowClient(uri)
        self._inode = self._file.stat().st_ino if self._file else None
        self._is_server = uri.startswith(("http", "databricks"))
        # A server keeps artefacts where it likes; otherwise they would land in the working directory.
        self._artifacts = None if self._is_server else artifacts.resolve()
        self._pragma("journal_mode=wal")  # readers do not block the writer; the file remembers it

    def is_there(self) -> bool:
        """False where the SQLite file that was opened is gone: what is written to it now would be lost."""
        return self._file is None or (self._file.exists() and self._file.stat().st_ino == self._inode)

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
        """All points of a run; from a database as they stand in the table `metrics`.

        MLflow's client asks once per metric, which takes minutes for a study.
        """
        run_id, points = run.info.run_id, defaultdict(list)
        if self._is_server:
            for name in run.data.metrics:
                for metric in ask(self.client.get_metric_history, run_id, name):
                    points[name, metric.step].append(metric.value)
            return points
        columns: list[sqlalchemy.ColumnClause[Any]] = [
            sqlalchemy.column(name) for name in ("run_uuid", "key", "step", "value", "is_nan")
        ]
        query = sqlalchemy.select(*columns).select_from(sqlalchemy.table("metrics", *columns))
        with sqlalchemy.create_engine(self._uri, poolclass=sqlalchemy.NullPool).connect() as connection:
            for _, name, step, value, is_nan in connection.execute(query.where(columns[0] == run_id)):
                points[name, step].append(math.nan if is_nan else value)
        return points


def _create(file: Path) -> None:
    """A new store, made under another name: killed in the middle, it leaves nothing that looks whole."""
    part = file.with_name(f"{file.name}.part")
    # The log of a deleted database, too: SQLite would take it for the new one's.
    for leftover in [*part.parent.glob(f"{part.name}*"), *(Path(f"{file}{end}") for end in ("-wal", "-shm"))]:
        leftover.unlink(missing_ok=True)
    MlflowClient(f"{SQLITE}{part.resolve()}").search_experiments(max_results=1)
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
    reason = _cause(error)
    text = (str(reason) or type(reason).__name__).splitlines()[0][:MAX_REASON]
    return f"the tracking store cannot be used ({text}), the run folders have everything"


def _cause(error: BaseException) -> BaseException:
    """The deepest error of the system or of SQLite beneath an exception: MLflow's texts are long, and say it last."""
    cause: BaseException = error
    below: BaseException | None = error
    while below is not None:
        wrapped = (argument for argument in below.args if isinstance(argument, BaseException))  # urllib3 puts it there
        below = below.__cause__ or below.__context__ or next(wrapped, None)
        cause = below if isinstance(below, OSError | sqlite3.Error) else cause
    return cause


def every_run(uri: str) -> list[Run]:
    """The runs of all experiments of a store, whoever logged them. Raises RequestError where it does not answer."""
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"FOLDER={file} is not there")
    client = MlflowClient(uri)
    try:
        ids = [experiment.experiment_id for experiment in ask(client.search_experiments)]
        return list(ask(client.search_runs, ids, max_results=MOST_RUNS)) if ids else []
    except UNUSABLE as error:
        raise RequestError(f"FOLDER={uri} is no store that MLflow opens: {str(error).splitlines()[0]}") from error


def logged(uri: str, run_id: str) -> tuple[dict[str, str], list[dict[str, float]]]:
    """The tags of a run, whoever logged it, and its metrics as rows in the order of their steps, each with its `step`.

    Raises RequestError where the store has no such run, or does not answer.
    """
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"--uri={uri}: there is no such file")
    client = MlflowClient(uri)
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    try:
        run = client.get_run(run_id)
        for name in run.data.metrics:
            for point in client.get_metric_history(run_id, name):
                rows[point.step][name] = point.value
    except MlflowException as error:
        raise RequestError(f"run {run_id} cannot be read from {uri}: {str(error).splitlines()[0]}") from error
    return dict(run.data.tags), [{"step": step, **rows[step]} for step in sorted(rows)]
