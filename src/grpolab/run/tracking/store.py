"""What takes more than one call of MLflow's client. Whatever is written twice, points apart, is there once."""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from grpolab.errors import RequestError
from grpolab.identity import SIGNATURE_LENGTH
from grpolab.run.tracking import SQLITE, sqlite_file
from grpolab.run.tracking.points import Point, Stored

MAX_PARAMS, MAX_POINTS = 100, 1000  # MLflow's limits for one batch
MAX_RUNS = 50  # in one query for histories
MAX_REASON = 200  # characters
READ_ATTEMPTS = 3
# What a store raises that is away, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)
Item = TypeVar("Item")


class Store:
    """A tracking store, opened; one that does not exist yet is created.

    `client` is MLflow's own. When the store cannot be used, the constructor and every method raise one of `UNUSABLE`.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._uri = uri
        self._file = sqlite_file(uri)
        if self._file and (not self._file.exists() or not self._file.stat().st_size):
            _create(self._file)
        self.client = MlflowClient(uri)
        if self._file:
            _disconnect(self.client)  # from a file of that name that may be gone
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

    def find_experiment(self, name: str) -> str | None:
        """Id of the experiment; None where there is none, or only in MLflow's bin."""
        experiment = _read(self.client.get_experiment_by_name, name)
        return str(experiment.experiment_id) if experiment and experiment.lifecycle_stage == "active" else None

    def experiment(self, name: str) -> str:
        """Id of the experiment, created, or restored from MLflow's bin, where needed."""
        experiment = _read(self.client.get_experiment_by_name, name)
        if experiment is None:
            location = None if self._artifacts is None else (self._artifacts / name).as_uri()
            return str(self.client.create_experiment(name, artifact_location=location))
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def runs(self, experiment_id: str, where: str = "") -> Iterator[Run]:
        """The experiment's runs that MLflow's search finds, except those in its bin."""
        token = None
        while True:
            page = _read(self.client.search_runs, [experiment_id], where, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def histories(self, runs: Sequence[Run]) -> dict[str, Stored]:
        """All points of some runs, by run id.

        From a database in one query for many runs, of the table `metrics` itself: MLflow's client asks once per run and
        metric and takes minutes.
        """
        points: dict[str, Stored] = {run.info.run_id: defaultdict(list) for run in runs}
        if self._is_server:
            for run in runs:
                for name in run.data.metrics:
                    for metric in _read(self.client.get_metric_history, run.info.run_id, name):
                        points[run.info.run_id][name, metric.step].append(metric.value)
            return points
        columns: list[sqlalchemy.ColumnClause[Any]] = [
            sqlalchemy.column(name) for name in ("run_uuid", "key", "step", "value", "is_nan")
        ]
        query = sqlalchemy.select(*columns).select_from(sqlalchemy.table("metrics", *columns))
        with sqlalchemy.create_engine(self._uri, poolclass=sqlalchemy.NullPool).connect() as connection:
            for ids in batches(list(points), MAX_RUNS):
                for run_id, name, step, value, is_nan in connection.execute(query.where(columns[0].in_(ids))):
                    points[run_id][name, step].append(math.nan if is_nan else value)
        return points

    def log(self, run_id: str, points: Sequence[Point] = (), params: dict[str, str] | None = None) -> None:
        """Write points, which must be new to the run, and params, which MLflow lets nobody change."""
        for metrics in batches([Metric(*point) for point in points], MAX_POINTS):
            self.client.log_batch(run_id, metrics=metrics)
        for batch in batches([Param(*item) for item in (params or {}).items()], MAX_PARAMS):
            self.client.log_batch(run_id, params=batch)

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Set tags."""
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def log_dataset(self, run_id: str, name: str, context: str, digest: str, items: int) -> None:
        """Record a data set by its content hash; it is generated, so its source is the code."""
        dataset = Dataset(
            name=name,
            digest=digest[:SIGNATURE_LENGTH],  # whole in provenance.json; MLflow has room for 36
            source_type="code",
            source=json.dumps({"tags": {"mlflow.source.name": "grpolab.tasks"}}),
            profile=json.dumps({"num_rows": items}),
        )
        self.client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])

    def log_artifact(self, run_id: str, path: Path) -> None:
        """Copy a file or a folder to the run's artefacts; what does not exist is passed over."""
        if path.exists():
            self.client.log_artifact(run_id, str(path))

    def log_bytes(self, run_id: str, name: str, content: bytes) -> None:
        """Make these bytes an artefact of the run."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_bytes(content)
            self.log_artifact(run_id, file)

    def log_table(self, run_id: str, name: str, content: str) -> None:
        """Make JSON of columns and data an artefact that MLflow's pages know as a table.

        MLflow's own `log_table` adds its rows to those that are there, so that said twice they would be there twice.
        """
        self.log_bytes(run_id, name, content.encode())
        self.tag(run_id, {"mlflow.loggedArtifacts": json.dumps([{"path": name, "type": "table"}])})

    def log_model(self, experiment_id: str, run_id: str, name: str, weights: Path, tags: dict[str, str]) -> None:
        """Make the weights a LoggedModel of the run, unless it has one."""
        models = _read(self.client.search_logged_models, [experiment_id], f"source_run_id = '{run_id}'")
        if not weights.exists() or (models and models[0].status == LoggedModelStatus.READY):
            return
        if models:  # begun by a process that was killed
            model = models[0]
        else:
            model = self.client.create_logged_model(experiment_id, name, run_id, tags)
            self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        self.client.log_model_artifact(model.model_id, str(weights))
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    """So many items at a time."""
    return (items[i : i + size] for i in range(0, len(items), size))


def _create(file: Path) -> None:
    """A new store, made under another name: killed in the middle, it leaves nothing that looks whole."""
    part = file.with_name(f"{file.name}.part")
    # The log of a deleted database, too: SQLite would take it for the new one's.
    for leftover in [*part.parent.glob(f"{part.name}*"), *(Path(f"{file}{end}") for end in ("-wal", "-shm"))]:
        leftover.unlink(missing_ok=True)
    client = MlflowClient(f"{SQLITE}{part.resolve()}")
    client.search_experiments(max_results=1)
    _disconnect(client)
    part.rename(file)


def _disconnect(client: MlflowClient) -> None:
    """Close the connections that MLflow keeps to a database, for which its client has no public way."""
    client._tracking_client.store.engine.dispose()


def _read(ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What is asked for; asked again where the connection was dropped, which a question, unlike an order, allows."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return ask(*arguments, **options)
        except MlflowException as error:
            if not isinstance(_cause(error), ConnectionError):
                raise
    return ask(*arguments, **options)


def unusable(error: BaseException) -> str:
    """One sentence about a store that raised one of `UNUSABLE`."""
    reason = _cause(error)
    text = (str(reason) or type(reason).__name__).splitlines()[0][:MAX_REASON]
    return f"the tracking store cannot be used ({text}), the run folders have everything"


def _cause(error: BaseException) -> BaseException:
    """The deepest error of the system or of SQLite beneath an exception: MLflow's texts are long, and say it last."""
    cause, below = error, _below(error)
    while below is not None:
        cause = below if isinstance(below, OSError | sqlite3.Error) else cause
        below = _below(below)
    return cause


def _below(error: BaseException) -> BaseException | None:
    """What an exception was raised for; urllib3 puts it into the arguments."""
    wrapped = (argument for argument in error.args if isinstance(argument, BaseException))
    return error.__cause__ or error.__context__ or next(wrapped, None)


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
