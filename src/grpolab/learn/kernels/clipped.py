"""PPO's clipped surrogate in both written forms, and the surrogate without a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.learn.kernels.parts import KernelInputs, KernelParts


def clipped(inputs: KernelInputs) -> KernelParts:
    """-min(r A, clip(r, 1-epsilon, 1+epsilon_high) A), r capped at delta first where there is one.

    PPO (1707.06347, eq. 7); asymmetric range: DAPO (2503.14476); delta: INTELLECT-2's two-sided clip as in TRL. The
    form `min_positive` negates the smaller surrogate (TRL, ROLL), `max_negative` takes the larger negated one
    (DeepSpeed-Chat, verl): equal bit for bit, gradients included, because negation is exact and ties split alike.
    """
    r, A = inputs.ratio, inputs.advantages_B1
    capped_r, outer = _outer_cap(inputs)
    clipped_r = r.clamp(inputs.low, inputs.high)
    if inputs.loss_form == "min_positive":
        loss = -torch.minimum(capped_r * A, clipped_r * A)
    else:
        loss = torch.maximum(-A * capped_r, -A * clipped_r)
    return KernelParts(
        loss,
        active_low=(r < inputs.low) & (A < 0),
        active_high=(r > inputs.high) & (A > 0),
        outer=outer,
        capped=torch.zeros_like(outer),
    )


def ratio(inputs: KernelInputs) -> KernelParts:
    """-r A: the importance-weighted surrogate without a clip (the outer cap still acts where it is set)."""
    capped_r, outer = _outer_cap(inputs)
    nothing = torch.zeros_like(outer)
    return KernelParts(-(capped_r * inputs.advantages_B1), nothing, nothing, outer, nothing)


def _outer_cap(inputs: KernelInputs) -> tuple[Tensor, Tensor]:
    """The ratio cut at delta, and where A<0 made that matter."""
    if inputs.delta is None:
        return inputs.ratio, torch.zeros_like(inputs.ratio * inputs.advantages_B1, dtype=torch.bool)
    return inputs.ratio.clamp(max=inputs.delta), (inputs.ratio > inputs.delta) & (inputs.advantages_B1 < 0)
