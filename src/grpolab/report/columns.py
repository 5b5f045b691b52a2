"""Columns of one run's journal as numbers. What a journal does not have is empty, and its mean is NaN."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


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
