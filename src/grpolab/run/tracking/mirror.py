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

from grpolab.paths import REFERENCE_STUDY, Results, read_json
from grpolab.run.locks import exclusive
from grpolab.run.tracking import page, sqlite_file
from grpolab.run.tracking.folder import Record
from grpolab.run.tracking.mirrored_run import MirroredRun
from grpolab.run.tracking.store import Store
from grpolab.run.tracking.view import view_tags

# What a store raises that is away, locked, full, of another version or without its driver.
UNUSABLE = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError)
MAX_PROBLEM = 300  # characters of one sentence
Key = tuple[str, str, int, str]  # study, variant, seed, signature


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

    def __init__(self, results: Results, uri: str, studies: list[str]) -> None:
        self._results = results
        self._uri = uri
        self._studies = studies
        self._store: Store | None = None
        self._experiments: dict[str, str] = {}
        self._live: dict[Key, MirroredRun] = {}
        self._complete: dict[Key, Record] = {}  # with the outcome that was written
        self._lock = Path(f"{sqlite_file(uri) or results.store}.lock")

    def attempt(self, last: bool = False) -> str | None:
        """Synchronise, the `last` time with summaries; returns one sentence about what stood in the way."""
        try:
            with turn(self._lock) as alone:
                if not alone:
                    self._live.clear()
                problems = self._synchronise(last)
        except UNUSABLE as error:
            self._live.clear()
            problems = [f"the tracking store cannot be used, the run folders have everything: {error}"]
        return problems[0].splitlines()[0][:MAX_PROBLEM] if problems else None

    def _synchronise(self, last: bool) -> list[str]:
        if self._store is None:
            self._store = Store(self._uri, self._results.artifacts)
            gc.freeze()  # mlflow's half a million objects need not be searched for garbage again and again
        problems = []
        for plan in self._plans(self._studies):
            experiment_id = self._experiment(self._store, plan)
            for cell in plan["cells"]:
                try:
                    self._cell(self._store, experiment_id, plan, cell)
                except (ValueError, KeyError) as error:  # one damaged folder does not keep the others waiting
                    self._live.pop(_key(plan, cell), None)
                    problems.append(f"run folder {self._results.run(cell['signature'])} cannot be read: {error!r}")
            if last:
                self._summary(self._store, experiment_id, plan)
        if last:
            self._store.settle()
        return problems

    def _plans(self, studies: list[str]) -> Iterator[Record]:
        """Plans of these studies and of those that they include, as far as they are written."""
        for study in studies:
            if plan := read_json(self._results.plan(study)):
                yield plan
                yield from self._plans(plan["includes"])

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
        begun = outcome is not None or (folder / "settings.yaml").exists()
        if not begun or (outcome is not None and self._complete.get(key) == outcome):
            return
        if key not in self._live:
            self._live[key] = MirroredRun(store, experiment_id, plan, cell, folder)
        run = self._live[key]
        if outcome is None or not run.is_complete(outcome):
            run.update(outcome, time.time())
        if outcome is not None:
            self._complete[key] = outcome
            del self._live[key]

    def _summary(self, store: Store, experiment_id: str, plan: Record) -> None:
        """The run that holds what the report made of the study."""
        tags = {"study": plan["study"], page.NOTE: page.summary_note(plan), "mlflow.source.name": "grpolab report"}
        start = page.milliseconds(plan["created"])
        run_id = store.named_run(experiment_id, page.SUMMARY_NAME, tags, start)
        store.log_artifact(run_id, self._results.plan(plan["study"]))
        store.log_artifact(run_id, self._results.output(plan["study"]) / "report.md")
        for kind in ("figures", "tables"):
            if folder := self._newest_output(plan["study"], kind):
                store.log_folder(run_id, folder, kind)
        store.set_status(run_id, "FINISHED", start)

    def _newest_output(self, study: str, kind: str) -> Path | None:
        """Where figures or tables of a study were last written: for itself, or as a part of the reference study."""
        folders = [self._results.output(study) / kind]
        if study != REFERENCE_STUDY:
            folders.append(self._results.output(REFERENCE_STUDY) / kind / study)
        return max((one for one in folders if one.exists()), key=lambda one: one.stat().st_mtime, default=None)
