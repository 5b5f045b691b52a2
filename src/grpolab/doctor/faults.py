"""Faults of a training loop, planted on purpose: learners that do one thing wrong, and rewards that mislead.

`conf/fault/` names them; `make bench WHAT=doctor` plants them and asks the doctor which one it was. Only the setting
`fault` plants one. Faults that the loop's own check of the first update would notice at once switch that check off.
"""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpolab import seeds
from grpolab.grpo.batch import Prompts, Rollout, TrainingBatch
from grpolab.grpo.model import Policy, old_log_probs
from grpolab.grpo.step import Learner, LearnerState, Update
from grpolab.meanings import METRICS
from grpolab.tasks.generated import FILLER

DROPPED = 0.1  # share of the embeddings' entries that dropout zeroes
COOLER = 0.7  # the sampler's temperature over the trainer's
PADDING = 3  # tokens of padding in front of every prompt
SHORT = 2  # tokens at which a sampler stops too early
GROWTH = 2.0  # of the loss, from one rollout step to the next
BREAKS = 6  # rollout step from which on the loss is NaN
PIECE = 8  # rows in one forward pass of an old policy that is a separate model


class FaultyLearner(Learner):
    """A learner that does one thing wrong."""

    @classmethod
    def plant(cls, learner: Learner, state: LearnerState) -> Learner:
        """Return the same learner with the fault; `state` is the run's at its start."""
        return cls(**vars(learner))


class Unchecked(FaultyLearner):
    """A learner without the loop's check of the first update, which would notice its fault at once."""

    def check(self, update: Update) -> float:
        return update.log_ratio_BT.abs().max().item()


class AliasedOldPolicy(FaultyLearner):
    """At every update the old log-probs are the live ones, instead of those of the batch's first update."""

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        return super().update(state, _forget_old(minibatch), rollout_tokens)


class ResynchronisedOldPolicy(Unchecked):
    """Before every update a separate old model is given the live weights, and computes the old log-probs."""

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        return super().update(state, _compute_old(state.policy, minibatch, PIECE), rollout_tokens)


class RecomputedOldLogProbs(FaultyLearner):
    """The old log-probs are computed again after the first pass's update, and all later passes use these."""

    def minibatches(self, policy: Policy, batch: TrainingBatch, rollout_step: int) -> list[TrainingBatch]:
        return [_forget_old(minibatch) for minibatch in super().minibatches(policy, batch, rollout_step)]

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        update = super().update(state, minibatch, rollout_tokens)
        if minibatch.old_log_probs_BT is not None:
            return update
        return replace(update, batch=_compute_old(state.policy, update.batch, self.settings.forward_size))


class FrozenParameters(FaultyLearner):
    """The optimiser holds copies of the parameters, which get no gradient, so the policy never moves."""

    @classmethod
    def plant(cls, learner: Learner, state: LearnerState) -> Learner:
        for group in state.optimizer.param_groups:
            group["params"] = [parameter.detach().clone() for parameter in group["params"]]
        return learner


class LowPrecisionWeights(FaultyLearner):
    """The weights are kept in bfloat16: an update below half their spacing, 0.4% of a weight, is lost."""

    @classmethod
    def plant(cls, learner: Learner, state: LearnerState) -> Learner:
        _round_weights(state.policy)
        return super().plant(learner, state)

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        update = super().update(state, minibatch, rollout_tokens)
        _round_weights(state.policy)
        return update


class Dropout(Unchecked):
    """Dropout is on in the trainer: in the pass that computes the old log-probs, and in every update."""

    def minibatches(self, policy: Policy, batch: TrainingBatch, rollout_step: int) -> list[TrainingBatch]:
        with _dropping(policy, self.settings.seed, "dropout of the old log-probs", rollout_step):
            return super().minibatches(policy, _compute_old(policy, batch, self.settings.forward_size), rollout_step)

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        with _dropping(state.policy, self.settings.seed, "dropout", state.optimizer_step):
            return super().update(state, minibatch, rollout_tokens)


class VisiblePadding(Unchecked):
    """The trainer pads prompts in front, and neither masks the padding nor leaves it out of the positions."""

    def collect(self, state: LearnerState) -> Rollout:
        rollout = super().collect(state)
        tokens_PL = rollout.batch.prompts.tokens_PL
        padded_PL = torch.nn.functional.pad(tokens_PL, (PADDING, 0), value=state.policy.pad)
        return _with_batch(rollout, prompts=Prompts(padded_PL, None))


class TemperatureMismatch(Unchecked):
    """The sampler divides its logits by another temperature than the trainer."""

    def collect(self, state: LearnerState) -> Rollout:
        cooler = replace(state.policy, temperature=COOLER * state.policy.temperature)
        return super().collect(replace(state, policy=cooler))


class MaskMismatch(Unchecked):
    """The sampler's log-probs stand one token too late: the first place holds what belongs to the prompt."""

    def collect(self, state: LearnerState) -> Rollout:
        rollout = super().collect(state)
        shifted_BT = torch.nn.functional.pad(rollout.batch.sampler_log_probs_BT[:, :-1], (1, 0))
        return _with_batch(rollout, sampler_log_probs_BT=torch.where(rollout.batch.mask_BT, shifted_BT, 0.0))


class PaddingInClipMetric(FaultyLearner):
    """Shares of clipped tokens have all positions, padding included, in the denominator."""

    def metrics(self, update: Update) -> dict[str, float]:
        real = update.inputs.mask_BT.double().mean().item()
        shares = {name for name, metric in METRICS.items() if metric.unit == "share of tokens"}
        return {
            name: value * real if name.startswith("clip/") and name in shares else value
            for name, value in super().metrics(update).items()
        }


class GroupOfOne(FaultyLearner):
    """Every completion is a group of its own, so its advantage is its reward."""

    def collect(self, state: LearnerState) -> Rollout:
        rollout = super().collect(state)
        return _with_batch(rollout, advantages_B=rollout.batch.rewards_B)


class TruncatedFromTheStart(FaultyLearner):
    """The sampler cuts every completion off long before an answer can end."""

    @classmethod
    def plant(cls, learner: Learner, state: LearnerState) -> Learner:
        short = learner.settings.model_copy(update={"max_completion_length": SHORT})
        return cls(**vars(learner) | {"collector": replace(learner.collector, settings=short)})


class ZeroGradient(FaultyLearner):
    """The loss masks every completion, so its gradient is 0."""

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        return super().update(state, _scale(minibatch, 0.0), rollout_tokens)


class GradientExplosion(FaultyLearner):
    """The scale of the loss grows with every rollout step."""

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        return super().update(state, _scale(minibatch, GROWTH**state.rollout_step), rollout_tokens)


class NotFinite(FaultyLearner):
    """From one rollout step on the loss is NaN, which ends the run."""

    def update(self, state: LearnerState, minibatch: TrainingBatch, rollout_tokens: int) -> Update:
        factor = float("nan") if state.rollout_step >= BREAKS else 1.0
        return super().update(state, _scale(minibatch, factor), rollout_tokens)


@dataclass(frozen=True)
class GrowingSamplerGap(Unchecked):
    """The sampler never gets the trainer's weights."""

    sampler: Policy | None = None

    @classmethod
    def plant(cls, learner: Learner, state: LearnerState) -> Learner:
        return cls(**vars(learner), sampler=replace(state.policy, model=copy.deepcopy(state.policy.model)))

    def collect(self, state: LearnerState) -> Rollout:
        return super().collect(replace(state, policy=self.sampler or state.policy))


# --- rewards: `reward.function` of a fault's file -------------------------------------------------------------------


def always_the_same(prompt: str, answer: str, completion: str) -> float:
    """A reward whose parser accepts everything."""
    return 1.0


def by_character(prompt: str, answer: str, completion: str) -> float:
    """The share of right characters by position, so that hardly any group has equal rewards."""
    given = completion.lstrip(FILLER)
    return sum(a == b for a, b in zip(given, answer, strict=False)) / max(len(given), len(answer))


def by_chance(prompt: str, answer: str, completion: str) -> float:
    """A reward that depends on nothing that can be learnt."""
    return float(zlib.crc32(f"{prompt} {completion}".encode()) % 2)


def the_longer_the_better(prompt: str, answer: str, completion: str) -> dict[str, float]:
    """A reward for right answers, plus one for every character."""
    return {"correct": float(completion.lstrip(FILLER) == answer), "length": float(len(completion))}


# --- parts of faults -------------------------------------------------------------------------------------------------


def _with_batch(rollout: Rollout, **changes: Any) -> Rollout:
    return replace(rollout, batch=replace(rollout.batch, **changes))


def _forget_old(batch: TrainingBatch) -> TrainingBatch:
    """Drop the old log-probs, so that the next update uses its own instead."""
    return replace(batch, old_log_probs_BT=None, old_entropy_BT=None)


def _compute_old(policy: Policy, batch: TrainingBatch, rows: int) -> TrainingBatch:
    """Compute the old log-probs with the policy's current weights, in pieces of `rows` rows."""
    old_BT, entropy_BT = old_log_probs(policy, batch, rows)
    return replace(batch, old_log_probs_BT=old_BT, old_entropy_BT=entropy_BT)


def _scale(batch: TrainingBatch, factor: float) -> TrainingBatch:
    return replace(batch, advantages_B=factor * batch.advantages_B)


@torch.no_grad()
def _round_weights(policy: Policy) -> None:
    for parameter in policy.weights().values():
        parameter.copy_(parameter.bfloat16())


@contextmanager
def _dropping(policy: Policy, seed: int, purpose: str, step: int) -> Iterator[None]:
    """During the block, apply dropout to the embeddings in every forward pass, with a new mask each time."""
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
