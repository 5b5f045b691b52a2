"""Sampling on a key/value cache: the prompts are read once, the group shares their cache."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from grpolab.learn import seeds
from grpolab.learn.batch import Completions
from grpolab.learn.policy import Policy, position_ids


def sampling_noise(seed: int, purpose: str, step: int, prompts: int, samples: int, length: int) -> Tensor:
    """Uniform numbers (prompts * samples, length): one per (step, prompt, sample, token), the same in every arm."""
    noise_PGT = seeds.uniforms(
        seed,
        purpose,
        step,
        np.arange(prompts)[:, None, None],
        np.arange(samples)[:, None],
        np.arange(length),
    )
    return torch.from_numpy(noise_PGT.reshape(prompts * samples, length))


def inverse_cdf(log_probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The token at which the cumulative probability passes the uniform number, shape (B,).

    Summed in float64, so that close logits give equal tokens; a token of probability 0 is never chosen.
    """
    cumulative_BV = log_probs_BV.double().exp().cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    threshold_B1 = torch.minimum(uniforms_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(-1)


@torch.no_grad()
def sample(
    policy: Policy, prompts_PL: Tensor, prompt_mask_PL: Tensor | None, group: int, uniforms_BT: Tensor
) -> Completions:
    """`group` completions of every prompt, at most as long as the noise; stops when all have ended.

    `prompt_mask_PL` is None where no prompt is padded. Rows of one prompt stand together.
    """
    logits_PV, cache, positions_P1 = _read_prompts(policy, prompts_PL, prompt_mask_PL)
    cache.batch_repeat_interleave(group)
    logits_BV = logits_PV.repeat_interleave(group, dim=0)
    next_position_B1 = positions_P1.repeat_interleave(group, dim=0)
    mask_BL = None if prompt_mask_PL is None else prompt_mask_PL.repeat_interleave(group, dim=0)
    uniforms_BT = uniforms_BT.to(policy.device)
    alive_B = torch.ones(len(logits_BV), dtype=torch.bool, device=policy.device)
    tokens, masks, log_probs = [], [], []
    for t in range(uniforms_BT.shape[1]):
        log_probs_BV = (logits_BV.float() / policy.temperature).log_softmax(-1)
        chosen_B = inverse_cdf(log_probs_BV, uniforms_BT[:, t]).masked_fill(~alive_B, policy.pad)
        tokens.append(chosen_B)
        masks.append(alive_B)
        log_probs.append(log_probs_BV.gather(1, chosen_B[:, None]).squeeze(1).masked_fill(~alive_B, 0.0))
        alive_B = alive_B & (chosen_B != policy.end)
        if t + 1 == uniforms_BT.shape[1] or not alive_B.any():
            break
        inputs: dict[str, Tensor] = {}
        if mask_BL is not None:
            mask_BL = torch.cat([mask_BL, torch.ones_like(chosen_B[:, None], dtype=torch.bool)], dim=1)
            inputs = {"attention_mask": mask_BL.long()}
        with policy.precision():
            logits_BV = policy.model(
                chosen_B[:, None], past_key_values=cache, position_ids=next_position_B1 + t, use_cache=True, **inputs
            ).logits[:, -1]
    return Completions(torch.stack(tokens, 1), torch.stack(masks, 1), torch.stack(log_probs, 1))


def _read_prompts(
    policy: Policy, prompts_PL: Tensor, prompt_mask_PL: Tensor | None
) -> tuple[Tensor, DynamicCache, Tensor]:
    """Logits after the last prompt token (P, V), the prompts' cache, and the next position (P, 1)."""
    cache = DynamicCache()
    inputs: dict[str, Tensor] = {}
    positions_PL = torch.arange(prompts_PL.shape[1], device=prompts_PL.device).expand_as(prompts_PL)
    if prompt_mask_PL is not None:
        positions_PL = position_ids(prompt_mask_PL)
        inputs = {"attention_mask": prompt_mask_PL.long()}
    with policy.precision():
        output = policy.model(
            prompts_PL, past_key_values=cache, position_ids=positions_PL, use_cache=True, logits_to_keep=1, **inputs
        )
    return output.logits[:, -1], cache, positions_PL[:, -1:] + 1
