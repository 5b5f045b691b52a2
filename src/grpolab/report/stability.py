"""How steadily a run learns: each quantity defined once, per run, with its threshold in one place.

Letters: E evaluations, R rollout steps. 'First' and 'last' mean a tenth of the run (`Thresholds.tail`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report.load import Study
from grpolab.vocabulary import COMPLETED, DIVERGED, STOPPED


@dataclass(frozen=True)
class Thresholds:
    """Where a quantity becomes a label. Judgement calls, fixed before the runs."""

    tail: float = 0.10  # share of a run that 'first' and 'last' mean
    collapse_drop: float = 0.10  # accuracy lost from the peak ...
    collapse_share: float = 0.50  # ... and the share of the gain that this is
    below_start_errors: float = 2.0  # standard errors of the first accuracy
    spike_factor: float = 5.0  # times the median of the rollout steps before
    spike_window: int = 20  # how many of them
    spike_least: int = 5  # no median of fewer
    spikes_per_100: float = 3.0
    ratio_max: float = 50.0
    ess: float = 0.5
    entropy_ratio: float = 0.25
    entropy_drop: float = 0.25  # nat
    entropy_explosion: float = 2.0  # last over first, with falling reward
    kl_old: float = 0.05  # nat per token and rollout step
    starvation: float = 0.8  # share of groups
    truncation: float = 0.10  # share of completions


DEFAULT = Thresholds()
CELL_COLUMNS = ["variant", "arm", "facet", "seed", "outcome"]


def tail_length(n: int, share: float) -> int:
    """How many of `n` points a tail of `share` holds: at least one."""
    return max(1, round(share * n))


def final_score(accuracy_E: NDArray, share: float = DEFAULT.tail) -> float:
    """Mean accuracy over the last evaluations; never the best one, which is biased upwards. NaN without any."""
    return float(np.mean(accuracy_E[-tail_length(len(accuracy_E), share) :])) if len(accuracy_E) else np.nan


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
    return min(drawdown(accuracy_E), peak - final_score(accuracy_E, thresholds.tail)) >= least


def gradient_spikes(norm_R: NDArray, thresholds: Thresholds = DEFAULT) -> NDArray:
    """Rollout steps with a norm above `spike_factor` times the median of the `spike_window` before. Shape: (R,).

    norm_R must be the maximum over a rollout step's updates: within a batch the norm falls as tokens are clipped, so
    over single updates every new batch would look like a spike. Norms of 0 (a batch in which no group has different
    rewards) are no part of the median: after a collapse every ordinary norm would be a spike. A non-finite norm is one.
    """
    norms = pd.Series(np.asarray(norm_R, dtype=np.float64))
    median = (
        norms.where(norms > 0).shift(1).rolling(thresholds.spike_window, min_periods=thresholds.spike_least).median()
    )
    return (~np.isfinite(norms) | (norms > thresholds.spike_factor * median)).to_numpy()


@lru_cache(maxsize=16)
def stability_table(study: Study, thresholds: Thresholds = DEFAULT) -> pd.DataFrame:
    """One row per cell with a result: variant, arm, facet, seed, outcome, and what `run_quantities` says of its run.

    Kept for each study: figures, tables and claims all ask for it. Do not change it in place.
    """
    rows = [
        {key: getattr(cell, key) for key in CELL_COLUMNS}
        | run_quantities(
            accuracy_E=_column(study.of_cell("evaluations", cell), study.metric),
            updates=study.of_cell("updates", cell),
            rollouts=study.of_cell("rollouts", cell),
            outcome=cell.outcome,
            items=cell.evaluation_items,
            thresholds=thresholds,
        )
        for cell in study.done.itertuples()
    ]
    nothing = run_quantities(np.empty(0), study.updates.iloc[:0], study.rollouts.iloc[:0], COMPLETED, 1, thresholds)
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS, *nothing])


def is_lost(runs: pd.DataFrame) -> pd.Series:
    """Whether each run of a stability table collapsed, diverged or was stopped as hopeless."""
    return runs["collapsed"] | runs["diverged"] | runs["stopped"]


def count_lost(runs: pd.DataFrame, facet: str, arm: str) -> tuple[int, int]:
    """How many runs of one arm in one facet are lost, and how many it has."""
    own = runs[(runs["facet"] == facet) & (runs["arm"] == arm)]
    return int(is_lost(own).sum()), len(own)


def run_quantities(
    accuracy_E: NDArray,
    updates: pd.DataFrame,
    rollouts: pd.DataFrame,
    outcome: str,
    items: int,
    thresholds: Thresholds = DEFAULT,
) -> dict[str, float | bool]:
    """Every quantity and every label of one run.

    accuracy_E are its evaluations (of `items` items each, the first one before training), carried forward where it
    ended early; `updates` and `rollouts` its journal. A quantity that has nothing to be computed from is NaN.
    """
    return (
        _scores(accuracy_E, outcome, items, thresholds)
        | _gradients(updates, thresholds)
        | _ratios(updates, thresholds)
        | _batches(rollouts, thresholds)
    )


def _scores(accuracy_E: NDArray, outcome: str, items: int, thresholds: Thresholds) -> dict[str, float | bool]:
    start, final = _first(accuracy_E), final_score(accuracy_E, thresholds.tail)
    error = np.sqrt(start * (1 - start) / items)
    return {
        "start": start,
        "final_score": final,
        "gain": final - start,
        "mean_score": _mean(accuracy_E),
        "drawdown": drawdown(accuracy_E),
        "collapsed": outcome == COMPLETED and collapsed(accuracy_E, thresholds),
        "diverged": outcome == DIVERGED,
        "stopped": outcome == STOPPED,
        "below_start": bool(final < start - thresholds.below_start_errors * error),
    }


def _gradients(updates: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    norm_R = largest_norms(updates).to_numpy()
    spikes = 100 * float(gradient_spikes(norm_R, thresholds).mean()) if len(norm_R) else np.nan
    norms = _column(updates, "grad_norm")
    return {
        "spikes_per_100": spikes,
        "spiky": spikes > thresholds.spikes_per_100,
        "grad_norm_p50": float(np.quantile(norms, 0.5, method="nearest")) if len(norms) else np.nan,
        "grad_norm_p99": float(np.quantile(norms, 0.99, method="nearest")) if len(norms) else np.nan,
        "grad_norm_max": _largest(norms),
    }


def _ratios(updates: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    largest, ess = _largest(_column(updates, "ratio/token_max")), -_largest(-_column(updates, "ratio/ess"))
    last_update = updates.groupby("rollout_step").tail(1)
    kl_old = _mean(_column(last_update, "kl_old/k3"))
    return {
        "ratio_max": largest,
        "sequence_ratio_max": _largest(_column(updates, "ratio/sequence_max")),
        "ess_min": ess,
        "ratio_blow_up": largest > thresholds.ratio_max or ess < thresholds.ess,
        "outer_mass": _mean(_column(updates, "clip/outer")),
        "kl_old": kl_old,
        "kl_old_high": kl_old > thresholds.kl_old,
    }


def _batches(rollouts: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    def last(metric: str) -> float:
        return _mean(_column(rollouts.tail(n), metric))

    def first(metric: str) -> float:
        return _mean(_column(rollouts.head(n), metric))

    n = tail_length(len(rollouts), thresholds.tail)
    start, end = first("entropy/behaviour"), last("entropy/behaviour")
    starvation, truncation = last("zero_variance/share"), last("truncation/share")
    return {
        "entropy_first": start,
        "entropy_last": end,
        "entropy_min": -_largest(-_column(rollouts, "entropy/behaviour")),
        "entropy_drop": start - end,
        "entropy_ratio": end / start if start else np.nan,
        "entropy_collapsed": start - end > thresholds.entropy_drop or end < thresholds.entropy_ratio * start,
        "entropy_exploded": end > thresholds.entropy_explosion * start and last("reward/mean") < first("reward/mean"),
        "kl_ref": _mean(_column(rollouts, "kl_ref/exact")[-1:]),  # measured now and then
        "starvation": starvation,
        "starved": starvation > thresholds.starvation,
        "truncation": truncation,
        "truncated": truncation > thresholds.truncation,
    }


def largest_norms(updates: pd.DataFrame) -> pd.Series:
    """Gradient norm before clipping, the largest of each rollout step. Index: rollout step."""
    if "grad_norm" not in updates:
        return pd.Series(dtype="float64")
    return updates.groupby("rollout_step")["grad_norm"].max().astype("float64")


def _column(frame: pd.DataFrame, metric: str) -> NDArray:
    """A metric's finite or infinite values in order; empty where the journal does not have it."""
    return frame[metric].dropna().to_numpy(dtype=np.float64) if metric in frame else np.empty(0)


def _first(values: NDArray) -> float:
    return float(values[0]) if len(values) else np.nan


def _mean(values: NDArray) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _largest(values: NDArray) -> float:
    return float(np.max(values)) if len(values) else np.nan
