"""One optimiser step on one minibatch, in micro-batches where they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import AdamW

from grpolab.learn.aggregation import Totals
from grpolab.learn.batch import TrainingBatch, concatenate, joined
from grpolab.learn.diagnostics import Update
from grpolab.learn.kernels.parts import KernelParts
from grpolab.learn.kl import k3
from grpolab.learn.objective import CORE, Loss, LossInputs, Objective, Stages, policy_loss
from grpolab.learn.policy import Policy, completion_logits, token_log_probs
from grpolab.learn.ratios import masked_log_ratio
from grpolab.settings import RunSettings


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
    stages: Stages = CORE,
    noise_BT: Tensor | None = None,
) -> Step:
    """Log-probs -> ratio -> kernel -> aggregate -> update.

    Where the minibatch's old log-probs are not known this is the first pass: the current ones, detached, are the old.
    `stages` is the core's or a dialect's way, `noise_BT` uniform numbers for kernels that draw tokens. Raises Diverged,
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
        loss = policy_loss(objective, _inputs(micro, log_probs_BT, entropy_BT, totals, noise_BT), stages)
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
    kernel = KernelParts(
        *(concatenate([getattr(loss.kernel, name) for loss in losses]) for name in KernelParts.__annotations__)
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


@torch.no_grad()
def old_log_probs(policy: Policy, batch: TrainingBatch, micro_batch_size: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the policy as it is, (B, T) each, in the same pieces as updates use (bit-equal)."""
    pieces = [
        token_log_probs(completion_logits(policy, *b.own_prompts(), b.tokens_BT), b.tokens_BT)
        for b in batch.split(micro_batch_size)
    ]
    return concatenate([piece[0] for piece in pieces]), concatenate([piece[1] for piece in pieces])
