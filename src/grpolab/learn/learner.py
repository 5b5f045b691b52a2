"""One rollout step's pieces, bound to a run's settings: prompts, sampling, scoring, advantages, updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from grpolab.learn import seeds
from grpolab.learn.advantages import group_advantages
from grpolab.learn.aggregation import Totals
from grpolab.learn.batch import Rollout, TrainingBatch, sampler_gap
from grpolab.learn.objective import Objective
from grpolab.learn.policy import Policy, completion_logits
from grpolab.learn.rewards import Score, reward_parts, total_reward
from grpolab.learn.rollout import prompt_rows, sample, sampling_noise
from grpolab.learn.tasks.base import Example
from grpolab.learn.tokenizer import decode, prompt_tensors
from grpolab.learn.update import Diverged, Step, apply_update, learning_rate, old_log_probs
from grpolab.settings import RunSettings

# What float32 on CPU promises of |log-prob of the sampler - log-prob of the trainer|, in nat. Rounding reaches 1e-5 on
# single tokens once logits pass 20; a wrong mask, position or temperature moves the mean by orders of magnitude more.
MEAN_GAP, WORST_GAP = 1e-5, 1e-4


@dataclass
class LearnerState:
    """All that a run carries from one rollout step to the next; everything else follows from seeds."""

    policy: Policy
    optimizer: AdamW
    rollout_step: int = 0
    optimizer_step: int = 0


@dataclass(frozen=True)
class Learner:
    """The run's fixed parts; `settings` are resolved. Methods take the state and change nothing but it."""

    settings: RunSettings
    objective: Objective
    examples: list[Example]  # training prompts
    score: Score
    reference: Policy | None  # the warm start; only where a KL to it is asked for
    chat: bool

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one forward."""
        return self.settings.micro_batch_size or self.settings.minibatch_size

    def prompts(self, step: int) -> list[Example]:
        """The rollout step's prompts: consecutive pieces of a permutation that is new in every epoch."""
        count, size = self.settings.prompts_per_step, len(self.examples)
        places = (divmod(place, size) for place in range(step * count, (step + 1) * count))
        return [self.examples[_order(self.settings.seed, epoch, size)[index]] for epoch, index in places]

    def rollout(self, policy: Policy, step: int) -> Rollout:
        """Prompts -> sample -> score -> advantages."""
        settings, group = self.settings, self.settings.num_generations
        prompts = self.prompts(step)
        tensors = prompt_tensors(policy.tokenizer, [example.prompt for example in prompts], self.chat, policy.device)
        noise_BT = sampling_noise(settings.seed, "rollout", step, len(prompts), group, settings.max_completion_length)
        completions = sample(policy, tensors, group, noise_BT)
        texts_B = decode(policy.tokenizer, completions.tokens_BT, completions.mask_BT)
        examples_B = [example for example in prompts for _ in range(group)]
        parts = reward_parts(self.score, examples_B, texts_B)
        rewards_B = total_reward(parts, settings.reward.weights)
        advantages_B = group_advantages(rewards_B, group, settings.scale_rewards, settings.scale_epsilon)
        batch = TrainingBatch(
            rows_B=torch.arange(len(texts_B)),
            prompts=tensors,
            prompt_of_B=prompt_rows(tensors, group),
            tokens_BT=completions.tokens_BT,
            mask_BT=completions.mask_BT,
            sampler_log_probs_BT=completions.log_probs_BT,
            advantages_B=advantages_B.to(policy.device),
        )
        if self.settings.beta and self.reference is not None:
            reference_BT, _ = old_log_probs(self.reference, batch, self.micro_batch_size)
            batch = replace(batch, reference_log_probs_BT=reference_BT)
        ended_B = ((completions.tokens_BT == policy.end) & completions.mask_BT).any(1)
        return Rollout(examples_B, texts_B, parts, rewards_B, ~ended_B.cpu(), batch)

    def minibatches(self, policy: Policy, batch: TrainingBatch, step: int) -> list[TrainingBatch]:
        """The batch in `num_minibatches` pieces, the same ones in every iteration.

        Several are cut from a permutation of the rows, with their old log-probs computed before the first update; a
        single one gets them from its first pass.
        """
        if self.settings.num_minibatches == 1:
            return [batch]
        order_B = torch.from_numpy(seeds.permutation(self.settings.seed, "minibatches", step, len(batch)))
        batch = batch.rows(order_B)
        old_BT, entropy_BT = old_log_probs(policy, batch, self.micro_batch_size)
        batch = replace(batch, old_log_probs_BT=old_BT, old_entropy_BT=entropy_BT)
        return batch.split(self.settings.minibatch_size)

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Step:
        """One optimiser step; advances `state.optimizer_step`. Raises Diverged before it would spoil the weights."""
        settings = self.settings
        for parameters in state.optimizer.param_groups:
            parameters["lr"] = learning_rate(settings, state.optimizer_step)
        totals = Totals(
            sequences=len(minibatch),
            tokens=int(minibatch.mask_BT.sum()),
            rollout_tokens=rollout_tokens / settings.num_minibatches,
            max_completion_length=settings.max_completion_length,
            micro_batches=len(minibatch) // self.micro_batch_size,
        )
        step = apply_update(
            state.policy,
            state.optimizer,
            self.objective,
            minibatch,
            totals,
            micro_batch_size=self.micro_batch_size,
            max_grad_norm=settings.max_grad_norm,
        )
        state.optimizer_step += 1
        return step

    def check_first_update(self, step: Step) -> float:
        """Largest |log ratio| of a fresh batch's first update; sampler and trainer must agree.

        Raises AssertionError where float32 on CPU breaks its promise: most real bugs of GRPO show here.
        """
        deviation = step.update.log_ratio_BT.abs().max().item()
        gap_N = sampler_gap(step.batch)
        exact = self.settings.device == "cpu" and self.settings.dtype == "float32"
        if exact and deviation != 0:
            raise AssertionError(f"the ratio differs from 1 before the first update: |log ratio| = {deviation}")
        mean, worst = gap_N.mean().item(), gap_N.max().item()
        if exact and not (mean <= MEAN_GAP and worst <= WORST_GAP):
            raise AssertionError(f"sampler and trainer log-probs differ by {mean} on average, {worst} at most")
        return deviation

    @torch.no_grad()
    def kl_to_reference(self, policy: Policy, batch: TrainingBatch) -> float:
        """KL(policy || warm start), exact over the vocabulary, mean over the batch's tokens, in nat."""
        assert self.reference is not None
        total, tokens = 0.0, 0
        for micro in batch.split(self.micro_batch_size):
            new_BTV, reference_BTV = (
                completion_logits(p, *micro.own_prompts(), micro.tokens_BT).log_softmax(-1)
                for p in (policy, self.reference)
            )
            kl_BT = (new_BTV.exp() * (new_BTV - reference_BTV)).sum(-1)
            total += kl_BT[micro.mask_BT].double().sum().item()
            tokens += int(micro.mask_BT.sum())
        return total / max(tokens, 1)


@lru_cache(maxsize=2)  # every rollout step asks for its epoch's
def _order(seed: int, epoch: int, size: int) -> list[int]:
    """Order of the training prompts in an epoch."""
    return seeds.permutation(seed, "prompts", epoch, size).tolist()


def flat_weights(policy: Policy) -> Tensor:
    """All weights as one vector, a copy."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in policy.weights().values()])


def step_norm(policy: Policy, before: Tensor) -> float:
    """L2 norm of the change since `before`. Raises Diverged where a weight is no longer finite."""
    norm = torch.linalg.vector_norm(flat_weights(policy) - before).item()
    if not np.isfinite(norm):
        raise Diverged(f"the weights are no longer finite (norm of their last change: {norm})")
    return norm
