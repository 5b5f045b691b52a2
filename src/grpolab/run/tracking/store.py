"""The tracking store through MLflow's public client: opening, rebuilding and reading it."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import sqlalchemy
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError

from grpolab.known_runs import State, state_of_files
from grpolab.paths import Results
from grpolab.run.database import connected, reason_of
from grpolab.run.tracking import is_server, sqlite_file, sqlite_uri

gc.freeze()  # the garbage collector need not scan mlflow's half a million objects at every pass
MOST_RUNS = 50_000  # the most that MLflow returns in one answer
# Raised by a store that is unreachable, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)


class Store:
    """A tracking store. The constructor and every method raise one of `UNUSABLE` if it cannot be used."""

    def __init__(self, uri: str, results: Results) -> None:
        """Open the store; create an SQLite file that does not exist, and the tables of an empty database."""
        self.uri, self.file, self._results = uri, sqlite_file(uri), results
        if self.file and (not self.file.exists() or not self.file.stat().st_size):
            _create(self.file)
        elif not (self.file or is_server(uri)):
            _check_database(uri)
        self.client = MlflowClient(uri)

    def state(self) -> State | None:
        """Return the state of the SQLite file and its log, which every write changes; None for any other store."""
        return state_of_files(self.file, f"{self.file}-wal") if self.file else None

    def open_experiment(self, name: str, tags: dict[str, str]) -> str:
        """Return the id of a study's experiment with these tags; create it, or restore it from MLflow's bin."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return str(self.client.create_experiment(name, self._location(name), tags))
        if experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        for key, value in tags.items() - experiment.tags.items():
            self.client.set_experiment_tag(experiment.experiment_id, key, value)
        return str(experiment.experiment_id)

    def _location(self, experiment: str) -> str | None:
        """Return where artefacts go: below the results folder; a server decides by itself."""
        return None if is_server(self.uri) else (self._results.artifacts.resolve() / experiment).as_uri()

    def find_misplaced(self) -> str | None:
        """Return where artefacts lie if this results folder was moved or copied: MLflow stores absolute paths."""
        for experiment in self.client.search_experiments():
            here, place = self._location(experiment.name), experiment.artifact_location or ""
            end = f"/{self._results.artifacts.name}/{(here or '').rpartition('/')[2]}"
            if here and place.startswith("file:") and place.endswith(end) and place != here:
                return place
        return None

    def set_aside(self, studies: list[str]) -> str:
        """Make room for a store that is rebuilt; return one sentence about where the old one is.

        An SQLite file is renamed, with the artefacts if both lie in the results folder. In a database or on a server
        the studies' experiments are renamed and put into MLflow's bin.
        """
        end = f"{datetime.now():-%Y%m%d-%H%M%S}"
        if self.file is None:
            for study in studies:
                if experiment := self.client.get_experiment_by_name(study):
                    self.client.rename_experiment(experiment.experiment_id, study + end)
                    self.client.delete_experiment(experiment.experiment_id)
            return f"the old experiments are in MLflow's bin, with {end} behind their names"
        _execute(self.file, "pragma wal_checkpoint(truncate)")
        for path in (self.file, self._results.artifacts):
            if path.exists() and path.parent == self.file.parent:
                path.rename(path.with_name(f"{path.stem}{end}{path.suffix}"))
        return f"the tracking store is rebuilt from the run folders; the old one is {self.file.stem}{end}.db"


def _create(file: Path) -> None:
    """Create a store under another name, then rename it: a process killed in between leaves no half-made store."""
    part = file.with_name(f"{file.name}.part")
    # SQLite would take the log of a deleted database for that of the new one.
    for leftover in [*part.parent.glob(f"{part.name}*"), *(Path(f"{file}{end}") for end in ("-wal", "-shm"))]:
        leftover.unlink(missing_ok=True)
    MlflowClient(sqlite_uri(part)).search_experiments(max_results=1)
    _execute(part, "pragma journal_mode=wal")  # once for all: readers do not block the writer
    part.rename(file)


def _execute(file: Path, command: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(command)


def _check_database(uri: str) -> bool:
    """Return True if the database has MLflow's tables. MLflow itself would try an unreachable one for two minutes."""
    with connected(uri) as connection:
        tables = sqlalchemy.inspect(connection).get_table_names()
    if tables and "experiments" not in tables:
        raise InvalidRequestError("it is the database of another program")
    return bool(tables)


def find_problem(uri: str) -> str | None:
    """Return why a server or a database cannot be used; nothing is written to it."""
    try:
        if is_server(uri) or _check_database(uri):
            experiments = MlflowClient(uri).search_experiments(max_results=1)
            ids = [experiment.experiment_id for experiment in experiments] or ["0"]
            MlflowClient(uri).search_logged_models(ids, max_results=1)  # a server before MLflow 3 has none
    except UNUSABLE as error:
        return reason_of(error)
    return None


def describe_failure(error: BaseException) -> str:
    """Return one sentence about a store that raised one of `UNUSABLE`."""
    return f"the tracking store cannot be used ({reason_of(error)}), the run folders have everything"
