"""Policy gradients with a weight that takes no gradient: -sg(weight) A log pi. No token is clipped to silence."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grpolab.learn.kernels.parts import KernelInputs, KernelParts, choose

VESPO_LOG_RATIO = 20.0  # bound of each token's log ratio and of their sum
VESPO_LEAST = 1e-8  # least sequence weight


def policy_gradient(inputs: KernelInputs) -> KernelParts:
    """-A log pi: REINFORCE; GPG (2504.02546); verl `gpg`, ROLL pg `vanilla`, NeMo-RL `disable_ppo_ratio`."""
    return KernelParts.of(inputs, -inputs.advantages * inputs.log_probs_BT)


def policy_gradient_masked(inputs: KernelInputs) -> KernelParts:
    """-A log pi on what PPO's clip leaves: the mask of the ratio without its weight.

    The 'all importance weights set to 1' of ASPO (2510.06062, section 4.2).
    """
    low, high = dead(inputs)
    loss = -inputs.advantages * inputs.log_probs_BT * ~(low | high)
    return KernelParts.of(inputs, loss, active_low=low, active_high=high)


def dead(inputs: KernelInputs) -> tuple[Tensor, Tensor]:
    """Where PPO's clip ends the gradient: the ratio too low and A < 0, or too high and A > 0."""
    ratio, A = inputs.ratio.detach(), inputs.advantages
    return (ratio < inputs.low) & (A < 0), (ratio > inputs.high) & (A > 0)


def cispo(inputs: KernelInputs) -> KernelParts:
    """-sg(clip(r, 1-epsilon, 1+epsilon_high)) A log pi; epsilon=1 is no lower bound, because a ratio is not below 0.

    MiniMax-M1 (2506.13585, eq. 4-5). Its relatives are points of it: truncated importance sampling (epsilon=1,
    epsilon_high=0), REINFORCE with importance weights (epsilon=1, epsilon_high=inf). TRL's cap is the number
    epsilon_high itself, not 1 + epsilon_high.
    """
    weight = inputs.ratio.detach().clamp(inputs.low, inputs.high)
    loss = -(weight * inputs.advantages) * inputs.log_probs_BT
    return KernelParts.of(inputs, loss, capped=weight != inputs.ratio.detach())


def cispo_masked(inputs: KernelInputs) -> KernelParts:
    """CISPO without the tokens that PPO's clip would silence: the unified form of MiniMax-M1 (2506.13585, eq. 6-7).

    ROLL `cispo_use_unified_mask`.
    """
    plain, (low, high) = cispo(inputs), dead(inputs)
    left_out = low | high
    return KernelParts.of(
        inputs, plain.loss * ~left_out, active_low=low, active_high=high, capped=plain.capped & ~left_out
    )


def band(inputs: KernelInputs) -> KernelParts:
    """-sg(r) A log pi for ratios inside the range, 0 outside. SkyRL `rollout_is`."""
    ratio = inputs.ratio.detach()
    inside = (ratio > inputs.low) & (ratio < inputs.high)
    loss = -torch.where(inside, ratio, 0.0) * inputs.advantages * inputs.log_probs_BT
    return KernelParts.of(
        inputs,
        loss,
        active_low=ratio <= inputs.low,
        active_high=ratio >= inputs.high,
    )


def aspo(inputs: KernelInputs) -> KernelParts:
    """-sg(w) A log pi on what PPO's clip leaves, with w = 1/r where A > 0 and r where A < 0, at most `cap`.

    ASPO (2510.06062): tokens that became likely with A > 0 are held back instead of pushed on. Option: `cap`, its soft
    dual clip, which cuts the weight and keeps the gradient.
    """
    r, A = inputs.ratio.detach(), inputs.advantages
    low, high = dead(inputs)
    weight = torch.where(A > 0, 1 / r, r)
    kept = torch.where(low | high, 0.0, weight.clamp(max=inputs.options["cap"]))
    capped = ~(low | high) & (weight > inputs.options["cap"])
    return KernelParts.of(inputs, -kept * A * inputs.log_probs_BT, active_low=low, active_high=high, capped=capped)


def topr(inputs: KernelInputs) -> KernelParts:
    """-A log pi for a positive reward, -sg(min(r, 1)) A log pi for another one: TOPR (2503.14286); ROLL pg `topr`.

    Options: `positive_weight`, `negative_weight` of the two kinds of sequences.
    """
    assert inputs.rewards_B1 is not None
    ratio, positive = inputs.ratio.detach(), inputs.rewards_B1 > 0
    of_its_kind = choose(positive, inputs.options["positive_weight"], inputs.options["negative_weight"], like=ratio)
    weight = of_its_kind * torch.where(positive, 1.0, ratio.clamp(0, 1))
    loss = -weight * inputs.advantages * inputs.log_probs_BT
    return KernelParts.of(inputs, loss, capped=~positive & (ratio > 1))


def vespo(inputs: KernelInputs) -> KernelParts:
    """-sg(phi(W)) A log pi with phi(W) = exp(lambda) W^k exp(-lambda W), W the product of a sequence's token ratios.

    A gamma-shaped weight that is 1 at W = 1; (k, lambda) by the sign of A. VESPO (2602.10693); TRL 1.16 `vespo`
    (`get_gamma_weights`): log ratios are bounded by 20 and W by 1e-8 from below.
    """
    phi = gamma_weight(inputs.advantages, inputs.log_ratio_BT, inputs.options)
    return KernelParts.of(inputs, -phi * inputs.advantages * inputs.log_probs_BT)


def gamma_weight(advantages: Tensor, log_ratio_BT: Tensor, options: Mapping[str, float]) -> Tensor:
    """phi(W) of VESPO, shape of the advantages; takes no gradient."""
    log_ratio_BT = log_ratio_BT.detach().clamp(-VESPO_LOG_RATIO, VESPO_LOG_RATIO)
    log_w_B1 = log_ratio_BT.sum(1, keepdim=True).clamp(math.log(VESPO_LEAST), VESPO_LOG_RATIO)
    k = choose(advantages >= 0, options["k_positive"], options["k_negative"], like=log_w_B1)
    lam = choose(advantages >= 0, options["lambda_positive"], options["lambda_negative"], like=log_w_B1)
    return (lam + k * log_w_B1 - lam * log_w_B1.exp()).exp()


def dro(inputs: KernelInputs) -> KernelParts:
    """-A log pi + beta/2 (log r)^2: DRO (2405.19107); Kimi k1.5 (2501.12599, eq. 3) with its tau for beta.

    Option: `coefficient`, beta.
    """
    penalty_BT = inputs.options["coefficient"] / 2 * inputs.log_ratio_BT.square()
    return KernelParts.of(inputs, -inputs.advantages * inputs.log_probs_BT + penalty_BT)
