"""Where Optuna keeps a tuning's trials: a journal file, or a database by its URI. All else is made from it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateSchema

from grpolab.credentials import password_problem
from grpolab.errors import RequestError
from grpolab.paths import plain
from grpolab.run.database import connected, reason_of
from grpolab.run.folder import exclusive, is_held
from grpolab.sweep.tuning.arms import Arms, pruner, sampler
from grpolab.terminal import say

JOURNAL, SQLITE, SERVERS = "journal:", "sqlite:///", ("postgresql", "mysql")
# Of PostgreSQL: MLflow's tables may be in the same database, and both note their version in a table of one name.
SCHEMA = "optuna"
OWNER, RECORD, IDENTITY = "owner", "record", "identity"  # attributes in the storage


class JournalFile(JournalFileBackend):
    """Optuna's journal without its flush to the disk at every line, which takes as long as an evaluation.

    A kill loses nothing. What a power cut takes is told again from the run folders, which are flushed. Optuna's own
    locks outlive a killed holder by half a minute; this one dies with it.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock_file = file, file.with_name(f"{file.name}.lock")
        super().__init__(str(file))
        with exclusive(self._lock_file):  # half a line, onto which the next one would be written
            whole = file.read_bytes().rfind(b"\n") + 1
            if whole < file.stat().st_size:
                os.truncate(file, whole)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append in one piece."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with exclusive(self._lock_file), self._file.open("ab") as opened:
            opened.write(lines.encode())


def check_uri(uri: str, jobs: int | None) -> int | None:
    """How many trials may run at once: `jobs`, or what the storage bears where that is None. Raises RequestError."""
    if problem := password_problem(uri):
        raise RequestError(f"--storage {uri} {problem}")
    if not uri.startswith((JOURNAL, SQLITE, *SERVERS)) or uri in (JOURNAL, SQLITE):
        raise RequestError(f"--storage {uri} is no storage: use journal:FILE, sqlite:///FILE, postgresql://, mysql://")
    if not uri.startswith(SQLITE):
        return jobs
    if jobs not in (None, 1):
        raise RequestError(
            f"--jobs {jobs} is more than --storage {uri} can serve: SQLite serves 1 trial at a time, a journal or a"
            " database server many"
        )
    return 1


def open_storage(uri: str, study: str) -> BaseStorage:
    """The storage at a checked URI, made where there is none.

    Raises RequestError where it cannot be opened, or is a file that holds the tuning of another study.
    """
    try:
        journal = uri.startswith(JOURNAL)
        storage = JournalStorage(JournalFile(Path(uri.removeprefix(JOURNAL)))) if journal else _database(uri)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SQLAlchemyError, StorageInternalError) as error:
        raise RequestError(f"--storage {uri} cannot be opened: {reason_of(error)}") from error
    if not uri.startswith(SERVERS):
        names = {arm.study_name.rpartition("/")[0] for arm in storage.get_all_studies()}
        if names and study not in names:
            raise RequestError(f"--storage {uri} holds the tuning of {', '.join(sorted(names))}: name another one")
    return storage


@contextmanager
def kept_in(uri: str) -> Iterator[None]:
    """The work that needs the storage: where that is lost, one sentence says so, and the command ends with code 1."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        lost = f"--storage {uri} was lost ({reason_of(error)}); what has an outcome stays, the same command goes on"
        say(f"grpolab: {lost}", error=True)
        raise SystemExit(1) from error


def _database(uri: str) -> RDBStorage:
    if not uri.startswith(SERVERS):
        return RDBStorage(uri)
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server may have been started again meanwhile
    with connected(uri) as connection:
        if uri.startswith("postgresql"):
            if SCHEMA not in sqlalchemy.inspect(connection).get_schema_names():
                connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
                connection.commit()
            options["connect_args"] = {"options": f"-csearch_path={SCHEMA}"}
    return RDBStorage(uri, options)


class Owner:
    """A command that does trials: a file whose lock it holds as long as it lives, on whatever machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "commands"
        self.name = f"{socket.gethostname()}-{os.getpid()}"

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be alive; what dead commands left is removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.iterdir():
            if not is_held(file):
                file.unlink(missing_ok=True)
        mine = self.folder / self.name
        with exclusive(mine):
            try:
                yield
            finally:
                mine.unlink(missing_ok=True)

    def is_dead(self, name: str | None) -> bool:
        """Whether nobody does the trials of that owner any more but we ourselves; None: it died before it signed."""
        return name in (None, self.name) or not is_held(self.folder / name)

    def others(self) -> list[str]:
        """Other commands that are at work on this tuning."""
        return sorted(file.name for file in self.folder.glob("*") if file.name != self.name and is_held(file))


class ArmTrials:
    """The trials of an arm: one Optuna study, `<study>/<arm>`."""

    def __init__(self, storage: BaseStorage, arms: Arms, arm: str, parallel: bool) -> None:
        """Raises RequestError where the storage has another tuning of that name."""
        self.arm, self.space, self.tuning = arm, arms.tuning.space_of(arm), arms.tuning
        self.name = f"{arms.study.name}/{arm}"
        self._storage, self._parallel = storage, parallel
        settings = arms.settings(arm, {})
        first = max(self.tuning.pruner.after, settings.evaluation.every)
        self.study = optuna.create_study(
            storage=storage,
            study_name=self.name,
            directions=[objective.direction for objective in self.tuning.objectives],
            pruner=pruner(self.tuning.pruner, first, settings.planned_steps * len(self.tuning.seeds)),
            load_if_exists=True,
        )
        identity, there = plain(arms.identity(arm)), self.study.user_attrs.get(IDENTITY)
        if there is None and not self.all():
            self.study.set_user_attr(IDENTITY, identity)
        elif there != identity:
            keys = sorted(key for key in identity if (there or {}).get(key) != identity[key])
            raise RequestError(
                f"the storage holds another tuning under the name {self.name}: {', '.join(keys)} changed since; name"
                " another --storage, or move that one away"
            )

    def all(self) -> list[FrozenTrial]:
        """Every trial, by number."""
        return self.study.get_trials(deepcopy=False)

    def drawn(self) -> list[FrozenTrial]:
        """Trials that have all their values: others were being asked for when their command died."""
        return [trial for trial in self.all() if self.space.keys() <= trial.params.keys()]

    def running(self) -> list[FrozenTrial]:
        """Trials on their way, whoever does them."""
        return [trial for trial in self.all() if trial.state == TrialState.RUNNING]

    def taken(self) -> int:
        """Trials that count towards the budget: finished, or on their way. A failed one is made up for."""
        return sum(trial.state != TrialState.FAIL for trial in self.all())

    def finished(self) -> int:
        """Trials that count towards the budget and have ended."""
        return self.taken() - len(self.running())

    def ask(self, owner: str) -> optuna.Trial:
        """A new trial. Who asks has the tuning's lock, so that its number is known before."""
        self._draw_from(len(self.all()))
        return self._sign(self.study.ask(), owner)

    def adopt(self, trial: FrozenTrial, owner: str) -> optuna.Trial:
        """A trial that a dead command has left; it goes on as if nothing had been."""
        self._draw_from(trial.number)
        study_id = self._storage.get_study_id_from_name(self.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        return self._sign(optuna.trial.Trial(self.study, trial_id), owner)

    def _sign(self, trial: optuna.Trial, owner: str) -> optuna.Trial:
        """Write the owner down, and draw the values that the trial lacks."""
        trial.set_user_attr(OWNER, owner)
        for key, values in self.space.items():
            if self.tuning.sampler != "cmaes":  # which draws all keys at once
                self._draw_from(trial.number, key)
            if values.choices is not None:
                trial.suggest_categorical(key, values.choices)
            else:
                trial.suggest_float(key, *values.bounds, log=values.log)
        return trial

    def _draw_from(self, number: int, key: str = "") -> None:
        self.study.sampler = sampler(self.tuning, self.space, number, key, self._parallel)
