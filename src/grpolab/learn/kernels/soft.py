"""Kernels that bend the surrogate instead of cutting it, and the one that clips in log space."""

from __future__ import annotations

import torch

from grpolab.learn.kernels.parts import KernelInputs, KernelParts, choose
from grpolab.learn.ratios import row_mean


def sapo(inputs: KernelInputs) -> KernelParts:
    """-(4/tau) sigmoid(tau (r-1)) A: a soft gate whose gradient at r = 1 is A for every tau.

    SAPO (2511.20347); TRL, verl, AReaL, SkyRL `sapo`. Options: `temperature_positive`, `temperature_negative` by the
    sign of A (0 is negative).
    """
    A, options = inputs.advantages, inputs.options
    tau = choose(A > 0, options["temperature_positive"], options["temperature_negative"], like=inputs.ratio)
    return KernelParts.of(inputs, -(4 / tau) * torch.sigmoid(tau * (inputs.ratio - 1)) * A)


def gmpo(inputs: KernelInputs) -> KernelParts:
    """-A exp(mean_t z): the geometric mean of one-sided clipped token ratios, z = sgn(A) min(sgn(A) l, sgn(A) clip(l)).

    l is the token's log ratio and the range [-epsilon, epsilon_high] is in log space. GMPO (2507.20673, eq. 4); verl
    `geo_mean`. The loss is one per sequence, (B, 1); where tokens differ A is their mean.
    """
    A, sign, log_ratio_BT = inputs.advantages, inputs.advantages.sign(), inputs.log_ratio_BT
    clipped_BT = log_ratio_BT.clamp(-inputs.epsilon, inputs.epsilon_high)
    one_sided_BT = sign * torch.minimum(sign * log_ratio_BT, sign * clipped_BT)
    loss_B1 = -row_mean(A.expand_as(log_ratio_BT), inputs.mask_BT) * row_mean(one_sided_BT, inputs.mask_BT).exp()
    low, high = log_ratio_BT < -inputs.epsilon, log_ratio_BT > inputs.epsilon_high
    return KernelParts.of(
        inputs, loss_B1, out_of_range=low | high, active_low=low & (A < 0), active_high=high & (A > 0)
    )
