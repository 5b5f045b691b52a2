"""Each cell of a study as one run of MLflow, brought up to date with its folder in one pass after another."""

from __future__ import annotations

import gc
import getpass
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Run

from grpolab.identity import dotted
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results, read_json
from grpolab.registry import SURROGATES
from grpolab.run.folder import exclusive, is_begun
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.points import History, Point, Record, compare, is_final, status
from grpolab.run.tracking.store import UNUSABLE, Store, unusable
from grpolab.vocabulary import TAGS

MAX_PARAM_LENGTH = 6000  # MLflow cuts longer ones
MAX_PROBLEM = 300  # characters
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
Key = tuple[str, str, int, str]  # study, variant, seed, signature


class StudyMirror:
    """The studies of one command in MLflow.

    What it remembers is a cache: after a failure, or another command's turn, it is read from the store again.
    """

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

    def _synchronise(self, last: bool) -> list[str]:
        if self._store is None or not self._store.is_there():  # its file may be another one now
            self._forget()
            self._store = Store(self._uri, self._results.artifacts)
            gc.freeze()  # mlflow's half a million objects need not be searched for garbage again and again
        store, problems = self._store, []
        for plan in plans_of(self._results, self._studies):
            experiment_id = self._experiment(store, plan)
            for cell in plan["cells"]:
                key = plan["study"], cell["variant"], cell["seed"], cell["signature"]
                try:
                    self._cell(store, experiment_id, plan, cell, key)
                except (ValueError, KeyError, OSError) as error:  # one damaged folder does not keep the others waiting
                    self._live.pop(key, None)
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
            self._experiments[study] = experiment_id = store.experiment(study)
            tags = {pages.NOTE: pages.experiment_note(plan, experiment_id)}
            if not plan["includes"]:
                tags |= pages.view_tags(plan, pages.milliseconds(plan["created"]))
            for name, value in tags.items():
                store.client.set_experiment_tag(experiment_id, name, value)
        return self._experiments[study]

    def _cell(self, store: Store, experiment_id: str, plan: Record, cell: Record, key: Key) -> None:
        folder = self._results.run(cell["signature"])
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
            now = status(folder, read_json(folder / "outcome.json"), time.time())
            if now != "RUNNING":
                history = History(folder)
                history.read(None)
                store.client.set_terminated(run.info.run_id, now, history.end)

    def _summary(self, store: Store, experiment_id: str, plan: Record) -> None:
        """The run that holds what the report made of the study."""
        study, start, name = plan["study"], pages.milliseconds(plan["created"]), pages.SUMMARY_NAME
        tags = {"study": study, pages.NOTE: pages.summary_note(plan), "mlflow.source.name": "grpolab report"}
        run = next(store.runs(experiment_id, f"attributes.run_name = '{name}'"), None)
        if run is None:
            run = store.client.create_run(experiment_id, start, tags, name)
        else:
            store.tag(run.info.run_id, tags)
        run_id, output = run.info.run_id, self._results.output(study)
        for file in (self._results.plan(study), output / "report.md", output / "report.html"):
            store.log_artifact(run_id, file)
        # A study is drawn by itself, or as a part of a collection: the newest counts.
        collections = [other for other in (REFERENCE_STUDY, SWEEP_STUDY) if other != study]
        for kind in ("figures", "tables"):
            places = [output / kind, *(self._results.output(other) / kind / study for other in collections)]
            if drawn := [folder for folder in places if folder.exists()]:
                newest = max(drawn, key=lambda folder: folder.stat().st_mtime)
                store.client.log_artifacts(run_id, str(newest), kind)
        store.client.set_terminated(run_id, "FINISHED", start)


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
        self._tags = {
            **self._labels,
            # MLflow's own, for its columns Source and User.
            "mlflow.source.name": f"grpolab, study {plan['study']}",
            "mlflow.source.type": "LOCAL",
            "mlflow.user": getpass.getuser(),
        }
        self._stored = self._find()
        self._run_id: str | None = None
        self._status = ""
        self._written: set[tuple[str, int]] = set()  # (metric, step)
        self._points: dict[tuple[str, int], Point] = {}  # all of the folder

    def _find(self) -> Run | None:
        """The cell's run. Others with its variant, of other settings or made twice, lose it: a mean counts them.

        A run whose variant the study no longer has, because an arm was renamed, becomes that of its signature.
        """
        variant, signature, seed = (self._labels[name] for name in ("variant", "signature", "seed"))
        where = f"{pages.variant_filter(f'{variant}%')} and tags.seed = '{seed}'"
        runs = list(self._store.runs(self._experiment_id, where))
        named = [run for run in runs if run.data.tags["variant"] == variant]
        earlier = [run for run in runs if run.data.tags["variant"] == variant + EARLIER]
        mine = next((run for run in named + earlier if run.data.tags.get("signature") == signature), None)
        for run in named:
            if run is not mine:
                self._store.tag(run.info.run_id, {"variant": variant + EARLIER})
        renamed = self._store.runs(self._experiment_id, f"tags.signature = '{signature}'")
        return mine or next((run for run in renamed if run.data.tags.get("variant", "") not in self._variants), None)

    def is_complete(self, outcome: Record) -> bool:
        """Whether MLflow has all of a run that ended so; never said of a failed one: it may have been tried again."""
        if self._stored is None or self._stored.info.status != "FINISHED":
            return False
        return {**self._labels, "outcome": outcome["outcome"]}.items() <= self._stored.data.tags.items()

    def make_sound(self, outcome: Record | None) -> bool:
        """Whether MLflow has the folder's points and no others.

        A run with wrong points is put into MLflow's bin, to be made again: MLflow takes no point back.
        """
        if self._stored is None:
            return True
        run_id = self._stored.info.run_id
        stored = self._store.histories([self._stored])[run_id]
        difference = compare(History(self._folder).read(outcome), stored, is_final(outcome))
        if difference.wrong:
            self._store.client.delete_run(run_id)
            self._stored = None
        return not (difference.wrong or difference.missing)

    def update(self, outcome: Record | None, now: float) -> None:
        """Write what is new in the folder at `now` (unix seconds); with the outcome, what remains."""
        points = self._history.read(outcome)
        self._points |= {(point.name, point.step): point for point in points}
        if self._run_id is None:
            self._run_id = self._take_up()
        new = [point for point in points if (point.name, point.step) not in self._written]
        self._store.log(self._run_id, new)
        self._written.update((point.name, point.step) for point in new)
        if outcome:
            self._finish(self._run_id, outcome)
        state = status(self._folder, outcome, now)  # said last of all
        if state != self._status and state == "RUNNING":
            self._store.client.update_run(self._run_id, state)
        elif state != self._status:
            self._store.client.set_terminated(self._run_id, state, self._history.end)
        self._status = state

    def _take_up(self) -> str:
        """Id of the run that is to be written, and what it already has."""
        name = pages.run_name(self._cell)
        tags = {**self._tags, pages.NOTE: pages.run_note(self._cell, None), "mlflow.runName": name}
        client, run = self._store.client, self._stored
        if run is None:
            run_id: str = client.create_run(self._experiment_id, self._history.start, tags, name).info.run_id
            self._status = "RUNNING"
        else:
            run_id = run.info.run_id
            self._status = run.info.status
            self._written = set(self._store.histories([run])[run_id])
            self._store.tag(run_id, tags)
            if "outcome" in run.data.tags:
                client.delete_tag(run_id, "outcome")
        self._store.log(run_id, params=params_of(self._folder))
        return run_id

    def _finish(self, run_id: str, outcome: Record) -> None:
        """Write what is left of a finished folder; the outcome's tag comes last."""
        provenance = read_json(self._folder / "provenance.json") or {}
        data = provenance.get("dataset", {})
        for split, context in (("train", "training"), ("evaluation", "evaluation")):
            if digest := data.get(f"{split}_sha256"):
                self._store.log_dataset(run_id, self._tags["task"], context, digest, data[f"{split}_items"])
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

    A clip range stands in every run's settings; where the surrogate has none it is no param.
    """
    file = folder / "settings.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text()) if file.exists() else {}
    surrogate = SURROGATES.get(settings.get("kernel", ""))
    silent = {"machine", *(("epsilon", "epsilon_high") if surrogate and not surrogate.clips else ())}
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


def plans_of(results: Results, studies: Iterable[str]) -> list[Record]:
    """Plans of these studies and of those that they include, as far as they are written, each once."""
    plans: dict[str, Record] = {}
    for study in studies:
        if study not in plans and (plan := read_json(results.plan(study))):
            plans[study] = plan
            plans |= {part["study"]: part for part in plans_of(results, plan["includes"])}
    return list(plans.values())


def lock_of(results: Results, uri: str) -> Path:
    """The file whose lock orders those who write to a store."""
    return Path(f"{sqlite_file(uri) or results.store}.lock")


@contextmanager
def turn(lock: Path) -> Iterator[bool]:
    """Our turn to write to the store, among several commands; True where nobody else had one since our last."""
    me = f"{os.getpid()}@{socket.gethostname()}"
    with exclusive(lock):
        unchanged = lock.read_text() == me
        lock.write_text(me)
        yield unchanged
