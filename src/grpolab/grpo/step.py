"""A GRPO step, from a batch of prompts to new weights. `Learner.update` is the optimiser step.

    rollout = learner.collect(state)                        prompts -> completions -> rewards -> advantages
    minibatches = learner.minibatches(policy, batch, step)  with old log-probs, if there is more than one
    num_iterations times, for each minibatch:
        learner.update(state, minibatch, tokens)            log-probs -> ratio -> loss -> backward -> AdamW

`run/train.py` repeats the step, evaluates and records. Differences from the paper (DeepSeekMath, 2402.03300, alg. 1):
1. The reference of the KL is the warm start. It is never replaced during a run, and does not exist if beta = 0.
2. Every axis of the loss can be changed (`grpo/loss.py`).
3. If the batch is a single minibatch, its first pass gives the old log-probs: the policy still is the old one there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from grpolab import seeds
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.batch import Rollout, TrainingBatch, concatenate, sampler_gap
from grpolab.grpo.kl import exact_kl
from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, SurrogateParts, policy_loss
from grpolab.grpo.metrics import UpdateTensors, update_metrics
from grpolab.grpo.mismatch import rejection_metrics
from grpolab.grpo.model import Policy, apply_to_tokens, old_log_probs, prefix_places, token_log_probs
from grpolab.grpo.processes import ALONE, Processes
from grpolab.grpo.prompts import PromptStream
from grpolab.grpo.ratios import interpolated_log_probs
from grpolab.grpo.rollout import Collector
from grpolab.grpo.sampler import refresh_sampler
from grpolab.registry import SURROGATES
from grpolab.settings.objective import AdaptiveEntropySettings, Objective
from grpolab.settings.resolved import Resolved

# Bounds on |log-prob of the sampler - log-prob of the trainer| in float32 on a CPU, in nat. Far from the warm start,
# rounding alone moves single tokens by 2e-4 (seen once in 190 runs; float64 lay between the two). A wrong mask,
# position or temperature moves the mean by orders of magnitude more.
MEAN_GAP, WORST_GAP = 1e-5, 1e-2
EXACT = "cpu", "float32"  # there a forward pass rounds alike with and without gradient


class Diverged(Exception):
    """Loss, gradient or weights are no longer finite: a result of the run, not an error of the program."""


@dataclass(frozen=True)
class EntropyControl:
    """The adaptive entropy bonus: its weight, and the mean entropy of the tokens of the last optimiser step."""

    coefficient: float
    last_entropy: float = float("inf")  # none yet: the first optimiser step has no bonus, as in TRL

    def weight(self, rule: AdaptiveEntropySettings) -> float:
        """Return the next optimiser step's weight: the coefficient, or 0 while the entropy is above its target."""
        return self.coefficient if self.last_entropy <= rule.target else 0.0

    def after(self, entropy: float, rule: AdaptiveEntropySettings) -> EntropyControl:
        """Return the control after an optimiser step with that mean entropy (TRL 1.16 `use_adaptive_entropy`)."""
        if entropy <= rule.target:
            return EntropyControl(min(self.coefficient + rule.step, rule.most), entropy)
        return EntropyControl(max(self.coefficient - rule.step, rule.least), entropy)


@dataclass
class LearnerState:
    """All state that a run carries from one rollout step to the next; everything else follows from seeds."""

    policy: Policy
    optimizer: AdamW
    stream: PromptStream
    rollout_step: int = 0
    optimizer_step: int = 0
    stale_batches: list[Rollout] = field(default_factory=list)  # queue: sampled and not yet learnt from
    completions: int = 0  # sampled for the rollout steps so far
    entropy: EntropyControl | None = None  # only where the entropy bonus adapts
    gradient: Tensor | None = None  # of the last optimiser step, flat; only where consecutive ones are compared
    sampler: Policy | None = None  # with weights of its own; None: the policy samples


@dataclass(frozen=True)
class Update(UpdateTensors):
    """A finished optimiser step; all tensors are detached."""

    loss: float
    grad_norm: float  # before clipping
    batch: TrainingBatch  # the minibatch with its old log-probs
    objective: Objective  # with the entropy weight of this step
    whole_loss: Loss | None  # None if the minibatch was cut into micro-batches
    grad_cosine: float | None = None  # with the gradient of the optimiser step before, if it is asked for


@dataclass(frozen=True)
class Learner:
    """The fixed parts of a run. The methods take the state and change nothing else."""

    settings: Resolved
    objective: Objective  # that of the settings
    collector: Collector
    recipe: LossRecipe = CORE  # a framework's, where the settings name one
    framework_metrics: Callable[[Update], dict[str, float]] = lambda update: {}
    processes: Processes = ALONE  # they share the micro-batches

    def collect(self, state: LearnerState) -> Rollout:
        """Return the next rollout step's batch: prompts -> completions -> rewards -> advantages."""
        if state.sampler is not None and state.rollout_step % (self.settings.sampler_refresh or 1) == 0:
            refresh_sampler(state.sampler, state.policy, self.settings)
        if self.collector.engine is not None:
            self.collector.engine.refresh(state.policy)
        return self.collector.next(state.sampler or state.policy, state.rollout_step, state.stale_batches, state.stream)

    def minibatches(self, policy: Policy, batch: TrainingBatch, rollout_step: int) -> list[TrainingBatch]:
        """Cut the batch into `num_minibatches` pieces; every iteration learns from each of them.

        Several pieces are cut from a permutation of the rows, and their old log-probs are computed now, before the
        first update. A single one gets them from its first pass; with `sort_by_prompt` so does the first of several,
        once the run's first step has seen that both are equal to the bit. `old_log_probs=sampler` takes the sampler's
        instead, and `interpolated` leaves them to each optimiser step.
        """
        settings = self.settings
        if settings.old_log_probs == "sampler":
            batch = replace(batch, old_log_probs_BT=batch.sampler_log_probs_BT)
        if settings.num_minibatches > 1 and not settings.whole_groups:
            order_B = torch.from_numpy(seeds.permutation(settings.seed, "minibatches", rollout_step, len(batch)))
            batch = batch.rows(order_B)
        minibatches = list[TrainingBatch]()
        for minibatch in batch.split(-(-len(batch) // settings.num_minibatches)):  # a filtered batch has fewer rows
            if settings.sort_by_length:
                minibatch = minibatch.rows(minibatch.mask_BT.sum(1).argsort(descending=True, stable=True))
            if settings.sort_by_prompt:
                minibatch = replace(minibatch.rows(minibatch.prompt_of_B.argsort(stable=True)), one_tree=True)
            if settings.aggregation == "prompt_mean":
                minibatch = minibatch.with_prompt_tokens()
            minibatch = minibatch.with_trees(settings.forward_size, policy.break_even)
            known = settings.old_log_probs != "trainer" or settings.num_minibatches == 1
            same = settings.sort_by_prompt and (settings.device, settings.dtype) == EXACT and rollout_step > 0
            if not known and (minibatches or not same):
                minibatch = minibatch.with_old(*old_log_probs(policy, minibatch, settings.forward_size, self.processes))
            minibatches.append(minibatch)
        return minibatches

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        """Take one optimiser step on a minibatch, in micro-batches whose gradients add up.

        `rollout_tokens` counts the tokens of the whole rollout batch. Raises Diverged if loss or gradient is not
        finite, before any weight is changed.
        """
        settings, policy, optimizer = self.settings, state.policy, state.optimizer
        objective, noise_BT = self._objective_now(state), self._noise(state.optimizer_step, minibatch)
        totals = self._totals(minibatch, rollout_tokens)
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate(settings, state.optimizer_step)
        with policy.updating():
            optimizer.zero_grad(set_to_none=True)
            computed = []
            for micro in self.processes.share(minibatch.micro_batches(settings.forward_size, policy.break_even)):
                log_probs_BT, entropy_BT = token_log_probs(policy, micro, bool(objective.entropy_coef))
                micro = self._with_old(state, micro, log_probs_BT.detach(), entropy_BT.detach())
                inputs = loss_inputs(micro, log_probs_BT, entropy_BT, totals, noise_BT)
                loss = policy_loss(objective, inputs, self.recipe)
                loss.total.backward()
                computed.append((log_probs_BT.detach(), entropy_BT.detach(), loss.detached()))
            self.processes.add_up(policy.weights().values())
            log_probs, entropies, losses = map(list, zip(*self.processes.gather(computed), strict=True))
            norm = policy.clip_gradients(settings.max_grad_norm)
            total = torch.stack([loss.total for loss in losses]).sum()
            total, grad_norm = torch.stack([total.double(), norm.double()]).tolist()
            if not (math.isfinite(total) and math.isfinite(grad_norm)):
                raise Diverged(f"loss {total}, gradient norm {grad_norm}")
            cosine = compare_gradients(state) if settings.diagnostics.gradient_cosine else None
            optimizer.step()
            state.optimizer_step += 1

        log_probs_BT, entropy_BT = concatenate(log_probs), concatenate(entropies)
        batch = self._with_old(state, minibatch, log_probs_BT, entropy_BT)
        inputs = loss_inputs(batch, log_probs_BT, entropy_BT, replace(totals, micro_batches=1), noise_BT)
        masks = ([getattr(loss.surrogate, name) for loss in losses] for name in SurrogateParts.__annotations__)
        update = Update(
            inputs=inputs,
            log_ratio_BT=torch.where(inputs.mask_BT, concatenate([loss.log_ratio_BT for loss in losses]), 0.0),
            surrogate=SurrogateParts(*map(concatenate, masks)),
            loss=total,
            grad_norm=grad_norm,
            batch=batch,
            objective=objective,
            whole_loss=losses[0] if len(losses) == 1 else None,
            grad_cosine=cosine,
        )
        if state.entropy and settings.adaptive_entropy and totals.tokens:
            state.entropy = state.entropy.after(update.tokens(entropy_BT).mean().item(), settings.adaptive_entropy)
        return update

    def _with_old(
        self, state: LearnerState, batch: TrainingBatch, log_probs_BT: Tensor, entropy_BT: Tensor
    ) -> TrainingBatch:
        """Return the batch with its old log-probs and entropies, which are unknown before the first pass.

        Those that are interpolated follow the policy: they are made anew at each optimiser step.
        """
        batch = batch.with_old(log_probs_BT, entropy_BT)
        if self.settings.old_log_probs != "interpolated":
            return batch
        age = self.settings.sampler_age(state.rollout_step)
        between_BT = interpolated_log_probs(batch.sampler_log_probs_BT, log_probs_BT, age)
        return replace(batch, old_log_probs_BT=between_BT)

    def _objective_now(self, state: LearnerState) -> Objective:
        """Return the objective with the entropy weight of this optimiser step."""
        rule = self.settings.adaptive_entropy
        if state.entropy is None or rule is None:
            return self.objective
        return self.objective.but(entropy_coef=state.entropy.weight(rule))

    def _noise(self, optimizer_step: int, minibatch: TrainingBatch) -> Tensor | None:
        """Return uniform numbers for the minibatch's tokens, (B, T); None if the surrogate draws no tokens."""
        if not SURROGATES[self.settings.kernel].draws_tokens:
            return None
        rows_B1, columns_T = minibatch.rows_B.cpu().numpy()[:, None], np.arange(minibatch.mask_BT.shape[1])
        draws = seeds.uniforms(self.settings.seed, "kernel", optimizer_step, rows_B1, columns_T)
        return torch.from_numpy(draws).to(minibatch.mask_BT.device)

    def _totals(self, minibatch: TrainingBatch, rollout_tokens: int) -> Totals:
        lengths_B = minibatch.mask_BT.sum(1)
        nonempty, tokens = torch.stack([lengths_B.count_nonzero(), lengths_B.sum()]).tolist()
        return Totals(
            sequences=len(minibatch),
            nonempty_sequences=nonempty,
            tokens=tokens,
            rollout_tokens=rollout_tokens / self.settings.num_minibatches,
            max_completion_length=self.settings.max_completion_length,
            micro_batches=-(-len(minibatch) // self.settings.forward_size),
            prompts=1 if minibatch.prompt_tokens_B is None else len(minibatch.prompt_of_B.unique()),
        )

    def metrics(self, update: Update) -> dict[str, float]:
        """Return every metric of kind `update` that an optimiser step has, the framework's own included."""
        metrics = {} if update.grad_cosine is None else {"grad_cosine": update.grad_cosine}
        if self.settings.mask_truncated_completions and not update.inputs.mask_BT.any():
            return metrics
        if rule := update.objective.sampler_rejection:
            metrics |= rejection_metrics(rule, update.inputs)
        return update_metrics(update, self.settings.diagnostics) | metrics | self.framework_metrics(update)

    def check(self, update: Update) -> float:
        """Check a fresh batch's first update: ratio 1, sampler and trainer agree. Return the largest |log ratio|.

        For stale batches, other precisions and the sampler's log-probs as the old ones, less can be checked. Raises
        AssertionError if float32 on a CPU exceeds its bounds: most real bugs of GRPO show here.
        """
        settings = self.settings
        deviation = update.log_ratio_BT.abs().max().item()
        gap_N = sampler_gap(update.batch, update.inputs.log_probs_BT)
        if not len(gap_N):
            return deviation
        exact = (settings.device, settings.dtype) == EXACT
        if exact and deviation != 0 and settings.old_log_probs == "trainer":
            raise AssertionError(f"the ratio differs from 1 before the first update: |log ratio| = {deviation}")
        mean, worst = gap_N.mean().item(), gap_N.max().item()
        if exact and not settings.other_sampler and not (mean <= MEAN_GAP and worst <= WORST_GAP):
            raise AssertionError(f"sampler and trainer log-probs differ by {mean} on average, {worst} at most")
        return deviation

    @torch.no_grad()
    def kl_to_reference(self, policy: Policy, batch: TrainingBatch) -> float:
        """Return KL(policy || warm start), exact over the vocabulary, mean over the batch's tokens, in nat."""
        reference = self.collector.reference
        assert reference is not None
        computed = []
        for micro in self.processes.share(batch.micro_batches(self.settings.forward_size, policy.break_even)):
            (new, place_BT), (old, _) = (prefix_places(p, micro) for p in (policy, reference))
            (kl_BT,) = apply_to_tokens(
                lambda place_Y, tokens_Y, new_NV, old_NV: (exact_kl(new_NV, old_NV)[place_Y],),
                *(place_BT, micro.tokens_BT, micro.mask_BT, new, old),
            )
            computed.append((kl_BT[micro.mask_BT].double().sum().item(), int(micro.mask_BT.sum())))
        total, tokens = 0.0, 0  # not `sum`, which rounds differently from Python 3.12 on
        for kl, counted in self.processes.gather(computed):
            total, tokens = total + kl, tokens + counted
        return total / max(tokens, 1)


def compare_gradients(state: LearnerState) -> float | None:
    """Return the cosine of the weights' gradient and the last optimiser step's, and keep the gradient for the next.

    None in the first step, and if one of the two is zero.
    """
    weights, last = state.policy.weights().values(), state.gradient
    gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    state.gradient = torch.cat([gradient.detach().reshape(-1) for gradient in gradients])
    if last is None or not (lengths := (last.norm() * state.gradient.norm()).item()):
        return None
    return (last @ state.gradient).item() / lengths


def make_optimizer(policy: Policy, settings: Resolved) -> AdamW:
    """Return AdamW over all parameters."""
    return AdamW(
        list(policy.weights().values()),
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def learning_rate(settings: Resolved, optimizer_step: int) -> float:
    """Return an optimiser step's learning rate (from 0): warm-up, then constant, linear or cosine to the floor."""
    if optimizer_step < settings.warmup_steps:
        return settings.learning_rate * (optimizer_step + 1) / settings.warmup_steps
    if settings.lr_scheduler_type == "constant":
        return settings.learning_rate
    done = (optimizer_step - settings.warmup_steps) / max(1, settings.optimizer_steps - settings.warmup_steps)
    course = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    floor = settings.min_lr_ratio or 0.0
    return settings.learning_rate * (floor + (1 - floor) * course[settings.lr_scheduler_type])


def loss_inputs(
    batch: TrainingBatch, log_probs_BT: Tensor, entropy_BT: Tensor, totals: Totals, noise_BT: Tensor | None
) -> LossInputs:
    """Return the loss's inputs from a batch with known old log-probs, and the policy's log-probs and entropies."""
    assert batch.old_log_probs_BT is not None
    if batch.prompt_tokens_B is not None:
        totals = replace(totals, prompt_tokens_B1=batch.prompt_tokens_B[:, None])
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
        group_B=batch.prompt_of_B,
        noise_BT=noise_BT,
    )


def flat_weights(policy: Policy) -> Tensor:
    """Copy all weights into one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in policy.weights().values()])


def step_norm(policy: Policy, before: Tensor) -> float:
    """Return the L2 norm of the weights' change since `before`. Raises Diverged if a weight is no longer finite."""
    norm = torch.linalg.vector_norm(flat_weights(policy).sub_(before)).item()
    if not math.isfinite(norm):
        raise Diverged(f"the weights are no longer finite (norm of their last change: {norm})")
    return norm
