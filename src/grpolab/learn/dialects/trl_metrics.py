"""Metrics of TRL 1.16.0 under its names: `trl/trainer/grpo_trainer.py` (reducers of `_compute_loss`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grpolab.learn.objective import LossInputs, Objective


def reduced(values: Tensor, mask_BT: Tensor) -> float:
    """`global_masked_mean`: mean over tokens; over all sequences, empty ones too, where there is one column."""
    if values.shape[1] == 1:  # also where completions are one token wide
        return float(values.double().mean())
    return float((values.double() * mask_BT).sum() / mask_BT.sum().clamp(min=1))


def clip_metrics(objective: Objective, inputs: LossInputs, ratio: Tensor) -> dict[str, float]:
    """Shares where the clip range acted, on the ratio after the cap delta; the unit is that of the ratio."""
    A, mask = inputs.advantages, inputs.mask_BT
    ratio = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
    low = (ratio < 1 - objective.epsilon) & (A < 0)
    high = (ratio > 1 + objective.epsilon_high) & (A > 0)
    if low.shape[1] == 1:  # one column: every sequence counts, and an empty one as any other
        mask = torch.ones_like(low)
    below_B, above_B, length_B = torch.stack([(low & mask).sum(1), (high & mask).sum(1), mask.sum(1)]).cpu().numpy()
    below, above, tokens = int(below_B.sum()), int(above_B.sum()), max(int(length_B.sum()), 1)
    some_B = length_B > 0
    return {
        "clip_ratio/low_mean": below / tokens,
        "clip_ratio/high_mean": above / tokens,
        "clip_ratio/region_mean": (below + above) / tokens,
        "clip_ratio/low_min": float((below_B[some_B] / length_B[some_B]).min()) if some_B.any() else math.nan,
        "clip_ratio/high_max": float((above_B[some_B] / length_B[some_B]).max()) if some_B.any() else math.nan,
    }


def sampling_metrics(objective: Objective, inputs: LossInputs, weight: Tensor) -> dict[str, float]:
    """How far the sampler was from the trainer, and the weights for it after truncation or masking."""
    assert objective.sampler_correction is not None
    assert inputs.sampler_log_probs_BT is not None
    gap_N = (inputs.old_log_probs_BT - inputs.sampler_log_probs_BT)[inputs.mask_BT].abs()
    weight_N = weight.flatten() if weight.shape[1] == 1 else weight[inputs.mask_BT]
    return _spread("sampling/sampling_logp_difference", gap_N[~gap_N.isnan()], ("mean", "max")) | _spread(
        "sampling/importance_sampling_ratio", weight_N, ("min", "mean", "max")
    )


def _spread(name: str, values_N: Tensor, statistics: Sequence[str]) -> dict[str, float]:
    return {f"{name}/{one}": float(getattr(values_N, one)()) if len(values_N) else 0.0 for one in statistics}
