"""Dialects: what a framework does its own way, one adapter each, built from the core's functions.

An adapter holds the accidents that the core does not have (a float32 exponential, `+1e-8` in a divisor, an unmasked
numerator) and the framework's metrics under its own names. Its defaults stand in `conf/dialect/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.names import CLIP_METRIC
from grpolab.grpo.aggregation import aggregate
from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, Objective, kl_to_reference, policy_loss
from grpolab.grpo.loss import log_ratio as core_log_ratio
from grpolab.grpo.ratios import row_mean
from grpolab.registry import DIALECTS, resolve


def _no_metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Dialect:
    """A framework as differences from the core."""

    # The framework's own option names and values -> the point on our axes.
    objective: Callable[[Mapping[str, Any]], Objective]
    recipe: LossRecipe = field(default_factory=LossRecipe)
    # Metrics of an update under the framework's names, from a minibatch and its loss; called without gradient.
    metrics: Callable[[Objective, LossInputs, Loss], dict[str, float]] = _no_metrics


def dialect(framework: str) -> Dialect:
    """The adapter of a framework."""
    found: Dialect = resolve(DIALECTS[framework])
    return found


def recipe_of(framework: str | None) -> LossRecipe:
    """How the loss is computed in that framework; the core's way for None."""
    return CORE if framework is None else dialect(framework).recipe


def metrics_of(framework: str, objective: Objective, inputs: LossInputs, loss: Loss | None = None) -> dict[str, float]:
    """What that framework logs of a minibatch; call it without gradient.

    `loss` is the minibatch's where it was computed that framework's way already.
    """
    adapter = dialect(framework)
    return adapter.metrics(objective, inputs, loss or policy_loss(objective, inputs, adapter.recipe))


def clip_conventions(objective: Objective, inputs: LossInputs) -> dict[str, float]:
    """The clip fraction of a minibatch by each framework's definition; without those that have none for this kernel.

    All at the objective's own ratio, kernel and range. KL, entropy bonus, masks and sampler weights are left out: each
    framework has its own, and no other knows them.
    """
    clip = replace(
        objective,
        beta=0.0,
        kl_estimator="k3",
        kl_gradient="plain",
        entropy_coef=0.0,
        top_entropy_quantile=None,
        off_policy_mask_threshold=None,
        sampler_correction=None,
    )
    bare = replace(inputs, reference_log_probs_BT=None, sampler_log_probs_BT=None, entropy_BT=None)
    found = {name: metrics_of(name, clip, bare) for name in CLIP_METRIC}
    return {name: found[name][metric] for name, metric in CLIP_METRIC.items() if metric in found[name]}


# ----------------------------------------------------------------------------------------------------------------------
# Functions of frameworks whose mask is a factor of a sum: padding is computed too, and poisons where it is not finite.


def as_given(objective: Objective, inputs: LossInputs) -> LossInputs:
    """The inputs with what stands at padding."""
    return inputs


def log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """The core's log pi_new - log pi_old, at padding too; (B, T)."""
    return core_log_ratio(objective, everywhere(inputs))


def everywhere(inputs: LossInputs) -> LossInputs:
    """The inputs with padding as if it were tokens."""
    return replace(inputs, mask_BT=torch.ones_like(inputs.mask_BT))


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor | None:
    """The core's KL to the reference, at padding too, (B, T)."""
    return kl_to_reference(objective, everywhere(inputs), ratio)


def capped_sequence_token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor, cap: float = 10.0) -> Tensor:
    """GSPO-token's ratio, at most e^cap, beyond which there is no gradient; (B, T). verl, and SkyRL after it."""
    own_BT = log_ratio_BT - log_ratio_BT.detach()
    return (own_BT + row_mean(log_ratio_BT, mask_BT).detach()).clamp(max=cap).exp()


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The core's, with padding as a factor of 0."""
    poison = (per_token * ~inputs.mask_BT).sum() * 0
    return aggregate(objective.aggregation, per_token, inputs.mask_BT, inputs.totals) + poison
