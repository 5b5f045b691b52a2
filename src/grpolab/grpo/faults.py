"""The steps of GRPO by name, as the training loop calls them; a planted fault (`grpo/faults.py`) replaces some."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpolab import seeds
from grpolab.grpo.batch import Prompts, Rollout, TrainingBatch
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.step import Learner, LearnerState, Step
from grpolab.tasks.filler_sorting import FILLER
from grpolab.vocabulary import METRICS


@dataclass(frozen=True)
class Steps:
    """What the loop calls, in its order."""

    collect: Callable[[Policy, int, list[Rollout]], Rollout]  # prompts -> sample -> score -> advantages
    minibatches: Callable[[Policy, TrainingBatch, int], list[TrainingBatch]]
    update: Callable[[LearnerState, TrainingBatch, int], Step]  # log-probs -> ratio -> kernel -> aggregate -> update
    check: Callable[[Step], float]  # of a fresh batch's first update
    measure: Callable[[Step], dict[str, float]]

    @classmethod
    def of(cls, learner: Learner) -> Steps:
        """The learner's own."""
        return cls(
            collect=learner.collector.next,
            minibatches=learner.minibatches,
            update=learner.update,
            check=learner.check_first_update,
            measure=learner.metrics,
        )


# ----------------------------------------------------------------------------------------------------------------------
# Faults of a training loop, to be planted on purpose: each replaces named steps of the loop by broken ones.
#
# `conf/fault/` names them, `make doctor-check` plants them and asks the doctor which one it was. A fault is a function
# of the learner and its state at the start; nothing calls it unless `fault` of the settings says its name. What a fault
# breaks the loop would notice at once, so that some of them silence its check too.


DROPPED = 0.1  # share of the embeddings' entries that dropout zeroes
COOLER = 0.7  # the sampler's temperature over the trainer's
PADDING = 3  # tokens of padding in front of every prompt
PIECE = 8  # rows in one forward of an old policy that is a model of its own


def aliased_old_policy(learner: Learner, _state: LearnerState) -> Steps:
    """The old log-probs are the live ones at every update, and not those of its batch's first."""

    def update(state: LearnerState, minibatch: TrainingBatch, tokens: int) -> Step:
        return learner.update(state, _not_yet_known(minibatch), tokens)

    return replace(Steps.of(learner), update=update)


def resynchronised_old_policy(learner: Learner, _state: LearnerState) -> Steps:
    """The old policy, a model of its own, gets the live weights before every update and is then asked."""

    def update(state: LearnerState, minibatch: TrainingBatch, tokens: int) -> Step:
        return learner.update(state, _with_old(state.policy, minibatch, PIECE), tokens)

    return replace(Steps.of(learner), update=update, check=_unchecked)


def recomputed_old_log_probs(learner: Learner, _state: LearnerState) -> Steps:
    """The old log-probs that the second pass and those after it use are computed after the first pass's update."""
    steps = Steps.of(learner)

    def minibatches(policy: Policy, batch: TrainingBatch, step: int) -> list[TrainingBatch]:
        return [_not_yet_known(minibatch) for minibatch in steps.minibatches(policy, batch, step)]

    def update(state: LearnerState, minibatch: TrainingBatch, tokens: int) -> Step:
        taken = steps.update(state, minibatch, tokens)
        if minibatch.old_log_probs_BT is not None:
            return taken
        return replace(taken, batch=_with_old(state.policy, taken.batch, learner.micro_batch_size))

    return replace(steps, minibatches=minibatches, update=update)


def frozen_parameters(learner: Learner, state: LearnerState) -> Steps:
    """The optimiser holds copies of the parameters: they get no gradient, and the policy no step."""
    for group in state.optimizer.param_groups:
        group["params"] = [parameter.detach().clone() for parameter in group["params"]]
    return Steps.of(learner)


def low_precision_weights(learner: Learner, state: LearnerState) -> Steps:
    """The weights are kept in bfloat16: an update below half their spacing, 0.4% of a weight, is lost."""
    _round_weights(state.policy)

    def update(state: LearnerState, minibatch: TrainingBatch, tokens: int) -> Step:
        taken = learner.update(state, minibatch, tokens)
        _round_weights(state.policy)
        return taken

    return replace(Steps.of(learner), update=update)


def dropout(learner: Learner, _state: LearnerState) -> Steps:
    """Dropout is on in the trainer: in the pass that computes the old log-probs, and in every update."""
    steps, seed = Steps.of(learner), learner.settings.seed

    def minibatches(policy: Policy, batch: TrainingBatch, step: int) -> list[TrainingBatch]:
        with _dropping(policy, seed, "dropout of the old log-probs", step):
            return steps.minibatches(policy, _with_old(policy, batch, learner.micro_batch_size), step)

    def update(state: LearnerState, minibatch: TrainingBatch, tokens: int) -> Step:
        with _dropping(state.policy, seed, "dropout", state.optimizer_step):
            return steps.update(state, minibatch, tokens)

    return replace(steps, minibatches=minibatches, update=update, check=_unchecked)


def visible_padding(learner: Learner, _state: LearnerState) -> Steps:
    """The trainer pads prompts in front, and neither masks the padding nor leaves it out of the positions."""

    def collect(policy: Policy, step: int, waiting: list[Rollout]) -> Rollout:
        rollout = learner.collector.next(policy, step, waiting)
        tokens_PL = rollout.batch.prompts.tokens_PL
        padded = torch.nn.functional.pad(tokens_PL, (PADDING, 0), value=policy.pad)
        return replace(rollout, batch=replace(rollout.batch, prompts=Prompts(padded, None)))

    return replace(Steps.of(learner), collect=collect, check=_unchecked)


def temperature_mismatch(learner: Learner, _state: LearnerState) -> Steps:
    """The sampler divides its logits by another temperature than the trainer."""

    def collect(policy: Policy, step: int, waiting: list[Rollout]) -> Rollout:
        return learner.collector.next(replace(policy, temperature=COOLER * policy.temperature), step, waiting)

    return replace(Steps.of(learner), collect=collect, check=_unchecked)


def mask_mismatch(learner: Learner, _state: LearnerState) -> Steps:
    """The sampler's log-probs stand one token too late: the first place holds what belongs to the prompt."""

    def collect(policy: Policy, step: int, waiting: list[Rollout]) -> Rollout:
        rollout = learner.collector.next(policy, step, waiting)
        batch = rollout.batch
        shifted_BT = torch.nn.functional.pad(batch.sampler_log_probs_BT[:, :-1], (1, 0))
        shifted_BT = torch.where(batch.mask_BT, shifted_BT, 0.0)
        return replace(rollout, batch=replace(batch, sampler_log_probs_BT=shifted_BT))

    return replace(Steps.of(learner), collect=collect, check=_unchecked)


def padding_in_clip_metric(learner: Learner, _state: LearnerState) -> Steps:
    """Shares of clipped tokens are shares of all places, padding included."""

    def measure(step: Step) -> dict[str, float]:
        real = step.update.mask_BT.double().mean().item()
        found = learner.metrics(step)
        return {name: value * real if _is_share_of_clipped(name) else value for name, value in found.items()}

    return replace(Steps.of(learner), measure=measure)


# --- rewards: `reward.function` of a fault's file -------------------------------------------------------------------


def always_the_same(prompt: str, answer: str, completion: str) -> float:
    """A reward whose parser accepts everything."""
    return 1.0


def by_character(prompt: str, answer: str, completion: str) -> float:
    """Share of places at which the character is right: no group is ever without a signal."""
    given = completion.lstrip(FILLER)
    return sum(a == b for a, b in zip(given, answer, strict=False)) / max(len(given), len(answer))


def the_longer_the_better(prompt: str, answer: str, completion: str) -> dict[str, float]:
    """A right answer counts, and so does every character."""
    return {"correct": float(completion.lstrip(FILLER) == answer), "length": float(len(completion))}


# --- what they are made of ------------------------------------------------------------------------------------------


def _unchecked(step: Step) -> float:
    """The loop's check without its assertions: largest |log ratio|."""
    return step.update.log_ratio_BT.abs().max().item()


def _not_yet_known(batch: TrainingBatch) -> TrainingBatch:
    """Without old log-probs: the next update takes its own for them."""
    return replace(batch, old_log_probs_BT=None, old_entropy_BT=None)


def _with_old(policy: Policy, batch: TrainingBatch, rows: int) -> TrainingBatch:
    """With old log-probs of the policy as it is, computed in pieces of so many rows."""
    old_BT, entropy_BT = old_log_probs(policy, batch, rows)
    return replace(batch, old_log_probs_BT=old_BT, old_entropy_BT=entropy_BT)


@torch.no_grad()
def _round_weights(policy: Policy) -> None:
    for parameter in policy.weights().values():
        parameter.copy_(parameter.bfloat16())


@contextmanager
def _dropping(policy: Policy, seed: int, purpose: str, step: int) -> Iterator[None]:
    """Zero a share of the embeddings' entries in every forward pass inside, each time others; scale the rest up."""
    calls = itertools.count()

    def drop(_module: Any, _inputs: Any, embedded_BLH: Tensor) -> Tensor:
        places = np.ix_(*(np.arange(size) for size in embedded_BLH.shape))
        noise_BLH = torch.from_numpy(seeds.uniforms(seed, purpose, step, next(calls), *places))
        return embedded_BLH * (noise_BLH >= DROPPED).to(embedded_BLH) / (1 - DROPPED)

    hook = policy.model.get_input_embeddings().register_forward_hook(drop)
    try:
        yield
    finally:
        hook.remove()


def _is_share_of_clipped(name: str) -> bool:
    metric = METRICS.get(name)
    return name.startswith("clip/") and metric is not None and metric.unit == "share of tokens"
