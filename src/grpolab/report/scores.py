"""The score of a run by its evaluations, for report and doctor: at the end, lost on the way, collapsed or not."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from grpolab.quantities import Thresholds

DEFAULT = Thresholds()


def final_score(accuracy_E: NDArray, share: float = Thresholds.score_tail) -> float:
    """Mean accuracy over the last evaluations; never the best one, which is biased upwards. NaN without any."""
    return float(np.mean(accuracy_E[-math.ceil(share * len(accuracy_E)) :])) if len(accuracy_E) else np.nan


def drawdown(accuracy_E: NDArray) -> float:
    """Largest fall below an earlier peak: max over e of (max up to e) - accuracy_e."""
    return float(np.max(np.maximum.accumulate(accuracy_E) - accuracy_E)) if len(accuracy_E) else np.nan


def collapsed(accuracy_E: NDArray, thresholds: Thresholds = DEFAULT) -> bool:
    """A drawdown of at least `collapse_drop` and `collapse_share` of the gain (peak - start), not mended at the end.

    Not mended: the final score is still that far below the peak.
    """
    if not len(accuracy_E):
        return False
    peak = float(np.max(accuracy_E))
    least = max(thresholds.collapse_drop, thresholds.collapse_share * (peak - float(accuracy_E[0])))
    return min(drawdown(accuracy_E), peak - final_score(accuracy_E, thresholds.score_tail)) >= least
