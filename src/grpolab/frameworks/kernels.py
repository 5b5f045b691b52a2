"""Surrogates of papers and frameworks that no study here compares. `registry.py` loads them by name.

Their arguments and results are those of `grpo/surrogates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from grpolab.grpo.loss import LossInputs, SurrogateParts
from grpolab.grpo.ratios import row_mean
from grpolab.grpo.surrogates import cispo, clipped, find_clipped
from grpolab.settings.objective import Objective

VESPO_LOG_RATIO = 20.0  # bound of each token's log ratio and of their sum
VESPO_LEAST = 1e-8  # least sequence weight
PROBABILITY_FLOOR = 1e-8  # added to 1 - p before its logarithm, as in verl


def by_condition(condition: Tensor, where_true: float, where_false: float, like: Tensor) -> Tensor:
    """Pick one of two numbers, in the precision of `like` (torch.where of two numbers would be float32)."""
    return torch.where(condition, like.new_tensor(where_true), like.new_tensor(where_false))


def weighted_gradient(
    objective: Objective, inputs: LossInputs, ratio: Tensor, weight: Tensor, **masks: Tensor
) -> SurrogateParts:
    """Return -weight A log pi, for a weight that takes no gradient."""
    return SurrogateParts.of(objective, ratio, -weight * inputs.advantages * inputs.log_probs_BT, **masks)


def cispo_masked(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """CISPO without the tokens that PPO's clip would silence: the unified form of MiniMax-M1 (2506.13585, eq. 6-7).

    ROLL `cispo_use_unified_mask`.
    """
    parts = cispo(objective, inputs, log_ratio_BT, ratio)
    low, high = find_clipped(objective, inputs.advantages, ratio)
    kept = ~(low | high)
    masks = {"active_low": low, "active_high": high, "capped": parts.capped & kept}
    return SurrogateParts.of(objective, ratio, parts.loss * kept, **masks)


def band(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(r) A log pi for ratios inside the range, 0 outside. SkyRL `rollout_is`."""
    r = ratio.detach()
    weight = torch.where((r > objective.low) & (r < objective.high), r, 0.0)
    masks = {"active_low": r <= objective.low, "active_high": r >= objective.high}
    return weighted_gradient(objective, inputs, ratio, weight, **masks)


def aspo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(w) A log pi of the tokens that PPO's clip does not drop; w = 1/r if A > 0, r if A < 0, at most `cap`.

    ASPO (2510.06062): tokens with A > 0 that became likelier are pushed less, not more. Option: `cap`, its soft dual
    clip, which cuts the weight and keeps the gradient.
    """
    r, A, cap = ratio.detach(), inputs.advantages, objective.options["cap"]
    low, high = find_clipped(objective, A, ratio)
    weight = torch.where(A > 0, 1 / r, r)
    masks = {"active_low": low, "active_high": high, "capped": ~(low | high) & (weight > cap)}
    weight = torch.where(low | high, 0.0, weight.clamp(max=cap))
    return weighted_gradient(objective, inputs, ratio, weight, **masks)


def topr(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A log pi for positive rewards, -sg(min(r, 1)) A log pi for others: TOPR (2503.14286); ROLL pg `topr`.

    Options: `positive_weight` and `negative_weight`, factors for the two kinds of sequences.
    """
    assert inputs.rewards_B1 is not None
    r, positive, options = ratio.detach(), inputs.rewards_B1 > 0, objective.options
    weight = by_condition(positive, options["positive_weight"], options["negative_weight"], like=r)
    weight = weight * torch.where(positive, 1.0, r.clamp(0, 1))
    return weighted_gradient(objective, inputs, ratio, weight, capped=~positive & (r > 1))


def vespo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(phi(W)) A log pi with phi(W) = exp(lambda) W^k exp(-lambda W), W the product of a sequence's token ratios.

    A gamma-shaped weight that is 1 at W = 1; (k, lambda) by the sign of A. VESPO (2602.10693); TRL 1.16 `vespo`
    (`get_gamma_weights`): log ratios are bounded by 20 and W by 1e-8 from below.
    """
    return weighted_gradient(objective, inputs, ratio, gamma_weight(inputs.advantages, log_ratio_BT, objective.options))


def gamma_weight(advantages: Tensor, log_ratio_BT: Tensor, options: Mapping[str, float]) -> Tensor:
    """Return phi(W) of VESPO, shape of the advantages; takes no gradient."""
    log_ratio_BT = log_ratio_BT.detach().clamp(-VESPO_LOG_RATIO, VESPO_LOG_RATIO)
    log_w_B1 = log_ratio_BT.sum(1, keepdim=True).clamp(math.log(VESPO_LEAST), VESPO_LOG_RATIO)
    k = by_condition(advantages >= 0, options["k_positive"], options["k_negative"], like=log_w_B1)
    lam = by_condition(advantages >= 0, options["lambda_positive"], options["lambda_negative"], like=log_w_B1)
    return (lam + k * log_w_B1 - lam * log_w_B1.exp()).exp()


def dro(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A log pi + beta/2 (log r)^2, r the ratio to the old policy: DRO (2405.19107).

    Kimi k1.5 (2501.12599, eq. 3) writes tau for beta. Option: `coefficient` (beta).
    """
    penalty_BT = objective.options["coefficient"] / 2 * log_ratio_BT.square()
    return SurrogateParts.of(objective, ratio, -inputs.advantages * inputs.log_probs_BT + penalty_BT)


def sapo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-(4/tau) sigmoid(tau (r-1)) A: a soft gate whose gradient at r = 1 is A for every tau.

    SAPO (2511.20347); TRL, verl, AReaL, SkyRL `sapo`. Options: `temperature_positive`, `temperature_negative` by the
    sign of A (0 is negative).
    """
    A, options = inputs.advantages, objective.options
    tau = by_condition(A > 0, options["temperature_positive"], options["temperature_negative"], like=ratio)
    return SurrogateParts.of(objective, ratio, -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * A)


def gmpo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A exp(mean_t z): the geometric mean of one-sided clipped token ratios, z = sgn(A) min(sgn(A) l, sgn(A) clip(l)).

    l is the token's log ratio and the range [-epsilon, epsilon_high] is in log space. GMPO (2507.20673, eq. 4); verl
    `geo_mean`. The loss is one per sequence, (B, 1); where tokens differ A is their mean.
    """
    A, sign = inputs.advantages, inputs.advantages.sign()
    clipped_BT = log_ratio_BT.clamp(-objective.epsilon, objective.epsilon_above)
    one_sided_BT = sign * torch.minimum(sign * log_ratio_BT, sign * clipped_BT)
    loss_B1 = -row_mean(A.expand_as(log_ratio_BT), inputs.mask_BT) * row_mean(one_sided_BT, inputs.mask_BT).exp()
    low, high = log_ratio_BT < -objective.epsilon, log_ratio_BT > objective.epsilon_above
    masks = {"out_of_range": low | high, "active_low": low & (A < 0), "active_high": high & (A > 0)}
    return SurrogateParts.of(objective, ratio, loss_B1, **masks)


# The next two act on the tokens whose log-probability and advantage covary most, because these drive entropy down
# (2505.22617). The covariance is over the tokens of the micro-batch, so they need the minibatch in one piece.


def token_covariance(inputs: LossInputs) -> Tensor:
    """Return (A - mean A)(log pi - mean log pi) of each token, means over the mask, (B, T); takes no gradient."""
    A_BT = inputs.advantages.expand_as(inputs.log_probs_BT)
    log_probs_BT = inputs.log_probs_BT.detach()
    return (A_BT - A_BT[inputs.mask_BT].mean()) * (log_probs_BT - log_probs_BT[inputs.mask_BT].mean())


def clip_cov(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """PPO's clip; also drops a few random tokens of high covariance. Clip-Cov (2505.22617, eq. 8-9).

    Of the unclipped tokens with covariance in (`lower`, `upper`), the max(1, int(`share` N)) with the smallest noise
    are dropped. verl `clip_cov`, which draws them from torch's global generator.
    """
    parts, options = clipped(objective, inputs, log_ratio_BT, ratio), objective.options
    covariance_BT = token_covariance(inputs)
    eligible_BT = (covariance_BT > options["lower"]) & (covariance_BT < options["upper"])
    eligible_BT &= inputs.mask_BT & ~(parts.active_low | parts.active_high)
    count = max(int(options["share"] * int(inputs.mask_BT.sum())), 1)
    assert inputs.noise_BT is not None
    order = torch.where(eligible_BT, inputs.noise_BT, torch.inf).flatten().argsort()[:count]
    drawn_BT = torch.zeros_like(eligible_BT).flatten().index_fill(0, order, True).view_as(eligible_BT) & eligible_BT
    masks = {"active_low": parts.active_low & ~drawn_BT, "active_high": parts.active_high & ~drawn_BT}
    return SurrogateParts.of(objective, ratio, parts.loss * ~drawn_BT, **masks, outer=parts.outer, dropped=drawn_BT)


def kl_cov(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-A r, plus `coefficient` |log r| on the max(1, int(`share` N)) tokens of highest covariance. KL-Cov (2505.22617).

    verl `kl_cov`. The penalised tokens count as capped, because their gradient is reduced, not zeroed.
    """
    covariance_N = token_covariance(inputs)[inputs.mask_BT]
    count = min(max(int(objective.options["share"] * len(covariance_N)), 1), len(covariance_N))
    penalised_N = torch.zeros_like(covariance_N, dtype=torch.bool)
    penalised_N[covariance_N.topk(count).indices] = True
    penalised_BT = torch.zeros_like(inputs.mask_BT)
    penalised_BT[inputs.mask_BT] = penalised_N
    penalty_BT = objective.options["coefficient"] * log_ratio_BT.abs()
    loss_BT = -ratio * inputs.advantages + torch.where(penalised_BT, penalty_BT, 0.0)
    return SurrogateParts.of(objective, ratio, loss_BT, capped=penalised_BT)


# DPPO: trust regions in probability instead of in the ratio. Tokens whose probability moved too far are dropped.


def dppo_tv(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(min(r, cap)) A log pi, without tokens whose probability moved further than epsilon (up: epsilon_high).

    The binary total variation of DPPO; verl `dppo_tv`. Option: `cap` of the weight. A = 0 counts as negative.
    """
    return cap_weight(objective, inputs, ratio, *beyond_tv(objective, inputs))


def dppo_kl(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-sg(min(r, cap)) A log pi, without tokens whose binary KL passed epsilon (up: epsilon_high). verl `dppo_kl`."""
    return cap_weight(objective, inputs, ratio, *beyond_kl(objective, inputs))


def dppo_ratio(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-a r A + b (log r)^2; tokens that `dppo_tv` drops lose the first term, so that the second pulls them back.

    prime-rl's default until August 2026. Options: `advantage_weight` a, `drift_weight` b.
    """
    return pull_back(objective, inputs, log_ratio_BT, ratio, *beyond_tv(objective, inputs))


def ipo(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """As `dppo_ratio`, but drop tokens for either sign of A whose probability moved beyond epsilon (up: epsilon_high).

    prime-rl `ipo` until September 2026.
    """
    return pull_back(objective, inputs, log_ratio_BT, ratio, *beyond_change(objective, inputs))


def ipo_capped(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-a min(r, cap) A of the tokens that `ipo` keeps, 0 of the others; the cap leaves the gradient cap A log pi.

    prime-rl's default since its `ipo` lost the pull back (September 2026). Options: `advantage_weight` a, `cap`.
    """
    low, high = beyond_change(objective, inputs)
    kept, options = ~(low | high), objective.options
    log_r = log_ratio_BT if objective.importance_sampling_level == "token" else ratio.log()
    # 0 before the exponential: a dropped ratio may be infinite, and 0 times it is NaN.
    capped_r = capped_ratio(torch.where(kept, log_r, 0.0), options["cap"])
    loss = torch.where(kept, -options["advantage_weight"] * inputs.advantages * capped_r, 0.0)
    capped = kept & (ratio.detach() > options["cap"])
    masks = {"out_of_range": ~kept, "active_low": low, "active_high": high, "capped": capped}
    return SurrogateParts.of(objective, ratio, loss, **masks)


def capped_ratio(log_ratio: Tensor, cap: float) -> Tensor:
    """Return min(exp(log ratio), cap) whose gradient is itself times that of the log ratio, beyond the cap too."""
    fixed = log_ratio.detach()
    return (fixed.clamp(max=math.log(cap)) + (log_ratio - fixed)).exp()


def icepop(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """-r A for ratios in [1-epsilon, 1+epsilon_high], ends included, 0 outside for either sign of A.

    IcePop (2510.18855), INTELLECT-3 (2512.16144, eq. 1); prime-rl `icepop`.
    """
    low, high = ratio.detach() < objective.low, ratio.detach() > objective.high
    kept = ~(low | high)
    kept_r = torch.where(kept, ratio, 0.0)  # an infinite ratio outside is no NaN
    return SurrogateParts.of(objective, ratio, -kept_r * inputs.advantages, active_low=low, active_high=high)


def beyond_change(objective: Objective, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return masks, for either sign of A: the probability fell by more than epsilon; rose by more than epsilon_high."""
    moved_BT = probability_change(inputs)
    return moved_BT < -objective.epsilon, moved_BT > objective.epsilon_above


def beyond_tv(objective: Objective, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return masks: probability fell by more than epsilon with A <= 0; rose by more than epsilon_high with A > 0."""
    moved_BT, up = probability_change(inputs), inputs.advantages > 0
    return (moved_BT < -objective.epsilon) & ~up, (moved_BT > objective.epsilon_above) & up


def probability_change(inputs: LossInputs) -> Tensor:
    """Return how much likelier each token became, (B, T); takes no gradient."""
    return inputs.log_probs_BT.detach().exp() - inputs.old_log_probs_BT.exp()


def beyond_kl(objective: Objective, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return such masks by the binary KL instead, for tokens whose probability moved in the direction that A rewards.

    A KL that is NaN, because rounding made a probability more than 1, is beyond every bound.
    """
    kl_BT, moved_BT = binary_kl(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT), probability_change(inputs)
    up = inputs.advantages > 0
    low = ~(kl_BT <= objective.epsilon) & (moved_BT < 0) & ~up
    return low, ~(kl_BT <= objective.epsilon_above) & (moved_BT > 0) & up


def binary_kl(new_BT: Tensor, old_BT: Tensor) -> Tensor:
    """Return KL((p_old, 1 - p_old) || (p, 1 - p)) of each token, (B, T), from its log-probs."""
    p_BT, p_old_BT = new_BT.exp(), old_BT.exp()
    rest_BT = ((1 - p_old_BT + PROBABILITY_FLOOR) / (1 - p_BT + PROBABILITY_FLOOR)).log()
    return p_old_BT * (old_BT - new_BT) + (1 - p_old_BT) * rest_BT


def cap_weight(objective: Objective, inputs: LossInputs, ratio: Tensor, low: Tensor, high: Tensor) -> SurrogateParts:
    """Return the loss of `dppo_tv` without the tokens of two masks."""
    r, cap, beyond = ratio.detach(), objective.options["cap"], low | high
    weight, capped = torch.where(beyond, 0.0, r.clamp(max=cap)), ~beyond & (r > cap)
    masks = {"out_of_range": beyond, "active_low": low, "active_high": high, "capped": capped}
    return weighted_gradient(objective, inputs, ratio, weight, **masks)


def pull_back(
    objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor, low: Tensor, high: Tensor
) -> SurrogateParts:
    """Return the loss of `dppo_ratio`; the tokens of two masks lose its first term."""
    options = objective.options
    surrogate = torch.where(low | high, 0.0, options["advantage_weight"] * inputs.advantages * ratio)
    loss = options["drift_weight"] * log_ratio_BT.square() - surrogate
    return SurrogateParts.of(objective, ratio, loss, out_of_range=low | high, active_low=low, active_high=high)
