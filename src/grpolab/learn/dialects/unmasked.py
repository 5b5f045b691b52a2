"""Stages of frameworks whose mask is a factor of a sum: padding is computed too, and poisons where it is not finite."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grpolab.learn.aggregation import aggregate
from grpolab.learn.objective import LossInputs, Objective, kl_to_reference
from grpolab.learn.objective import log_ratio as core_log_ratio
from grpolab.learn.ratios import row_mean


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
