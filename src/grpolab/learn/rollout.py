"""Sampling on a key/value cache: the prompts are read once, the group shares their cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grpolab.learn import seeds
from grpolab.learn.batch import Completions
from grpolab.learn.policy import Policy, read_more, read_prompts
from grpolab.learn.tokenizer import Prompts

BELOW_ONE = 1 - 2.0**-52  # keeps the largest uniform number times the total below the total, however it is rounded


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
    threshold_B1 = uniforms_B[:, None] * (BELOW_ONE * cumulative_BV[:, -1:])
    chosen_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(-1)
    return chosen_B.clamp(max=log_probs_BV.shape[1] - 1)  # not-a-number has no place: the update will say "diverged"


def most_likely(log_probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The token of highest probability, the first of equals, shape (B,); the noise is not looked at."""
    return log_probs_BV.argmax(-1)


def sample(
    policy: Policy,
    prompts: Prompts,
    group: int,
    uniforms_BT: Tensor,
    choose: Callable[[Tensor, Tensor], Tensor] = inverse_cdf,
) -> Completions:
    """`group` completions of every prompt, at most as long as the noise; stops when all have ended.

    Rows of one prompt stand together. `choose` picks each row's next token.
    """
    pad, end = policy.pad, policy.end  # looked up once: the tokenizer is slow to say
    uniforms_BT = uniforms_BT.to(policy.device)
    tokens, log_probs = [], []
    with torch.inference_mode():
        read = read_prompts(policy, prompts, prompt_rows(prompts, group))
        logits_BV = read.logits_BV
        done_B = torch.zeros(len(logits_BV), dtype=torch.bool, device=policy.device)
        for t, uniforms_B in enumerate(uniforms_BT.unbind(1)):
            log_probs_BV = (logits_BV.float() / policy.temperature).log_softmax(-1)
            chosen_B1 = choose(log_probs_BV, uniforms_B).masked_fill(done_B, pad)[:, None]
            tokens.append(chosen_B1)
            log_probs.append(log_probs_BV.gather(1, chosen_B1))
            done_B = done_B | (chosen_B1[:, 0] == end)
            if t + 1 == uniforms_BT.shape[1] or done_B.all():
                break
            logits_BV = read_more(policy, read, chosen_B1)[:, -1]
    # Outside of inference mode, so that an update may keep them for its backward pass.
    tokens_BT = torch.cat(tokens, 1)
    ends_BT = tokens_BT == end
    mask_BT = ends_BT.cumsum(1) - ends_BT.long() == 0  # up to the first end token, itself included
    return Completions(tokens_BT, mask_BT, torch.where(mask_BT, torch.cat(log_probs, 1), 0.0))


def prompt_rows(prompts: Prompts, group: int) -> Tensor:
    """The prompt of each row where every prompt has `group` rows that stand together, shape (P * group,)."""
    return torch.arange(len(prompts.tokens_PL), device=prompts.tokens_PL.device).repeat_interleave(group)
