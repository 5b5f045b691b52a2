"""verl 1dda039b, `verl/trainer/ppo/rollout_corr_helper.py`: sampler weights and their metrics.

The log ratio is log(trainer / sampler) throughout, and bounded by 20 wherever it is exponentiated. An empty sequence
counts as one with the value 0, except where the function says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpolab.learn.corrections import sampler_weight
from grpolab.learn.kl import k1, k3
from grpolab.learn.objective import SamplerCorrection
from grpolab.learn.ratios import masked_log_ratio, row_mean

BOUND = 20.0


def correction_metrics(
    rule: SamplerCorrection | None, log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, mask_BT: Tensor
) -> dict[str, float]:
    """`rollout_corr/*`: how far trainer and sampler are apart, and the weights where there are any.

    Raises ValueError where there is no token.
    """
    some_token(mask_BT)
    found = apart(log_probs_BT, sampler_log_probs_BT, mask_BT)
    if rule is not None:
        log_ratio_BT = masked_log_ratio(log_probs_BT, sampler_log_probs_BT, mask_BT)
        found |= weight_metrics(rule, log_ratio_BT, mask_BT)
    return {f"rollout_corr/{name}": value for name, value in found.items()}


def apart(log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """`compute_offpolicy_metrics`: KL, perplexities per sequence, chi-squared."""
    log_ratio_BT = masked_log_ratio(log_probs_BT, sampler_log_probs_BT, mask_BT)
    trainer_B, sampler_B = (
        -row_mean(torch.where(mask_BT, values_BT, 0.0), mask_BT)[:, 0]
        for values_BT in (log_probs_BT, sampler_log_probs_BT)
    )
    gap_B = trainer_B - sampler_B
    token_ratio_BT = log_ratio_BT.clamp(-BOUND, BOUND).exp()
    sequence_ratio_B = log_ratio_BT.sum(1).clamp(-BOUND, BOUND).exp()
    found = {
        "training_ppl": trainer_B.exp().mean(),
        "training_log_ppl": trainer_B.mean(),
        "rollout_ppl": sampler_B.exp().mean(),
        "rollout_log_ppl": sampler_B.mean(),
        "kl": token_mean(k1(log_ratio_BT), mask_BT),
        "k3_kl": token_mean(k3(log_ratio_BT), mask_BT),
        "log_ppl_diff": gap_B.mean(),
        "log_ppl_abs_diff": gap_B.abs().mean(),
        "log_ppl_diff_max": gap_B.max(),
        "log_ppl_diff_min": gap_B.min(),
        "ppl_ratio": gap_B.exp().mean(),
        "chi2_token": token_mean(token_ratio_BT.square(), mask_BT) - 1,
        "chi2_seq": sequence_ratio_B.square().mean() - 1,
    }
    return {name: float(value) for name, value in found.items()}


def weights(rule: SamplerCorrection, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sampler weight of each token, 0 at padding, shape (B, T)."""
    nothing_BT = torch.zeros_like(log_ratio_BT)
    weight = sampler_weight(log_ratio_BT, nothing_BT, mask_BT, rule.level, rule.mode, rule.low, rule.high)
    return weight * mask_BT


def weight_metrics(rule: SamplerCorrection, log_ratio_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """`compute_is_metrics`. Without IcePop's lower bound its metrics count from 1 / the upper one.

    Raises ValueError where there is no token.
    """
    some_token(mask_BT)
    weight_BT = weights(rule, log_ratio_BT, mask_BT)
    free = SamplerCorrection(rule.level, "truncate", math.exp(-BOUND), math.exp(BOUND))
    raw_BT = weights(free, log_ratio_BT, mask_BT)
    high, low = rule.high, rule.low if rule.mode == "mask" else 1 / rule.high
    sequence_B, raw_sequence_B = row_mean(weight_BT, mask_BT)[:, 0], row_mean(raw_BT, mask_BT)[:, 0]
    inside_BT = weight_BT.clamp(0, high)
    found = {
        "mean": token_mean(weight_BT, mask_BT),
        "std": bounded_std(inside_BT, mask_BT),
        "eff_sample_size": 1 / token_mean((inside_BT / (token_mean(inside_BT, mask_BT) + 1e-8)).square(), mask_BT),
        "seq_mean": sequence_B.mean(),
        "seq_std": std(sequence_B),
        "seq_max": sequence_B.max(),
        "seq_min": sequence_B.min(),
        "seq_max_deviation": (sequence_B - 1).abs().max(),
        "seq_fraction_high": share(raw_sequence_B > high),
        "seq_fraction_low": share(raw_sequence_B < low),
    }
    if rule.mode == "mask":
        found["oob_ratio"] = token_mean((raw_BT < low) | (raw_BT > high), mask_BT)
    if rule.level == "sequence":  # by the logarithm of the weight, whose bounds are float32
        log_B = log_ratio_BT.sum(1)
        log_high, log_low = (torch.tensor(bound, dtype=torch.float).log() for bound in (high, low))
        extremes = {"max": log_B.max().clamp(max=BOUND).exp(), "min": log_B.min().exp()}
        found |= {**extremes, "ratio_fraction_high": share(log_B > log_high)}
        found["ratio_fraction_low"] = share(log_B < log_low)
    else:
        found |= {"max": weight_BT[mask_BT].max(), "min": weight_BT[mask_BT].min()}
        found["ratio_fraction_high"] = token_mean(raw_BT > high, mask_BT)
        found["ratio_fraction_low"] = token_mean(raw_BT < low, mask_BT)
    return {f"rollout_is_{name}": float(value) for name, value in found.items()}


def some_token(mask_BT: Tensor) -> None:
    if not mask_BT.any():
        raise ValueError("the mask must have at least one token")


def token_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the tokens."""
    return torch.where(mask_BT, values_BT.double(), 0.0).sum() / mask_BT.sum().clamp(min=1)


def bounded_std(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """sqrt(E[x^2] - E[x]^2) over the tokens, 0 for a single one."""
    if mask_BT.sum() < 2:
        return values_BT.new_zeros(())
    variance = token_mean(values_BT.square(), mask_BT) - token_mean(values_BT, mask_BT).square()
    return variance.clamp(min=0).sqrt()


def std(values_N: Tensor) -> Tensor:
    """With Bessel's correction, 0 for a single value."""
    return values_N.std() if len(values_N) > 1 else values_N.new_zeros(())


def share(condition: Tensor) -> Tensor:
    """How much of it is true."""
    return condition.double().mean()
