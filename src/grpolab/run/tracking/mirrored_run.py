"""One cell of a study as one run of MLflow."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Run

from grpolab.identity import dotted
from grpolab.paths import read_json
from grpolab.registry import UNCLIPPED
from grpolab.run.tracking import page, pictures
from grpolab.run.tracking.compare import compare
from grpolab.run.tracking.folder import History, Point, Record, is_final, status
from grpolab.run.tracking.store import Store
from grpolab.vocabulary import TAGS

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
        name = page.run_name(self._cell)
        tags = {**self._tags, page.NOTE: page.run_note(self._cell, None), "mlflow.runName": name}
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
        if picture := pictures.picture(list(self._points.values())):
            self._store.log_bytes(run_id, pictures.PICTURE, picture)
        if table := pictures.table(self._folder / "samples"):
            self._store.log_table(run_id, pictures.TABLE, table)
        weights = self._folder / "policy.safetensors"
        self._store.log_model(self._experiment_id, run_id, page.model_name(self._cell), weights, self._tags)
        tags = {"outcome": outcome["outcome"], page.NOTE: page.run_note(self._cell, outcome)}
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
