"""One cell of a study as one run of MLflow."""

from __future__ import annotations

import getpass
from pathlib import Path

import yaml
from mlflow.entities import Run

from grpolab.paths import read_json
from grpolab.run.heartbeat import is_alive
from grpolab.run.tracking import page
from grpolab.run.tracking.folder import History, Record
from grpolab.run.tracking.store import Store
from grpolab.vocabulary import COMPLETED, DIVERGED, FAILED

STATUS = {COMPLETED: "FINISHED", DIVERGED: "FINISHED", FAILED: "FAILED"}  # diverged is a result, not an error
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
        self._folder = folder
        self._history = History(folder)
        self._tags = _tags(plan, cell)
        self._found = self._find()
        self._run_id: str | None = None
        self._status = ""
        self._written: set[tuple[str, int]] = set()  # (metric, step)

    def is_complete(self, outcome: Record) -> bool:
        """Whether MLflow has all of a run that ended so; never said of a failed one: it may have been tried again."""
        if self._found is None or self._found.info.status != "FINISHED":
            return False
        tags = self._found.data.tags
        return (tags.get("outcome"), tags["variant"]) == (outcome["outcome"], self._tags["variant"])

    def update(self, outcome: Record | None, now: float) -> None:
        """Write what is new in the folder at `now` (unix seconds); with the outcome, what remains."""
        points = self._history.read(ended=outcome is not None)
        if self._run_id is None:
            self._run_id = self._take_up()
        new = [point for point in points if (point.name, point.step) not in self._written]
        self._store.log_points(self._run_id, new)
        self._written.update((point.name, point.step) for point in new)
        if outcome:
            self._finish(self._run_id, outcome)
        else:
            beat = read_json(self._folder / "running.json")
            self._set_status(self._run_id, "RUNNING" if beat and is_alive(beat, now) else "KILLED")

    def _find(self) -> Run | None:
        """The cell's run. Runs that the cell had under other settings leave its variant: they would enter its mean."""
        variant, mine = self._tags["variant"], None
        for run in self._store.runs(self._experiment_id, variant, self._tags["seed"]):
            tags = run.data.tags
            if tags["signature"] == self._cell["signature"] and tags["variant"] in (variant, variant + EARLIER):
                mine = run
            elif tags["variant"] == variant:
                self._store.tag(run.info.run_id, {"variant": variant + EARLIER})
        return mine

    def _take_up(self) -> str:
        """Id of the run that is to be written, and what it already has."""
        tags = {**self._tags, page.NOTE: page.run_note(self._cell, None)}
        if self._found is None:
            name = page.run_name(self._cell)
            run_id = self._store.create(self._experiment_id, name, tags, self._history.start)
            self._status = "RUNNING"
        else:
            run_id = self._found.info.run_id
            self._status = self._found.info.status
            self._written = self._store.points(self._found)
            self._store.tag(run_id, tags)
            self._store.untag(self._found, "outcome")
        if (file := self._folder / "settings.yaml").exists():  # a run can fail before it wrote them
            settings = yaml.safe_load(file.read_text())
            self._store.log_params(run_id, {key: value for key, value in settings.items() if key != "machine"})
        return run_id

    def _set_status(self, run_id: str, status: str) -> None:
        if status != self._status:
            self._store.set_status(run_id, status, None if status == "RUNNING" else self._history.end)
            self._status = status

    def _finish(self, run_id: str, outcome: Record) -> None:
        """Write what is left of a finished folder; the outcome's tag and the status come last."""
        provenance = read_json(self._folder / "provenance.json") or {}
        for split, context in (("train", "training"), ("evaluation", "evaluation")):
            data = provenance.get("dataset", {})
            if f"{split}_sha256" in data:
                self._store.log_dataset(
                    run_id, self._tags["task"], context, data[f"{split}_sha256"], data[f"{split}_items"]
                )
        for name in ARTIFACTS:
            self._store.log_artifact(run_id, self._folder / name)
        weights = self._folder / "policy.safetensors"
        self._store.log_model(self._experiment_id, run_id, page.model_name(self._cell), weights, self._tags)
        tags = {"outcome": outcome["outcome"], page.NOTE: page.run_note(self._cell, outcome)}
        if provenance.get("commit"):
            tags["mlflow.source.git.commit"] = provenance["commit"]
        self._store.tag(run_id, tags)
        self._set_status(run_id, STATUS[outcome["outcome"]])


def _tags(plan: Record, cell: Record) -> dict[str, str]:
    """The tags by which a run is found and grouped, and MLflow's own for its columns Source and User."""
    return {
        "study": plan["study"],
        "variant": cell["variant"],
        "arm": str(cell["levels"].get(plan["compare"], cell["variant"])),
        "task": str(cell["settings"]["task"]),
        "seed": str(cell["seed"]),
        "signature": cell["signature"],
        "mlflow.source.name": f"grpolab, study {plan['study']}",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": getpass.getuser(),
    }
