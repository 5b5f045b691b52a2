"""The quantities and labels of a whole run: how steadily it learns, and how its objective works.

`quantities.py` says what each number and label means. Letters: E evaluations, R rollout steps. A quantity whose metrics
the journal lacks is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from grpolab.quantities import Thresholds
from grpolab.report.journals import both, column, drawdown, final_score, has_collapsed, largest, mean, tail_length
from grpolab.report.statistics.intervals import interquartile_range
from grpolab.vocabulary import COMPLETED, DIVERGED, STOPPED

# Quantities that are a metric's mean over the last rollout steps.
_LAST = {
    "starvation": "zero_variance/share",
    "starved_right": "zero_variance/all_right",
    "starved_wrong": "zero_variance/all_wrong",
    "truncation": "truncation/share",
}


def score_quantities(accuracy_E: NDArray, outcome: str, items: int, thresholds: Thresholds) -> dict[str, float | bool]:
    """Return the quantities and labels of a run's evaluations.

    accuracy_E: of `items` items each, the first one before training; the last is repeated if the run ended early.
    """
    start, final = mean(accuracy_E[:1]), final_score(accuracy_E, thresholds.score_tail)
    error = np.sqrt(start * (1 - start) / items)
    lost = {
        "collapsed": outcome == COMPLETED and has_collapsed(accuracy_E, thresholds),
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
        **lost,
        "lost": any(lost.values()),
        "below_start": bool(final < start - thresholds.below_start_errors * error),
    }


def journal_quantities(
    updates: Mapping[str, NDArray], rollouts: Mapping[str, NDArray], settings: Mapping[str, Any], thresholds: Thresholds
) -> dict[str, float | bool]:
    """Return the other quantities and labels of a run, from its updates and rollout steps.

    Numbers are float32, as in the committed outcome: what is decided from that is what was decided from the journal.
    """
    norms = column(updates, "grad_norm")
    norm_R = _per_step(updates, "grad_norm", "max") if "grad_norm" in updates else norms
    spikes = 100 * mean(gradient_spikes(norm_R, thresholds))
    median, highest = (float(np.quantile(norms, q, method="nearest")) if len(norms) else np.nan for q in (0.5, 0.99))
    ratio, ess = largest(column(updates, "ratio/token_max")), -largest(-column(updates, "ratio/ess"))
    kl_old = mean(column({"last": _per_step(updates, "kl_old/k3", "last")}, "last"))

    n = tail_length(len(rollouts["rollout_step"]), thresholds.tail)
    head, tail = slice(n), slice(-n, None)
    entropy_first, entropy_last = (mean(column(rollouts, "entropy/behaviour", part)) for part in (head, tail))
    entropy_drop = entropy_first - entropy_last
    fell = entropy_drop > thresholds.entropy_drop or entropy_last < thresholds.entropy_ratio * entropy_first
    rose = entropy_last > thresholds.entropy_explosion * entropy_first
    worse = mean(column(rollouts, "reward/mean", tail)) < mean(column(rollouts, "reward/mean", head))
    lasts = {quantity: mean(column(rollouts, metric, tail)) for quantity, metric in _LAST.items()}
    length_first, length_last = (mean(column(rollouts, "length/mean", part)) for part in (head, tail))
    quantities: dict[str, float | bool] = {
        "spikes_per_100": spikes,
        "spiky": _label(spikes > thresholds.spikes_per_100, spikes),
        **{"grad_norm_p50": median, "grad_norm_p99": highest, "grad_norm_max": largest(norms)},
        "ratio_max": ratio,
        "sequence_ratio_max": largest(column(updates, "ratio/sequence_max")),
        "ess_min": ess,
        "ratio_blow_up": _label(ratio > thresholds.ratio_max or ess < thresholds.ess, ratio, ess),
        "outer_mass": mean(column(updates, "clip/outer")),
        "kl_old": kl_old,
        "kl_old_high": _label(kl_old > thresholds.kl_old, kl_old),
        "entropy_first": entropy_first,
        "entropy_last": entropy_last,
        "entropy_min": -largest(-column(rollouts, "entropy/behaviour")),
        "entropy_drop": entropy_drop,
        "entropy_ratio": entropy_last / entropy_first if entropy_first else np.nan,
        "entropy_collapsed": _label(fell, entropy_drop),
        "entropy_exploded": _label(rose and worse, entropy_drop),
        "kl_ref": mean(column(rollouts, "kl_ref/exact")[-1:]),  # measured now and then
        **lasts,
        "starved": _label(lasts["starvation"] > thresholds.starvation, lasts["starvation"]),
        "truncated": _label(lasts["truncation"] > thresholds.truncation, lasts["truncation"]),
        "length_ratio": length_last / length_first if length_first else np.nan,
        **mechanism_quantities(updates, rollouts, settings, thresholds.tail),
    }
    return {
        name: bool(of) if isinstance(of, bool | np.bool_) else float(np.float32(of)) for name, of in quantities.items()
    }


def _label(applies: bool, *quantities: float) -> float | bool:
    """Return the label `applies`, or NaN if none of the quantities that decide it is known."""
    return np.nan if np.isnan(quantities).all() else applies


def jitter(accuracy_E: NDArray) -> float:
    """Return the interquartile range of the accuracy's first differences (Chan et al. 2020, arXiv:1912.05663).

    Differences are free of the trend. NaN below three evaluations.
    """
    return interquartile_range(np.diff(accuracy_E)) if len(accuracy_E) > 2 else np.nan


def gradient_spikes(norm_R: NDArray, thresholds: Thresholds) -> NDArray:
    """Mark rollout steps with a norm above `spike_factor` times the median of the `spike_window` before. Shape: (R,).

    norm_R must be the maximum over a rollout step's updates: within a batch the norm falls as tokens are clipped, so
    among single updates the first of every batch would look like a spike. Norms of 0 (all groups have equal rewards)
    are left out of the median, else every ordinary norm after a collapse would be a spike. A non-finite norm is one.
    """
    norms, window = np.asarray(norm_R, dtype=np.float64), thresholds.spike_window
    usual = np.where((norms > 0) & np.isfinite(norms), norms, np.nan)
    before = np.sort(sliding_window_view(np.concatenate([np.full(window, np.nan), usual[:-1]]), window))  # NaN last
    known, rows = (~np.isnan(before)).sum(axis=1), np.arange(len(before))
    median = (before[rows, (known - 1) // 2] + before[rows, known // 2]) / 2
    spikes = (norms > thresholds.spike_factor * median) & (known >= min(thresholds.spike_least, window))
    return ~np.isfinite(norms) | spikes


Share = TypeVar("Share", float, pd.Series)


def largest_clip_share(zero_variance: Share, updates_per_batch: Share) -> Share:
    """Return the largest share of all tokens that any rule can clip.

    Groups of equal rewards have no gradient to clip, and before the first optimiser step on a batch every ratio is 1.
    """
    return (1 - zero_variance) * (1 - 1 / updates_per_batch)


def mechanism_quantities(
    updates: Mapping[str, NDArray], rollouts: Mapping[str, NDArray], settings: Mapping[str, float], tail: float
) -> dict[str, float]:
    """Return every quantity about the objective's mechanism. `tail`: the share of the run that counts as its end."""
    clip_R = _per_step(updates, "clip/active", "mean").astype(np.float64)
    n = tail_length(len(clip_R), tail)
    sequence, token = (mean(column(updates, f"cf/{level}_0.2")) for level in ("sequence", "token"))
    with np.errstate(divide="ignore", invalid="ignore"):
        counterfactual = float(np.log(sequence) - np.log(token))
        max_R, min_R = (_per_step(updates, f"ratio/token_{end}", end) for end in ("max", "min"))
        log_range_R = np.log(max_R) - np.log(min_R)

    equal_R, p_R = both(rollouts, "zero_variance/share", "reward/correct")
    group_size, max_norm = settings.get("num_generations", np.nan), settings.get("max_grad_norm")
    max_norm = np.nan if max_norm is None or isinstance(max_norm, str) else max_norm
    reuse = settings.get("num_iterations", np.nan) * settings.get("num_minibatches", np.nan)
    ceiling = largest_clip_share(mean(column(rollouts, "zero_variance/share")), reuse)
    sequence_means = both(updates, "ratio/sequence_mean_pos", "ratio/sequence_mean_neg", after_first_step(updates))
    step_R, entropy_R = both(rollouts, "rollout_step", "entropy/behaviour")
    centred_R, last = step_R - mean(step_R), tail_length(len(rollouts["rollout_step"]), 0.2)
    return {
        "clip_share": mean(column(updates, "clip/active_nz")),
        "clip_change": mean(clip_R[-n:]) - mean(clip_R[:n]),
        "ceiling_share": mean(column(updates, "clip/active")) / ceiling if ceiling else np.nan,
        "counterfactual_log_ratio": counterfactual,  # -inf if only the token ratio would clip, NaN if neither
        "up_clipped_gap": mean(np.subtract(*both(updates, "p_old/up_clipped", "p_old/all"))),
        # 0 if all prompts are equally hard, and above 0 the more they differ.
        "zero_variance_gap": mean(equal_R - (p_R**group_size + (1 - p_R) ** group_size)),
        "sequence_sign_gap": mean(np.subtract(*sequence_means)),
        "log_ratio_range": mean(log_range_R[~np.isnan(log_range_R)].astype(np.float64)),
        "clipped_gradients": mean(column(updates, "grad_norm") > max_norm) if np.isfinite(max_norm) else np.nan,
        "entropy_slope": float(centred_R @ entropy_R / (centred_R @ centred_R)) if len(step_R) > 1 else np.nan,
        "entropy_last20": mean(column(rollouts, "entropy/behaviour", slice(-last, None))),
    }


def _per_step(updates: Mapping[str, NDArray], metric: str, how: Literal["max", "min", "mean", "last"]) -> NDArray:
    """Reduce a metric over the updates of each rollout step; NaN without a value. Shape: (R,)."""
    steps = np.asarray(updates["rollout_step"])
    values = np.asarray(updates[metric]) if metric in updates else np.full(len(steps), np.nan)
    if (np.diff(steps) > 0).all():  # one update per rollout step, as in most frameworks' logs
        return values
    if how == "mean":
        return pd.Series(values).groupby(steps).mean().to_numpy()
    order = np.argsort(steps, kind="stable")
    first = np.flatnonzero(np.diff(steps[order], prepend=-1))
    reduce = {"max": np.fmax.reduceat, "min": np.fmin.reduceat, "last": lambda of, at: of[np.append(at[1:], 0) - 1]}
    return reduce[how](values[order], first)


def after_first_step(updates: Mapping[str, NDArray]) -> NDArray:
    """Mark all updates but the first on each batch, at which every ratio is 1; none if the journal does not tell."""
    if not {"iteration", "minibatch"} <= {*updates}:
        return np.zeros(len(updates["rollout_step"]), dtype=bool)
    return np.any([np.asarray(updates[name], dtype=np.float64) > 0 for name in ("iteration", "minibatch")], axis=0)
