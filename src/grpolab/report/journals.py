"""The records of a journal as columns, and the numbers of one column.

Metrics are float32, as in the committed outcome: a figure that is redrawn from that has the numbers, and the bytes,
of the figure that was drawn from the run folders.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from grpolab.errors import Damaged
from grpolab.meanings import METRICS, POSITIONS
from grpolab.quantities import Thresholds

QUARTERS = 4
_NOT_METRICS = {*POSITIONS, "time_ms"}  # columns that count or name; every other number is a metric
FORMAT = " ".join(("1", *sorted(_NOT_METRICS)))  # raise the number if the same records become other columns


def make_frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    """Return records of one kind as columns: "inf" and "nan" become numbers, an absent metric NaN. Raises Damaged."""
    return frame_of(columns_of(records))


def frame_of(table: pa.Table) -> pd.DataFrame:
    """Return a table as a frame; one without columns gets those that every record has."""
    return table.to_pandas() if table.num_columns else pd.DataFrame(columns=["signature", *POSITIONS])


def columns_of(records: list[dict[str, Any]]) -> pa.Table:
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
