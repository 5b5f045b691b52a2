"""Sampling from the likely tokens alone (top-k, top-p, min-p), and the trainer's log-probs over the same tokens.

Without the second, completions come from another policy than the one that learns from them: a token's log-prob is too
low by the log of the probability that was left, and so its expected score is not 0 but that log's gradient.
DeepSeek-V3.2 (2512.02556, 'keep sampling mask') therefore hands the sampler's set of tokens to the trainer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpolab.settings.resolved import Resolved

ALL_BITS = 255  # eight tokens that could be sampled


def likely_tokens(settings: Resolved, log_probs_BV: Tensor) -> Tensor:
    """Find the tokens that may be sampled, (B, V), bool: the top_k most likely, of these the fewest that hold top_p.

    Of what is left, those at least min_p times as likely as the first. Order and ties are those of transformers 5
    (vLLM has min-p first). The most likely token always stays.
    """
    left_BV = log_probs_BV
    if settings.top_k is not None:
        least_B1 = left_BV.topk(min(settings.top_k, left_BV.shape[1])).values[:, -1:]
        left_BV = left_BV.masked_fill(left_BV < least_B1, -torch.inf)
    if settings.top_p is not None:
        shares_BV, order_BV = left_BV.double().softmax(-1).sort(descending=True, stable=True)
        beyond_BV = shares_BV.cumsum(-1) - shares_BV >= settings.top_p
        left_BV = left_BV.masked_fill(torch.zeros_like(beyond_BV).scatter(1, order_BV, beyond_BV), -torch.inf)
    if settings.min_p is not None:
        least_B1 = left_BV.amax(1, keepdim=True) + math.log(settings.min_p)
        left_BV = left_BV.masked_fill(left_BV < least_B1, -torch.inf)
    return left_BV > -torch.inf


def log_mass(log_probs_BV: Tensor, kept_BV: Tensor) -> Tensor:
    """Return the log of the probability of the kept tokens, (B, 1)."""
    return log_probs_BV.masked_fill(~kept_BV, -torch.inf).logsumexp(-1, keepdim=True)


def pack(kept_BV: Tensor) -> Tensor:
    """Put eight tokens into a byte, (B, C): the kept tokens of a large vocabulary would fill the memory."""
    bits_BC8 = pad(kept_BV, (0, -kept_BV.shape[1] % 8)).unflatten(1, (-1, 8))
    return (bits_BC8 << torch.arange(8, dtype=torch.uint8, device=kept_BV.device)).sum(-1, dtype=torch.uint8)


def unpack(packed_BC: Tensor, vocabulary: int) -> Tensor:
    """Undo `pack`, (B, V), bool."""
    places_8 = torch.arange(8, dtype=torch.uint8, device=packed_BC.device)
    return (packed_BC[..., None] >> places_8 & 1).flatten(1)[:, :vocabulary].bool()
