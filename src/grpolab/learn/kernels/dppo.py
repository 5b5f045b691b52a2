"""Trust regions in probability instead of in the ratio: DPPO, which drops tokens whose probability moved too far."""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.learn.kernels.parts import KernelInputs, KernelParts

PROBABILITY_FLOOR = 1e-8  # added to 1 - p before its logarithm, as verl has it


def dppo_tv(inputs: KernelInputs) -> KernelParts:
    """-sg(min(r, cap)) A log pi, without tokens whose probability moved further than epsilon (up: epsilon_high).

    The binary total variation of DPPO; verl `dppo_tv`. Option: `cap` of the weight. A = 0 counts as negative.
    """
    return _weighted(inputs, *beyond_tv(inputs))


def dppo_kl(inputs: KernelInputs) -> KernelParts:
    """-sg(min(r, cap)) A log pi, without tokens whose binary KL passed epsilon (up: epsilon_high). verl `dppo_kl`."""
    return _weighted(inputs, *beyond_kl(inputs))


def dppo_ratio(inputs: KernelInputs) -> KernelParts:
    """-a r A + b (log r)^2; `dppo_tv`'s tokens lose the first part, so that the second pulls them back.

    prime-rl's default. Options: `advantage_weight` a, `drift_weight` b.
    """
    return _pulled_back(inputs, *beyond_tv(inputs))


def ipo(inputs: KernelInputs) -> KernelParts:
    """The same with the tokens whose probability moved further than epsilon (up: epsilon_high), whatever A is.

    prime-rl `ipo`.
    """
    moved_BT = probability_change(inputs)
    return _pulled_back(inputs, moved_BT < -inputs.epsilon, moved_BT > inputs.epsilon_high)


def beyond_tv(inputs: KernelInputs) -> tuple[Tensor, Tensor]:
    """Tokens whose probability fell by more than epsilon with A <= 0, rose by more than epsilon_high with A > 0."""
    moved_BT, up = probability_change(inputs), inputs.advantages > 0
    return (moved_BT < -inputs.epsilon) & ~up, (moved_BT > inputs.epsilon_high) & up


def probability_change(inputs: KernelInputs) -> Tensor:
    """How much likelier each token became, (B, T); takes no gradient."""
    return inputs.log_probs_BT.detach().exp() - inputs.old_log_probs_BT.exp()


def beyond_kl(inputs: KernelInputs) -> tuple[Tensor, Tensor]:
    """The same by the KL of (p_old, 1 - p_old) to (p, 1 - p), where the probability moved the harmful way.

    A KL that is NaN, because rounding made a probability more than 1, is beyond every bound.
    """
    kl_BT, moved_BT = binary_kl(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT), probability_change(inputs)
    up = inputs.advantages > 0
    low = ~(kl_BT <= inputs.epsilon) & (moved_BT < 0) & ~up
    return low, ~(kl_BT <= inputs.epsilon_high) & (moved_BT > 0) & up


def binary_kl(new_BT: Tensor, old_BT: Tensor) -> Tensor:
    """KL of (p_old, 1 - p_old) to (p, 1 - p) of each token, (B, T), from its log-probs."""
    p_BT, p_old_BT = new_BT.exp(), old_BT.exp()
    rest_BT = ((1 - p_old_BT + PROBABILITY_FLOOR) / (1 - p_BT + PROBABILITY_FLOOR)).log()
    return p_old_BT * (old_BT - new_BT) + (1 - p_old_BT) * rest_BT


def _weighted(inputs: KernelInputs, low: Tensor, high: Tensor) -> KernelParts:
    ratio, cap = inputs.ratio.detach(), inputs.options["cap"]
    weight = torch.where(low | high, 0.0, ratio.clamp(max=cap))
    return KernelParts.of(
        inputs,
        -weight * inputs.advantages * inputs.log_probs_BT,
        out_of_range=low | high,
        active_low=low,
        active_high=high,
        capped=~(low | high) & (ratio > cap),
    )


def _pulled_back(inputs: KernelInputs, low: Tensor, high: Tensor) -> KernelParts:
    surrogate = torch.where(low | high, 0.0, inputs.options["advantage_weight"] * inputs.advantages * inputs.ratio)
    drift_BT = inputs.options["drift_weight"] * inputs.log_ratio_BT.square()
    return KernelParts.of(inputs, drift_BT - surrogate, out_of_range=low | high, active_low=low, active_high=high)
