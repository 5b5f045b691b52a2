"""The batches that a run learns from: prompts -> sample -> score -> advantages, and the queue of stale batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpolab.grpo.advantages import Scored, advantages, normalized_sum, weighted_sum, whiten
from grpolab.grpo.batch import Chat, Completions, Prompts, Rollout, Sampled, TrainingBatch, decode, prompt_tensors
from grpolab.grpo.decoding import inverse_cdf, most_likely, prompt_rows, sample, sampling_noise
from grpolab.grpo.kl import kl_penalty
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.prompts import PromptStream, differs, most_varied, overlong, prompt_index
from grpolab.grpo.ratios import masked_log_ratio
from grpolab.grpo.rewards import RANDOM, Score, check_parts, noisy_verdicts, random_rewards, reward_parts
from grpolab.grpo.sampler import EngineNoise
from grpolab.registry import LENGTH_PENALTIES, SMOOTHING, resolve
from grpolab.settings.resolved import Resolved
from grpolab.settings.selection import REWARD
from grpolab.settings.task import LENGTH, OVERLONG, VERDICT
from grpolab.tasks.base import Example


@dataclass(frozen=True)
class Collector:
    """Samples and scores batches; everything in it stays the same during a run."""

    settings: Resolved
    examples: list[Example]  # training prompts
    score: Score
    reference: Policy | None  # the warm start; None if the settings have no KL to it
    chat: Chat
    processes: Processes = ALONE  # they share the prompts
    engine: Any = None  # samples in place of the policy (`models/vllm.py`)

    def next(self, policy: Policy, step: int, stale_batches: list[Rollout], stream: PromptStream) -> Rollout:
        """Return the batch that rollout step `step` learns from; it was sampled `staleness` rollout steps earlier.

        The queue `stale_batches` is kept at `staleness` batches that are sampled and not yet learnt from. The first
        ones are all sampled from the initial policy. No batch is sampled for a step beyond the last.
        """
        last = min(step + self.settings.staleness, self.settings.planned_steps - 1)
        for ahead in range(step + len(stale_batches), last + 1):
            stale_batches.append(self.rollout(policy, ahead, stream))
        return stale_batches.pop(0)

    def rollout(self, policy: Policy, step: int, stream: PromptStream | None = None) -> Rollout:
        """Sample and score the batch of a step with the policy's current weights; the stream's next prompts by default.

        With `filter_groups` further batches follow, until enough groups differ or there have been `max_batches`.
        """
        settings, count = self.settings, self.settings.prompts_per_step
        stream = stream or PromptStream(settings, len(self.examples), step * count)
        rule, batches = settings.filter_groups, list[Sampled]()
        for index in range(rule.max_batches if rule else 1):
            sampled = self._sample(policy, step, index, stream.next_places())
            stream.see(sampled.places, values := partial(self._values, sampled.parts))
            if settings.advantage_history:
                sampled.compared["so_far_B4"] = stream.with_rewards(sampled.places, values(REWARD))
            batches.append(sampled)
            if not rule or sum(int(self._differ(batch.parts).sum()) for batch in batches) >= count:
                break
        return self.scored(policy, self._join(policy, batches))

    def _sample(self, policy: Policy, step: int, index: int, places: list[int]) -> Sampled:
        """Sample and score the groups of some prompts, the step's batch number `index`."""
        settings, examples_P = self.settings, self.prompts(places)
        size, first = (len(places), settings.num_generations, settings.max_completion_length), index * len(places)
        noise_BT = sampling_noise(settings.seed, "rollout", step, *size, first=first)
        dtype = settings.sampler_dtype if settings.sampler_dtype != "int8" else None  # its weights are rounded already
        sampler = replace(policy, dtype=getattr(torch, dtype)) if dtype else policy
        prompts, group = self._prompt_tensors(policy, examples_P), settings.num_generations
        engine, truncation = EngineNoise.of(settings, step, first), settings if settings.truncates_sampling else None
        if self.engine is not None:
            completions = self.engine.sample(policy, prompts, step, first)
        else:
            completions = sample(sampler, prompts, group, noise_BT, inverse_cdf, engine, truncation, self.processes)
        compared = dict[str, Tensor]()
        if settings.advantage_estimator == "given":
            compared["baseline_B"] = self._greedy_rewards(sampler, step, index, examples_P, prompts)
        texts_B = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT, policy.stop)
        parts = self._reward_parts(step, index, self._repeated(examples_P), completions, texts_B)
        return Sampled(places, prompts, completions, texts_B, parts, compared)

    def _join(self, policy: Policy, batches: list[Sampled]) -> Sampled:
        """Put the groups of several batches into one."""
        if len(batches) == 1:
            return batches[0]
        places = [place for batch in batches for place in batch.places]
        return Sampled(
            places,
            self._prompt_tensors(policy, self.prompts(places)),
            Completions.join([batch.completions for batch in batches], policy.pad),
            [text for batch in batches for text in batch.texts_B],
            {name: torch.cat([batch.parts[name] for batch in batches]) for name in batches[0].parts},
            {name: torch.cat([batch.compared[name] for batch in batches]) for name in batches[0].compared},
        )

    def scored(self, policy: Policy, sampled: Sampled) -> Rollout:
        """Turn sampled groups into a batch to learn from; its policy only has tokenizer, stop texts and device."""
        settings, completions = self.settings, sampled.completions
        rewards_B = total_reward(sampled.parts, settings.reward.weights_used)
        batch = TrainingBatch.of(sampled.prompts, prompt_rows(sampled.prompts, settings.num_generations), completions)
        batch = replace(batch, rewards_B=rewards_B.to(policy.device))
        parts, compared, differ_P = sampled.parts, sampled.compared, None
        rows_B = torch.arange(len(batch))
        if settings.filter_groups:
            differ_P = self._differ(parts)
            rows_B = self._first_rows(differ_P if differ_P.any() else torch.ones_like(differ_P))
        if kept := settings.train_generations:
            rewards_PG = rewards_B[rows_B].view(-1, settings.num_generations)
            rows_B = rows_B[most_varied(rewards_PG, kept).flatten()]
        if len(rows_B) < len(batch):  # all that follows sees the rows that train alone
            parts, compared = ({key: rows[rows_B] for key, rows in of.items()} for of in (parts, compared))
            batch = batch.rows(rows_B)
        if settings.beta and self.reference is not None:
            reference_BT, _ = old_log_probs(self.reference, batch, settings.forward_size, self.processes)
            batch = replace(batch, reference_log_probs_BT=reference_BT)
        if differ_P is None or differ_P.any():  # else equal groups stand in for others, and their advantage is 0
            batch = replace(batch, advantages_B=self._advantages(batch, parts, compared))
        ended_B = ((completions.tokens_BT == policy.end) & completions.mask_BT).any(1)
        if policy.stop:
            ended_B |= torch.tensor([text.endswith(policy.stop) for text in sampled.texts_B], device=ended_B.device)
        if settings.mask_truncated_completions:
            batch = replace(batch, mask_BT=batch.mask_BT & ended_B[batch.rows_B, None])
        return Rollout(
            **vars(sampled),
            examples_B=self._repeated(self.prompts(sampled.places)),
            rewards_B=rewards_B,
            truncated_B=~ended_B.cpu(),
            batch=batch,
            differ_P=differ_P,
        )

    def _differ(self, parts: dict[str, Tensor]) -> Tensor:
        """Find the groups whose completions differ in the metric of `filter_groups`, shape (P,), bool."""
        rule = self.settings.filter_groups
        assert rule is not None
        return differs(self._values(parts, rule.metric))

    def _values(self, parts: dict[str, Tensor], metric: str) -> Tensor:
        """Return a part of the reward, or the reward itself, of each group's completions, (P, G)."""
        reward = self.settings.reward
        values_B = total_reward(parts, reward.weights_used) if metric == REWARD else parts[reward.used(metric)]
        return values_B.view(-1, self.settings.num_generations)

    def _first_rows(self, groups_P: Tensor) -> Tensor:
        """Return the rows of the first `prompts_per_step` of the groups that are True, (B,)."""
        first_P = groups_P.nonzero().squeeze(1)[: self.settings.prompts_per_step]
        group = self.settings.num_generations
        return (first_P[:, None] * group + torch.arange(group)).flatten()

    def prompts(self, places: Iterable[int]) -> list[Example]:
        """Return the prompts at some places of the stream."""
        return [self.examples[prompt_index(self.settings.seed, len(self.examples), place)] for place in places]

    def _repeated(self, examples_P: list[Example]) -> list[Example]:
        return [example for example in examples_P for _ in range(self.settings.num_generations)]

    def _prompt_tensors(self, policy: Policy, examples_P: list[Example]) -> Prompts:
        return prompt_tensors(policy.tokenizer, [example.prompt for example in examples_P], self.chat, policy.device)

    def _reward_parts(
        self, step: int, index: int, examples_B: list[Example], completions: Completions, texts_B: list[str]
    ) -> dict[str, Tensor]:
        """Return each reward part, (B,), by name; those of chance and of length only if the reward has them."""
        reward, seed, first = self.settings.reward, self.settings.seed, index * self.settings.batch_size
        parts = self.processes.from_first(lambda: reward_parts(self.score, examples_B, texts_B))
        if reward.verifier:
            parts[VERDICT] = noisy_verdicts(parts["correct"], reward.verifier, seed, step, first)
        if RANDOM in reward.weights:
            parts[RANDOM] = random_rewards(seed, step, len(texts_B), first)
        if reward.parts_of_length:
            group = len(texts_B) // self.settings.prompts_per_step
            self._add_parts_of_length(parts, completions.mask_BT.sum(1).view(-1, group).cpu())
        return parts

    def _add_parts_of_length(self, parts: dict[str, Tensor], lengths_PG: Tensor) -> None:
        """Add the reward parts that depend on the length."""
        reward, longest = self.settings.reward, self.settings.max_completion_length
        if reward.overlong_buffer:
            parts[OVERLONG] = overlong(lengths_PG, longest, reward.overlong_buffer * longest).flatten()
        if reward.length_penalty:
            right_PG = (parts[reward.used("correct")] > 0.5).view_as(lengths_PG)
            others = {name: weight for name, weight in reward.weights_used.items() if name != LENGTH}
            rewards_PG = weighted_sum(parts, others).view_as(lengths_PG) if others else torch.zeros(lengths_PG.shape)
            penalty = resolve(LENGTH_PENALTIES[reward.length_penalty])
            parts[LENGTH] = penalty(lengths_PG, right_PG, rewards_PG, longest).flatten()

    def _greedy_rewards(
        self, sampler: Policy, step: int, index: int, examples_P: list[Example], prompts: Prompts
    ) -> Tensor:
        """Return the reward of the greedy completion of each row's prompt, shape (B,)."""
        settings = self.settings
        blank_PT = torch.zeros(len(examples_P), settings.max_completion_length)
        greedy = sample(sampler, prompts, 1, blank_PT, most_likely, processes=self.processes)
        texts_P = decode(sampler.tokenizer, greedy.tokens_BT, greedy.mask_BT, sampler.stop)
        parts = self._reward_parts(step, index, examples_P, greedy, texts_P)
        return total_reward(parts, settings.reward.weights_used).repeat_interleave(settings.num_generations)

    def _advantages(self, batch: TrainingBatch, parts: dict[str, Tensor], compared: dict[str, Tensor]) -> Tensor:
        """Return each completion's advantage, (B,); 0 if it has no reward."""
        settings, group_B = self.settings, batch.prompt_of_B.cpu()
        rewards_B = batch.rewards_B.cpu()
        if settings.scale_reward_parts:
            rewards_B = normalized_sum(parts, settings.reward.weights_used, group_B, settings.scale_epsilon)
        kl_B, known_B = self._sampled_kl(batch), ~rewards_B.isnan()
        if settings.kl_placement == "reward":
            rewards_B = rewards_B - kl_B
        scored = Scored(rewards_B, group_B, batch.mask_BT.sum(1).cpu(), compared.get("baseline_B"))
        scale = settings.scale_rewards, settings.scale_epsilon
        values_B = advantages(scored, settings.advantage_estimator, *scale)
        if settings.advantage_history:
            values_B = resolve(SMOOTHING["smoothed"])(values_B, rewards_B, compared["so_far_B4"], *scale)
        if (weights := settings.advantage_weights) is not None:
            values_B = torch.where(values_B > 0, weights.positive * values_B, weights.negative * values_B)
        if settings.kl_placement == "advantage":
            values_B = values_B - kl_B
        if settings.whiten_advantages:
            mask_BT = batch.mask_BT.cpu()
            counted_BT = mask_BT & known_B[:, None]
            values_B = whiten(values_B[:, None].expand(mask_BT.shape), counted_BT, settings.whiten_advantages)[:, 0]
        if settings.advantage_filter is not None:
            values_B = torch.where(values_B.abs() > settings.advantage_filter, 0.0, values_B)
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
        """Return what a resumed run cannot recompute of the queue: prompts, the sampler's output, rewards."""
        names = "places", "parts", "compared"
        return [{name: getattr(r, name) for name in names} | vars(r.completions) for r in stale_batches]

    def load_state_dict(self, policy: Policy, step: int, saved: list[dict[str, Any]]) -> list[Rollout]:
        """Return the queue of stale batches before rollout step `step`, bit for bit as it was saved."""
        stale_batches, count = [], self.settings.prompts_per_step
        for ahead, batch in enumerate(saved, start=step):
            places = batch.get("places") or [*range(ahead * count, (ahead + 1) * count)]  # older checkpoints lack them
            completions = Completions(**{name: batch[name] for name in Completions.__annotations__ if name in batch})
            prompts = self._prompt_tensors(policy, self.prompts(places))
            texts_B = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT, policy.stop)
            older = {} if batch.get("baseline_B") is None else {"baseline_B": batch["baseline_B"]}
            sampled = Sampled(places, prompts, completions, texts_B, batch["parts"], batch.get("compared", older))
            stale_batches.append(self.scored(policy, sampled))
        return stale_batches


def total_reward(parts: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Return the weighted sum of the parts, (B,), NaN if all are NaN. Raises RequestError for an unknown part."""
    check_parts(weights, parts)
    return weighted_sum(parts, weights)
