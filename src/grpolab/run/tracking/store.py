"""All that is said to MLflow, through its public client; whatever is said twice (points apart) is there once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

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

from grpolab.identity import SIGNATURE_LENGTH, dotted
from grpolab.run.tracking import SQLITE, sqlite_file
from grpolab.run.tracking.folder import Point
from grpolab.run.tracking.view import variant_filter

MAX_PARAMS, MAX_POINTS = 100, 1000  # MLflow's limits for one batch
MAX_PARAM_LENGTH = 6000  # MLflow cuts longer ones


class Store:
    """A tracking store, opened; one that does not exist yet is created.

    When the store cannot be used, the constructor and every method raise MlflowException or what lies beneath it.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        self._file = sqlite_file(uri)
        if self._file and not self._file.exists():
            _create(self._file)
        self._client = MlflowClient(uri)
        # A server keeps artefacts where it likes; otherwise they would land in the working directory.
        self._artifacts = None if uri.startswith(("http", "databricks")) else artifacts.resolve()
        self._pragma("journal_mode=wal")  # readers do not block the writer; the file remembers it

    def settle(self) -> None:
        """Make an SQLite store whole in its one file, so that it can be copied."""
        self._pragma("wal_checkpoint(truncate)")

    def _pragma(self, command: str) -> None:
        if self._file:
            with closing(sqlite3.connect(self._file)) as connection:
                connection.execute(f"pragma {command}")

    def experiment(self, name: str) -> str:
        """Id of the experiment, created, or restored from MLflow's bin, where needed."""
        found = self._client.get_experiment_by_name(name)
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

    def runs(self, experiment_id: str, variant: str, seed: str) -> list[Run]:
        """The experiment's runs of a seed whose variant begins with these words."""
        where = f"{variant_filter(f'{variant}%')} and tags.seed = '{seed}'"
        return list(self._client.search_runs([experiment_id], where))

    def create(self, experiment_id: str, name: str, tags: dict[str, str], start: int) -> str:
        """Id of a new run."""
        return self._client.create_run(experiment_id, start, tags, name).info.run_id

    def named_run(self, experiment_id: str, name: str, tags: dict[str, str], start: int) -> str:
        """Id of the experiment's run of that name, created where there is none, with these tags."""
        found = self._client.search_runs([experiment_id], f"attributes.run_name = '{name}'")
        if not found:
            return self.create(experiment_id, name, tags, start)
        self.tag(found[0].info.run_id, tags)
        return found[0].info.run_id

    def points(self, run: Run) -> set[tuple[str, int]]:
        """(metric, step) of everything that the run already has."""
        return {
            (name, metric.step)
            for name in run.data.metrics
            for metric in self._client.get_metric_history(run.info.run_id, name)
        }

    def log_points(self, run_id: str, points: list[Point]) -> None:
        """Write points, which must be new to the run."""
        for batch in _batches([Metric(*point) for point in points], MAX_POINTS):
            self._client.log_batch(run_id, metrics=batch)

    def log_params(self, run_id: str, settings: dict[str, Any]) -> None:
        """Write nested settings as params, `task.name` and so on."""
        params = [Param(key, str(value)[:MAX_PARAM_LENGTH]) for key, value in dotted(settings)]
        for batch in _batches(params, MAX_PARAMS):
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
            source=json.dumps({"tags": {"mlflow.source.name": "grpolab.learn.tasks"}}),
            profile=json.dumps({"num_rows": items}),
        )
        self._client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])

    def log_artifact(self, run_id: str, path: Path) -> None:
        """Copy a file or a folder to the run's artefacts; what does not exist is passed over."""
        if path.exists():
            self._client.log_artifact(run_id, str(path))

    def log_folder(self, run_id: str, path: Path, name: str) -> None:
        """Copy what is in a folder to the run's artefacts, into a folder of that name."""
        self._client.log_artifacts(run_id, str(path), name)

    def log_model(self, experiment_id: str, run_id: str, name: str, weights: Path, tags: dict[str, str]) -> None:
        """Make the weights a LoggedModel of the run, unless it has one."""
        found = self._client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'")
        if not weights.exists() or (found and found[0].status == LoggedModelStatus.READY):
            return
        if found:  # begun by a process that was killed
            model = found[0]
        else:
            model = self._client.create_logged_model(experiment_id, name, run_id, tags)
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        self._client.log_model_artifact(model.model_id, str(weights))
        self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _create(file: Path) -> None:
    """A new store, made under another name: killed in the middle, it leaves nothing that looks whole."""
    part = file.with_name(f"{file.name}.part")
    for leftover in part.parent.glob(f"{part.name}*"):
        leftover.unlink()
    MlflowClient(f"{SQLITE}{part.resolve()}").search_experiments(max_results=1)
    part.rename(file)
