"""A run folder as evidence, as far as it can be read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from grpolab.errors import RequestError
from grpolab.identity import dotted
from grpolab.paths import read_json
from grpolab.report.diagnosis.evidence import Evidence
from grpolab.report.diagnosis.weights import Weights, compare
from grpolab.report.runs import table
from grpolab.report.text import count

KINDS = {"update": "updates", "rollout": "rollouts", "evaluation": "evaluations"}
PLANTED = ("fault", "reward.function")  # what `make doctor-check` plants stands in settings, and must not be known
MOST_SAMPLES = 12  # tables of completions that are read, evenly over the run
SAMPLE_COLUMNS = ["prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio", "clipped"]


def read_run(folder: Path) -> Evidence:
    """The evidence in a run folder. Raises RequestError where its settings cannot be read."""
    outcome = read_json(folder / "outcome.json")
    tables, damage, not_finite = _journal(folder / "journal.jsonl", running=outcome is None)
    samples, unreadable = _samples(folder)
    weights = _weights(folder) if outcome else None
    absent = [] if weights else ["the weights: they are kept when a run ends"]
    return Evidence(
        run=folder.name,
        state=_state(folder, outcome, tables["rollouts"]),
        settings=_settings(folder),
        samples=samples,
        weights=weights,
        unknown=(*damage, *unreadable, *absent),
        not_finite=not_finite,
        **tables,
    )


def _settings(folder: Path) -> dict[str, Any]:
    """Dotted keys."""
    try:
        found = dict(dotted(yaml.safe_load((folder / "settings.yaml").read_text())))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise RequestError(f"run {folder.name}: settings.yaml cannot be read ({type(error).__name__})") from error
    return {key: value for key, value in found.items() if key not in PLANTED}


def _state(folder: Path, outcome: dict[str, Any] | None, rollouts: pd.DataFrame) -> str:
    done = count(len(rollouts), "rollout step")
    if outcome:
        return f"{outcome.get('outcome')} after {done}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    beat = read_json(folder / "running.json")
    if beat is None:
        return f"unfinished after {done}: this is a diagnosis of what there is"
    return f"still going, after {done} of {beat.get('rollout_steps')}: this is a diagnosis so far"


def _journal(path: Path, running: bool) -> tuple[dict[str, pd.DataFrame], list[str], Counter[str]]:
    """Its tables, what of it cannot be read, and by metric how many values are not finite: the journal's strings."""
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in KINDS.values()}
    damage, not_finite = [], Counter[str]()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        lines, damage = [], ["the journal: there is none"]
    for number, line in enumerate(lines, start=1):
        if running and number == len(lines) and not line.endswith(b"\n"):
            break  # it is being written
        try:
            record = json.loads(line)
            kind = record.pop("kind")
        except (ValueError, KeyError, AttributeError):
            damage.append(f"the journal from line {number} of {len(lines)} on: the line is damaged")
            break
        if kind in KINDS:
            records[KINDS[kind]].append(record)
            not_finite.update(name for name, value in record.items() if isinstance(value, str))
    return {name: table(rows) for name, rows in records.items()}, damage, not_finite


def _samples(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """One row per token of kept rollout steps, with its `rollout_step`; what cannot be read is said."""
    files = sorted(folder.glob("samples/step_*.parquet"))
    chosen = {files[round(place)] for place in np.linspace(0, len(files) - 1, MOST_SAMPLES)} if files else set()
    frames = []
    problems = [] if files else ["advantages and single tokens: diagnostics.samples_every kept none"]
    for file in sorted(chosen):
        try:
            frame = pd.read_parquet(file, columns=SAMPLE_COLUMNS)
        except (OSError, ValueError) as error:
            problems.append(f"{file.name}: {type(error).__name__}")
            continue
        frames.append(frame.assign(rollout_step=int(file.stem.removeprefix("step_"))))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), problems


def _weights(folder: Path) -> Weights | None:
    """Of the run's end, beside its warm start in the same results folder."""
    warm_start = (read_json(folder / "provenance.json") or {}).get("warm_start") or {}
    start = folder.parents[1] / "warm_starts" / str(warm_start.get("signature")) / "policy.safetensors"
    return compare(folder / "policy.safetensors", start)
