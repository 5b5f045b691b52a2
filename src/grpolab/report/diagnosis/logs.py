"""Logs from elsewhere as evidence: a file of TRL, verl or ROLL, or the metrics of an MLflow run."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grpolab.errors import RequestError
from grpolab.report.diagnosis.evidence import Evidence
from grpolab.report.diagnosis.names import COMPLETIONS, FRESH_BATCH, NAMES, SETTINGS, STEPS, plain
from grpolab.report.text import count
from grpolab.vocabulary import METRICS

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
