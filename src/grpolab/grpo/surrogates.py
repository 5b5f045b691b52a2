"""Surrogates: the policy loss of each token or sequence, before masks, KL and averaging.

A surrogate takes the objective, a micro-batch, and the micro-batch's log ratios and its ratios at the objective's
level. It returns the loss and masks of what was clipped. (B, ...) is (B, T) or (B, 1). Here are those that the studies
compare; the others are in `frameworks/kernels.py`. `registry.py` names them all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.grpo.loss import LossInputs, SurrogateParts
from grpolab.settings.objective import Objective


def clipped(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-min(r A, clip(r, 1-epsilon, 1+epsilon_high) A), with an outer cap if one is set (`delta` or `dual_clip`).

    PPO (1707.06347, eq. 7); asymmetric range: DAPO (2503.14476). `delta` cuts r before the minimum for both signs of A:
    INTELLECT-2's two-sided clip as in TRL. `dual_clip` cuts the loss at -A c where A < 0: Ye et al. 2020 (1912.09729),
    verl, ROLL. The two differ at r = c, and where delta < 1+epsilon_high. The form `min_positive` negates the smaller
    surrogate (TRL, ROLL), `max_negative` takes the larger negated one (DeepSpeed-Chat, verl). Both are equal bit for
    bit, gradients included, because negation is exact and ties split alike.
    """
    r, A = ratio, inputs.advantages
    capped_r, outer = outer_cap(objective, A, ratio)
    low, high = r.detach() < objective.low, r.detach() > objective.high
    clipped_r = r.clamp(objective.low, objective.high)
    if objective.loss_form == "min_positive":
        surrogate = torch.minimum(capped_r * A, clipped_r * A)
        if objective.dual_clip is not None:
            surrogate = torch.where(A < 0, torch.maximum(surrogate, A * objective.dual_clip), surrogate)
        loss = -surrogate
    else:
        loss = torch.maximum(-A * capped_r, -A * clipped_r)
        if objective.dual_clip is not None:
            loss = torch.where(A < 0, torch.minimum(loss, -A * objective.dual_clip), loss)
    masks = {"out_of_range": low | high, "active_low": low & (A < 0), "active_high": high & (A > 0), **outer}
    return SurrogateParts.of(objective, ratio, loss, **masks)


def ratio(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-r A: the importance-weighted surrogate without a clip (delta still acts where it is set)."""
    capped_r, outer = outer_cap(objective, inputs.advantages, ratio)
    return SurrogateParts.of(objective, ratio, -(capped_r * inputs.advantages), **outer)


def outer_cap(objective: Objective, advantages: Tensor, ratio: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the ratio cut at delta and, if a cap is set, the mask `outer` of the tokens with A < 0 that it cut."""
    if objective.delta is None and objective.dual_clip is None:
        return ratio, {}
    capped_r = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
    cap = min(objective.delta or torch.inf, objective.dual_clip or torch.inf)
    return capped_r, {"outer": (ratio.detach() > cap) & (advantages < 0)}


def policy_gradient(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A log pi: REINFORCE; GPG (2504.02546); verl `gpg`, ROLL pg `vanilla`, NeMo-RL `disable_ppo_ratio`."""
    return SurrogateParts.of(objective, ratio, -inputs.advantages * inputs.log_probs_BT)


def policy_gradient_masked(
    objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor
) -> SurrogateParts:
    """-A log pi of the tokens that PPO's clip does not drop: the ratio acts as a mask, not as a weight.

    ASPO calls it 'all importance weights set to 1' (2510.06062, section 4.2).
    """
    low, high = find_clipped(objective, inputs.advantages, ratio)
    loss = -inputs.advantages * inputs.log_probs_BT * ~(low | high)
    return SurrogateParts.of(objective, ratio, loss, active_low=low, active_high=high)


def find_clipped(objective: Objective, advantages: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks where PPO's clip ends the gradient: ratio too low and A < 0; ratio too high and A > 0."""
    r, A = ratio.detach(), advantages
    return (r < objective.low) & (A < 0), (r > objective.high) & (A > 0)


def cispo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(clip(r, 1-epsilon, 1+epsilon_high)) A log pi; epsilon=1 is no lower bound, because a ratio is not below 0.

    MiniMax-M1 (2506.13585, eq. 4-5). Special cases: truncated importance sampling (epsilon=1, epsilon_high=0), and
    REINFORCE with importance weights (epsilon=1, epsilon_high=inf). TRL's cap is the number epsilon_high itself, not
    1 + epsilon_high.
    """
    weight = ratio.detach().clamp(objective.low, objective.high)
    loss = -(weight * inputs.advantages) * inputs.log_probs_BT
    return SurrogateParts.of(objective, ratio, loss, capped=weight != ratio.detach())
