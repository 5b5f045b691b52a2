"""Functions of the loss that several frameworks share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.grpo.aggregation import aggregate
from grpolab.grpo.loss import LossInputs, Objective, kl_to_reference
from grpolab.grpo.ratios import row_mean


def kl_axes(
    beta: float,
    estimator: str,
    gradient: str = "plain",
    input_clamp: float | None = None,
    output_clamp: float | None = None,
) -> dict[str, Any]:
    """The axes of the KL to the reference; only its weight where that is 0."""
    axes = {
        "kl_estimator": estimator,
        "kl_gradient": gradient,
        "kl_input_clamp": input_clamp,
        "kl_output_clamp": output_clamp,
    }
    return {"beta": beta, **(axes if beta else dict.fromkeys(axes))}


def clipped_losses(objective: Objective, advantages: Tensor, ratio: Tensor) -> Tensor:
    """Where the clip changed the loss itself, bool: a product may round to the same where the ratio was cut."""
    return ratio.clamp(objective.low, objective.high) * advantages < ratio * advantages


# Of frameworks whose mask is a factor of a sum: padding is computed too, and poisons where it is not finite.


def as_given(objective: Objective, inputs: LossInputs) -> LossInputs:
    """The inputs with what stands at padding."""
    return inputs


def kl_everywhere(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor | None:
    """The core's KL to the reference, at padding too, (B, T)."""
    return kl_to_reference(objective, replace(inputs, mask_BT=torch.ones_like(inputs.mask_BT)), ratio)


def capped_sequence_token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor, cap: float = 10.0) -> Tensor:
    """GSPO-token's ratio, at most e^cap, beyond which there is no gradient; (B, T). verl, and SkyRL after it."""
    own_BT = log_ratio_BT - log_ratio_BT.detach()
    return (own_BT + row_mean(log_ratio_BT, mask_BT).detach()).clamp(max=cap).exp()


def average_everywhere(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The core's average, with padding as a factor of 0."""
    poison = (per_token * ~inputs.mask_BT).sum() * 0
    return aggregate(objective.aggregation, per_token, inputs.mask_BT, inputs.totals) + poison
