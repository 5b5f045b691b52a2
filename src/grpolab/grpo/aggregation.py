"""Aggregation of masked per-token losses to one number: each function returns weights, and sum(weight * loss) is taken.

A token's weight does not depend on how its minibatch is cut into micro-batches, so that micro-batching never changes a
result; `token_mean_microbatch` is the exception by definition (TRL's bnpo). The denominator is in the name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpolab.registry import AGGREGATIONS, resolve


@dataclass(frozen=True)
class Totals:
    """Counts of the minibatch and the rollout batch, which a micro-batch cannot see by itself."""

    sequences: int  # of the minibatch
    nonempty_sequences: int  # of the minibatch: those with at least one token
    tokens: int  # of the minibatch
    rollout_tokens: float  # of the rollout batch, over num_minibatches
    max_completion_length: int
    micro_batches: int  # of the minibatch
    prompts: int = 1  # of the minibatch
    prompt_tokens_B1: Tensor | None = None  # of each row's prompt in the minibatch; None: all rows have one prompt

    @classmethod
    def of(cls, mask_BT: Tensor, max_completion_length: int | None = None) -> Totals:
        """Count a whole rollout batch that is one micro-batch; its width is the default `max_completion_length`."""
        tokens = int(mask_BT.sum())
        full = int(mask_BT.any(1).sum())
        return cls(len(mask_BT), full, tokens, tokens, max_completion_length or mask_BT.shape[1], 1)


def sequence_mean(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over each sequence's tokens, then over sequences, empty ones too. GRPO (2402.03300, eq. 3); TRL `grpo`."""
    return _row_means(mask_BT) / totals.sequences


def sequence_mean_nonempty(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over each sequence's tokens, then over sequences with a token. verl, ROLL `seq-mean-token-mean`."""
    return _row_means(mask_BT) / max(totals.nonempty_sequences, 1)


def sequence_sum(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over each sequence's tokens, mean over sequences, empty ones counted. TRL `luspo`."""
    return mask_BT / totals.sequences


def sequence_sum_nonempty(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over each sequence's tokens, mean over sequences with a token. verl, ROLL `seq-mean-token-sum`."""
    return mask_BT / max(totals.nonempty_sequences, 1)


def token_mean_rollout(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the rollout batch, in all its minibatches. DAPO (2503.14476, eq. 8); TRL `dapo`."""
    return mask_BT / (totals.rollout_tokens or 1)


def token_mean_minibatch(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the minibatch. DeepSpeed-Chat; verl and ROLL `token-mean`."""
    return mask_BT / max(totals.tokens, 1)


def prompt_mean(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of a prompt's completions in the minibatch, then over its prompts. ScaleRL (2510.13786)."""
    tokens = totals.tokens if totals.prompt_tokens_B1 is None else totals.prompt_tokens_B1
    return mask_BT / torch.as_tensor(tokens, device=mask_BT.device).clamp(min=1) / totals.prompts


def token_mean_microbatch(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Mean over the tokens of the micro-batch, then over micro-batches. TRL `bnpo`."""
    return mask_BT / mask_BT.sum().clamp(min=1) / totals.micro_batches


def token_sum(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over all tokens. verl `token-sum`."""
    return mask_BT


def token_sum_constant(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over tokens over (sequences times max_completion_length). Dr. GRPO's code (2503.20783); TRL `dr_grpo`."""
    return mask_BT / (totals.sequences * totals.max_completion_length)


def token_sum_length(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Sum over tokens over max_completion_length alone. ROLL `seq-mean-token-sum-norm` (there: the padded width)."""
    return mask_BT / totals.max_completion_length


def _row_means(mask_BT: Tensor) -> Tensor:
    return mask_BT / mask_BT.sum(1, keepdim=True).clamp(min=1)


def aggregate(name: str, loss: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """Reduce the loss, (B, T) or (B, 1), to one number; values at padding are ignored, even NaN."""
    weights_BT = resolve(AGGREGATIONS[name])(mask_BT.to(loss.dtype), totals)
    return (torch.where(mask_BT, loss, 0.0) * weights_BT).sum()
