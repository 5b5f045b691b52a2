"""Kernels that act on the tokens whose log-probability and advantage covary most (2505.22617): they drive entropy down.

The covariance is over the tokens of the micro-batch, so these two need the minibatch in one piece.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.learn.kernels.clipped import clipped
from grpolab.learn.kernels.parts import KernelInputs, KernelParts


def token_covariance(inputs: KernelInputs) -> Tensor:
    """(A - mean A)(log pi - mean log pi) of each token, means over the mask, shape (B, T); takes no gradient."""
    A_BT = inputs.advantages.expand_as(inputs.log_probs_BT)
    log_probs_BT = inputs.log_probs_BT.detach()
    return (A_BT - A_BT[inputs.mask_BT].mean()) * (log_probs_BT - log_probs_BT[inputs.mask_BT].mean())


def clip_cov(inputs: KernelInputs) -> KernelParts:
    """PPO's clip, and a few tokens of high covariance drawn at random and left out. Clip-Cov (2505.22617, eq. 8-9).

    Drawn are max(1, int(`share` N)) of the unclipped tokens with covariance in (`lower`, `upper`): those with the
    smallest noise. verl `clip_cov`, which draws them from torch's global generator.
    """
    plain = clipped(inputs)
    covariance_BT = token_covariance(inputs)
    eligible_BT = (covariance_BT > inputs.options["lower"]) & (covariance_BT < inputs.options["upper"])
    eligible_BT &= inputs.mask_BT & ~(plain.active_low | plain.active_high)
    count = max(int(inputs.options["share"] * int(inputs.mask_BT.sum())), 1)
    assert inputs.noise_BT is not None
    order = torch.where(eligible_BT, inputs.noise_BT, torch.inf).flatten().argsort()[:count]
    drawn_BT = torch.zeros_like(eligible_BT).flatten().index_fill(0, order, True).view_as(eligible_BT) & eligible_BT
    return KernelParts.of(
        inputs,
        plain.loss * ~drawn_BT,
        active_low=plain.active_low & ~drawn_BT,
        active_high=plain.active_high & ~drawn_BT,
        outer=plain.outer,
        dropped=drawn_BT,
    )


def kl_cov(inputs: KernelInputs) -> KernelParts:
    """-A r, and `coefficient` |log r| on the max(1, int(`share` N)) tokens of highest covariance. KL-Cov (2505.22617).

    verl `kl_cov`; the penalised tokens count as capped: their gradient is held back, not lost.
    """
    covariance_N = token_covariance(inputs)[inputs.mask_BT]
    count = min(max(int(inputs.options["share"] * len(covariance_N)), 1), len(covariance_N))
    chosen_N = torch.zeros_like(covariance_N, dtype=torch.bool)
    chosen_N[covariance_N.topk(count).indices] = True
    chosen_BT = torch.zeros_like(inputs.mask_BT)
    chosen_BT[inputs.mask_BT] = chosen_N
    penalty_BT = inputs.options["coefficient"] * inputs.log_ratio_BT.abs()
    loss_BT = -inputs.ratio * inputs.advantages + torch.where(chosen_BT, penalty_BT, 0.0)
    return KernelParts.of(inputs, loss_BT, capped=chosen_BT)
