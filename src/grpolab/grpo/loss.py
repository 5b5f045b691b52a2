"""The axes put together: ratio level x kernel x clip range x loss form x corrections x KL x aggregation, one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from grpolab.grpo.aggregation import Totals, aggregate
from grpolab.grpo.kl import kl_penalty, own_gradient
from grpolab.grpo.ratios import masked_log_ratio, off_policy_keep, sampler_weight, top_entropy_keep
from grpolab.grpo.surrogates import KernelInputs, KernelParts
from grpolab.registry import KERNELS, RATIOS, resolve
from grpolab.settings.run import RunSettings


@dataclass(frozen=True)
class SamplerCorrection:
    """The weight for what the sampler's policy was not the trainer's. Field by field as in the settings."""

    level: str  # token, sequence (product), geometric
    mode: str  # truncate, mask
    low: float
    high: float


@dataclass(frozen=True)
class Objective:
    """One point in the space of GRPO losses. Field by field as in the settings; what has a default is off by it."""

    importance_sampling_level: str
    kernel: str
    epsilon: float
    epsilon_high: float
    delta: float | None
    loss_form: Literal["min_positive", "max_negative"]
    aggregation: str
    beta: float
    dual_clip: float | None = None
    log_ratio_clamp: float | None = None
    kernel_options: Mapping[str, float] = field(default_factory=dict)
    kl_estimator: str = "k3"
    kl_gradient: str = "plain"
    kl_input_clamp: float | None = None
    kl_output_clamp: float | None = None
    entropy_coef: float = 0.0
    top_entropy_quantile: float | None = None
    off_policy_mask_threshold: float | None = None
    sampler_correction: SamplerCorrection | None = None

    @classmethod
    def of(cls, settings: RunSettings) -> Objective:
        """The objective that the settings describe."""
        resolved = settings.resolved()
        values: dict[str, Any] = {name: getattr(resolved, name) for name in cls.__dataclass_fields__}
        values["kernel_options"] = (resolved.kernel_options or {}).get(resolved.kernel, {})
        values["entropy_coef"] = resolved.entropy_coef or 0.0
        if resolved.kl_placement != "loss":
            values["beta"] = 0.0
        correction = resolved.sampler_correction
        values["sampler_correction"] = correction and SamplerCorrection(**correction.model_dump())
        return cls(**values)


@dataclass(frozen=True)
class LossInputs:
    """A micro-batch as the loss sees it; what stands at padding is whatever stands there."""

    log_probs_BT: Tensor  # with gradient
    old_log_probs_BT: Tensor
    advantages: Tensor  # (B, 1), or (B, T) where the tokens of a sequence differ
    mask_BT: Tensor  # bool
    totals: Totals
    reference_log_probs_BT: Tensor | None = None  # only where beta > 0
    sampler_log_probs_BT: Tensor | None = None
    entropy_BT: Tensor | None = None  # with gradient where there is an entropy bonus
    rewards_B1: Tensor | None = None
    noise_BT: Tensor | None = None  # uniform numbers, for kernels that draw tokens

    def without_padding(self) -> LossInputs:
        """The same with 0 at padding, so that garbage, infinity or NaN there can reach neither loss nor gradient."""
        names = ("log_probs_BT", "old_log_probs_BT", "advantages", "reference_log_probs_BT", "sampler_log_probs_BT")
        given = {name: getattr(self, name) for name in (*names, "entropy_BT")}
        cleaned: dict[str, Any] = {
            name: torch.where(self.mask_BT, value, 0.0) if value.shape == self.mask_BT.shape else value
            for name, value in given.items()
            if value is not None
        }
        return replace(self, **cleaned)


@dataclass(frozen=True)
class Loss:
    """The number to minimise, and its parts for the diagnostics."""

    total: Tensor
    kernel: KernelParts
    log_ratio_BT: Tensor
    ratio: Tensor  # (B, T) or (B, 1)
    per_token: Tensor  # loss before aggregation, KL included
    kl_ref_BT: Tensor | None

    def detached(self) -> Loss:
        """The same without gradient."""
        return Loss(
            self.total.detach(),
            replace(self.kernel, loss=self.kernel.loss.detach()),
            self.log_ratio_BT.detach(),
            self.ratio.detach(),
            self.per_token.detach(),
            None if self.kl_ref_BT is None else self.kl_ref_BT.detach(),
        )


def log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """log pi_new - log pi_old, within `log_ratio_clamp`, beyond which there is no gradient; (B, T).

    0 at padding, where the inputs hold 0.
    """
    log_ratio_BT = inputs.log_probs_BT - inputs.old_log_probs_BT
    bound = objective.log_ratio_clamp
    return log_ratio_BT if bound is None else log_ratio_BT.clamp(-bound, bound)


def importance_ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The ratio at the objective's level, (B, T) or (B, 1)."""
    ratio: Tensor = resolve(RATIOS[objective.importance_sampling_level])(log_ratio_BT, mask_BT)
    return ratio


def run_kernel(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> KernelParts:
    """The objective's kernel on a micro-batch."""
    parts: KernelParts = resolve(KERNELS[objective.kernel])(
        KernelInputs(
            ratio=ratio,
            log_ratio_BT=log_ratio_BT,
            log_probs_BT=inputs.log_probs_BT,
            old_log_probs_BT=inputs.old_log_probs_BT,
            advantages=inputs.advantages,
            mask_BT=inputs.mask_BT,
            epsilon=objective.epsilon,
            epsilon_high=objective.epsilon_high,
            delta=objective.delta,
            dual_clip=objective.dual_clip,
            loss_form=objective.loss_form,
            options=objective.kernel_options,
            rewards_B1=inputs.rewards_B1,
            noise_BT=inputs.noise_BT,
        )
    )
    return parts


def leave_out(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The kernel's loss without what the objective's masks leave out."""
    mask_BT, old_BT, sampler_BT = inputs.mask_BT, inputs.old_log_probs_BT, inputs.sampler_log_probs_BT
    if objective.off_policy_mask_threshold is not None:
        behaviour_BT = old_BT if sampler_BT is None else sampler_BT
        per_token = per_token * off_policy_keep(
            inputs.advantages, behaviour_BT, inputs.log_probs_BT, mask_BT, objective.off_policy_mask_threshold
        )
    if objective.top_entropy_quantile is not None:
        assert inputs.entropy_BT is not None
        per_token = per_token * top_entropy_keep(inputs.entropy_BT, mask_BT, objective.top_entropy_quantile)
    return per_token


def weigh(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The loss times the sampler's weight."""
    rule, sampler_BT = objective.sampler_correction, inputs.sampler_log_probs_BT
    if rule is None:
        return per_token
    assert sampler_BT is not None
    old_BT, mask_BT = inputs.old_log_probs_BT, inputs.mask_BT
    return per_token * sampler_weight(old_BT, sampler_BT, mask_BT, rule.level, rule.mode, rule.low, rule.high)


def kl_to_reference(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor | None:
    """The KL term of each token, (B, T), before its weight; None where there is none."""
    if not objective.beta or inputs.reference_log_probs_BT is None:
        return None
    return kl_penalty(
        masked_log_ratio(inputs.reference_log_probs_BT, inputs.log_probs_BT, inputs.mask_BT),
        objective.kl_estimator,
        objective.kl_gradient,
        objective.kl_input_clamp,
        objective.kl_output_clamp,
        ratio,
        own_gradient(inputs.log_probs_BT),
    )


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The per-token values as one number, by the objective's aggregation."""
    return aggregate(objective.aggregation, per_token, inputs.mask_BT, inputs.totals)


def entropy_bonus(objective: Objective, inputs: LossInputs) -> Tensor:
    """The entropy that the bonus raises, averaged as the loss is."""
    assert inputs.entropy_BT is not None
    return aggregate(objective.aggregation, inputs.entropy_BT, inputs.mask_BT, inputs.totals)


def without_padding(objective: Objective, inputs: LossInputs) -> LossInputs:
    """The inputs with 0 at padding, without those that the objective does not use."""
    entropy = objective.entropy_coef or objective.top_entropy_quantile is not None
    sampler = objective.sampler_correction is not None or objective.off_policy_mask_threshold is not None
    used = replace(
        inputs,
        entropy_BT=inputs.entropy_BT if entropy else None,
        sampler_log_probs_BT=inputs.sampler_log_probs_BT if sampler else None,
        reference_log_probs_BT=inputs.reference_log_probs_BT if objective.beta else None,
    )
    return used.without_padding()


def penalise(objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor) -> Tensor:
    """The loss of each token with its KL, which so is averaged as the loss is."""
    return per_token + objective.beta * kl_ref_BT


@dataclass(frozen=True)
class Stages:
    """The loss's steps in order. A dialect puts its own in the place of those that its framework does differently."""

    prepare: Callable[[Objective, LossInputs], LossInputs] = without_padding
    log_ratio: Callable[[Objective, LossInputs], Tensor] = log_ratio
    ratio: Callable[[Objective, Tensor, Tensor], Tensor] = importance_ratio
    kernel: Callable[[Objective, LossInputs, Tensor, Tensor], KernelParts] = run_kernel
    leave_out: Callable[[Objective, LossInputs, Tensor], Tensor] = leave_out
    weigh: Callable[[Objective, LossInputs, Tensor], Tensor] = weigh
    kl: Callable[[Objective, LossInputs, Tensor], Tensor | None] = kl_to_reference
    penalise: Callable[[Objective, LossInputs, Tensor, Tensor], Tensor] = penalise
    average: Callable[[Objective, LossInputs, Tensor], Tensor] = average
    bonus: Callable[[Objective, LossInputs], Tensor] = entropy_bonus


CORE = Stages()


def policy_loss(objective: Objective, inputs: LossInputs, stages: Stages = CORE) -> Loss:
    """The objective of a micro-batch; summed over the micro-batches of a minibatch it is the minibatch's.

    The KL to the reference (weight beta) is added to each token's loss before averaging, as GRPO has it; the entropy
    bonus is averaged the same way.
    """
    inputs = stages.prepare(objective, inputs)
    log_ratio_BT = stages.log_ratio(objective, inputs)
    ratio = stages.ratio(objective, log_ratio_BT, inputs.mask_BT)
    kl_ref_BT = stages.kl(objective, inputs, ratio)  # before the kernel: gradients add up in the opposite order
    kernel = stages.kernel(objective, inputs, log_ratio_BT, ratio)
    per_token = stages.weigh(objective, inputs, stages.leave_out(objective, inputs, kernel.loss))
    if kl_ref_BT is not None:
        per_token = stages.penalise(objective, inputs, per_token, kl_ref_BT)
    total = stages.average(objective, inputs, per_token)
    if objective.entropy_coef:
        total = total - objective.entropy_coef * stages.bonus(objective, inputs)
    return Loss(total, kernel, log_ratio_BT, ratio, per_token, kl_ref_BT)
