"""Importance ratios: how far the policy has moved from the one at the start of the update."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log pi_new - log pi_old per token, 0 at padding whatever stands there, shape (B, T)."""
    return torch.where(mask_BT, log_probs_BT - old_log_probs_BT, 0.0)


def token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """exp(log ratio) of each token, shape (B, T). PPO, GRPO."""
    return log_ratio_BT.exp()


def sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Geometric mean of a sequence's token ratios, shape (B, 1); the gradient flows through the mean.

    GSPO (2507.18071, eq. 7). An empty sequence has ratio 1.
    """
    lengths_B1 = mask_BT.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio_BT.sum(1, keepdim=True) / lengths_B1).exp()
