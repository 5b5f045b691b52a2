"""What goes into a kernel and what comes out. (B, ...) is (B, T), or (B, 1) with one value per sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from grpolab.grpo.ratios import row_mean


@dataclass(frozen=True)
class KernelInputs:
    """Ratio, log-probabilities and advantages of a micro-batch, and the clip range. Padding holds finite numbers."""

    ratio: Tensor  # (B, T) or (B, 1), with gradient
    log_ratio_BT: Tensor  # with gradient, 0 at padding
    log_probs_BT: Tensor  # with gradient
    old_log_probs_BT: Tensor
    advantages: Tensor  # (B, 1), or (B, T) where the tokens of a sequence differ
    mask_BT: Tensor  # bool
    epsilon: float
    epsilon_high: float  # inf: no upper clip
    delta: float | None = None  # outer cap of the ratio, for both signs of the advantage, before the clip
    dual_clip: float | None = None  # outer cap where A < 0, after the clip
    loss_form: Literal["min_positive", "max_negative"] = "min_positive"
    options: Mapping[str, float] = field(default_factory=dict)  # the kernel's own numbers
    rewards_B1: Tensor | None = None
    noise_BT: Tensor | None = None  # uniform numbers, for kernels that draw tokens

    @property
    def low(self) -> float:
        """Lower end of the clip range."""
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """Upper end of the clip range."""
        return 1 + self.epsilon_high


def choose(condition: Tensor, where_true: float, where_false: float, like: Tensor) -> Tensor:
    """One of two numbers by a condition, in the precision of `like` (torch.where of two numbers would be float32)."""
    return torch.where(condition, like.new_tensor(where_true), like.new_tensor(where_false))


@dataclass(frozen=True)
class KernelParts:
    """The loss and what acted on it; diagnostics count the masks, kernels never do. Masks are bool and (B, ...)."""

    loss: Tensor  # (B, ...)
    out_of_range: Tensor  # the ratio left the clip range, whether that acted or not
    active_low: Tensor  # too low and A < 0: gradient zero
    active_high: Tensor  # too high and A > 0: gradient zero
    outer: Tensor  # A < 0 and the outer cap (delta, dual clip) cut the ratio
    capped: Tensor  # the weight was cut but the gradient kept (CISPO)
    dropped: Tensor  # left out of the loss for another reason than the ratio (covariance)

    @classmethod
    def of(cls, inputs: KernelInputs, loss: Tensor, **masks: Tensor) -> KernelParts:
        """The parts with every mask that is not named empty; out of range is by the ratio where it is not named."""
        if "out_of_range" not in masks:
            ratio = inputs.ratio.detach()
            masks["out_of_range"] = (ratio < inputs.low) | (ratio > inputs.high)
        nothing = torch.zeros_like(masks["out_of_range"])
        return cls(loss, **{name: masks.get(name, nothing) for name in cls.__annotations__ if name != "loss"})


# ----------------------------------------------------------------------------------------------------------------------
# PPO's clipped surrogate in both written forms, and the surrogate without a clip.


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


# ----------------------------------------------------------------------------------------------------------------------
# Policy gradients with a weight that takes no gradient: -sg(weight) A log pi. No token is clipped to silence.


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


# ----------------------------------------------------------------------------------------------------------------------
# Kernels that bend the surrogate instead of cutting it, and the one that clips in log space.


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


# ----------------------------------------------------------------------------------------------------------------------
# Kernels that act on the tokens whose log-probability and advantage covary most (2505.22617): they drive entropy down.
#
# The covariance is over the tokens of the micro-batch, so these two need the minibatch in one piece.


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


# ----------------------------------------------------------------------------------------------------------------------
# Trust regions in probability instead of in the ratio: DPPO, which drops tokens whose probability moved too far.


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
