"""CISPO: the weight is capped, the gradient kept."""

from __future__ import annotations

import torch

from grpolab.learn.kernels.parts import KernelInputs, KernelParts


def cispo(inputs: KernelInputs) -> KernelParts:
    """-sg(min(r, 1 + epsilon_high)) A log pi; no lower bound, and no token's gradient is ever zero.

    MiniMax-M1 (2506.13585, eq. 4-5). TRL's cap is the number epsilon_high itself, not 1 + epsilon_high.
    """
    weight = inputs.ratio.detach()
    capped = weight > inputs.high
    loss_BT = -(weight.clamp(max=inputs.high) * inputs.advantages_B1) * inputs.log_probs_BT
    nothing = torch.zeros_like(capped)
    return KernelParts(loss_BT, nothing, nothing, nothing, capped)
