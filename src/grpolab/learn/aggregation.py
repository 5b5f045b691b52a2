"""How masked per-token losses become one number. Every way is a weight per token: loss = sum(weight * loss).

The weights of an optimiser step's micro-batches add up to those of the whole, so that micro-batching never changes a
result; `token_mean_microbatch` is the exception by definition (TRL's bnpo).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpolab.registry import AGGREGATIONS, resolve


@dataclass(frozen=True)
class Totals:
    """Counts that a micro-batch cannot see by itself."""

    sequences: int  # of the minibatch
    tokens: int  # of the minibatch
    rollout_tokens: float  # of the rollout batch, over num_minibatches
    max_completion_length: int
    micro_batches: int  # of the minibatch


def sequence_mean(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over each sequence's tokens, then over sequences, empty ones counted.

    GRPO (2402.03300, eq. 3); TRL `grpo`; verl and ROLL `seq-mean-token-mean` where no row is empty.
    """
    return mask_BT / mask_BT.sum(1, keepdim=True).clamp(min=1) / totals.sequences


def token_mean_rollout(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the rollout batch: every token weighs the same in all its minibatches.

    DAPO (2503.14476, eq. 8); TRL `dapo`.
    """
    return mask_BT / max(totals.rollout_tokens, 1)


def token_mean_minibatch(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the minibatch. DeepSpeed-Chat; verl and ROLL `token-mean`."""
    return mask_BT / max(totals.tokens, 1)


def token_mean_microbatch(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the micro-batch, then over micro-batches. TRL `bnpo`."""
    return mask_BT / mask_BT.sum().clamp(min=1) / totals.micro_batches


def token_sum_constant(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over tokens over (sequences times max_completion_length). Dr. GRPO's code (2503.20783); TRL `dr_grpo`."""
    return mask_BT / (totals.sequences * totals.max_completion_length)


def aggregate(name: str, loss: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """The loss as one number; `loss` is (B, T) or (B, 1), and what stands at padding is invisible, NaN included."""
    weights_BT = resolve(AGGREGATIONS[name])(mask_BT.to(loss.dtype), totals)
    return (torch.where(mask_BT, loss, 0.0) * weights_BT).sum()
