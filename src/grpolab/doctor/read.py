"""A run folder, or the log of another framework, as the doctor's evidence, as far as it can be read."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from grpolab.doctor.evidence import Evidence, Weights
from grpolab.errors import RequestError
from grpolab.frameworks.names import FRESH_BATCH, LOG_NAMES
from grpolab.identity import dotted
from grpolab.paths import read_json
from grpolab.report.journals import table
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

TABLES = {"update": "updates", "rollout": "rollouts", "evaluation": "evaluations"}
PLANTED = ("fault", "reward.function")  # what `make doctor-check` plants stands in settings, and must not be known
MOST_SAMPLES = 12  # tables of completions that are read, evenly over the run
SAMPLE_COLUMNS = ["prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio", "clipped"]


def read_run(folder: Path) -> Evidence:
    """The evidence in a run folder. Raises RequestError where its settings cannot be read."""
    outcome = read_json(folder / "outcome.json")
    tables, damage, not_finite = _journal(folder / "journal.jsonl", running=outcome is None)
    samples, unreadable = _samples(folder)
    warm_start = (read_json(folder / "provenance.json") or {}).get("warm_start") or {}
    start = folder.parents[1] / "warm_starts" / str(warm_start.get("signature")) / "policy.safetensors"
    weights = compare(folder / "policy.safetensors", start) if outcome else None
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


def _state(folder: Path, outcome: dict[str, Any] | None, rollouts: pd.DataFrame) -> str:
    done = count(len(rollouts), "rollout step")
    if outcome:
        return f"{outcome.get('outcome')} after {done}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    beat = read_json(folder / "running.json")
    if beat is None:
        return f"unfinished after {done}: this is a diagnosis of what there is"
    return f"still going, after {done} of {beat.get('rollout_steps')}: this is a diagnosis so far"


def _settings(folder: Path) -> dict[str, Any]:
    """Dotted keys."""
    try:
        settings = dict(dotted(yaml.safe_load((folder / "settings.yaml").read_text())))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise RequestError(f"run {folder.name}: settings.yaml cannot be read ({type(error).__name__})") from error
    return {key: value for key, value in settings.items() if key not in PLANTED}


def _journal(path: Path, running: bool) -> tuple[dict[str, pd.DataFrame], list[str], Counter[str]]:
    """Its tables, what of it cannot be read, and by metric how many values are not finite: the journal's strings.

    `report/journals.py` reads whole journals faster; this one reads the whole part of a damaged one too.
    """
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES.values()}
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
        if kind in TABLES:
            records[TABLES[kind]].append(record)
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


# ----------------------------------------------------------------------------------------------------------------------
# The weights at the end of a run beside those at its start: how many there are, which moved, how finely they lie.


MOST_WEIGHTS = 1_000_000  # of a tensor that are looked at: enough to tell, and a large model is read in a moment


def compare(end: Path, start: Path) -> Weights | None:
    """The weights in `end` beside those in `start`, if that is there; None where `end` is no readable file."""
    try:
        after = _read_weights(end)
        before = _read_weights(start) if start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: after[name][1] != before[name][1] for name in after if name in before}
    values = np.concatenate([values for _, values in after.values()])
    moved = np.concatenate(list(changed.values())) if changed else np.empty(0)
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(((values.view(np.uint32) & 0xFFFF) == 0).mean()),  # bfloat16 is the upper half of a float32
        moved=float(moved.mean()) if len(moved) else float("nan"),
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read_weights(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Each tensor's number of weights, and the first of them, flat and in float32."""
    tensors = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            tensors[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return tensors


# ----------------------------------------------------------------------------------------------------------------------
# Logs from elsewhere as evidence: a file of TRL, verl or ROLL, or the metrics of an MLflow run.
#
# verl and ROLL log a row a batch, a mean over its updates; TRL a row every `logging_steps` optimiser steps.


Row = Mapping[str, Any]

# Framework -> its name -> ours; `grpolab` is a mirror of ours whose folder is not here.
NAMES = LOG_NAMES | {
    "grpolab": {metric.name: metric.name for metric in METRICS.values() if metric.kind in ("update", "rollout")}
}
STEPS = ("step", "training/global_step", "system/global_step", "_step")
NOT_FINITE = ("nan", "inf", "infinity")  # as trackers, CSV and JSON write them
SETTINGS = "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log"
COMPLETIONS = "advantages and single tokens: they are not in such a log"


def read_log(framework: str, path: Path) -> Evidence:
    """The evidence in a log file: trainer_state.json, or .csv or .jsonl with a row a step.

    Raises RequestError where it cannot be read, or holds no metric that the doctor knows.
    """
    try:
        rows = _rows(path)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return evidence_of(framework, path.name, rows)


def _rows(path: Path) -> list[Row]:
    text = path.read_text()
    if path.suffix == ".csv":
        return [{key: value for key, value in row.items() if value != ""} for row in csv.DictReader(text.splitlines())]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [{"step": row.get("step"), **row["data"]} if isinstance(row.get("data"), dict) else row for row in rows]
    state = json.loads(text)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise ValueError("a .json file must be a trainer_state.json with a log_history; else use .csv or .jsonl")
    return [row for row in state["log_history"] if "train_runtime" not in row]


def recognised(names: Iterable[str]) -> str | None:
    """The framework that most of these metric names are from; None where none is known."""
    written = {plain(name) for name in names}
    known = {framework: len(written & _plain_names(framework).keys()) for framework in NAMES}
    best = max(known, key=lambda framework: known[framework])
    return best if known[best] else None


def evidence_of(framework: str, run: str, rows: Sequence[Row]) -> Evidence:
    """Rows of a log, in order, under our names. Raises RequestError where none of their names is known."""
    names = _plain_names(framework)
    pairs = [(row, {names[plain(key)]: value for key, value in row.items() if plain(key) in names}) for row in rows]
    pairs = [(row, ours) for row, ours in pairs if ours]
    if not pairs:
        known = ", ".join(list(NAMES[framework])[:6])
        raise RequestError(f"FILE={run} holds no metric that {framework} logs of an update: {known}, ...")
    positions = _positions(framework, [row for row, _ in pairs])
    values = pd.DataFrame([ours for _, ours in pairs]).apply(pd.to_numeric, errors="coerce")
    return Evidence(
        run=run,
        state=f"a log of {framework} with {count(len(pairs), 'row')}",
        updates=_of_kind("update", values, positions),
        rollouts=_of_kind("rollout", values, positions),
        unknown=(SETTINGS, COMPLETIONS),
        not_finite=Counter(
            name for _, ours in pairs for name, value in ours.items() if str(value).lower().lstrip("-") in NOT_FINITE
        ),
    )


def plain(name: str) -> str:
    """A metric's name as MLflow has it: verl writes `_at_` for `@`, transformers `_`."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))


def _plain_names(framework: str) -> dict[str, str]:
    """Theirs, as every tracker can write them, to ours."""
    return {plain(theirs): ours for theirs, ours in NAMES[framework].items()}


def _positions(framework: str, rows: Sequence[Row]) -> pd.DataFrame:
    """rollout_step, and iteration and minibatch where each row is one optimiser step and fresh batches are marked."""
    steps = [next((row[name] for name in STEPS if row.get(name) is not None), place) for place, row in enumerate(rows)]
    step = pd.to_numeric(pd.Series(steps), errors="coerce").ffill().fillna(0)
    mark = FRESH_BATCH.get(framework)
    fresh = pd.Series([mark in row for row in rows])
    if mark is None or not fresh.iloc[0] or (len(step) > 1 and not (step.diff().iloc[1:] == 1).all()):
        return pd.DataFrame({"rollout_step": step.astype(int)})
    batch = fresh.cumsum() - 1
    return pd.DataFrame({"rollout_step": batch, "iteration": batch.groupby(batch).cumcount(), "minibatch": 0})


def _of_kind(kind: str, values: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The columns of one kind with their positions, rows without any of them left out."""
    columns = [name for name in values if METRICS[name].kind == kind]
    return positions.join(values[columns]).dropna(subset=columns, how="all") if columns else positions.iloc[:0]
