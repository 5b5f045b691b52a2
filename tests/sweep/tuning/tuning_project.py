"""A project of one's own with a study that is tuned, on workers whose curves are known (`curve_worker.py`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from grpolab.paths import Results, project_root
from grpolab.studies.tune import tune
from grpolab.sweep.plan import Cell
from grpolab.sweep.tuning.arms import TunedStudy, load_tuned

WORKER = (sys.executable, str(Path(__file__).parents[1] / "curve_worker.py"))
RATE = {"low": 1.0e-5, "high": 5.0e-3, "log": True}
STUDY: dict[str, Any] = {
    "question": "What?",
    "overrides": ["task=sorting", "rollout_steps=12", "evaluation.every=1", "machine.tracking_uri=null"],
    "factors": {"clip": {"token": [], "gspo": ["loss_type=gspo"]}},
    "compare": "clip",
    "baseline": "token",
    "seeds": 2,
    "primary_metric": "eval/accuracy_expected",
    "tuning": {
        "space": {"learning_rate": RATE, "epsilon": {"low": 0.01, "high": 0.5}},
        "trials": 6,
        "seeds": [100, 101],
        "objectives": [{"metric": "final_score", "direction": "maximize"}],
        "pruner": {"name": "median", "window": 2, "after": 3, "startup_trials": 3},
    },
}
UNTUNED = {key: value for key, value in STUDY.items() if key != "tuning"}
COMMAND = """
import sys
sys.path.insert(0, {here!r})
from tuning_project import WORKER, draw, score
from grpolab.cli import main
from grpolab.studies import tune
import functools
tune.tune = functools.partial(tune.tune, compute_score=score, draw=draw, command=WORKER)
sys.exit(main({given!r}))
"""


def score(results: Results, cell: Cell) -> Mapping[str, float]:
    """Quantities of a run whose journal holds evaluations alone."""
    lines = (results.run(cell.signature) / "journal.jsonl").read_text().splitlines()
    values = [json.loads(line)["eval/accuracy_expected"] for line in lines]
    return {"final_score": values[-1], "grad_norm_max": cell.settings.learning_rate, "ess_min": float("nan")}


def draw(results: Results, study: str) -> None:
    """Nothing."""


def kill(command: subprocess.Popen[bytes]) -> None:
    """With -9; its workers must die with it."""
    workers = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.wait()
    assert not psutil.wait_procs(workers, timeout=90)[1]


class TuningProject:
    """The project, and its results in `root`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(project_root() / "conf", folder / "conf")
        (folder / "experiments").mkdir()
        monkeypatch.chdir(folder)
        self.folder, self.root, self.log = folder, folder / "results", folder / "steps.txt"
        self.seconds = 0.0
        self._monkeypatch = monkeypatch
        self.write()

    def write(self, name: str = "mine", study: Mapping[str, Any] = STUDY, **tuning: Any) -> None:
        """The study, with some keys of its tuning changed; None: without."""
        changed = {key: value for key, value in {**STUDY["tuning"], **tuning}.items() if value is not None}
        whole = {**study, "tuning": changed} if "tuning" in study else {**study}
        (self.folder / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(whole))

    def tune(self, *overrides: str, jobs: int = 1, storage: str | None = None) -> int:
        """In this process; the exit code."""
        self._monkeypatch.setenv("CURVE_WORKER", self.orders)
        tuned = TunedStudy(load_tuned("mine"), [*overrides, f"machine.results={self.root}"])
        return tune(tuned, jobs, storage, compute_score=score, draw=draw, command=WORKER)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """As a command of its own."""
        given = ["tune", "mine", f"machine.results={self.root}", *options]
        code = COMMAND.format(here=str(Path(__file__).parent), given=given)
        environment = {**os.environ, "CURVE_WORKER": self.orders}
        log = (self.folder / "said.txt").open("ab")
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)

    def far_enough(self, command: subprocess.Popen[bytes], steps: int) -> bool:
        return command.poll() is not None or len(self.steps()) >= steps

    @property
    def orders(self) -> str:
        """What the workers are told."""
        return json.dumps({"log": str(self.log), "seconds": self.seconds})

    @property
    def trials_file(self) -> Path:
        return self.root / "studies" / "mine" / "tuning" / "trials.json"

    def document(self) -> dict[str, Any]:
        return json.loads(self.trials_file.read_text())

    def trials(self) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = self.document()["trials"]
        return trials

    def states(self) -> Counter[tuple[str, str]]:
        """How many trials of each arm and state."""
        return Counter((trial["arm"], trial["state"]) for trial in self.trials())

    def steps(self) -> list[tuple[str, int]]:
        """Every step that was trained, by signature, as often as it was."""
        words = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [(name, int(step)) for name, step, *_ in words]
