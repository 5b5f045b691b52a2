"""Run folders as tables, and the numbers of one column.

Every journal is parsed once, however many studies share the run, and then read from a cache.

Metrics are float32, as in the committed outcome: a figure that is redrawn from that has the numbers, and the bytes,
of the figure that was drawn from the run folders.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype
from pyarrow import feather

from grpolab.errors import Damaged
from grpolab.identity import in_words
from grpolab.meanings import METRICS, POSITIONS
from grpolab.paths import Results, write_atomic
from grpolab.quantities import Thresholds
from grpolab.records import check_journal, check_provenance, parse_lines, read_provenance
from grpolab.run_files import JOURNAL, TIMING, Record, read_bytes, read_outcome
from grpolab.vocabulary import DAMAGED, RESULTS, UNFINISHED

TABLES = ("updates", "rollouts", "evaluations", "histograms", "timings")
NUMBERS = "numbers"
KIND_OF_CPU = ("cpu", "cpu_capability", "mkl", "float32")  # these decide the bits of a run's numbers
NOT_RECORDED = "not recorded"
QUARTERS = 4
CACHE = "journal.arrow"
HASH = 16  # hex digits of a hash that tells two runs apart; the folder of a run has the whole
# Nullable integers: beside a missing cell, version 1 must not become 1.0.
_COUNTS = ("rollout_steps", "optimizer_steps", "threads", "results_version", "evaluation_items")
_NOT_METRICS = {*POSITIONS, "time_ms"}  # columns that count or name; every other number is a metric
_FORMAT = " ".join(("1", *sorted(_NOT_METRICS)))  # raise the number if the same journal becomes other columns

# Tables by name, each with a column `signature`. `outcomes`: a row for each run with an outcome, with parts of its
# provenance. TABLES: a row for each record in the journals and timings of runs whose outcome is a result.
# `numbers`: `measures.run_numbers` of the runs whose records the committed outcome does not keep.
Runs = dict[str, pd.DataFrame]


def read_runs(results: Results, signatures: Iterable[str], unfinished: bool = False) -> Runs:
    """Read the runs that have an outcome. One whose files do not match it gets the outcome `damaged` and no records.

    With `unfinished` also those that have only a journal, up to its last whole line, as an outcome of this name.
    """
    outcomes: list[dict[str, Any]] = []
    journals: list[pa.Table] = []
    for signature in signatures:
        folder = results.run(signature)
        try:
            outcome = read_outcome(folder)
            if outcome is None and unfinished and (folder / JOURNAL).is_file():
                outcome = {"outcome": UNFINISHED}
            if outcome is None:
                continue
            row = _outcome_row(outcome, provenance := read_provenance(folder))
            if outcome["outcome"] in (*RESULTS, UNFINISHED):
                if outcome["outcome"] == UNFINISHED:
                    journal = _read_so_far(folder)
                else:
                    check_provenance(folder, provenance)
                    journal = read_journal(folder, outcome.get("journal_sha256"), results.is_ours)
                journals.append(journal.add_column(0, "signature", pa.array([signature] * len(journal), pa.string())))
        except Damaged as damage:
            row = _outcome_row({}, {}) | {"outcome": DAMAGED, "reason": str(damage)}
        outcomes.append({"signature": signature, **row})
    frame = pd.DataFrame(outcomes, columns=None if outcomes else ["signature", *_outcome_row({}, {})])
    runs = {"outcomes": frame.astype({column: "Int64" for column in _COUNTS if column in frame})}
    runs |= {NUMBERS: pd.DataFrame(columns=["signature"])}
    whole = pa.concat_tables(journals, promote_options="permissive") if journals else _columns([{"kind": ""}])
    return runs | {table: _of_kind(whole, table.removesuffix("s")) for table in TABLES}


def _outcome_row(outcome: Record, provenance: Record) -> dict[str, Any]:
    """Return what a report needs of outcome.json and provenance.json."""
    warm_start, dataset = provenance.get("warm_start") or {}, provenance.get("dataset") or {}
    diff = provenance.get("diff") or ""
    touched = sorted(set(re.findall(r"^diff --git a/(experiments/\S+)", diff, re.MULTILINE)))  # uncommitted changes
    from_outcome = ("outcome", "reason", "rollout_steps", "optimizer_steps", "seconds")
    from_provenance = ("began", "commit", "dirty", "lock_sha256", "python", "threads", "results_version")
    return {
        **{key: outcome.get(key) for key in from_outcome},
        **{key: (outcome.get(key) or "")[:HASH] or None for key in ("journal_sha256", "policy_sha256")},
        **{key: provenance.get(key) for key in from_provenance},
        "hardware": json.dumps(provenance.get("hardware") or {}, sort_keys=True),
        **({"content": in_words(content)} if (content := provenance.get("content")) else {}),
        **({"touched": " ".join(touched)} if touched else {}),
        "warm_start": warm_start.get("signature"),
        "warm_start_accuracy": warm_start.get("accuracy"),
        "warm_start_seconds": warm_start.get("seconds"),
        "evaluation_items": dataset.get("evaluation_items"),
    }


def _of_kind(whole: pa.Table, kind: str) -> pd.DataFrame:
    """Return the records of one kind, without the columns that none of them has."""
    rows = whole.filter(pa.compute.equal(whole["kind"], kind))
    kept = [name for name in rows.column_names if name != "kind" and rows[name].null_count < len(rows)]
    return _frame(rows.select(kept))


def read_journal(folder: Path, recorded: str | None = None, keep: bool = True) -> pa.Table:
    """Read a run's journal and timing as one table: a row per record, with its `kind` (`timing` for the latter).

    It is parsed once and then read from journal.arrow, a cache that is used only if it was made from the same bytes.
    No cache is written to a read-only folder, or without `keep`.

    Raises Damaged if the journal's hash is not the one `recorded` in outcome.json.
    """
    files = [folder / JOURNAL, folder / TIMING]
    journal, timing = (read_bytes(file) or b"" for file in files)
    digests = [hashlib.sha256(content).hexdigest() for content in (journal, timing)]
    if recorded is not None:
        check_journal(folder, recorded, digests[0])
    key = " ".join((_FORMAT, *digests)).encode()
    with suppress(OSError, pa.ArrowInvalid):  # no cache, or half of one
        cached = feather.read_table(folder / CACHE, memory_map=True)
        if (cached.schema.metadata or {}).get(b"key") == key:
            return cached.replace_schema_metadata()
    records = parse_lines(journal, files[0])
    try:
        table = _columns([*records, *({"kind": "timing", **row} for row in parse_lines(timing, files[1]))])
    except Damaged as damage:
        raise Damaged(f"{folder}: {damage}") from damage
    if keep:
        with suppress(OSError), BytesIO() as file:
            feather.write_feather(table.replace_schema_metadata({"key": key}), file, compression="lz4")
            write_atomic(folder / CACHE, file.getvalue(), durable=False)
    return table


def _read_so_far(folder: Path) -> pa.Table:
    """Read the journal of a run that may still train; a line that is half written is left out. Raises Damaged."""
    content = read_bytes(folder / JOURNAL) or b""
    return _columns(parse_lines(content[: content.rfind(b"\n") + 1], folder / JOURNAL))


def make_frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    """Return records of one kind as columns: "inf" and "nan" become numbers, an absent metric NaN. Raises Damaged."""
    return _frame(_columns(records))


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas() if table.num_columns else pd.DataFrame(columns=["signature", *POSITIONS])


def _columns(records: list[dict[str, Any]]) -> pa.Table:
    """Return records as columns, in the order in which they first appear; lists stay lists. Raises Damaged."""

    def column(name: str) -> pa.Array:
        values = [record.get(name) for record in records]
        if name in _NOT_METRICS:
            return pa.array(values)
        if name not in METRICS and any(isinstance(value, list) for value in values):  # a histogram's counts
            return pa.array([None if value is None else np.array(value, np.float32) for value in values])
        return pa.array(np.array(values, dtype=np.float64).astype(np.float32), from_pandas=True)

    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        try:
            columns[name] = column(name)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            # Only known metrics are named: a journal that is a link to a private file must not leak that file's words.
            what = f"{name} of a record" if name in METRICS else "a record's value"
            raise Damaged(f"the journal is damaged: {what} is no number") from error
    return pa.table(columns)


_NUMBERS_OF_SAMPLES = ("prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio")
_TEXTS_OF_SAMPLES = ("prompt", "completion", "token", "clipped")


def read_samples(file: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read the tokens that a rollout step kept, one row each; all columns unless given. Raises Damaged."""
    try:
        samples = pd.read_parquet(file, columns=columns)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise Damaged(f"{file} cannot be read as samples: {str(error)[:120]}") from error
    for name in columns or (*_NUMBERS_OF_SAMPLES, *_TEXTS_OF_SAMPLES):
        kind = f"of type {samples[name].dtype}" if name in samples else "missing"
        if kind == "missing" or (name in _NUMBERS_OF_SAMPLES and not is_numeric_dtype(samples[name])):
            raise Damaged(f"{file} cannot be read as samples: its column {name} is {kind}")
    return samples


def at_quarters(updates: pd.DataFrame) -> pd.DataFrame:
    """Return the last update of the rollout steps that end the quarters of each run, with a column `quarter` from 1.

    The index stays. A run of fewer than four rollout steps lacks some quarters.
    """
    last = updates.groupby(["signature", "rollout_step"], sort=False).tail(1)
    runs = last.groupby("signature")["rollout_step"]
    place, steps = runs.cumcount() + 1, runs.transform("size")
    quarter = QUARTERS * place // steps
    return last.assign(quarter=quarter)[quarter > QUARTERS * (place - 1) // steps]


def column(frame: Any, metric: str, rows: slice = slice(None)) -> NDArray:
    """Return a metric's values in order, without NaN; empty if the journal lacks it. `frame`: any columns by name."""
    if metric not in frame:
        return np.empty(0)
    values = np.asarray(frame[metric], dtype=np.float64)[rows]  # dropna costs ten times as much on a short log
    return values[~np.isnan(values)]


def both(frame: Any, first: str, second: str, rows: slice | NDArray = slice(None)) -> tuple[NDArray, NDArray]:
    """Return two metrics over the records that have both, in order."""
    if first not in frame or second not in frame:
        return np.empty(0), np.empty(0)
    values = [np.asarray(frame[name], dtype=np.float64)[rows] for name in (first, second)]
    known = ~np.isnan(values).any(axis=0)
    return values[0][known], values[1][known]


def mean(values: NDArray) -> float:
    """Return the mean; NaN without values."""
    return float(np.mean(values)) if len(values) else np.nan


def largest(values: NDArray) -> float:
    """Return the largest value; NaN without values."""
    return float(np.max(values)) if len(values) else np.nan


def tail_length(n: int, share: float) -> int:
    """Return how many of `n` points a tail of `share` holds: at least one."""
    return max(1, round(share * n))


def final_score(accuracy_E: NDArray, share: float = Thresholds.score_tail) -> float:
    """Return the mean accuracy of the last evaluations (the best would be biased upwards); NaN without evaluations."""
    return float(np.mean(accuracy_E[-math.ceil(share * len(accuracy_E)) :])) if len(accuracy_E) else np.nan


def drawdown(accuracy_E: NDArray) -> float:
    """Return the largest fall below an earlier peak: max over e of (max up to e) - accuracy_e."""
    return float(np.max(np.maximum.accumulate(accuracy_E) - accuracy_E)) if len(accuracy_E) else np.nan


def has_collapsed(accuracy_E: NDArray, thresholds: Thresholds) -> bool:
    """Return True if accuracy fell by `collapse_drop` and `collapse_share` of the gain (peak - start) and stayed there.

    It stayed there if the final score is still that far below the peak.
    """
    if not len(accuracy_E):
        return False
    fall = np.max(accuracy_E) - final_score(accuracy_E, thresholds.score_tail)
    return bool(min(drawdown(accuracy_E), fall) >= _least_fall(accuracy_E, thresholds))


def collapse_place(accuracy_E: NDArray, thresholds: Thresholds) -> int:
    """Return the place of the first value that is so far below an earlier peak that the fall is a collapse.

    `has_collapsed` must be True of the values.
    """
    below = np.maximum.accumulate(accuracy_E) - accuracy_E >= _least_fall(accuracy_E, thresholds)
    return int(np.argmax(below))


def _least_fall(accuracy_E: NDArray, thresholds: Thresholds) -> float:
    gain = float(np.max(accuracy_E)) - float(accuracy_E[0])
    return max(thresholds.collapse_drop, thresholds.collapse_share * gain)


def kind_of_cpu(hardware: str) -> str:
    """Describe the part of the hardware (JSON of provenance.json) that decides the bits of a run's numbers."""
    machine = json.loads(hardware)
    # Runs of older programs have no `float32`.
    return ", ".join(f"{key} {machine[key]}" for key in KIND_OF_CPU) if "float32" in machine else NOT_RECORDED
