"""What a tracking store holds of one run, whoever logged it."""

from __future__ import annotations

import gc
import getpass
import os
import socket
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from grpolab.errors import RequestError
from grpolab.identity import dotted
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results, read_json
from grpolab.registry import UNCLIPPED
from grpolab.run.folder import exclusive
from grpolab.run.tracking import ENVIRONMENT, pages, sqlite_file
from grpolab.run.tracking.folder import History, Point, Record, is_begun, is_final, plans_of, status
from grpolab.run.tracking.pages import view_tags
from grpolab.run.tracking.store import Store, cause_of, compare
from grpolab.vocabulary import TAGS

Row = dict[str, float]


def logged(uri: str, run_id: str) -> tuple[dict[str, str], list[Row]]:
    """Its tags, and its metrics as rows in the order of their steps, each with its `step`.

    Raises RequestError where the store has no such run, or does not answer.
    """
    os.environ.update(ENVIRONMENT)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would make one
        raise RequestError(f"--uri={uri}: there is no such file")
    client = MlflowClient(uri)
    rows: dict[int, Row] = defaultdict(dict)
    try:
        run = client.get_run(run_id)
        for name in run.data.metrics:
            for point in client.get_metric_history(run_id, name):
                rows[point.step][name] = point.value
    except MlflowException as error:
        raise RequestError(f"run {run_id} cannot be read from {uri}: {str(error).splitlines()[0]}") from error
    return dict(run.data.tags), [{"step": step, **rows[step]} for step in sorted(rows)]


# ----------------------------------------------------------------------------------------------------------------------
# One cell of a study as one run of MLflow.


MAX_PARAM_LENGTH = 6000  # MLflow cuts longer ones
EARLIER = " (earlier settings)"
ARTIFACTS = (
    "settings.yaml",
    "provenance.json",
    "journal.jsonl",
    "timing.jsonl",
    "evaluation_items.json",
    "outcome.json",
    "samples",
)


class MirroredRun:
    """The run of a cell, found by its tags or created, and what of its folder is already in MLflow."""

    def __init__(self, store: Store, experiment_id: str, plan: Record, cell: Record, folder: Path) -> None:
        self._store = store
        self._experiment_id = experiment_id
        self._cell = cell
        self._variants = {other["variant"] for other in plan["cells"]}
        self._folder = folder
        self._history = History(folder)
        self._labels = labels_of(plan, cell)
        self._tags = {**self._labels, **_mlflow_tags(plan)}
        self._found = self._find()
        self._run_id: str | None = None
        self._status = ""
        self._written: set[tuple[str, int]] = set()  # (metric, step)
        self._points: dict[tuple[str, int], Point] = {}  # all of the folder

    def is_complete(self, outcome: Record) -> bool:
        """Whether MLflow has all of a run that ended so; never said of a failed one: it may have been tried again."""
        if self._found is None or self._found.info.status != "FINISHED":
            return False
        return {**self._labels, "outcome": outcome["outcome"]}.items() <= self._found.data.tags.items()

    def make_sound(self, outcome: Record | None) -> bool:
        """Whether MLflow has the folder's points and no others.

        A run with wrong points is put into MLflow's bin, to be made again: MLflow takes no point back.
        """
        if self._found is None:
            return True
        stored = self._store.histories([self._found])[self._found.info.run_id]
        difference = compare(History(self._folder).read(outcome), stored, is_final(outcome))
        if difference.wrong:
            self._store.delete(self._found.info.run_id)
            self._found = None
        return not (difference.wrong or difference.missing)

    def update(self, outcome: Record | None, now: float) -> None:
        """Write what is new in the folder at `now` (unix seconds); with the outcome, what remains."""
        points = self._history.read(outcome)
        self._points |= {(point.name, point.step): point for point in points}
        if self._run_id is None:
            self._run_id = self._take_up()
        new = [point for point in points if (point.name, point.step) not in self._written]
        self._store.log_points(self._run_id, new)
        self._written.update((point.name, point.step) for point in new)
        if outcome:
            self._finish(self._run_id, outcome)
        self._set_status(self._run_id, status(self._folder, outcome, now))  # last of all

    def _find(self) -> Run | None:
        """The cell's run. Others with its variant, of other settings or made twice, lose it: a mean counts them.

        A run whose variant the study no longer has, because an arm was renamed, becomes that of its signature.
        """
        variant, signature = self._labels["variant"], self._labels["signature"]
        runs = self._store.runs_of_seed(self._experiment_id, variant, self._labels["seed"])
        named = [run for run in runs if run.data.tags["variant"] == variant]
        earlier = [run for run in runs if run.data.tags["variant"] == variant + EARLIER]
        mine = next((run for run in named + earlier if run.data.tags.get("signature") == signature), None)
        for run in named:
            if run is not mine:
                self._store.tag(run.info.run_id, {"variant": variant + EARLIER})
        return mine or self._renamed(signature)

    def _renamed(self, signature: str) -> Run | None:
        runs = self._store.runs(self._experiment_id, f"tags.signature = '{signature}'")
        return next((run for run in runs if run.data.tags.get("variant", "") not in self._variants), None)

    def _take_up(self) -> str:
        """Id of the run that is to be written, and what it already has."""
        name = pages.run_name(self._cell)
        tags = {**self._tags, pages.NOTE: pages.run_note(self._cell, None), "mlflow.runName": name}
        if self._found is None:
            run_id = self._store.create(self._experiment_id, name, tags, self._history.start)
            self._status = "RUNNING"
        else:
            run_id = self._found.info.run_id
            self._status = self._found.info.status
            self._written = set(self._store.histories([self._found])[run_id])
            self._store.tag(run_id, tags)
            self._store.untag(self._found, "outcome")
        self._store.log_params(run_id, params_of(self._folder))
        return run_id

    def _set_status(self, run_id: str, status: str) -> None:
        if status != self._status:
            self._store.set_status(run_id, status, None if status == "RUNNING" else self._history.end)
            self._status = status

    def _finish(self, run_id: str, outcome: Record) -> None:
        """Write what is left of a finished folder; the outcome's tag comes last."""
        provenance = read_json(self._folder / "provenance.json") or {}
        for split, context in (("train", "training"), ("evaluation", "evaluation")):
            data = provenance.get("dataset", {})
            if f"{split}_sha256" in data:
                self._store.log_dataset(
                    run_id, self._tags["task"], context, data[f"{split}_sha256"], data[f"{split}_items"]
                )
        for name in ARTIFACTS:
            self._store.log_artifact(run_id, self._folder / name)
        if picture := pages.picture(list(self._points.values())):
            self._store.log_bytes(run_id, pages.PICTURE, picture)
        if table := pages.table(self._folder / "samples"):
            self._store.log_table(run_id, pages.TABLE, table)
        weights = self._folder / "policy.safetensors"
        self._store.log_model(self._experiment_id, run_id, pages.model_name(self._cell), weights, self._tags)
        tags = {"outcome": outcome["outcome"], pages.NOTE: pages.run_note(self._cell, outcome)}
        if provenance.get("commit"):
            tags["mlflow.source.git.commit"] = provenance["commit"]
        self._store.tag(run_id, tags)


def params_of(folder: Path) -> dict[str, str]:
    """A run's settings as params, `task.name` and so on; none where it failed before it wrote them.

    A clip range stands in every run's settings; where the kernel has none it is no param.
    """
    file = folder / "settings.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text()) if file.exists() else {}
    silent = {"machine", *(("epsilon", "epsilon_high") if settings.get("kernel") in UNCLIPPED else ())}
    settings = {key: value for key, value in settings.items() if key not in silent}
    return {key: str(value)[:MAX_PARAM_LENGTH] for key, value in dotted(settings)}


def labels_of(plan: Record, cell: Record) -> dict[str, str]:
    """The tags by which a run is found and grouped: those of the vocabulary, and one for each factor of the study.

    A factor that is called as one of the vocabulary's tags (`task`) is `factor.task`.
    """
    factors = {f"factor.{name}" if name in TAGS else name: level for name, level in cell["levels"].items()}
    return {
        **factors,
        "study": plan["study"],
        "variant": cell["variant"],
        "arm": str(cell["levels"].get(plan["compare"], cell["variant"])),
        "task": str(cell["settings"]["task"]),
        "seed": str(cell["seed"]),
        "signature": cell["signature"],
    }


def _mlflow_tags(plan: Record) -> dict[str, str]:
    """MLflow's own, for its columns Source and User."""
    return {
        "mlflow.source.name": f"grpolab, study {plan['study']}",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": getpass.getuser(),
    }


# ----------------------------------------------------------------------------------------------------------------------
# The studies of one command in MLflow: one pass after another over their plans and run folders.


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
    note = {pages.NOTE: pages.experiment_note(plan, experiment_id)}
    return note if plan["includes"] else {**note, **view_tags(plan, pages.milliseconds(plan["created"]))}


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
        tags = {"study": plan["study"], pages.NOTE: pages.summary_note(plan), "mlflow.source.name": "grpolab report"}
        start = pages.milliseconds(plan["created"])
        run_id = store.named_run(experiment_id, pages.SUMMARY_NAME, tags, start)
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
