"""The GRPO loss: ratio -> surrogate -> masks -> importance correction -> KL penalty -> aggregation.

Read `policy_loss` first, at the end: the functions that it calls stand above it in the same order. Each choice is a
function found by name (`registry.py`). A framework may replace any step by a function of its own (`LossRecipe`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpolab.grpo.aggregation import Totals, aggregate
from grpolab.grpo.kl import kl_penalty, unit_gradient
from grpolab.grpo.ratios import masked_log_ratio, off_policy_keep, sampler_weight, top_entropy_keep
from grpolab.grpo.rejection import kept_tokens
from grpolab.registry import RATIOS, SURROGATES, resolve
from grpolab.settings.objective import Objective, SamplerCorrection


@dataclass(frozen=True)
class LossInputs:
    """The tensors of a micro-batch that the loss reads. Padding may hold any number, infinity and NaN included."""

    log_probs_BT: Tensor  # with gradient
    old_log_probs_BT: Tensor
    advantages: Tensor  # (B, 1), or (B, T) where the tokens of a sequence differ
    mask_BT: Tensor  # bool
    totals: Totals
    reference_log_probs_BT: Tensor | None = None  # only where beta > 0
    sampler_log_probs_BT: Tensor | None = None
    entropy_BT: Tensor | None = None  # with gradient where there is an entropy bonus
    rewards_B1: Tensor | None = None
    group_B: Tensor | None = None  # integers: rows of one prompt have one number
    noise_BT: Tensor | None = None  # uniform numbers, for surrogates that draw tokens

    def detached(self) -> LossInputs:
        """Return the same without gradient."""
        tensors: dict[str, Any] = {n: value.detach() for n, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)

    def without_padding(self) -> LossInputs:
        """Put 0 at padding, so that no value there can change the loss or its gradient."""
        names = ("log_probs_BT", "old_log_probs_BT", "advantages", "reference_log_probs_BT", "sampler_log_probs_BT")
        values = {name: getattr(self, name) for name in (*names, "entropy_BT")}
        cleaned: dict[str, Any] = {
            name: torch.where(self.mask_BT, value, 0.0) if value.shape == self.mask_BT.shape else value
            for name, value in values.items()
            if value is not None
        }
        return replace(self, **cleaned)


@dataclass(frozen=True)
class SurrogateParts:
    """A surrogate's loss, and for the diagnostics masks of where a clip or cap acted; (B, ...) is (B, T) or (B, 1)."""

    loss: Tensor  # (B, ...)
    out_of_range: Tensor  # the ratio left the clip range, on either side of it and for either sign of A
    active_low: Tensor  # too low and A < 0: gradient zero
    active_high: Tensor  # too high and A > 0: gradient zero
    outer: Tensor  # A < 0 and the outer cap (delta, dual clip) cut the ratio
    capped: Tensor  # the weight was cut but the gradient kept (CISPO)
    dropped: Tensor  # left out of the loss for another reason than the ratio (covariance)

    @classmethod
    def of(cls, objective: Objective, ratio: Tensor, loss: Tensor, **masks: Tensor) -> SurrogateParts:
        """Fill in the masks that are not given: `out_of_range` from the ratio, the others all False."""
        if "out_of_range" not in masks:
            masks["out_of_range"] = (ratio.detach() < objective.low) | (ratio.detach() > objective.high)
        empty = torch.zeros_like(masks["out_of_range"])
        return cls(loss, **{name: masks.get(name, empty) for name in cls.__annotations__ if name != "loss"})


@dataclass(frozen=True)
class Loss:
    """The number to minimise, and its parts for the diagnostics."""

    total: Tensor
    surrogate: SurrogateParts
    log_ratio_BT: Tensor
    ratio: Tensor  # (B, T) or (B, 1)
    per_token: Tensor  # loss before aggregation, KL included
    kl_ref_BT: Tensor | None

    def detached(self) -> Loss:
        """Return the same without gradient."""
        tensors: dict[str, Any] = {n: value.detach() for n, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, surrogate=replace(self.surrogate, loss=self.surrogate.loss.detach()), **tensors)


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Drop the inputs that the objective does not use, and put 0 at padding."""
    entropy = objective.entropy_coef or objective.top_entropy_quantile is not None
    rules = objective.sampler_correction, objective.off_policy_mask_threshold, objective.sampler_rejection
    sampler = any(rule is not None for rule in rules)
    used = replace(
        inputs,
        entropy_BT=inputs.entropy_BT if entropy else None,
        sampler_log_probs_BT=inputs.sampler_log_probs_BT if sampler else None,
        reference_log_probs_BT=inputs.reference_log_probs_BT if objective.beta else None,
    )
    return used.without_padding()


def log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return log pi_new - log pi_old, (B, T), 0 at padding. Beyond `log_ratio_clamp` there is no gradient."""
    log_ratio_BT = inputs.log_probs_BT - inputs.old_log_probs_BT
    bound = objective.log_ratio_clamp
    return log_ratio_BT if bound is None else log_ratio_BT.clamp(-bound, bound)


def importance_ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the ratio at the objective's level, (B, T) or (B, 1)."""
    ratio: Tensor = resolve(RATIOS[objective.importance_sampling_level])(log_ratio_BT, mask_BT)
    return ratio


def kl_to_reference(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return the KL term of each token, (B, T), without its weight beta; only called if beta > 0."""
    assert inputs.reference_log_probs_BT is not None
    assert objective.kl_estimator is not None
    assert objective.kl_gradient is not None
    return kl_penalty(
        masked_log_ratio(inputs.reference_log_probs_BT, inputs.log_probs_BT, inputs.mask_BT),
        objective.kl_estimator,
        objective.kl_gradient,
        objective.kl_input_clamp,
        objective.kl_output_clamp,
        ratio,
        unit_gradient(inputs.log_probs_BT),
    )


def surrogate(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """Apply the objective's kernel (`surrogates.py`) to a micro-batch."""
    parts: SurrogateParts = resolve(SURROGATES[objective.kernel].function)(objective, inputs, log_ratio_BT, ratio)
    return parts


def mask(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Put 0 where the off-policy mask, the sampler's rejection or the entropy mask leaves tokens out."""
    mask_BT, old_BT, sampler_BT = inputs.mask_BT, inputs.old_log_probs_BT, inputs.sampler_log_probs_BT
    if objective.off_policy_mask_threshold is not None:
        behaviour_BT = old_BT if sampler_BT is None else sampler_BT
        per_token = per_token * off_policy_keep(
            inputs.advantages, behaviour_BT, inputs.log_probs_BT, mask_BT, objective.off_policy_mask_threshold
        )
    if objective.sampler_rejection is not None:
        assert sampler_BT is not None
        kept_BT = kept_tokens(
            objective.sampler_rejection, inputs.advantages, old_BT, inputs.log_probs_BT, sampler_BT, mask_BT
        )
        per_token = torch.where(kept_BT, per_token, 0.0)
    if objective.top_entropy_quantile is not None:
        assert inputs.entropy_BT is not None
        per_token = per_token * top_entropy_keep(inputs.entropy_BT, mask_BT, objective.top_entropy_quantile)
    return per_token


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the bounded ratio of trainer to sampler as a weight; only called if the settings have a rule for it."""
    assert inputs.sampler_log_probs_BT is not None
    return sampler_weight(rule, inputs.old_log_probs_BT, inputs.sampler_log_probs_BT, inputs.mask_BT)


def add_kl_penalty(objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor) -> Tensor:
    """Add beta times the KL to each token's loss, as GRPO does (PPO puts the KL into the reward)."""
    return per_token + objective.beta * kl_ref_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Reduce the per-token values to one number, by the objective's aggregation."""
    return aggregate(objective.aggregation, per_token, inputs.mask_BT, inputs.totals)


@dataclass(frozen=True)
class LossRecipe:
    """The steps of the loss. A framework replaces those that it computes in its own way."""

    prepare: Callable[[Objective, LossInputs], LossInputs] = prepare
    log_ratio: Callable[[Objective, LossInputs], Tensor] = log_ratio
    ratio: Callable[[Objective, Tensor, Tensor], Tensor] = importance_ratio
    kl: Callable[[Objective, LossInputs, Tensor], Tensor] = kl_to_reference
    surrogate: Callable[[Objective, LossInputs, Tensor, Tensor], SurrogateParts] = surrogate
    mask: Callable[[Objective, LossInputs, Tensor], Tensor] = mask
    importance_weight: Callable[[SamplerCorrection, Objective, LossInputs], Tensor] = importance_weight
    add_kl_penalty: Callable[[Objective, LossInputs, Tensor, Tensor], Tensor] = add_kl_penalty
    average: Callable[[Objective, LossInputs, Tensor], Tensor] = average
    average_entropy: Callable[[Objective, LossInputs, Tensor], Tensor] = average


CORE = LossRecipe()


def policy_loss(objective: Objective, inputs: LossInputs, recipe: LossRecipe = CORE) -> Loss:
    """Compute the loss of a micro-batch; the sum over a minibatch's micro-batches is the minibatch's loss."""
    inputs = recipe.prepare(objective, inputs)
    log_ratio_BT = recipe.log_ratio(objective, inputs)
    ratio = recipe.ratio(objective, log_ratio_BT, inputs.mask_BT)
    kl_ref_BT = None
    if objective.beta and inputs.reference_log_probs_BT is not None:
        kl_ref_BT = recipe.kl(objective, inputs, ratio)  # before the surrogate: the order decides how gradients round
    parts = recipe.surrogate(objective, inputs, log_ratio_BT, ratio)
    per_token = recipe.mask(objective, inputs, parts.loss)
    if objective.sampler_correction is not None:
        per_token = per_token * recipe.importance_weight(objective.sampler_correction, objective, inputs)
    if kl_ref_BT is not None:
        per_token = recipe.add_kl_penalty(objective, inputs, per_token, kl_ref_BT)
    total = recipe.average(objective, inputs, per_token)
    if objective.entropy_coef:
        assert inputs.entropy_BT is not None
        total = total - objective.entropy_coef * recipe.average_entropy(objective, inputs, inputs.entropy_BT)
    return Loss(total, parts, log_ratio_BT, ratio, per_token, kl_ref_BT)
