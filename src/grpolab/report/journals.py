"""Columns of one run's journal as numbers. What a journal does not have is empty, and its mean is NaN."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from grpolab.identity import in_words
from grpolab.paths import Results, write_atomic
from grpolab.vocabulary import POSITIONS, RESULTS


def column(frame: pd.DataFrame, metric: str) -> NDArray:
    """A metric's finite or infinite values in order; empty where the journal does not have it."""
    return frame[metric].dropna().to_numpy(dtype=np.float64) if metric in frame else np.empty(0)


def both(frame: pd.DataFrame, one: str, other: str) -> tuple[NDArray, NDArray]:
    """Two metrics over the records that have both, in order; empty where there is none."""
    if one not in frame or other not in frame:
        return np.empty(0), np.empty(0)
    values = frame[[one, other]].dropna().to_numpy(dtype=np.float64)
    return values[:, 0], values[:, 1]


def mean(values: NDArray) -> float:
    """The mean, or NaN."""
    return float(np.mean(values)) if len(values) else np.nan


def largest(values: NDArray) -> float:
    """The largest value, or NaN."""
    return float(np.max(values)) if len(values) else np.nan


def tail_length(n: int, share: float) -> int:
    """How many of `n` points a tail of `share` holds: at least one."""
    return max(1, round(share * n))


# ----------------------------------------------------------------------------------------------------------------------
# Four moments of every run, for what would be too much to keep of every update.


QUARTERS = 4


def at_quarters(updates: pd.DataFrame) -> pd.DataFrame:
    """The last update of the rollout steps that end the quarters of each run, as far as it went; index as it was.

    With a column `quarter`, from 1. A run of fewer than four rollout steps has no row for some quarters.
    """
    last = updates.groupby(["signature", "rollout_step"], sort=False).tail(1)
    runs = last.groupby("signature")["rollout_step"]
    place, steps = runs.cumcount() + 1, runs.transform("size")
    quarter = QUARTERS * place // steps
    return last.assign(quarter=quarter)[quarter > QUARTERS * (place - 1) // steps]


# ----------------------------------------------------------------------------------------------------------------------
# Which tokens were clipped, by name: counted in the completions that runs keep under samples/.


COLUMNS = ["signature", "token", "tokens", "low", "high"]


def count_clipped(results: Results, signatures: Iterable[str]) -> pd.DataFrame:
    """For each run and each token that was clipped in its samples: its occurrences, and how many were clipped.

    Columns: COLUMNS. `low` and `high` are clipped below and above, on the last pass over the batch. Runs without
    samples have no rows.
    """
    counted = [_count_run(results, signature) for signature in signatures]
    return pd.concat([pd.DataFrame(columns=COLUMNS), *counted], ignore_index=True).astype(
        dict.fromkeys(COLUMNS[2:], "int64")
    )


def _count_run(results: Results, signature: str) -> pd.DataFrame:
    files = sorted((results.run(signature) / "samples").glob("*.parquet"))
    if not files:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat([pd.read_parquet(file, columns=["token", "clipped"]) for file in files])
    marks = pd.DataFrame({"tokens": 1, "low": rows["clipped"] == "low", "high": rows["clipped"] == "high"})
    counts = marks.groupby(rows["token"].to_numpy()).sum().rename_axis("token").reset_index()
    return counts[counts["low"] + counts["high"] > 0].assign(signature=signature)[COLUMNS]


# ----------------------------------------------------------------------------------------------------------------------
# Journals as columns: parsed once, then read from a cache beside them for as long as they do not change.
#
# Metrics are float32: a quarter of the memory of Python's numbers, and what the committed reference holds.


CACHE = "journal.arrow"
# Columns that count or name; every other number is a metric.
_EXACT = {*POSITIONS, "time_ms"}
_FORMAT = " ".join(("1", *sorted(_EXACT)))  # raise the number when the same journal becomes other columns


def read_journal(folder: Path) -> pa.Table:
    """A run's journal and timing as one table: a row per record with its `kind` (of the latter: timing).

    What journal.arrow holds is used only where it was made from these very bytes. A folder that cannot be written has
    no cache.
    """
    texts = {name: _bytes(folder / f"{name}.jsonl") for name in ("journal", "timing")}
    key = hashlib.sha256(b"\0".join((_FORMAT.encode(), *texts.values()))).hexdigest()
    cached = _read_cache(folder / CACHE, key)
    if cached is not None:
        return cached
    timing = [{"kind": "timing", **record} for record in _records(texts["timing"])]
    table = columns([*_records(texts["journal"]), *timing])
    with suppress(OSError):
        _write_cache(folder / CACHE, key, table)
    return table


def join(journals: dict[str, pa.Table], kind: str) -> pa.Table:
    """The records of one kind of many runs, by signature; a column that none of them has is left out."""
    rows = [table.filter(pa.compute.equal(table["kind"], kind)) for table in journals.values()]
    named = [
        table.add_column(0, "signature", pa.array([signature] * len(table), pa.string()))
        for signature, table in zip(journals, rows, strict=True)
    ]
    whole = pa.concat_tables(named, promote_options="permissive") if named else columns([])
    return whole.select([name for name in whole.column_names if name != "kind" and _is_filled(whole[name])])


def _is_filled(column: pa.ChunkedArray) -> bool:
    return column.null_count < len(column)


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _records(text: bytes) -> Iterable[dict[str, Any]]:
    return map(json.loads, text.splitlines())


def columns(records: list[dict[str, Any]]) -> pa.Table:
    """Records as columns, in the order in which they first appear."""
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: _column(name, [record.get(name) for record in records]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    """One column: the strings "inf", "-inf" and "nan" become numbers, lists stay lists."""
    if name in _EXACT:
        return pa.array(values)
    if any(isinstance(value, list) for value in values):
        return pa.array([None if value is None else np.array(value, np.float32) for value in values])
    return pa.array(np.array(values, dtype=np.float64).astype(np.float32), from_pandas=True)


def _read_cache(file: Path, key: str) -> pa.Table | None:
    """None where there is no cache, or one of something else."""
    try:
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            same = reader.schema.metadata[b"key"] == key.encode()
            return reader.read_all().replace_schema_metadata() if same else None
    except (OSError, pa.ArrowInvalid):
        return None


def _write_cache(file: Path, key: str, table: pa.Table) -> None:
    keyed = table.replace_schema_metadata({"key": key})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, keyed.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(keyed)
    write_atomic(file, sink.getvalue().to_pybytes(), durable=False)


# ----------------------------------------------------------------------------------------------------------------------
# Run folders as tables: every journal is read once, however many studies share the run.
#
# Metrics are float32 here and in the committed reference, so a figure that is redrawn from it has the numbers, and the
# bytes, of the figure that was drawn from the run folders.


TABLES = ("updates", "rollouts", "evaluations", "histograms", "timings")
# Nullable, so that beside missing cells version 1 does not become 1.0.
_COUNTS = ("rollout_steps", "optimizer_steps", "threads", "results_version", "evaluation_items")


@dataclass(frozen=True)
class Runs:
    """Tables of many runs, each with a column `signature`.

    `outcomes` has one row per run that has an outcome, with what its provenance says; the other tables hold the journal
    (and timings) of runs whose outcome is a result, one row per record.
    """

    outcomes: pd.DataFrame
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    evaluations: pd.DataFrame
    histograms: pd.DataFrame
    timings: pd.DataFrame


def read_runs(results: Results, signatures: Iterable[str]) -> Runs:
    """The runs among `signatures` whose outcome is written. A run without one is not done, and is not read."""
    outcomes: list[dict[str, Any]] = []
    journals: dict[str, pa.Table] = {}
    for signature in signatures:
        folder = results.run(signature)
        if not (folder / "outcome.json").is_file():
            continue
        outcomes.append({"signature": signature, **_outcome(folder)})
        if outcomes[-1]["outcome"] in RESULTS:
            journals[signature] = read_journal(folder)
    return Runs(
        outcomes=_outcomes(outcomes),
        **{table: _frame(join(journals, table.removesuffix("s"))) for table in TABLES},
    )


def _outcomes(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=None if rows else ["signature", "outcome"])
    return frame.astype({column: "Int64" for column in _COUNTS if column in frame})


def _outcome(folder: Path) -> dict[str, Any]:
    """The flat part of outcome.json, and of provenance.json what a report says about a run."""
    outcome = json.loads((folder / "outcome.json").read_text())
    provenance_file = folder / "provenance.json"  # a run that failed before its first step has none
    provenance = json.loads(provenance_file.read_text()) if provenance_file.exists() else {}
    warm_start, hardware = provenance.get("warm_start") or {}, provenance.get("hardware") or {}
    return {
        **{key: outcome.get(key) for key in ("outcome", "reason", "rollout_steps", "optimizer_steps", "seconds")},
        **{key: outcome.get(key) for key in ("journal_sha256", "policy_sha256")},
        **{key: provenance.get(key) for key in ("commit", "dirty", "lock_sha256", "python", "threads")},
        "results_version": provenance.get("results_version"),
        "hardware": json.dumps(hardware, sort_keys=True),
        **({"content": in_words(content)} if (content := provenance.get("content")) else {}),
        "warm_start": warm_start.get("signature"),
        "warm_start_accuracy": warm_start.get("accuracy"),
        "evaluation_items": (provenance.get("dataset") or {}).get("evaluation_items"),
    }


def table(records: list[dict[str, Any]]) -> pd.DataFrame:
    """Records of one kind as columns: the strings "inf", "-inf" and "nan" become numbers, an absent metric NaN."""
    return _frame(columns(records))


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas() if table.num_columns else pd.DataFrame(columns=["signature", *POSITIONS])
