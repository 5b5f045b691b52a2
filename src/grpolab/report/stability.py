"""What a report says about a whole run: how steadily it learns, and how its objective works; each number defined once.

Letters: E evaluations, R rollout steps. 'First' and 'last' mean a tenth of the run (`Thresholds.tail`). What has
nothing to be computed from, because the journal lacks its metrics, is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from grpolab.quantities import QUANTITIES, Thresholds
from grpolab.report.journals import both, column, largest, mean, tail_length
from grpolab.report.load import Study
from grpolab.vocabulary import COMPLETED, DIVERGED, STOPPED

DEFAULT = Thresholds()
CELL_COLUMNS = ["variant", "arm", "facet", "seed", "outcome"]


@lru_cache(maxsize=16)
def stability_table(study: Study) -> pd.DataFrame:
    """One row per cell with a result: variant, arm, facet, seed, outcome, and what `run_quantities` says of its run.

    Labels are by the thresholds of the study's plan. Kept for each study: figures, tables and claims all ask for it. Do
    not change it in place.
    """
    settings = study.done.filter(like="setting/").rename(columns=lambda name: name.removeprefix("setting/"))
    rows = [
        {key: getattr(cell, key) for key in CELL_COLUMNS}
        | run_quantities(
            accuracy_E=column(study.of_cell("evaluations", cell), study.metric),
            updates=study.of_cell("updates", cell),
            rollouts=study.of_cell("rollouts", cell),
            outcome=cell.outcome,
            items=cell.evaluation_items,
            settings=chosen,
            thresholds=study.thresholds,
        )
        for cell, chosen in zip(study.done.itertuples(), settings.to_dict("records"), strict=True)
    ]
    return pd.DataFrame(rows, columns=[*CELL_COLUMNS, *QUANTITIES])


def run_quantities(
    accuracy_E: NDArray,
    updates: pd.DataFrame,
    rollouts: pd.DataFrame,
    outcome: str,
    items: int,
    settings: Mapping[str, Any],
    thresholds: Thresholds = DEFAULT,
) -> dict[str, float | bool]:
    """Every quantity and every label of one run.

    accuracy_E are its evaluations (of `items` items each, the first one before training), carried forward where it
    ended early; `updates` and `rollouts` its journal; `settings` what it was run with. A quantity that has nothing to
    be computed from is NaN.
    """
    return (
        _scores(accuracy_E, outcome, items, thresholds)
        | _gradients(updates, thresholds)
        | _ratios(updates, thresholds)
        | _batches(rollouts, thresholds)
        | mechanism_quantities(updates, rollouts, settings, thresholds.tail)
    )


def _scores(accuracy_E: NDArray, outcome: str, items: int, thresholds: Thresholds) -> dict[str, float | bool]:
    start, final = mean(accuracy_E[:1]), final_score(accuracy_E, thresholds.tail)
    error = np.sqrt(start * (1 - start) / items)
    labels = {
        "collapsed": outcome == COMPLETED and collapsed(accuracy_E, thresholds),
        "diverged": outcome == DIVERGED,
        "stopped": outcome == STOPPED,
    }
    return {
        "start": start,
        "final_score": final,
        "gain": final - start,
        "mean_score": mean(accuracy_E),
        "drawdown": drawdown(accuracy_E),
        "jitter": jitter(accuracy_E),
        **labels,
        "lost": any(labels.values()),
        "below_start": bool(final < start - thresholds.below_start_errors * error),
    }


def _gradients(updates: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    norms, spikes = column(updates, "grad_norm"), np.nan
    if "grad_norm" in updates and len(updates):
        norm_R = updates.groupby("rollout_step")["grad_norm"].max().to_numpy(dtype=np.float64)
        spikes = 100 * float(gradient_spikes(norm_R, thresholds).mean())
    return {
        "spikes_per_100": spikes,
        "spiky": spikes > thresholds.spikes_per_100,
        "grad_norm_p50": float(np.quantile(norms, 0.5, method="nearest")) if len(norms) else np.nan,
        "grad_norm_p99": float(np.quantile(norms, 0.99, method="nearest")) if len(norms) else np.nan,
        "grad_norm_max": largest(norms),
    }


def _ratios(updates: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    ratio, ess = largest(column(updates, "ratio/token_max")), -largest(-column(updates, "ratio/ess"))
    last_update = updates.groupby("rollout_step").tail(1)
    kl_old = mean(column(last_update, "kl_old/k3"))
    return {
        "ratio_max": ratio,
        "sequence_ratio_max": largest(column(updates, "ratio/sequence_max")),
        "ess_min": ess,
        "ratio_blow_up": ratio > thresholds.ratio_max or ess < thresholds.ess,
        "outer_mass": mean(column(updates, "clip/outer")),
        "kl_old": kl_old,
        "kl_old_high": kl_old > thresholds.kl_old,
    }


def _batches(rollouts: pd.DataFrame, thresholds: Thresholds) -> dict[str, float | bool]:
    def last(metric: str) -> float:
        return mean(column(rollouts.tail(n), metric))

    def first(metric: str) -> float:
        return mean(column(rollouts.head(n), metric))

    n = tail_length(len(rollouts), thresholds.tail)
    start, end = first("entropy/behaviour"), last("entropy/behaviour")
    starvation, truncation = last("zero_variance/share"), last("truncation/share")
    return {
        "entropy_first": start,
        "entropy_last": end,
        "entropy_min": -largest(-column(rollouts, "entropy/behaviour")),
        "entropy_drop": start - end,
        "entropy_ratio": end / start if start else np.nan,
        "entropy_collapsed": start - end > thresholds.entropy_drop or end < thresholds.entropy_ratio * start,
        "entropy_exploded": end > thresholds.entropy_explosion * start and last("reward/mean") < first("reward/mean"),
        "kl_ref": mean(column(rollouts, "kl_ref/exact")[-1:]),  # measured now and then
        "starvation": starvation,
        "starved_right": last("zero_variance/all_right"),
        "starved_wrong": last("zero_variance/all_wrong"),
        "starved": starvation > thresholds.starvation,
        "truncation": truncation,
        "truncated": truncation > thresholds.truncation,
    }


def count_lost(runs: pd.DataFrame, facet: str, arm: str) -> tuple[int, int]:
    """How many runs of one arm in one facet are lost, and how many it has."""
    of_arm = runs[(runs["facet"] == facet) & (runs["arm"] == arm)]
    return int(of_arm["lost"].sum()), len(of_arm)


# ----------------------------------------------------------------------------------------------------------------------
# How steadily a run learns.


def final_score(accuracy_E: NDArray, share: float = Thresholds.tail) -> float:
    """Mean accuracy over the last evaluations; never the best one, which is biased upwards. NaN without any."""
    return float(np.mean(accuracy_E[-tail_length(len(accuracy_E), share) :])) if len(accuracy_E) else np.nan


def drawdown(accuracy_E: NDArray) -> float:
    """Largest fall below an earlier peak: max over e of (max up to e) - accuracy_e."""
    return float(np.max(np.maximum.accumulate(accuracy_E) - accuracy_E)) if len(accuracy_E) else np.nan


def jitter(accuracy_E: NDArray) -> float:
    """Interquartile range of the accuracy's first differences, which have no trend left (Chan et al. 2020, 1912.05663).

    NaN below three evaluations.
    """
    return float(stats.iqr(np.diff(accuracy_E))) if len(accuracy_E) > 2 else np.nan


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


# ----------------------------------------------------------------------------------------------------------------------
# How its objective works, for the hypotheses that are about mechanisms.


def mechanism_quantities(
    updates: pd.DataFrame, rollouts: pd.DataFrame, settings: Mapping[str, float], tail: float
) -> dict[str, float]:
    """Every quantity of a run that says how its objective works. `tail`: share of the run that 'last' means."""
    clip = mean(column(updates, "clip/active"))
    reuse = settings.get("num_iterations", np.nan) * settings.get("num_minibatches", np.nan)
    ceiling = largest_clip_share(mean(column(rollouts, "zero_variance/share")), reuse)
    return {
        "clip_share": mean(column(updates, "clip/active_nz")),
        "clip_change": clip_change(updates, tail),
        "ceiling_share": clip / ceiling if ceiling else np.nan,
        "counterfactual_log_ratio": counterfactual_log_ratio(updates),
        "up_clipped_gap": mean(np.subtract(*both(updates, "p_old/up_clipped", "p_old/all"))),
        "zero_variance_gap": zero_variance_gap(rollouts, settings.get("num_generations", np.nan)),
        "sequence_sign_gap": sequence_sign_gap(updates),
        "log_ratio_range": log_ratio_range(updates),
        "clipped_gradients": clipped_gradients(updates, settings.get("max_grad_norm", np.nan)),
        "entropy_slope": entropy_slope(rollouts),
        "entropy_last20": mean(column(rollouts.tail(tail_length(len(rollouts), 0.2)), "entropy/behaviour")),
    }


Share = TypeVar("Share", float, pd.Series)


def largest_clip_share(zero_variance: Share, updates_per_batch: Share) -> Share:
    """What a rule that clips everything it can would clip, as a share of all tokens.

    Zero-variance groups have no gradient to lose, and before the first optimiser step on a batch every ratio is 1.
    """
    return (1 - zero_variance) * (1 - 1 / updates_per_batch)


def clip_change(updates: pd.DataFrame, tail: float) -> float:
    """Mean clip/active in the last tenth of the rollout steps minus the mean in the first."""
    if "clip/active" not in updates or updates.empty:
        return np.nan
    share_R = updates.groupby("rollout_step")["clip/active"].mean().to_numpy(dtype=np.float64)
    n = tail_length(len(share_R), tail)
    return mean(share_R[-n:]) - mean(share_R[:n])


def counterfactual_log_ratio(updates: pd.DataFrame) -> float:
    """log of what a sequence ratio would clip at epsilon .2 over what a token ratio would, on the same tokens.

    Negative: the sequence ratio clips less. -inf where only the token ratio would clip; NaN where neither would.
    """
    sequence, token = (mean(column(updates, f"cf/{level}_0.2")) for level in ("sequence", "token"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log(sequence) - np.log(token))


def zero_variance_gap(rollouts: pd.DataFrame, group_size: float) -> float:
    """Mean of the measured share of zero-variance groups minus p^G + (1-p)^G, p the batch's share of right ones.

    It is 0 where all prompts are equally hard, and above 0 the more they differ.
    """
    measured_R, p_R = both(rollouts, "zero_variance/share", "reward/correct")
    return mean(measured_R - (p_R**group_size + (1 - p_R) ** group_size))


def sequence_sign_gap(updates: pd.DataFrame) -> float:
    """Mean sequence ratio of completions with A>0 minus that with A<0, where the batch has been learnt from before."""
    later = updates[(updates["iteration"] > 0) | (updates["minibatch"] > 0)] if len(updates) else updates
    return mean(np.subtract(*both(later, "ratio/sequence_mean_pos", "ratio/sequence_mean_neg")))


def log_ratio_range(updates: pd.DataFrame) -> float:
    """Mean over rollout steps of log(largest / smallest token ratio among the updates of the step)."""
    if not {"ratio/token_min", "ratio/token_max"} <= set(updates):
        return np.nan
    steps = updates.groupby("rollout_step")
    high_R, low_R = steps["ratio/token_max"].max(), steps["ratio/token_min"].min()
    with np.errstate(divide="ignore"):
        return mean((np.log(high_R) - np.log(low_R)).dropna().to_numpy(dtype=np.float64))


def clipped_gradients(updates: pd.DataFrame, max_grad_norm: float) -> float:
    """Share of optimiser steps whose gradient was scaled down to max_grad_norm."""
    return mean(column(updates, "grad_norm") > max_grad_norm) if np.isfinite(max_grad_norm) else np.nan


def entropy_slope(rollouts: pd.DataFrame) -> float:
    """Least-squares slope of the sampling policy's entropy, nat per rollout step; NaN below two rollout steps."""
    step_R, entropy_R = both(rollouts, "rollout_step", "entropy/behaviour")
    if len(step_R) < 2:
        return np.nan
    centred_R = step_R - step_R.mean()
    return float(centred_R @ entropy_R / (centred_R @ centred_R))
