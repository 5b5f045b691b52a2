"""One rollout step's pieces, bound to a run's settings: prompts, sampling, scoring, advantages, updates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from grpolab.learn import seeds
from grpolab.learn.aggregation import Totals
from grpolab.learn.batch import Rollout, TrainingBatch, sampler_gap
from grpolab.learn.collector import Collector
from grpolab.learn.diagnostics import update_metrics
from grpolab.learn.dialects import clip_conventions, metrics_of, stages_of
from grpolab.learn.kl import exact_kl
from grpolab.learn.objective import Objective
from grpolab.learn.policy import Policy, completion_logits
from grpolab.learn.update import Diverged, Step, apply_update, learning_rate, old_log_probs
from grpolab.peer_metrics import CLIP_METRIC, convention
from grpolab.registry import DRAWS_TOKENS
from grpolab.settings import AdaptiveEntropySettings, RunSettings

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
            stages=stages_of(settings.framework),
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
        if self.settings.kernel not in DRAWS_TOKENS:
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
