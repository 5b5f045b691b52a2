"""Sample completions: one prefill of the prompts, then one decode step for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from grpolab import seeds
from grpolab.grpo.batch import Completions, Prompts, decode
from grpolab.grpo.model import Policy, decode_hidden, prefill
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.sampler import EngineNoise
from grpolab.grpo.sampling_mask import ALL_BITS, likely_tokens, log_mass, pack
from grpolab.registry import SHARED_PREFILL, resolve
from grpolab.settings.resolved import Resolved

# A factor just below 1: a uniform number times the total stays below the total, however it is rounded.
BELOW_ONE = 1 - 2.0**-52
ASK_EVERY = 16  # on a GPU: tokens between two checks whether all completions have ended

Choose: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # log-probs (B, V) and uniform numbers (B,) -> tokens (B,)


def sampling_noise(
    seed: int, purpose: str, step: int, prompts: int, samples: int, length: int, first: int = 0
) -> Tensor:
    """Return uniform numbers (prompts * samples, length): one per (step, prompt, sample, token), equal in every arm.

    `first` is the number of the first prompt, where a step has several batches of them.
    """
    places = np.ix_(first + np.arange(prompts), np.arange(samples), np.arange(length))
    noise_PGT = seeds.uniforms(seed, purpose, step, *places)
    return torch.from_numpy(noise_PGT.reshape(prompts * samples, length))


def inverse_cdf(log_probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Choose the token at which the cumulative probability passes the uniform number, shape (B,)."""
    # In float64, so that logits that differ by rounding choose the same token; one of probability 0 is never chosen.
    shares_BV = log_probs_BV.double().exp()
    if not shares_BV.is_cpu:  # a GPU adds floats up in no fixed order; whole numbers of 2^-52 have one sum in any
        shares_BV = (shares_BV * 2.0**52).long()
    cumulative_BV = shares_BV.cumsum(-1)
    threshold_B1 = (uniforms_B[:, None] * (BELOW_ONE * cumulative_BV[:, -1:].double())).to(cumulative_BV.dtype)
    token_B = torch.searchsorted(cumulative_BV, threshold_B1, right=True).squeeze(-1)
    # With NaN log-probs any token will do, because the update ends the run as diverged.
    return token_B.clamp(max=log_probs_BV.shape[1] - 1)


def most_likely(log_probs_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Choose the token of highest probability, the first one of a tie, shape (B,); the noise is not used."""
    return log_probs_BV.argmax(-1)


def sample(
    policy: Policy,
    prompts: Prompts,
    group: int,
    uniforms_BT: Tensor,
    choose: Choose = inverse_cdf,
    engine: EngineNoise | None = None,
    truncation: Resolved | None = None,
    processes: Processes = ALONE,
) -> Completions:
    """Sample `group` completions of every prompt, of at most T tokens; rows of one prompt stand together.

    `truncation`: settings that keep unlikely tokens from being sampled. Each of several processes samples a share of
    the prompts, with those prompts' noise.
    """
    if processes.size > 1:
        share_P = torch.tensor(processes.share(range(len(prompts.tokens_PL))))
        uniforms_NT = uniforms_BT.unflatten(0, (-1, group))[share_P].flatten(0, 1)
        engine = engine and replace(engine, prompts_P=engine.prompts_P[share_P.numpy()])
        own = sample(policy, prompts.select(share_P), group, uniforms_NT, choose, engine, truncation).tensors()
        by_prompt = zip(*(value.split(group) for value in own.values()), strict=True)
        pieces_P = processes.gather([dict(zip(own, piece, strict=True)) for piece in by_prompt])
        return Completions.join([Completions(**piece) for piece in pieces_P], policy.pad)
    with torch.inference_mode():
        uniforms_BT = uniforms_BT.to(policy.device)
        tokens, log_probs, done, masses, kept = _decode(policy, prompts, group, uniforms_BT, choose, engine, truncation)
    # Joined outside of inference mode, so that an update may keep the tensors for its backward pass.
    tokens_BT = torch.stack(tokens, 1)
    mask_BT = ~torch.stack(done, 1)  # up to the first end token or the end of a stop string, itself included
    longest = int(mask_BT.sum(1).max())
    log_probs_BT = torch.where(mask_BT, torch.cat(log_probs, 1), 0.0)
    columns = tokens_BT[:, :longest], mask_BT[:, :longest], log_probs_BT[:, :longest]
    if truncation is None:
        return Completions(*columns)
    mass_BT = torch.where(mask_BT, torch.cat(masses, 1), 0.0)[:, :longest]
    kept_BTC = torch.where(mask_BT[..., None], torch.stack(kept, 1), ALL_BITS)[:, :longest] if kept else None
    return Completions(*columns, mass_BT, kept_BTC)


def _decode(
    policy: Policy,
    prompts: Prompts,
    group: int,
    uniforms_BT: Tensor,
    choose: Choose,
    engine: EngineNoise | None,
    truncation: Resolved | None,
) -> tuple[list[Tensor], ...]:
    """Return, for each position, the tokens (B,), their log-probs (B, 1), and which completions had ended before, (B,).

    If sampling is truncated, also the log of the probability that was left, (B, 1), and the packed tokens, (B, C).

    On a CPU, completions that are equal so far share a row of the KV cache, so each distinct prefix is computed once.
    That needs the number of distinct prefixes at each token, and a GPU would have to wait for it. So on a GPU each
    completion has its own row, no size depends on what was sampled, and completions that have ended go on with padding.
    """
    pad_id, end_id = policy.pad, policy.end  # looked up once: the tokenizer is slow to answer
    tokens, log_probs, done, masses, kept = (list[Tensor]() for _ in range(5))
    row_of_B = prompt_rows(prompts, group)  # the cache's row with each completion's prefix
    kv_cache = resolve(SHARED_PREFILL)(policy, prompts) if policy.by_prompt else prefill(policy, prompts)
    logits_NV = policy.logits(kv_cache.prefill_hidden_N1H)[:, -1]
    done_B, ended, last = torch.zeros_like(row_of_B, dtype=torch.bool), 0, uniforms_BT.shape[1] - 1
    for t, uniforms_B in enumerate(uniforms_BT.unbind(1)):
        log_probs_BV = policy.log_softmax(logits_NV)
        if t == 0 or not policy.on_gpu:
            log_probs_BV = log_probs_BV[row_of_B]
        if engine is not None:
            log_probs_BV = engine.disturb(t, log_probs_BV)
        if truncation is not None:
            kept_BV = likely_tokens(truncation, log_probs_BV)
            masses.append(log_mass(log_probs_BV, kept_BV))
            log_probs_BV = (log_probs_BV - masses[-1]).masked_fill(~kept_BV, -torch.inf)
            if truncation.keep_sampling_mask:
                kept.append(pack(kept_BV))
        token_B = choose(log_probs_BV, uniforms_B).masked_fill(done_B, pad_id)
        tokens.append(token_B)
        log_probs.append(log_probs_BV.gather(1, token_B[:, None]))
        done.append(done_B)
        done_B = done_B | (token_B == end_id)
        if policy.stop:
            done_B = done_B | _stopped(policy, tokens)
        if t == last:
            break
        if policy.on_gpu:
            if (t + 1) % ASK_EVERY == 0 and done_B.all():
                break
            if t == 0:
                kv_cache.select(row_of_B)
            token_N = token_B
        else:
            B, V = log_probs_BV.shape
            # A number for each distinct (row, token); completions that have ended sort behind all others.
            edge_B = (row_of_B * V + token_B).masked_fill(done_B, B * V)
            edges_N, row_of_B = edge_B.unique(return_inverse=True)
            going, now_ended = torch.stack([(edges_N < B * V).sum(), done_B.sum()]).tolist()
            if not going:
                break
            edges_N, row_of_B = edges_N[:going], row_of_B.clamp(max=going - 1)
            if (going, now_ended) != (len(logits_NV), ended):  # else the cache's rows stay as they are
                kv_cache.select(edges_N // V)
            ended, token_N = now_ended, edges_N % V
        logits_NV = policy.logits(decode_hidden(policy, kv_cache, token_N[:, None]))[:, -1]
    return tokens, log_probs, done, masses, kept


def _stopped(policy: Policy, tokens: list[Tensor]) -> Tensor:
    """Find the completions whose last tokens have a stop string in their text, shape (B,), bool.

    A token has a byte at least, special ones aside, so those are enough that a stop string has bytes, and some more.
    """
    tail_BK = torch.stack(tokens[-max(len(stop.encode()) for stop in policy.stop) - 8 :], 1)
    texts_B = decode(policy.tokenizer, tail_BK, torch.ones_like(tail_BK))
    return torch.tensor([any(stop in text for stop in policy.stop) for text in texts_B], device=tail_BK.device)


def prompt_rows(prompts: Prompts, group: int) -> Tensor:
    """Return each row's prompt index, (P * group,): every prompt has `group` consecutive rows."""
    return torch.arange(len(prompts.tokens_PL), device=prompts.tokens_PL.device).repeat_interleave(group)
