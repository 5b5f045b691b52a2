"""The score of a run by its evaluations, for report and doctor: its end, its largest fall, and collapse."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from grpolab.quantities import Thresholds


def final_score(accuracy_E: NDArray, share: float = Thresholds.score_tail) -> float:
    """Return the mean accuracy over the last evaluations, not the best, which is biased upwards. NaN without any."""
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
    peak = float(np.max(accuracy_E))
    least = max(thresholds.collapse_drop, thresholds.collapse_share * (peak - float(accuracy_E[0])))
    return min(drawdown(accuracy_E), peak - final_score(accuracy_E, thresholds.score_tail)) >= least
