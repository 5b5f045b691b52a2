"""Functions of the loss that several frameworks share."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grpolab.grpo.aggregation import aggregate
from grpolab.grpo.loss import LossInputs, kl_to_reference
from grpolab.grpo.ratios import row_mean
from grpolab.settings.objective import Objective


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
