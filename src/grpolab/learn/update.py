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
from grpolab.learn.objective import Loss, Objective, policy_loss
from grpolab.learn.policy import Policy, completion_logits, token_log_probs
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
) -> Step:
    """Log-probs -> ratio -> kernel -> aggregate -> update.

    Where the minibatch's old log-probs are not known this is the first pass: the current ones, detached, are the old.
    Raises Diverged, before any weight is changed, where loss or gradient is not finite.
    """
    optimizer.zero_grad(set_to_none=True)
    losses: list[Loss] = []
    entropies, batches = [], []
    for micro in minibatch.split(micro_batch_size):
        logits_BTV = completion_logits(policy, *micro.own_prompts(), micro.tokens_BT)
        log_probs_BT, entropy_BT = token_log_probs(logits_BTV, micro.tokens_BT)
        if micro.old_log_probs_BT is None:
            micro = replace(micro, old_log_probs_BT=log_probs_BT.detach(), old_entropy_BT=entropy_BT)
        loss = _micro_loss(objective, micro, log_probs_BT, totals)
        loss.total.backward()
        losses.append(loss)
        entropies.append(entropy_BT)
        batches.append(micro)
    total = float(torch.stack([loss.total.detach() for loss in losses]).sum())
    grad_norm = float(torch.nn.utils.clip_grad_norm_(policy.weights().values(), max_grad_norm))
    if not (math.isfinite(total) and math.isfinite(grad_norm)):
        raise Diverged(f"loss {total}, gradient norm {grad_norm}")
    optimizer.step()
    batch = minibatch if minibatch.old_log_probs_BT is not None else joined(batches)
    return Step(total, grad_norm, _update_of(objective, batch, losses, concatenate(entropies)), batch)


def _micro_loss(objective: Objective, micro: TrainingBatch, log_probs_BT: Tensor, totals: Totals) -> Loss:
    assert micro.old_log_probs_BT is not None
    return policy_loss(
        objective,
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=micro.old_log_probs_BT,
        advantages_B=micro.advantages_B,
        mask_BT=micro.mask_BT,
        totals=totals,
        reference_log_probs_BT=micro.reference_log_probs_BT,
    )


def _update_of(objective: Objective, batch: TrainingBatch, losses: list[Loss], entropy_BT: Tensor) -> Update:
    assert batch.old_log_probs_BT is not None
    kernel = KernelParts(
        *(concatenate([getattr(loss.kernel, name).detach() for loss in losses]) for name in KernelParts.__annotations__)
    )
    kl_ref = [loss.kl_ref_BT.detach() for loss in losses if loss.kl_ref_BT is not None]
    return Update(
        mask_BT=batch.mask_BT,
        advantages_B=batch.advantages_B,
        log_ratio_BT=concatenate([loss.log_ratio_BT.detach() for loss in losses]),
        old_log_probs_BT=batch.old_log_probs_BT,
        entropy_BT=entropy_BT,
        kernel=kernel,
        epsilon=objective.epsilon,
        epsilon_high=objective.epsilon_high,
        kl_ref_BT=concatenate(kl_ref) if kl_ref else None,
    )


@torch.no_grad()
def old_log_probs(policy: Policy, batch: TrainingBatch, micro_batch_size: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the policy as it is, (B, T) each, in the same pieces as updates use (bit-equal)."""
    pieces = [
        token_log_probs(completion_logits(policy, *b.own_prompts(), b.tokens_BT), b.tokens_BT)
        for b in batch.split(micro_batch_size)
    ]
    return concatenate([piece[0] for piece in pieces]), concatenate([piece[1] for piece in pieces])
