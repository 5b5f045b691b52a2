"""PPO's clipped surrogate in both written forms, and the surrogate without a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.learn.kernels.parts import KernelInputs, KernelParts


def clipped(inputs: KernelInputs) -> KernelParts:
    """-min(r A, clip(r, 1-epsilon, 1+epsilon_high) A), with an outer cap where there is one.

    PPO (1707.06347, eq. 7); asymmetric range: DAPO (2503.14476); delta, r cut before the minimum for both signs of A:
    INTELLECT-2's two-sided clip as in TRL; dual_clip, the loss cut at -A c where A < 0: Ye et al. 2020 (1912.09729),
    verl, ROLL. The two differ at r = c, and where delta < 1+epsilon_high. The form `min_positive` negates the smaller
    surrogate (TRL, ROLL), `max_negative` takes the larger negated one (DeepSpeed-Chat, verl): equal bit for bit,
    gradients included, because negation is exact and ties split alike.
    """
    r, A = inputs.ratio, inputs.advantages
    capped_r, outer = outer_cap(inputs)
    low, high = r.detach() < inputs.low, r.detach() > inputs.high
    clipped_r = r.clamp(inputs.low, inputs.high)
    if inputs.loss_form == "min_positive":
        surrogate = torch.minimum(capped_r * A, clipped_r * A)
        if inputs.dual_clip is not None:
            surrogate = torch.where(A < 0, torch.maximum(surrogate, A * inputs.dual_clip), surrogate)
        loss = -surrogate
    else:
        loss = torch.maximum(-A * capped_r, -A * clipped_r)
        if inputs.dual_clip is not None:
            loss = torch.where(A < 0, torch.minimum(loss, -A * inputs.dual_clip), loss)
    return KernelParts.of(
        inputs,
        loss,
        out_of_range=low | high,
        active_low=low & (A < 0),
        active_high=high & (A > 0),
        **outer,
    )


def ratio(inputs: KernelInputs) -> KernelParts:
    """-r A: the importance-weighted surrogate without a clip (delta still acts where it is set)."""
    capped_r, outer = outer_cap(inputs)
    return KernelParts.of(inputs, -(capped_r * inputs.advantages), **outer)


def outer_cap(inputs: KernelInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The ratio cut at delta and, where there is a cap, the mask `outer`: A < 0 made delta or the dual clip matter."""
    r, A = inputs.ratio, inputs.advantages
    if inputs.delta is None and inputs.dual_clip is None:
        return r, {}
    capped_r = r if inputs.delta is None else r.clamp(max=inputs.delta)
    cap = min(inputs.delta or torch.inf, inputs.dual_clip or torch.inf)
    return capped_r, {"outer": (r.detach() > cap) & (A < 0)}
