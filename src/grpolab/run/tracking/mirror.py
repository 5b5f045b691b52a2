"""The studies of one command in MLflow: one pass after another over their plans and run folders."""

from __future__ import annotations

import gc
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results, read_json
from grpolab.run.locks import exclusive
from grpolab.run.tracking import page, sqlite_file
from grpolab.run.tracking.folder import History, Record, is_begun, plans_of, status
from grpolab.run.tracking.mirrored_run import MirroredRun
from grpolab.run.tracking.store import Store, cause_of
from grpolab.run.tracking.view import view_tags

# What a store raises that is away, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)
MAX_REASON, MAX_PROBLEM = 200, 300  # characters
Key = tuple[str, str, int, str]  # study, variant, seed, signature


def lock_of(results: Results, uri: str) -> Path:
    """The file whose lock orders those who write to a store."""
    return Path(f"{sqlite_file(uri) or results.store}.lock")


def unusable(error: BaseException) -> str:
    """One sentence about a store that raised one of `UNUSABLE`."""
    reason = cause_of(error)
    text = (str(reason) or type(reason).__name__).splitlines()[0][:MAX_REASON]
    return f"the tracking store cannot be used ({text}), the run folders have everything"


@contextmanager
def turn(lock: Path) -> Iterator[bool]:
    """Our turn to write to the store, among several commands; True where nobody else had one since our last."""
    me = f"{os.getpid()}@{socket.gethostname()}"
    with exclusive(lock):
        unchanged = lock.read_text() == me
        lock.write_text(me)
        yield unchanged


def _experiment_tags(plan: Record, experiment_id: str) -> dict[str, str]:
    note = {page.NOTE: page.experiment_note(plan, experiment_id)}
    return note if plan["includes"] else {**note, **view_tags(plan, page.milliseconds(plan["created"]))}


def _key(plan: Record, cell: Record) -> Key:
    return plan["study"], cell["variant"], cell["seed"], cell["signature"]


class StudyMirror:
    """What it remembers is a cache: after a failure, or another command's turn, it is read from the store again."""

    def __init__(self, results: Results, uri: str, studies: list[str], repair: bool = False) -> None:
        """`repair`: look at every point of every run, and make those again that differ from their folder."""
        self._results = results
        self._uri = uri
        self._studies = studies
        self._repair = repair
        self._store: Store | None = None
        self._experiments: dict[str, str] = {}
        self._live: dict[Key, MirroredRun] = {}
        self._complete: dict[Key, Record] = {}  # with the outcome that was written
        self._lock = lock_of(results, uri)

    def attempt(self, last: bool = False) -> str | None:
        """Synchronise, the `last` time with summaries; returns one sentence about what stood in the way."""
        try:
            with turn(self._lock) as alone:
                if not alone:
                    self._live.clear()
                problems = self._synchronise(last)
        except UNUSABLE as error:
            self._forget()
            problems = [unusable(error)]
        return problems[0] if problems else None

    def _forget(self) -> None:
        """The store may be another one when it is back."""
        self._experiments.clear()
        self._live.clear()
        self._complete.clear()

    def _open(self) -> Store:
        """The store, opened again where its file is another one now."""
        if self._store is None or not self._store.is_there():
            self._forget()
            self._store = Store(self._uri, self._results.artifacts)
            gc.freeze()  # mlflow's half a million objects need not be searched for garbage again and again
        return self._store

    def _synchronise(self, last: bool) -> list[str]:
        store, problems = self._open(), []
        for plan in plans_of(self._results, self._studies):
            experiment_id = self._experiment(store, plan)
            for cell in plan["cells"]:
                try:
                    self._cell(store, experiment_id, plan, cell)
                except (ValueError, KeyError, OSError) as error:  # one damaged folder does not keep the others waiting
                    self._live.pop(_key(plan, cell), None)
                    folder = self._results.run(cell["signature"])
                    problems.append(f"run folder {folder} cannot be copied: {error!r}"[:MAX_PROBLEM])
            if last:
                self._end_abandoned(store, experiment_id, plan)
                self._summary(store, experiment_id, plan)
        if last:
            store.settle()
        return problems

    def _experiment(self, store: Store, plan: Record) -> str:
        """Id of the study's experiment, with its description and view as of this plan."""
        study = plan["study"]
        if study not in self._experiments:
            self._experiments[study] = store.experiment(study)
            store.tag_experiment(self._experiments[study], _experiment_tags(plan, self._experiments[study]))
        return self._experiments[study]

    def _cell(self, store: Store, experiment_id: str, plan: Record, cell: Record) -> None:
        folder, key = self._results.run(cell["signature"]), _key(plan, cell)
        outcome = read_json(folder / "outcome.json")  # before the journal: where it stands, the journal is whole
        if not is_begun(folder) or (outcome is not None and self._complete.get(key) == outcome):
            return
        if key not in self._live:
            self._live[key] = MirroredRun(store, experiment_id, plan, cell, folder)
        run = self._live[key]
        sound = not self._repair or run.make_sound(outcome)
        if outcome is None or not sound or not run.is_complete(outcome):
            run.update(outcome, time.time())
        if outcome is not None:
            self._complete[key] = outcome
            del self._live[key]

    def _end_abandoned(self, store: Store, experiment_id: str, plan: Record) -> None:
        """Runs that the study no longer asks for, and whose process is dead, do not stay RUNNING.

        A run whose folder is not here is left alone: it may be another machine's.
        """
        planned = {cell["signature"] for cell in plan["cells"]}
        for run in store.runs(experiment_id, "attributes.status = 'RUNNING'"):
            signature = run.data.tags.get("signature", "")
            folder = self._results.run(signature)
            if not signature or signature in planned or not folder.exists():
                continue
            true = status(folder, read_json(folder / "outcome.json"), time.time())
            if true != "RUNNING":
                history = History(folder)
                history.read(None)
                store.set_status(run.info.run_id, true, history.end)

    def _summary(self, store: Store, experiment_id: str, plan: Record) -> None:
        """The run that holds what the report made of the study."""
        tags = {"study": plan["study"], page.NOTE: page.summary_note(plan), "mlflow.source.name": "grpolab report"}
        start = page.milliseconds(plan["created"])
        run_id = store.named_run(experiment_id, page.SUMMARY_NAME, tags, start)
        store.log_artifact(run_id, self._results.plan(plan["study"]))
        for suffix in ("md", "html"):
            store.log_artifact(run_id, self._results.output(plan["study"]) / f"report.{suffix}")
        for kind in ("figures", "tables"):
            if folder := self._newest_output(plan["study"], kind):
                store.log_folder(run_id, folder, kind)
        store.set_status(run_id, "FINISHED", start)

    def _newest_output(self, study: str, kind: str) -> Path | None:
        """Where figures or tables of a study were last written: for itself, or as a part of a collection."""
        collections = [name for name in (REFERENCE_STUDY, SWEEP_STUDY) if name != study]
        folders = [self._results.output(study) / kind]
        folders += [self._results.output(name) / kind / study for name in collections]
        return max((one for one in folders if one.exists()), key=lambda one: one.stat().st_mtime, default=None)
