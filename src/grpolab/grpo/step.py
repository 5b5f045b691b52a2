"""One optimiser step on one minibatch, in micro-batches where they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from grpolab import seeds
from grpolab.frameworks.base import clip_conventions, metrics_of, recipe_of
from grpolab.frameworks.names import CLIP_METRIC, convention
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.batch import Rollout, TrainingBatch, concatenate, joined, sampler_gap
from grpolab.grpo.kl import exact_kl, k3
from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, Objective, SurrogateParts, policy_loss
from grpolab.grpo.metrics import Update, update_metrics
from grpolab.grpo.model import Policy, completion_logits, old_log_probs, token_log_probs
from grpolab.grpo.ratios import masked_log_ratio
from grpolab.grpo.rollout import Collector
from grpolab.registry import SURROGATES
from grpolab.settings.objective import AdaptiveEntropySettings
from grpolab.settings.run import RunSettings


class Diverged(Exception):
    """Loss, gradient or weights are no longer finite: a result of the run, not an error of the program."""


@dataclass(frozen=True)
class Step:
    """An optimiser step that was taken."""

    loss: float
    grad_norm: float  # before clipping
    update: Update
    batch: TrainingBatch  # the minibatch, its old log-probs known
    inputs: LossInputs  # of the whole minibatch, without gradient
    objective: Objective  # the one that was minimised
    parts: Loss | None  # the loss without gradient, where the minibatch was one piece


def make_optimizer(policy: Policy, settings: RunSettings) -> AdamW:
    """AdamW over all parameters."""
    return AdamW(
        list(policy.weights().values()),
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def learning_rate(settings: RunSettings, optimizer_step: int) -> float:
    """The learning rate of an optimiser step (from 0): linear warm-up, then constant, linear or cosine to 0."""
    if optimizer_step < settings.warmup_steps:
        return settings.learning_rate * (optimizer_step + 1) / settings.warmup_steps
    done = (optimizer_step - settings.warmup_steps) / max(1, settings.optimizer_steps - settings.warmup_steps)
    course = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return settings.learning_rate * course[settings.lr_scheduler_type]


def apply_update(
    policy: Policy,
    optimizer: AdamW,
    objective: Objective,
    minibatch: TrainingBatch,
    totals: Totals,
    *,
    micro_batch_size: int,
    max_grad_norm: float,
    recipe: LossRecipe = CORE,
    noise_BT: Tensor | None = None,
) -> Step:
    """Log-probs -> ratio -> kernel -> aggregate -> update.

    Where the minibatch's old log-probs are not known this is the first pass: the current ones, detached, are the old.
    `recipe` is the core's or a framework's, `noise_BT` uniform numbers where tokens are drawn. Raises Diverged,
    before any weight is changed, where loss or gradient is not finite.
    """
    optimizer.zero_grad(set_to_none=True)
    losses: list[Loss] = []
    log_probs, entropies, batches = [], [], []
    for micro in minibatch.split(micro_batch_size):
        logits_BTV = completion_logits(policy, *micro.own_prompts(), micro.tokens_BT)
        log_probs_BT, entropy_BT = token_log_probs(logits_BTV, micro.tokens_BT, bool(objective.entropy_coef))
        if micro.old_log_probs_BT is None:
            micro = replace(micro, old_log_probs_BT=log_probs_BT.detach())
        if micro.old_entropy_BT is None:
            micro = replace(micro, old_entropy_BT=entropy_BT.detach())
        loss = policy_loss(objective, _inputs(micro, log_probs_BT, entropy_BT, totals, noise_BT), recipe)
        loss.total.backward()
        losses.append(loss.detached())
        log_probs.append(log_probs_BT.detach())
        entropies.append(entropy_BT.detach())
        batches.append(micro)
    total = float(torch.stack([loss.total for loss in losses]).sum())
    grad_norm = float(torch.nn.utils.clip_grad_norm_(policy.weights().values(), max_grad_norm))
    if not (math.isfinite(total) and math.isfinite(grad_norm)):
        raise Diverged(f"loss {total}, gradient norm {grad_norm}")
    optimizer.step()
    batch = minibatch if minibatch.old_entropy_BT is not None else joined(batches)
    entropy_BT = concatenate(entropies)
    # For metrics the minibatch is one piece.
    inputs = _inputs(batch, concatenate(log_probs), entropy_BT, replace(totals, micro_batches=1), noise_BT)
    parts = losses[0] if len(losses) == 1 else None
    return Step(total, grad_norm, _update_of(inputs, losses), batch, inputs, objective, parts)


def _inputs(
    batch: TrainingBatch, log_probs_BT: Tensor, entropy_BT: Tensor, totals: Totals, noise_BT: Tensor | None
) -> LossInputs:
    assert batch.old_log_probs_BT is not None
    return LossInputs(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=batch.old_log_probs_BT,
        advantages=batch.advantages_B[:, None],
        mask_BT=batch.mask_BT,
        totals=totals,
        reference_log_probs_BT=batch.reference_log_probs_BT,
        sampler_log_probs_BT=batch.sampler_log_probs_BT,
        entropy_BT=entropy_BT,
        rewards_B1=batch.rewards_B[:, None],
        noise_BT=noise_BT,
    )


def _update_of(inputs: LossInputs, losses: list[Loss]) -> Update:
    assert inputs.entropy_BT is not None
    mask_BT, reference_BT = inputs.mask_BT, inputs.reference_log_probs_BT
    kernel = SurrogateParts(
        *(concatenate([getattr(loss.surrogate, name) for loss in losses]) for name in SurrogateParts.__annotations__)
    )
    return Update(
        mask_BT=mask_BT,
        advantages_B=inputs.advantages[:, 0],
        log_ratio_BT=torch.where(mask_BT, concatenate([loss.log_ratio_BT for loss in losses]), 0.0),
        old_log_probs_BT=inputs.old_log_probs_BT,
        entropy_BT=inputs.entropy_BT,
        kernel=kernel,
        # k3 whatever estimator, weight or placement the objective has: one number for all runs.
        kl_ref_BT=None if reference_BT is None else k3(masked_log_ratio(reference_BT, inputs.log_probs_BT, mask_BT)),
    )


# ----------------------------------------------------------------------------------------------------------------------
# One rollout step's pieces, bound to a run's settings: prompts, sampling, scoring, advantages, updates.


# What float32 on CPU promises of |log-prob of the sampler - log-prob of the trainer|, in nat. Rounding reaches 1e-5 on
# single tokens once logits pass 20; a wrong mask, position or temperature moves the mean by orders of magnitude more.
MEAN_GAP, WORST_GAP = 1e-5, 1e-4


@dataclass(frozen=True)
class EntropyControl:
    """The adaptive entropy bonus: its weight, and the mean entropy of the tokens of the last optimiser step."""

    coefficient: float
    last_entropy: float = float("inf")  # none yet: the first optimiser step has no bonus, as in TRL

    def weight(self, rule: AdaptiveEntropySettings) -> float:
        """What the next optimiser step uses: the coefficient, or 0 while the entropy is above its target."""
        return self.coefficient if self.last_entropy <= rule.target else 0.0

    def after(self, entropy: float, rule: AdaptiveEntropySettings) -> EntropyControl:
        """The control after an optimiser step with that mean entropy (TRL 1.16 `use_adaptive_entropy`)."""
        if entropy <= rule.target:
            return EntropyControl(min(self.coefficient + rule.step, rule.most), entropy)
        return EntropyControl(max(self.coefficient - rule.step, rule.least), entropy)


@dataclass
class LearnerState:
    """All that a run carries from one rollout step to the next; everything else follows from seeds."""

    policy: Policy
    optimizer: AdamW
    rollout_step: int = 0
    optimizer_step: int = 0
    waiting: list[Rollout] = field(default_factory=list)  # sampled and not yet learnt from, where batches are stale
    entropy: EntropyControl | None = None  # only where the entropy bonus adapts


@dataclass(frozen=True)
class Learner:
    """The run's fixed parts; `settings` are resolved. Methods take the state and change nothing but it."""

    settings: RunSettings
    objective: Objective
    collector: Collector

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one forward."""
        return self.settings.micro_batch_size or self.settings.minibatch_size

    def minibatches(self, policy: Policy, batch: TrainingBatch, step: int) -> list[TrainingBatch]:
        """The batch in `num_minibatches` pieces, the same ones in every iteration.

        Several are cut from a permutation of the rows, with their old log-probs computed before the first update; a
        single one gets them from its first pass. They are the sampler's own numbers where `old_log_probs` says so.
        """
        if self.settings.old_log_probs == "sampler":
            batch = replace(batch, old_log_probs_BT=batch.sampler_log_probs_BT)
        if self.settings.num_minibatches == 1:
            return [batch]
        order_B = torch.from_numpy(seeds.permutation(self.settings.seed, "minibatches", step, len(batch)))
        batch = batch.rows(order_B)
        if batch.old_log_probs_BT is None:
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
            nonempty_sequences=int(minibatch.mask_BT.any(1).sum()),
            tokens=int(minibatch.mask_BT.sum()),
            rollout_tokens=rollout_tokens / settings.num_minibatches,
            max_completion_length=settings.max_completion_length,
            micro_batches=len(minibatch) // self.micro_batch_size,
        )
        step = apply_update(
            state.policy,
            state.optimizer,
            self._objective_now(state),
            minibatch,
            totals,
            micro_batch_size=self.micro_batch_size,
            max_grad_norm=settings.max_grad_norm,
            recipe=recipe_of(settings.framework),
            noise_BT=self._noise(state.optimizer_step, minibatch),
        )
        state.optimizer_step += 1
        if state.entropy and settings.adaptive_entropy:
            entropy_N = step.update.tokens(step.update.entropy_BT)
            state.entropy = state.entropy.after(entropy_N.mean().item(), settings.adaptive_entropy)
        return step

    def _objective_now(self, state: LearnerState) -> Objective:
        """The objective with the entropy bonus's weight of this optimiser step."""
        rule = self.settings.adaptive_entropy
        if state.entropy is None or rule is None:
            return self.objective
        return replace(self.objective, entropy_coef=state.entropy.weight(rule))

    def _noise(self, optimizer_step: int, minibatch: TrainingBatch) -> Tensor | None:
        """Uniform numbers for each token of the minibatch, where the kernel draws tokens."""
        if not SURROGATES[self.settings.kernel].draws_tokens:
            return None
        rows_B1, columns_T = minibatch.rows_B.cpu().numpy()[:, None], np.arange(minibatch.mask_BT.shape[1])
        draws = seeds.uniforms(self.settings.seed, "kernel", optimizer_step, rows_B1, columns_T)
        return torch.from_numpy(draws).to(minibatch.mask_BT.device)

    def metrics(self, step: Step) -> dict[str, float]:
        """Every metric of kind `update` that follows from an optimiser step, and what frameworks log of it."""
        return update_metrics(step.update, self.settings.diagnostics) | self.peer_metrics(step)

    @torch.no_grad()
    def peer_metrics(self, step: Step) -> dict[str, float]:
        """What frameworks log of an optimiser step, by journal name.

        The dialect's own, and the clip fraction by each framework's definition where the diagnostics ask for it.
        """
        own = self.settings.framework
        metrics = metrics_of(own, step.objective, step.inputs, step.parts) if own else {}
        found = {f"{own}/{name}": value for name, value in metrics.items()}
        if self.settings.diagnostics.clip_conventions:
            shares = clip_conventions(step.objective, step.inputs)
            if own and (logged := CLIP_METRIC.get(own)) in metrics:
                shares[own] = metrics[logged]
            found |= {convention(name): share for name, share in shares.items()}
        return found

    def check_first_update(self, step: Step) -> float:
        """Largest |log ratio| of a fresh batch's first update; sampler and trainer must agree.

        Asserted is what must hold: less where batches are stale or the sampler's precision or numbers are used. Raises
        AssertionError where float32 on CPU breaks its promise: most real bugs of GRPO show here.
        """
        deviation = step.update.log_ratio_BT.abs().max().item()
        gap_N = sampler_gap(step.batch, step.inputs.log_probs_BT)
        exact = self.settings.device == "cpu" and self.settings.dtype == "float32"
        if exact and deviation != 0 and self.settings.old_log_probs == "trainer":
            raise AssertionError(f"the ratio differs from 1 before the first update: |log ratio| = {deviation}")
        mean, worst = gap_N.mean().item(), gap_N.max().item()
        same_policy = self.settings.staleness == 0 and self.settings.sampler_dtype in (None, self.settings.dtype)
        if exact and same_policy and not (mean <= MEAN_GAP and worst <= WORST_GAP):
            raise AssertionError(f"sampler and trainer log-probs differ by {mean} on average, {worst} at most")
        return deviation

    @torch.no_grad()
    def kl_to_reference(self, policy: Policy, batch: TrainingBatch) -> float:
        """KL(policy || warm start), exact over the vocabulary, mean over the batch's tokens, in nat."""
        reference = self.collector.reference
        assert reference is not None
        total, tokens = 0.0, 0
        for micro in batch.split(self.micro_batch_size):
            new_BTV, reference_BTV = (
                completion_logits(p, *micro.own_prompts(), micro.tokens_BT).log_softmax(-1) for p in (policy, reference)
            )
            kl_BT = exact_kl(new_BTV, reference_BTV)
            total += kl_BT[micro.mask_BT].double().sum().item()
            tokens += int(micro.mask_BT.sum())
        return total / max(tokens, 1)


def flat_weights(policy: Policy) -> Tensor:
    """All weights as one vector, a copy."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in policy.weights().values()])


def step_norm(policy: Policy, before: Tensor) -> float:
    """L2 norm of the change since `before`. Raises Diverged where a weight is no longer finite."""
    norm = torch.linalg.vector_norm(flat_weights(policy) - before).item()
    if not np.isfinite(norm):
        raise Diverged(f"the weights are no longer finite (norm of their last change: {norm})")
    return norm
