"""A run folder, or another framework's log, read as the doctor's evidence, and what a log does not hold.

`frameworks/names.py` has what frameworks call our metrics, and what each one counts. verl and ROLL log a row a batch, a
mean over its updates; TRL a row every `logging_steps` optimiser steps.
"""

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

from grpolab.doctor.evidence import Evidence, Weights, compare
from grpolab.errors import RequestError
from grpolab.frameworks.names import FRESH_BATCH, LOG_NAMES
from grpolab.identity import dotted
from grpolab.paths import read_json
from grpolab.report.journals import table
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

# Framework -> its name -> ours; `grpolab` is a mirror of ours whose folder is not here.
NAMES = LOG_NAMES | {
    "grpolab": {metric.name: metric.name for metric in METRICS.values() if metric.kind in ("update", "rollout")}
}

STEPS = ("step", "training/global_step", "system/global_step", "_step")

# Our metric -> what cannot be said without it, or where it is not finite.
NEEDED = {
    "loss": "the loss",
    "grad_norm": "the gradient's size: a weak signal, gradient clipping, spikes",
    "ratio/token_max": "how far the ratio is from 1",
    "ratio/token_max_neg": "large ratios of tokens with A < 0",
    "clip/active": "the clip fraction",
    "cf/token_0.2": "what the usual clip range would have clipped: too small an epsilon, or no clip",
    "kl_old/k3": "what makes the ratio differ from 1 on the first pass: dropout, padding, temperature, mask, precision",
    "weights/step_norm": "whether the weights move: frozen parameters and low precision",
    "zero_variance/share": "groups with equal rewards: a constant reward, and starving variance",
    "entropy/behaviour": "whether the entropy fell or grew",
    "truncation/share": "whether completions grow until they are cut off",
    "reward/mean": "whether the reward fell",
}
SETTINGS = "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log"
COMPLETIONS = "advantages and single tokens: they are not in such a log"


def plain(name: str) -> str:
    """A metric's name as MLflow has it: verl writes `_at_` for `@`, transformers `_`."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))


# ----------------------------------------------------------------------------------------------------------------------
# A run folder as evidence, as far as it can be read.


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


# ----------------------------------------------------------------------------------------------------------------------
# Logs from elsewhere as evidence: a file of TRL, verl or ROLL, or the metrics of an MLflow run.


NOT_FINITE = ("nan", "inf", "infinity")  # as trackers, CSV and JSON write them
Row = Mapping[str, Any]


def read_log(framework: str, path: Path) -> Evidence:
    """The evidence in a log file: trainer_state.json, or .csv or .jsonl with a row a step.

    Raises RequestError where it cannot be read, or holds no metric that the doctor knows.
    """
    try:
        rows = _rows(path)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise RequestError(f"FILE={path} cannot be read as a log: {error}") from error
    return evidence_of(framework, path.name, rows)


def recognised(names: Iterable[str]) -> str | None:
    """The framework that most of these metric names are from; None where none is known."""
    known = {framework: sum(plain(name) in _plain_names(framework) for name in set(names)) for framework in NAMES}
    best = max(known, key=lambda framework: known[framework])
    return best if known[best] else None


def evidence_of(framework: str, run: str, rows: Sequence[Row]) -> Evidence:
    """Rows of a log, in order, under our names. Raises RequestError where none of their names is known."""
    names = _plain_names(framework)
    ours = [{names[plain(key)]: value for key, value in row.items() if plain(key) in names} for row in rows]
    kept = [place for place, row in enumerate(ours) if row]
    if not kept:
        known = ", ".join(list(NAMES[framework])[:6])
        raise RequestError(f"FILE={run} holds no metric that {framework} logs of an update: {known}, ...")
    positions = _positions(framework, [rows[place] for place in kept])
    whole = pd.DataFrame([ours[place] for place in kept]).apply(pd.to_numeric, errors="coerce")
    tables = {kind: _of_kind(whole, positions, kind) for kind in ("update", "rollout")}
    return Evidence(
        run=run,
        state=f"a log of {framework} with {count(len(kept), 'row')}",
        updates=tables["update"],
        rollouts=tables["rollout"],
        unknown=(SETTINGS, COMPLETIONS),
        not_finite=Counter(
            name for row in ours for name, value in row.items() if str(value).lower().lstrip("-") in NOT_FINITE
        ),
    )


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


def _of_kind(whole: pd.DataFrame, positions: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The columns of one kind with their positions, rows without any of them left out."""
    columns = [name for name in whole if METRICS[name].kind == kind]
    return positions.join(whole[columns]).dropna(subset=columns, how="all") if columns else positions.iloc[:0]
