"""Importance ratios: how far the policy has moved from the one at the start of the update.

The function of a level maps the log ratio, 0 at padding, and the mask to a ratio of shape (B, T) or (B, 1). Masks and
importance corrections stand below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.settings.objective import SamplerCorrection


def masked_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return log pi_new - log pi_old per token, (B, T); 0 at padding, even if NaN or infinity is stored there."""
    return torch.where(mask_BT, log_probs_BT - old_log_probs_BT, 0.0)


def row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over each sequence's tokens, 0 for an empty one, (B, 1)."""
    return (values_BT * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)


def token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """exp(log ratio) of each token, shape (B, T). PPO, GRPO."""
    return log_ratio_BT.exp()


def sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Geometric mean of a sequence's token ratios, 1 for an empty one, shape (B, 1). GSPO (2507.18071, eq. 7)."""
    lengths_B1 = mask_BT.sum(1, keepdim=True).clamp(min=1)
    return (log_ratio_BT.sum(1, keepdim=True) / lengths_B1).exp()


def sequence_token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sequence's ratio as the value, each token's own log-probability as the gradient, shape (B, T).

    GSPO-token (2507.18071, eq. 14); the same function as `sequence` where a sequence has one advantage.
    """
    own_BT = log_ratio_BT - log_ratio_BT.detach()  # 0, with the token's gradient
    return (own_BT + row_mean(log_ratio_BT, mask_BT).detach()).exp()


def segment_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Geometric mean over each contiguous run of unmasked tokens, 1 at padding, shape (B, T). ROLL's agentic worker."""
    begins_BT = mask_BT & ~mask_BT.roll(1, 1)
    begins_BT[:, 0] = mask_BT[:, 0]
    segment_BT = begins_BT.long().cumsum(1) * mask_BT  # 0 is padding
    empty_BS = log_ratio_BT.new_zeros(len(mask_BT), int(segment_BT.max()) + 1)
    sums_BS = empty_BS.scatter_add(1, segment_BT, log_ratio_BT)
    counts_BS = empty_BS.scatter_add(1, segment_BT, mask_BT.to(log_ratio_BT.dtype)).clamp(min=1)
    return torch.where(mask_BT, (sums_BS / counts_BS).gather(1, segment_BT), 0.0).exp()


# Masks and importance corrections are weights on a token's or sequence's loss after the surrogate. They touch neither
# the denominators nor the KL.


def sampler_weight(rule: SamplerCorrection, old_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return exp(old - sampler), how much likelier the trainer finds the sampled tokens, within the rule's bounds."""
    log_ratio_BT = masked_log_ratio(old_BT, sampler_BT, mask_BT)
    return bounded_weight(rule, at_level(rule.level, log_ratio_BT, mask_BT).exp())


def at_level(level: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return log ratios of tokens as they are, (B, T), or their sum (`sequence`) or mean (`geometric`), (B, 1)."""
    if level == "sequence":
        return log_ratio_BT.sum(1, keepdim=True)
    return row_mean(log_ratio_BT, mask_BT) if level == "geometric" else log_ratio_BT


def bounded_weight(rule: SamplerCorrection, weight: Tensor) -> Tensor:
    """Bound the weight: `truncate` clamps to [low, high] (TIS), `mask` puts 0 outside (IcePop; TRL `sequence_mask`)."""
    if rule.mode == "truncate":
        return weight.clamp(rule.low, rule.high)
    return torch.where((weight >= rule.low) & (weight <= rule.high), weight, 0.0)


def interpolated_log_probs(sampler_BT: Tensor, current_BT: Tensor, age: int) -> Tensor:
    """Return (1 - a) log pi_sampler + a log pi_current with a = (age - 1) / age, the sampler's own if age < 2; (B, T).

    It stands for the policy one version before the current one, without a forward pass of it: A-3PO (2512.06547), AReaL
    `prox_logp_method=loglinear`, where `age` is the versions between the sampler and the current policy. With it the
    ratio is (current / sampler)^(1 / age), at every optimiser step. Takes no gradient.
    """
    share = (age - 1) / age if age > 1 else 0.0
    return sampler_BT + share * (current_BT.detach() - sampler_BT)


def off_policy_keep(
    advantages: Tensor, behaviour_log_probs_BT: Tensor, log_probs_BT: Tensor, mask_BT: Tensor, threshold: float
) -> Tensor:
    """Return 1 if A >= 0 or the sequence's mean log(behaviour / policy) <= threshold, else 0; shaped as the advantages.

    DeepSeek-V3.2's off-policy sequence mask; TRL `off_policy_mask_threshold`, slime `use_opsm`.
    """
    drift_B1 = row_mean(masked_log_ratio(behaviour_log_probs_BT, log_probs_BT.detach(), mask_BT), mask_BT)
    return ((advantages >= 0) | (drift_B1 <= threshold)).to(log_probs_BT.dtype)


def top_entropy_keep(entropy_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """Return 1 for the `share` of the tokens with the highest entropy, else 0; (B, T).

    'Beyond the 80/20 rule' (2506.01939); TRL `top_entropy_quantile`: entropy at or above its (1 - share)-quantile over
    the unmasked tokens.
    """
    entropy_N = entropy_BT.detach()[mask_BT].float()
    if not len(entropy_N):
        return torch.zeros_like(entropy_BT)
    bound = torch.quantile(entropy_N, 1 - share)
    return ((entropy_BT.detach().float() >= bound) & mask_BT).to(entropy_BT.dtype)
