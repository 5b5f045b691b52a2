"""Compute the tokens that all prompts begin with, such as a system prompt, once before sampling (`sort_by_prompt`)."""

from __future__ import annotations

from typing import Any

import torch

from grpolab.grpo import model
from grpolab.grpo.batch import Prompts
from grpolab.grpo.model import KVCache, Policy, hidden_states


def prefill(policy: Policy, prompts: Prompts) -> KVCache:
    """Fill the KV cache as `grpo.model.prefill` does, with one forward pass for the S first tokens of all prompts."""
    tokens_PL, mask_PL = prompts.tokens_PL, prompts.mask_PL
    P, L = tokens_PL.shape
    padding_P1 = torch.zeros(P, 1, dtype=torch.long, device=tokens_PL.device)
    if mask_PL is not None:
        padding_P1 = L - mask_PL.sum(1, keepdim=True)
    shortest = L - int(padding_P1.max())  # its last token stays in the rest
    first_PS = tokens_PL.gather(1, padding_P1 + torch.arange(shortest - 1, device=tokens_PL.device))
    S = int((first_PS == first_PS[0]).all(0).long().cumprod(0).sum())
    if P == 1 or S == 0:
        return model.prefill(policy, prompts)
    kv_cache = model.prefill(policy, Prompts(first_PS[:1, :S], None))
    kv_cache.select(torch.zeros(P, dtype=torch.long, device=tokens_PL.device))
    columns_L = torch.arange(L, device=tokens_PL.device)
    # Padding on the left moves a prompt's first tokens into its rest, where as many columns are masked.
    real_PL = (columns_L < S) | (columns_L - S >= padding_P1)
    positions_PL = (real_PL.long().cumsum(-1) - 1).clamp(min=0)
    inputs: dict[str, Any] = {"past_key_values": kv_cache.cache, "position_ids": positions_PL[:, S:], "use_cache": True}
    if mask_PL is not None:
        inputs["attention_mask"] = real_PL.long()
    hidden_P1H = hidden_states(policy, tokens_PL[:, S:], keep=1, **inputs)
    return KVCache(hidden_P1H, kv_cache.cache, None if mask_PL is None else real_PL, positions_PL[:, -1:] + 1)
