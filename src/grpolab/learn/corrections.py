"""Weights that multiply a token's or sequence's loss after the kernel; none touches the denominators or the KL."""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.learn.ratios import masked_log_ratio, row_mean


def sampler_weight(
    old_log_probs_BT: Tensor,
    sampler_log_probs_BT: Tensor,
    mask_BT: Tensor,
    level: str,
    mode: str,
    low: float,
    high: float,
) -> Tensor:
    """The sampler's ratio within its bounds, what the loss is multiplied with; shape (B, T) or (B, 1)."""
    return bounded_weight(sampler_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT, level), mode, low, high)


def sampler_ratio(old_log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, mask_BT: Tensor, level: str) -> Tensor:
    """exp(old - sampler), how much likelier the trainer finds what was sampled; shape (B, T) or (B, 1).

    `level`: `token`; `sequence`, the product over a sequence; `geometric`, its geometric mean.
    """
    log_BT = masked_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)
    if level == "sequence":
        log_BT = log_BT.sum(1, keepdim=True)
    elif level == "geometric":
        log_BT = row_mean(log_BT, mask_BT)
    return log_BT.exp()


def bounded_weight(weight: Tensor, mode: str, low: float, high: float) -> Tensor:
    """`truncate` bounds to [low, high] (TIS), `mask` puts 0 outside (IcePop; TRL's default `sequence_mask`)."""
    if mode == "truncate":
        return weight.clamp(low, high)
    return torch.where((weight >= low) & (weight <= high), weight, 0.0)


def off_policy_keep(
    advantages: Tensor, behaviour_log_probs_BT: Tensor, log_probs_BT: Tensor, mask_BT: Tensor, threshold: float
) -> Tensor:
    """1 for a sequence with A >= 0 or mean log(behaviour / policy) <= threshold, else 0, shape of the advantages.

    DeepSeek-V3.2's off-policy sequence mask; TRL `off_policy_mask_threshold`, slime `use_opsm`.
    """
    drift_B1 = row_mean(masked_log_ratio(behaviour_log_probs_BT, log_probs_BT.detach(), mask_BT), mask_BT)
    return ((advantages >= 0) | (drift_B1 <= threshold)).to(log_probs_BT.dtype)


def top_entropy_keep(entropy_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """1 for the `share` of the tokens with the highest entropy, else 0, shape (B, T).

    'Beyond the 80/20 rule' (2506.01939); TRL `top_entropy_quantile`: entropy at or above its (1 - share)-quantile over
    the unmasked tokens.
    """
    entropy_N = entropy_BT.detach()[mask_BT].float()
    if not len(entropy_N):
        return torch.zeros_like(entropy_BT)
    bound = torch.quantile(entropy_N, 1 - share)
    return ((entropy_BT.detach().float() >= bound) & mask_BT).to(entropy_BT.dtype)
