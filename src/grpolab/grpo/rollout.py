"""Where batches come from: prompts -> sample -> score -> advantages, and the queue of stale batches.

Sampling is one prefill of the prompts and a decode step for each token; completions share a row of the KV cache for as
long as they share a prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from grpolab import seeds
from grpolab.grpo.advantages import Scored, advantages, normalized_sum, whiten
from grpolab.grpo.batch import Completions, Prompts, Rollout, TrainingBatch, decode, prompt_tensors
from grpolab.grpo.kl import kl_penalty
from grpolab.grpo.model import Policy, decode_hidden, old_log_probs, prefill
from grpolab.grpo.parallel import ALONE, Processes
from grpolab.grpo.ratios import masked_log_ratio
from grpolab.grpo.rewards import RANDOM, Score, random_rewards, reward_parts, total_reward
from grpolab.settings.resolved import Resolved
from grpolab.tasks.base import Example

BELOW_ONE = 1 - 2.0**-52  # keeps the largest uniform number times the total below the total, however it is rounded
ASK_EVERY = 16  # tokens between two questions to a GPU whether all completions have ended


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
    padding, end, waits = policy.pad, policy.end, policy.waits  # looked up once: the tokenizer is slow to say
    uniforms_BT = uniforms_BT.to(policy.device)
    tokens, log_probs = [], []
    rows_B = prompt_rows(prompts, group)  # the cache's row that holds each completion's prefix
    with torch.inference_mode():
        kv_cache = prefill(policy, prompts)
        logits_NV = policy.logits(kv_cache.prefill_hidden_N1H)[:, -1]
        done_B, ended = torch.zeros(len(rows_B), dtype=torch.bool, device=policy.device), 0
        for t, uniforms_B in enumerate(uniforms_BT.unbind(1)):
            log_probs_BV = policy.log_softmax(logits_NV)[rows_B]
            chosen_B = choose(log_probs_BV, uniforms_B).masked_fill(done_B, padding)
            tokens.append(chosen_B)
            log_probs.append(log_probs_BV.gather(1, chosen_B[:, None]))
            done_B = done_B | (chosen_B == end)
            if t + 1 == uniforms_BT.shape[1]:
                break
            B, V = log_probs_BV.shape
            if not waits:
                # Completions with the same prefix share a row: each distinct (prefix, token) is decoded once.
                edges_N, rows_B = (rows_B * V + chosen_B).masked_fill(done_B, B * V).unique(return_inverse=True)
                # What ended sorts behind, and has no row. The one question to the device, besides the size of `unique`.
                going, now_ended = torch.stack([(edges_N < B * V).sum(), done_B.sum()]).tolist()
                if not going:
                    break
                edges_N, rows_B = edges_N[:going], rows_B.clamp(max=going - 1)
                if (going, now_ended) != (len(logits_NV), ended):  # else each row goes on with one token
                    kv_cache.select(edges_N // V)
                ended, next_N = now_ended, edges_N % V
            else:  # a row for each completion, as its number of rows is known; what has ended goes on with padding
                if (t + 1) % ASK_EVERY == 0 and done_B.all():
                    break
                if t == 0:
                    kv_cache.select(rows_B)
                    rows_B = torch.arange(B, device=policy.device)
                next_N = chosen_B
            logits_NV = policy.logits(decode_hidden(policy, kv_cache, next_N[:, None]))[:, -1]
    # Outside of inference mode, so that an update may keep them for its backward pass.
    tokens_BT = torch.stack(tokens, 1)
    ends_BT = tokens_BT == end
    mask_BT = ends_BT.cumsum(1) - ends_BT.long() == 0  # up to the first end token, itself included
    longest = int(mask_BT.sum(1).max())
    log_probs_BT = torch.where(mask_BT, torch.cat(log_probs, 1), 0.0)
    return Completions(tokens_BT[:, :longest], mask_BT[:, :longest], log_probs_BT[:, :longest])


def sample_dealt(
    processes: Processes,
    policy: Policy,
    prompts: Prompts,
    group: int,
    uniforms_BT: Tensor,
    choose: Callable[[Tensor, Tensor], Tensor] = inverse_cdf,
) -> Completions:
    """`sample` by all processes: each has some of the prompts, with the noise that is theirs."""
    if processes.size == 1:
        return sample(policy, prompts, group, uniforms_BT, choose)
    own_P = torch.tensor(processes.share(range(len(prompts.tokens_PL))))
    own = Prompts(prompts.tokens_PL[own_P], None if prompts.mask_PL is None else prompts.mask_PL[own_P])
    sampled = sample(policy, own, group, uniforms_BT.unflatten(0, (-1, group))[own_P].flatten(0, 1), choose)
    parts = sampled.tokens_BT, sampled.mask_BT, sampled.log_probs_BT
    pieces_P = processes.gather(list(zip(*(part.split(group) for part in parts), strict=True)))
    width = max(tokens_GT.shape[1] for tokens_GT, _, _ in pieces_P)

    def together(pieces: tuple[Tensor, ...], padding: float) -> Tensor:
        return torch.cat([pad(piece_GT, (0, width - piece_GT.shape[1]), value=padding) for piece_GT in pieces])

    tokens_P, masks_P, log_probs_P = zip(*pieces_P, strict=True)
    return Completions(together(tokens_P, policy.pad), together(masks_P, False), together(log_probs_P, 0.0))


def prompt_rows(prompts: Prompts, group: int) -> Tensor:
    """The prompt of each row where every prompt has `group` rows that stand together, shape (P * group,)."""
    return torch.arange(len(prompts.tokens_PL), device=prompts.tokens_PL.device).repeat_interleave(group)


@dataclass(frozen=True)
class Collector:
    """The run's fixed parts."""

    settings: Resolved
    examples: list[Example]  # training prompts
    score: Score
    reference: Policy | None  # the warm start; only where a KL to it is asked for
    chat: bool
    processes: Processes = ALONE  # over which prompts are dealt

    def prompts(self, step: int) -> list[Example]:
        """The rollout step's prompts: consecutive pieces of a permutation that is new in every epoch."""
        count, size = self.settings.prompts_per_step, len(self.examples)
        places = (divmod(place, size) for place in range(step * count, (step + 1) * count))
        return [self.examples[_order(self.settings.seed, epoch, size)[index]] for epoch, index in places]

    def next(self, policy: Policy, step: int, stale_batches: list[Rollout]) -> Rollout:
        """The batch that rollout step `step` learns from: sampled `staleness` rollout steps earlier.

        The queue `stale_batches` holds what was sampled and not yet learnt from, and is kept at `staleness` batches;
        those of the first steps come from the policy at the start. Nothing is sampled that no step would learn from.
        """
        last = min(step + self.settings.staleness, self.settings.planned_steps - 1)
        stale_batches += [self.rollout(policy, ahead) for ahead in range(step + len(stale_batches), last + 1)]
        return stale_batches.pop(0)

    def rollout(self, policy: Policy, step: int) -> Rollout:
        """Sample and score the batch of a step with the policy as it is."""
        settings = self.settings
        size = settings.prompts_per_step, settings.num_generations, settings.max_completion_length
        noise_BT = sampling_noise(settings.seed, "rollout", step, *size)
        sampler = replace(policy, dtype=getattr(torch, settings.sampler_dtype)) if settings.sampler_dtype else policy
        prompts = self._prompt_tensors(policy, step)
        completions = sample_dealt(self.processes, sampler, prompts, settings.num_generations, noise_BT)
        baseline_B = self._greedy_rewards(sampler, step, prompts) if settings.advantage_estimator == "given" else None
        return self.scored(policy, step, prompts, completions, baseline_B=baseline_B)

    def scored(
        self,
        policy: Policy,
        step: int,
        prompts: Prompts,
        completions: Completions,
        parts: dict[str, Tensor] | None = None,
        baseline_B: Tensor | None = None,
    ) -> Rollout:
        """Completions as a batch to learn from, scored where their reward parts are not given.

        Of `policy` only tokenizer and device are used.
        """
        settings, group = self.settings, self.settings.num_generations
        texts_B = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT)
        examples_B = [example for example in self.prompts(step) for _ in range(group)]
        parts = self._parts(step, examples_B, texts_B) if parts is None else parts
        rewards_B = total_reward(parts, settings.reward.weights)
        batch = TrainingBatch(
            rows_B=torch.arange(len(texts_B)),
            prompts=prompts,
            prompt_of_B=prompt_rows(prompts, group),
            tokens_BT=completions.tokens_BT,
            mask_BT=completions.mask_BT,
            sampler_log_probs_BT=completions.log_probs_BT,
            advantages_B=torch.zeros(len(rewards_B)),  # known below
            rewards_B=rewards_B.to(policy.device),
        )
        if settings.beta and self.reference is not None:
            reference_BT, _ = old_log_probs(self.reference, batch, settings.forward_size, self.processes)
            batch = replace(batch, reference_log_probs_BT=reference_BT)
        batch = replace(batch, advantages_B=self._advantages(batch, parts, baseline_B))
        ended_B = ((completions.tokens_BT == policy.end) & completions.mask_BT).any(1)
        return Rollout(examples_B, texts_B, parts, rewards_B, ~ended_B.cpu(), batch, baseline_B)

    def _parts(self, step: int, examples_B: list[Example], texts_B: list[str]) -> dict[str, Tensor]:
        """Each part's value for each completion, shape (B,); the random reward's where it has a weight."""
        parts = self.processes.from_first(lambda: reward_parts(self.score, examples_B, texts_B))
        if RANDOM in self.settings.reward.weights:
            parts[RANDOM] = random_rewards(self.settings.seed, step, len(texts_B))
        return parts

    def state_dict(self, stale_batches: list[Rollout]) -> list[dict[str, Any]]:
        """What of the queue cannot be made again from its steps: tokens, the sampler's log-probs, rewards."""
        return [
            {
                "tokens_BT": rollout.batch.tokens_BT,
                "mask_BT": rollout.batch.mask_BT,
                "log_probs_BT": rollout.batch.sampler_log_probs_BT,
                "parts": rollout.parts,
                "baseline_B": rollout.baseline_B,
            }
            for rollout in stale_batches
        ]

    def load_state_dict(self, policy: Policy, step: int, saved: list[dict[str, Any]]) -> list[Rollout]:
        """The queue of stale batches before rollout step `step`, bit for bit as it was saved."""
        stale_batches = []
        for ahead, batch in enumerate(saved, start=step):
            completions = Completions(batch["tokens_BT"], batch["mask_BT"], batch["log_probs_BT"])
            prompts = self._prompt_tensors(policy, ahead)
            stale_batches.append(self.scored(policy, ahead, prompts, completions, batch["parts"], batch["baseline_B"]))
        return stale_batches

    def _greedy_rewards(self, sampler: Policy, step: int, prompts: Prompts) -> Tensor:
        """Reward of the greedy completion of each row's prompt, shape (B,)."""
        settings, examples_P = self.settings, self.prompts(step)
        blank_PT = torch.zeros(len(examples_P), settings.max_completion_length)
        greedy = sample_dealt(self.processes, sampler, prompts, 1, blank_PT, most_likely)
        parts = self._parts(step, examples_P, decode(sampler.tokenizer, greedy.tokens_BT, greedy.mask_BT))
        return total_reward(parts, settings.reward.weights).repeat_interleave(settings.num_generations)

    def _advantages(self, batch: TrainingBatch, parts: dict[str, Tensor], baseline_B: Tensor | None) -> Tensor:
        """What each completion is worth against those that it is compared with, shape (B,)."""
        settings, group_B = self.settings, batch.prompt_of_B.cpu()
        rewards_B = batch.rewards_B.cpu()
        if settings.scale_reward_parts:
            rewards_B = normalized_sum(parts, settings.reward.weights, group_B, settings.scale_epsilon)
        kl_B, known_B = self._kl_of_samples(batch), ~rewards_B.isnan()
        if settings.kl_placement == "reward":
            rewards_B = rewards_B - kl_B
        scored = Scored(rewards_B, group_B, batch.mask_BT.sum(1).cpu(), baseline_B)
        found_B = advantages(scored, settings.advantage_estimator, settings.scale_rewards, settings.scale_epsilon)
        if settings.kl_placement == "advantage":
            found_B = found_B - kl_B
        if settings.whiten_advantages:
            mask_BT = batch.mask_BT.cpu()
            counted_BT = mask_BT & known_B[:, None]
            found_B = whiten(found_B[:, None].expand(mask_BT.shape), counted_BT, settings.whiten_advantages)[:, 0]
        return torch.where(known_B, found_B, 0.0).to(batch.rewards_B.device)

    def _kl_of_samples(self, batch: TrainingBatch) -> Tensor:
        """beta times the KL of a sequence's sampled tokens, summed, where it is not in the loss; shape (B,), on CPU."""
        settings = self.settings
        if settings.kl_placement == "loss" or batch.reference_log_probs_BT is None:
            return torch.zeros(len(batch))
        assert settings.kl_estimator is not None
        sampled_BT = batch.sampler_log_probs_BT
        kl_BT = kl_penalty(
            masked_log_ratio(batch.reference_log_probs_BT, sampled_BT, batch.mask_BT),
            settings.kl_estimator,
            "plain",
            settings.kl_input_clamp,
            settings.kl_output_clamp,
            ratio=torch.ones_like(sampled_BT),
            own=torch.ones_like(sampled_BT),
        )
        return settings.beta * (kl_BT * batch.mask_BT).sum(1).cpu()

    def _prompt_tensors(self, policy: Policy, step: int) -> Prompts:
        texts = [example.prompt for example in self.prompts(step)]
        return prompt_tensors(policy.tokenizer, texts, self.chat, policy.device)


@lru_cache(maxsize=4)  # every rollout step asks for its epoch's
def _order(seed: int, epoch: int, size: int) -> list[int]:
    """Order of the training prompts in an epoch."""
    return seeds.permutation(seed, "prompts", epoch, size).tolist()
