"""The batches that a run learns from: prompts -> sample -> score -> advantages, and the queue of stale batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from grpolab import seeds
from grpolab.grpo.advantages import Scored, advantages, normalized_sum, weighted_sum, whiten
from grpolab.grpo.batch import Completions, Prompts, Rollout, TrainingBatch, decode, prompt_tensors
from grpolab.grpo.decoding import most_likely, prompt_rows, sample_dealt, sampling_noise
from grpolab.grpo.kl import kl_penalty
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.ratios import masked_log_ratio
from grpolab.grpo.rewards import RANDOM, Score, check_parts, noisy_verdicts, random_rewards, reward_parts
from grpolab.grpo.sampler import EngineNoise
from grpolab.settings.resolved import Resolved
from grpolab.settings.task import VERDICT
from grpolab.tasks.base import Example


@dataclass(frozen=True)
class Collector:
    """Samples and scores batches; everything in it stays the same during a run."""

    settings: Resolved
    examples: list[Example]  # training prompts
    score: Score
    reference: Policy | None  # the warm start; None if the settings have no KL to it
    chat: bool
    processes: Processes = ALONE  # they share the prompts

    def next(self, policy: Policy, step: int, stale_batches: list[Rollout]) -> Rollout:
        """Return the batch that rollout step `step` learns from; it was sampled `staleness` rollout steps earlier.

        The queue `stale_batches` is kept at `staleness` batches that are sampled and not yet learnt from. The first
        ones are all sampled from the initial policy. No batch is sampled for a step beyond the last.
        """
        last = min(step + self.settings.staleness, self.settings.planned_steps - 1)
        stale_batches += [self.rollout(policy, ahead) for ahead in range(step + len(stale_batches), last + 1)]
        return stale_batches.pop(0)

    def rollout(self, policy: Policy, step: int) -> Rollout:
        """Sample and score the batch of a step with the policy's current weights."""
        settings = self.settings
        size = settings.prompts_per_step, settings.num_generations, settings.max_completion_length
        noise_BT = sampling_noise(settings.seed, "rollout", step, *size)
        dtype = settings.sampler_dtype if settings.sampler_dtype != "int8" else None  # its weights are rounded already
        sampler = replace(policy, dtype=getattr(torch, dtype)) if dtype else policy
        prompts, group, engine = (
            self._prompt_tensors(policy, step),
            settings.num_generations,
            EngineNoise.of(settings, step),
        )
        completions = sample_dealt(self.processes, sampler, prompts, group, noise_BT, engine=engine)
        baseline_B = self._greedy_rewards(sampler, step, prompts) if settings.advantage_estimator == "given" else None
        return self.scored(policy, step, prompts, completions, baseline_B=baseline_B)

    def scored(
        self,
        policy: Policy,  # only its tokenizer and device are used
        step: int,
        prompts: Prompts,
        completions: Completions,
        parts: dict[str, Tensor] | None = None,
        baseline_B: Tensor | None = None,
    ) -> Rollout:
        """Turn completions into a batch to learn from; score them unless `parts` are given."""
        settings, group = self.settings, self.settings.num_generations
        texts_B = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT)
        examples_B = [example for example in self.prompts(step) for _ in range(group)]
        parts = self._reward_parts(step, examples_B, texts_B) if parts is None else parts
        rewards_B = total_reward(parts, settings.reward.weights_used)
        batch = TrainingBatch.of(prompts, prompt_rows(prompts, group), completions)
        batch = replace(batch, rewards_B=rewards_B.to(policy.device))
        if settings.beta and self.reference is not None:
            reference_BT, _ = old_log_probs(self.reference, batch, settings.forward_size, self.processes)
            batch = replace(batch, reference_log_probs_BT=reference_BT)
        batch = replace(batch, advantages_B=self._advantages(batch, parts, baseline_B))
        ended_B = ((completions.tokens_BT == policy.end) & completions.mask_BT).any(1)
        return Rollout(examples_B, texts_B, parts, rewards_B, ~ended_B.cpu(), batch, baseline_B)

    def prompts(self, step: int) -> list[Example]:
        """Return the rollout step's prompts: the next ones of a permutation that is new in every epoch."""
        count, size = self.settings.prompts_per_step, len(self.examples)
        places = (divmod(place, size) for place in range(step * count, (step + 1) * count))
        return [self.examples[_epoch_order(self.settings.seed, epoch, size)[index]] for epoch, index in places]

    def _prompt_tensors(self, policy: Policy, step: int) -> Prompts:
        texts = [example.prompt for example in self.prompts(step)]
        return prompt_tensors(policy.tokenizer, texts, self.chat, policy.device)

    def _reward_parts(self, step: int, examples_B: list[Example], texts_B: list[str]) -> dict[str, Tensor]:
        """Return each reward part, (B,), by name; those that are drawn by chance only if the reward has them."""
        parts = self.processes.from_first(lambda: reward_parts(self.score, examples_B, texts_B))
        if verifier := self.settings.reward.verifier:
            parts[VERDICT] = noisy_verdicts(parts["correct"], verifier, self.settings.seed, step)
        if RANDOM in self.settings.reward.weights:
            parts[RANDOM] = random_rewards(self.settings.seed, step, len(texts_B))
        return parts

    def _greedy_rewards(self, sampler: Policy, step: int, prompts: Prompts) -> Tensor:
        """Return the reward of the greedy completion of each row's prompt, shape (B,)."""
        settings, examples_P = self.settings, self.prompts(step)
        blank_PT = torch.zeros(len(examples_P), settings.max_completion_length)
        greedy = sample_dealt(self.processes, sampler, prompts, 1, blank_PT, most_likely)
        parts = self._reward_parts(step, examples_P, decode(sampler.tokenizer, greedy.tokens_BT, greedy.mask_BT))
        return total_reward(parts, settings.reward.weights_used).repeat_interleave(settings.num_generations)

    def _advantages(self, batch: TrainingBatch, parts: dict[str, Tensor], baseline_B: Tensor | None) -> Tensor:
        """Return each completion's advantage, (B,); 0 if it has no reward."""
        settings, group_B = self.settings, batch.prompt_of_B.cpu()
        rewards_B = batch.rewards_B.cpu()
        if settings.scale_reward_parts:
            rewards_B = normalized_sum(parts, settings.reward.weights_used, group_B, settings.scale_epsilon)
        kl_B, known_B = self._sampled_kl(batch), ~rewards_B.isnan()
        if settings.kl_placement == "reward":
            rewards_B = rewards_B - kl_B
        scored = Scored(rewards_B, group_B, batch.mask_BT.sum(1).cpu(), baseline_B)
        values_B = advantages(scored, settings.advantage_estimator, settings.scale_rewards, settings.scale_epsilon)
        if settings.kl_placement == "advantage":
            values_B = values_B - kl_B
        if settings.whiten_advantages:
            mask_BT = batch.mask_BT.cpu()
            counted_BT = mask_BT & known_B[:, None]
            values_B = whiten(values_B[:, None].expand(mask_BT.shape), counted_BT, settings.whiten_advantages)[:, 0]
        return torch.where(known_B, values_B, 0.0).to(batch.rewards_B.device)

    def _sampled_kl(self, batch: TrainingBatch) -> Tensor:
        """Return beta times each sequence's summed KL of sampled tokens, (B,) on CPU; 0 if the KL is in the loss."""
        settings = self.settings
        if settings.kl_placement == "loss" or batch.reference_log_probs_BT is None:
            return torch.zeros(len(batch))
        assert settings.kl_estimator is not None
        log_ratio_BT = masked_log_ratio(batch.reference_log_probs_BT, batch.sampler_log_probs_BT, batch.mask_BT)
        clamps, one_BT = (settings.kl_input_clamp, settings.kl_output_clamp), torch.ones_like(log_ratio_BT)
        kl_BT = kl_penalty(log_ratio_BT, settings.kl_estimator, "plain", *clamps, ratio=one_BT, own=one_BT)
        return settings.beta * (kl_BT * batch.mask_BT).sum(1).cpu()

    def state_dict(self, stale_batches: list[Rollout]) -> list[dict[str, Any]]:
        """Return what a resumed run cannot recompute of the queue: tokens, the sampler's log-probs, rewards."""
        saved = []
        for rollout in stale_batches:
            batch, scores = rollout.batch, {"parts": rollout.parts, "baseline_B": rollout.baseline_B}
            tokens = {"tokens_BT": batch.tokens_BT, "mask_BT": batch.mask_BT}
            saved.append({**tokens, "log_probs_BT": batch.sampler_log_probs_BT, **scores})
        return saved

    def load_state_dict(self, policy: Policy, step: int, saved: list[dict[str, Any]]) -> list[Rollout]:
        """Return the queue of stale batches before rollout step `step`, bit for bit as it was saved."""
        stale_batches = []
        for ahead, batch in enumerate(saved, start=step):
            completions = Completions(batch["tokens_BT"], batch["mask_BT"], batch["log_probs_BT"])
            prompts = self._prompt_tensors(policy, ahead)
            stale_batches.append(self.scored(policy, ahead, prompts, completions, batch["parts"], batch["baseline_B"]))
        return stale_batches


def total_reward(parts: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Return the weighted sum of the parts, (B,), NaN if all are NaN. Raises RequestError for an unknown part."""
    check_parts(weights, parts)
    return weighted_sum(parts, weights)


@lru_cache(maxsize=4)  # every rollout step asks for its epoch's
def _epoch_order(seed: int, epoch: int, size: int) -> list[int]:
    return seeds.permutation(seed, "prompts", epoch, size).tolist()
