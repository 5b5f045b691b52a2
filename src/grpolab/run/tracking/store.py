"""Whether the tracking store says of a run what its folder says: the points, and where it stands."""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
from mlflow.store.tracking.dbmodels.models import SqlMetric
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from grpolab.identity import SIGNATURE_LENGTH
from grpolab.run.tracking import SQLITE, sqlite_file
from grpolab.run.tracking.folder import Point
from grpolab.run.tracking.pages import variant_filter
from grpolab.vocabulary import METRICS

TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}
Stored = dict[tuple[str, int], list[float]]  # (metric, rollout step) -> values; more than one: it was written twice


@dataclass
class Difference:
    """What is not equal, one sentence each."""

    wrong: list[str] = field(default_factory=list)  # cannot be put right by adding points
    missing: list[str] = field(default_factory=list)


def compare(expected: Sequence[Point], stored: Stored, final: bool) -> Difference:
    """Points that a folder makes (`History`) against those that the store has.

    A run that is not `final` may have been set back to its checkpoint: what the store has beyond the last point of the
    folder is then no difference, because the run will take those steps again and come to the same values. The times of
    points and what the clock measured are not compared: a run that was resumed has new ones.
    """
    found = Difference()
    values = {(point.name, point.step): point.value for point in expected}
    last = dict(sorted(values))  # step of each metric's last point
    for (name, step), value in values.items():
        have = stored.get((name, step))
        if have is None:
            found.missing.append(f"{name} at step {step} is missing")
        elif name not in TIMED and any(one != value for one in have):
            found.wrong.append(f"{name} at step {step} is {have[0]}, the journal says {value}")
    for (name, step), have in stored.items():
        if len(have) > 1:
            found.wrong.append(f"{name} at step {step} is there {len(have)} times")
        if (name, step) not in values and (final or step <= last.get(name, -1)):
            found.wrong.append(f"{name} at step {step} is in no journal")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# All that is said to MLflow, through its public client; whatever is said twice (points apart) is there once.


MAX_PARAMS, MAX_POINTS = 100, 1000  # MLflow's limits for one batch
MAX_RUNS = 50  # in one query for histories
READ_ATTEMPTS = 3
Item = TypeVar("Item")


class Store:
    """A tracking store, opened; one that does not exist yet is created.

    When the store cannot be used, the constructor and every method raise MlflowException or what lies beneath it.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._file = sqlite_file(uri)
        self._client = MlflowClient(uri) if self._file is None else _opened(self._file, uri)
        self._inode = self._file.stat().st_ino if self._file else None
        # A server keeps artefacts where it likes; otherwise they would land in the working directory.
        self._artifacts = None if uri.startswith(("http", "databricks")) else artifacts.resolve()
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
        found = _read(self._client.get_experiment_by_name, name)
        return str(found.experiment_id) if found and found.lifecycle_stage == "active" else None

    def experiment(self, name: str) -> str:
        """Id of the experiment, created, or restored from MLflow's bin, where needed."""
        found = _read(self._client.get_experiment_by_name, name)
        if found is None:
            location = None if self._artifacts is None else (self._artifacts / name).as_uri()
            return str(self._client.create_experiment(name, artifact_location=location))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def tag_experiment(self, experiment_id: str, tags: dict[str, str]) -> None:
        """Set tags of an experiment."""
        for key, value in tags.items():
            self._client.set_experiment_tag(experiment_id, key, value)

    def runs(self, experiment_id: str, where: str = "") -> Iterator[Run]:
        """The experiment's runs that MLflow's search finds, except those in its bin."""
        token = None
        while True:
            page = _read(self._client.search_runs, [experiment_id], where, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def runs_of_seed(self, experiment_id: str, variant: str, seed: str) -> list[Run]:
        """The experiment's runs of a seed whose variant begins with these words."""
        return list(self.runs(experiment_id, f"{variant_filter(f'{variant}%')} and tags.seed = '{seed}'"))

    def delete(self, run_id: str) -> None:
        """Put a run into MLflow's bin, from which a person can take it back."""
        self._client.delete_run(run_id)

    def create(self, experiment_id: str, name: str, tags: dict[str, str], start: int) -> str:
        """Id of a new run."""
        return self._client.create_run(experiment_id, start, tags, name).info.run_id

    def named_run(self, experiment_id: str, name: str, tags: dict[str, str], start: int) -> str:
        """Id of the experiment's run of that name, created where there is none, with these tags."""
        found = next(self.runs(experiment_id, f"attributes.run_name = '{name}'"), None)
        if found is None:
            return self.create(experiment_id, name, tags, start)
        self.tag(found.info.run_id, tags)
        return found.info.run_id

    def histories(self, runs: Sequence[Run]) -> dict[str, Stored]:
        """All points of some runs, by run id.

        From a database in one query for many runs: MLflow's own way asks once per run and metric and takes minutes.
        """
        found: dict[str, Stored] = {run.info.run_id: defaultdict(list) for run in runs}
        sessions = getattr(self._client._tracking_client.store, "ManagedSessionMaker", None)
        if sessions is None:  # a server
            for run in runs:
                for name in run.data.metrics:
                    for metric in _read(self._client.get_metric_history, run.info.run_id, name):
                        found[run.info.run_id][name, metric.step].append(metric.value)
            return found
        columns = (SqlMetric.run_uuid, SqlMetric.key, SqlMetric.step, SqlMetric.value, SqlMetric.is_nan)
        with sessions() as session:
            for ids in batches(list(found), MAX_RUNS):
                for run_id, name, step, value, is_nan in session.query(*columns).filter(SqlMetric.run_uuid.in_(ids)):
                    found[run_id][name, step].append(math.nan if is_nan else value)
        return found

    def log_points(self, run_id: str, points: list[Point]) -> None:
        """Write points, which must be new to the run."""
        for batch in batches([Metric(*point) for point in points], MAX_POINTS):
            self._client.log_batch(run_id, metrics=batch)

    def log_params(self, run_id: str, params: dict[str, str]) -> None:
        """Write params, which MLflow lets nobody change."""
        for batch in batches([Param(*item) for item in params.items()], MAX_PARAMS):
            self._client.log_batch(run_id, params=batch)

    def tag(self, run_id: str, tags: dict[str, str]) -> None:
        """Set tags."""
        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def untag(self, run: Run, name: str) -> None:
        """Take a tag away that the run may have."""
        if name in run.data.tags:
            self._client.delete_tag(run.info.run_id, name)

    def set_status(self, run_id: str, status: str, end: int | None = None) -> None:
        """RUNNING, or, with the time of the end, FINISHED, FAILED or KILLED."""
        if end is None:
            self._client.update_run(run_id, status)
        else:
            self._client.set_terminated(run_id, status, end)

    def log_dataset(self, run_id: str, name: str, context: str, digest: str, items: int) -> None:
        """Record a data set by its content hash; it is generated, so its source is the code."""
        dataset = Dataset(
            name=name,
            digest=digest[:SIGNATURE_LENGTH],  # whole in provenance.json; MLflow has room for 36
            source_type="code",
            source=json.dumps({"tags": {"mlflow.source.name": "grpolab.tasks"}}),
            profile=json.dumps({"num_rows": items}),
        )
        self._client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])

    def log_artifact(self, run_id: str, path: Path) -> None:
        """Copy a file or a folder to the run's artefacts; what does not exist is passed over."""
        if path.exists():
            self._client.log_artifact(run_id, str(path))

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
        self.tag(run_id, {MLFLOW_LOGGED_ARTIFACTS: json.dumps([{"path": name, "type": "table"}])})

    def log_folder(self, run_id: str, path: Path, name: str) -> None:
        """Copy what is in a folder to the run's artefacts, into a folder of that name."""
        self._client.log_artifacts(run_id, str(path), name)

    def log_model(self, experiment_id: str, run_id: str, name: str, weights: Path, tags: dict[str, str]) -> None:
        """Make the weights a LoggedModel of the run, unless it has one."""
        found = _read(self._client.search_logged_models, [experiment_id], f"source_run_id = '{run_id}'")
        if not weights.exists() or (found and found[0].status == LoggedModelStatus.READY):
            return
        if found:  # begun by a process that was killed
            model = found[0]
        else:
            model = self._client.create_logged_model(experiment_id, name, run_id, tags)
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        self._client.log_model_artifact(model.model_id, str(weights))
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def cause_of(error: BaseException) -> BaseException:
    """What lies beneath an exception: MLflow's own texts are long, and the cause stands last in them."""
    found, below = error, _below(error)
    while below is not None:
        found = below if isinstance(below, OSError | sqlite3.Error) else found
        below = _below(below)
    return found


def _below(error: BaseException) -> BaseException | None:
    """What an exception was raised for; urllib3 puts it into the arguments."""
    wrapped = (argument for argument in error.args if isinstance(argument, BaseException))
    return error.__cause__ or error.__context__ or next(wrapped, None)


def _read(ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What is asked for; asked again where the connection was dropped, which a question, unlike an order, allows."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return ask(*arguments, **options)
        except MlflowException as error:
            if not isinstance(cause_of(error), ConnectionError):
                raise
    return ask(*arguments, **options)


def batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    """So many items at a time."""
    return (items[i : i + size] for i in range(0, len(items), size))


def _opened(file: Path, uri: str) -> MlflowClient:
    """A client of an SQLite store, which is made where there is none, or an empty file."""
    if not file.exists() or not file.stat().st_size:
        _create(file)
    client = MlflowClient(uri)
    client._tracking_client.store.engine.dispose()  # MLflow keeps connections, to a file that may be gone
    return client


def _create(file: Path) -> None:
    """A new store, made under another name: killed in the middle, it leaves nothing that looks whole."""
    part = file.with_name(f"{file.name}.part")
    # The log of a deleted database, too: SQLite would take it for the new one's.
    for leftover in [*part.parent.glob(f"{part.name}*"), *(Path(f"{file}{end}") for end in ("-wal", "-shm"))]:
        leftover.unlink(missing_ok=True)
    client = MlflowClient(f"{SQLITE}{part.resolve()}")
    client.search_experiments(max_results=1)
    client._tracking_client.store.engine.dispose()
    part.rename(file)
