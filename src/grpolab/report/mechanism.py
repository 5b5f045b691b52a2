"""What a run shows of how its objective works: one number each, for the hypotheses that are about mechanisms.

Every function takes one run's journal (`updates`, `rollouts`); without the metrics that it needs the result is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import pandas as pd

from grpolab.report.columns import both, column, mean, tail_length


def mechanism_quantities(
    updates: pd.DataFrame, rollouts: pd.DataFrame, settings: Mapping[str, float], tail: float
) -> dict[str, float]:
    """Every quantity of a run that says how its objective works. `tail`: share of the run that 'last' means."""
    clip = mean(column(updates, "clip/active"))
    reuse = settings.get("num_iterations", np.nan) * settings.get("num_minibatches", np.nan)
    ceiling = clip_ceiling(mean(column(rollouts, "zero_variance/share")), reuse)
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


def clip_ceiling(zero_variance: Share, updates_per_batch: Share) -> Share:
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
