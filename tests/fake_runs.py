"""Run folders in the contract's format, with values that stand for nothing, and what the store has of them."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from grpolab import meanings
from grpolab.paths import Results, write_json_atomic, write_text_atomic
from grpolab.run.folder import Heartbeat
from grpolab.run.lease import Lease
from grpolab.run.tracking import store_uri
from grpolab.run.tracking.mirror import StudyMirror

STUDY = "clip_range"
# Two completions of a prompt, as `run/recorder.py` keeps them.
SAMPLES = {
    **{"prompt_index": [0, 0, 0], "sample": [0, 0, 1], "prompt": ["1+1="] * 3, "completion": ["2", "2", "3"]},
    **{"reward": [1.0, 1.0, 0.0], "reward_correct": [1.0, 1.0, 0.0], "advantage": [0.7, 0.7, -0.7]},
    **{"position": [0, 1, 0], "token": ["2", "<end>", "3"], "old_log_prob": [-0.1, -0.2, -0.3]},
    **{"ratio": [0.5, 1.5, 0.7], "clipped": ["", "high", "low"]},
}
T0 = 1_790_000_000_000  # unix milliseconds


def study(results: Results, name: str = STUDY, seeds: int = 2, arms: tuple[str, ...] = ("low", "high")) -> dict:
    """Write a plan of arms x seeds on one task, and return it."""
    cells = [
        {"variant": f"{arm}/addition", "levels": {"clip": arm, "task": "addition"}, "seed": seed}
        | {"signature": hashlib.sha256(f"{arm}{seed}".encode()).hexdigest()[:16], "rollout_steps": 3}
        | {"settings": {"task": "addition", "epsilon": 0.2}}
        for arm in arms
        for seed in range(seeds)
    ]
    plan = {
        **{"format": 1, "study": name, "question": "Which side of the clip range matters?", "results_version": 1},
        **{"created": "2026-11-20T10:00:00+00:00", "commit": "c0ffee", "includes": [], "placebo": []},
        **{"compare": "clip", "baseline": arms[0], "primary_metric": "eval/accuracy_expected"},
        **{"factors": {"clip": list(arms), "task": ["addition"]}, "figures": ["F1"]},
        "hypotheses": [{"id": "H6", "says": "Without clipping, accuracy is lower."}],
        **{"seeds": list(range(seeds)), "cells": cells},
    }
    write_json_atomic(results.plan(name), plan)
    return plan


class FakeRun:
    """A run that takes its steps when told."""

    def __init__(self, results: Results, cell: dict[str, Any], every: int = 2, updates: int = 4) -> None:
        self.folder = results.run(cell["signature"])
        self.lease = Lease(self.folder)
        self.cell, self.every, self.updates = cell, every, updates
        self.step = 0
        self.random = random.Random(cell["signature"])
        self.level = list(cell["levels"]).index("clip") + 0.1 * len(cell["variant"])
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"seed": cell["seed"], "epsilon": 0.2, "delta": None, "epsilon_high": float("inf")}
        settings |= {"task": {"name": "addition", "digits": 2}, "machine": {"threads": 1}}
        write_text_atomic(self.folder / "settings.yaml", yaml.safe_dump(settings))
        digests = {f"{split}_sha256": hashlib.sha256(split.encode()).hexdigest() for split in ("train", "evaluation")}
        dataset = {**digests, "train_items": 6100, "evaluation_items": 2000}
        write_json_atomic(self.folder / "provenance.json", {"commit": "c0ffee", "dataset": dataset})
        self.beat()
        self._evaluation()

    def take(self, steps: int) -> FakeRun:
        """Some rollout steps."""
        for _ in range(steps):
            begun = self.step * self.updates
            for iteration in range(self.updates):
                self._write("update", iteration=iteration, minibatch=0, optimizer_step=begun + iteration)
            self._write("rollout", optimizer_step=begun + self.updates)
            row = {"rollout_step": self.step, "time_ms": T0 + 100 * (self.step + 1), **self._values("timing")}
            row["seconds/elapsed"] = 0.1 * (self.step + 1)
            self.step += 1
            if self.step % self.every == 0:
                self._evaluation()
            self._append("timing.jsonl", row)
        return self

    def delay(self, after: int, milliseconds: int) -> None:
        """Let the rollout steps after one have taken place later."""
        file = self.folder / "timing.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        late = [{**row, "time_ms": row["time_ms"] + milliseconds * (row["rollout_step"] > after)} for row in rows]
        file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in late))

    def end(self, outcome: str = "completed", reason: str | None = None) -> None:
        """Write the outcome."""
        (self.folder / "policy.safetensors").write_bytes(b"weights" * 10)
        samples = self.folder / "samples"
        samples.mkdir(exist_ok=True)
        pd.DataFrame(SAMPLES).to_parquet(samples / "step_000000.parquet")
        final = {"eval/accuracy_expected": 0.5}
        end = {"outcome": outcome, "reason": reason, "rollout_steps": self.step, "final": final, "error": None}
        write_json_atomic(self.folder / "outcome.json", end)
        (self.folder / "running.json").unlink(missing_ok=True)

    def _evaluation(self) -> None:
        self._write("evaluation", optimizer_step=self.step * self.updates)

    def _write(self, kind: str, **position: int) -> None:
        self._append("journal.jsonl", {"kind": kind, "rollout_step": self.step, **position, **self._values(kind)})

    def _values(self, kind: str) -> dict[str, float]:
        names = [m.name for m in meanings.METRICS.values() if m.kind == kind]
        return {name: round(self.level + self.step / 50 + 0.2 * self.random.random(), 6) for name in names}

    def _append(self, name: str, record: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def beat(self) -> None:
        """Say that this process runs it; it does so until `lease.release()`."""
        self.lease.attempt()
        Heartbeat(self.folder, rollout_steps=3).beat(self.step, time.time())


def expected_points(folder: Path) -> dict[tuple[str, int], float]:
    """(metric, step) -> value that MLflow must hold, computed here the long way round from a whole folder."""
    points = {}
    records = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    records += [{"kind": "timing"} | json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    for record in records:  # of the updates of a rollout step the last one stays
        for name, metric in meanings.METRICS.items():
            if metric.mirrored and metric.kind == record["kind"] and isinstance(record.get(name), int | float):
                points[name, record["rollout_step"]] = record[name]
    return points


def wait_for_server(process: subprocess.Popen[Any], port: int) -> None:
    """Wait until MLflow's server answers; fails where it ends before."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError("no answer")


def uri(results: Results) -> str:
    """Of the store in the results folder."""
    found = store_uri("auto", results)
    assert found
    return found


def mirror(results: Results, last: bool = True) -> None:
    """What a freshly started process does."""
    assert StudyMirror(results, uri(results), [STUDY]).attempt(last) is None


def tracked(results: Results, store: str | None = None) -> dict[str, Run]:
    """The study's runs by name, in that store or the results' own; fails where two have the same."""
    client = MlflowClient(store or uri(results))
    runs = client.search_runs([client.get_experiment_by_name(STUDY).experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    assert len(by_name) == len(runs), [run.info.run_name for run in runs]
    return by_name


def points(results: Results, run: Run) -> dict[tuple[str, int], float]:
    """(metric, step) -> value as the store has it; fails where it has a point twice."""
    query = "select key, step, value from metrics where run_uuid = ?"
    with sqlite3.connect(results.store) as connection:
        rows = connection.execute(query, (run.info.run_id,)).fetchall()
    found = {(key, step): value for key, step, value in rows}
    assert len(found) == len(rows), "a point is there twice"
    return found


def assert_equal_to_journals(results: Results) -> None:
    runs = tracked(results)
    for cell in json.loads(results.plan(STUDY).read_text())["cells"]:
        run = runs[f"{cell['variant']}, seed {cell['seed']}"]
        assert points(results, run) == expected_points(results.run(cell["signature"]))
