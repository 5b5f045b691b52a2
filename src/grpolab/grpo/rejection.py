"""Rejection: tokens and sequences that leave the policy loss because trainer and sampler are too far apart on them.

It stands beside the sampler's weight (`ratios.sampler_weight`), which it leaves as it is. Rejected tokens count in the
denominators, as in M2PO, AReaL and prime-rl; verl takes them out of those, too. They keep their KL to the reference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpolab.grpo.ratios import at_level, masked_log_ratio
from grpolab.settings.objective import SamplerRejection


def kept_tokens(
    rule: SamplerRejection,
    advantages: Tensor,  # (B, 1) or (B, T)
    old_BT: Tensor,
    current_BT: Tensor,
    sampler_BT: Tensor,
    mask_BT: Tensor,
) -> Tensor:
    """Return the tokens that every bound and the budget keep, (B, T) bool; False at padding. Takes no gradient.

    The ratio is trainer / sampler, the trainer's policy by `policy`: `old`, that before the update (IcePop, MIS-PO,
    AReaL, SkyRL, verl's decoupled mode), or `current`, the one that learns (prime-rl, M2PO, verl's bypass mode).
    """
    trainer_BT = old_BT if rule.policy == "old" else current_BT.detach()
    log_ratio_BT = masked_log_ratio(trainer_BT, sampler_BT, mask_BT)
    kept_BT = mask_BT
    for level, (low, high) in (rule.bounds or {}).items():
        kept_BT = kept_BT & within_bounds(level, low, high, log_ratio_BT, mask_BT)
    if rule.m2_budget is not None:
        counted_BT = mask_BT
        if rule.policy == "current":  # elsewhere PPO would not clip either
            counted_BT = counted_BT & (log_ratio_BT * advantages > 0)
        kept_BT = kept_BT & ~beyond_second_moment(log_ratio_BT, counted_BT, rule.m2_budget)
    return kept_BT


def within_bounds(level: str, low: float, high: float, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return which tokens, (B, T), or sequences, (B, 1), have a ratio in [low, high]; the bounds belong to it.

    `token`: each token's own (IcePop, 2510.18855; prime-rl and SkyRL `token_mask_*`; verl `token_k1`). `sequence`: a
    sequence's product (SkyRL `product_mask_*`; verl `seq_sum_k1`). `geometric`: its geometric mean (prime-rl and SkyRL
    `geo_mask_*`; verl `seq_mean_k1`). `worst`: of all its tokens (prime-rl `sequence_mask_*`; SkyRL `outlier_token_*`).
    MIS-PO (2602.10604) has a token's and the geometric one. verl bounds sampler / trainer.
    """
    log_ratio_BT = at_level(level, log_ratio_BT, mask_BT)
    log_low, log_high = (math.log(bound) if bound else -math.inf for bound in (low, high))
    inside = (log_ratio_BT >= log_low) & (log_ratio_BT <= log_high)
    return (inside | ~mask_BT).all(1, keepdim=True) if level == "worst" else inside


def beyond_second_moment(log_ratio_BT: Tensor, counted_BT: Tensor, budget: float) -> Tensor:
    """Return the counted tokens with the largest squared log ratio, as few as bring the others' mean to the budget.

    M2PO (2510.01161, algorithm 1), which counts tokens with A > 0 and r > 1, or A < 0 and r < 1, r = current / sampler;
    its authors' code cuts the ratio there instead. AReaL `m2_threshold` counts all tokens, r = old / sampler, and keeps
    the last one whatever it is.
    """
    squares_N = log_ratio_BT[counted_BT].square().double()
    ordered_N, order_N = squares_N.sort(descending=True, stable=True)
    left_N = torch.arange(len(ordered_N), 0, -1, device=ordered_N.device)
    mean_left_N = ordered_N.flip(0).cumsum(0).flip(0) / left_N  # of the tokens from each place on
    beyond = int((mean_left_N > budget).sum())  # the means fall with the place
    dropped_N = torch.zeros_like(squares_N, dtype=torch.bool)
    dropped_N[order_N[:beyond]] = True
    dropped_BT = torch.zeros_like(counted_BT)
    dropped_BT[counted_BT] = dropped_N
    return dropped_BT
