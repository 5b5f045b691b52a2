"""verl 1dda039b, `verl/trainer/ppo/rollout_corr_helper.py`: which tokens its rejection leaves in a loss.

The log ratio is log(trainer / sampler), and bounded by 20 wherever it is exponentiated.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpolab.learn.dialects.verl_rollout import BOUND, bounded_std, share, some_token, std, token_mean
from grpolab.learn.kl import k1, k2, k3
from grpolab.learn.objective import SamplerCorrection
from grpolab.learn.ratios import row_mean

DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3}
LEVELS = ("token", "seq_sum", "seq_mean", "seq_max")


def batch_factor(rule: SamplerCorrection, weight_BT: Tensor, mask_BT: Tensor) -> float:
    """What `rollout_is_batch_normalize` divides by: the mean weight of a token, or of a sequence that is not empty."""
    if rule.level == "token":
        mean = float(token_mean(weight_BT, mask_BT))
    else:
        mean = float(row_mean(weight_BT, mask_BT)[mask_BT.any(1)].mean())
    return mean if mean > 1e-8 else 1.0


def rejection(options: str, thresholds: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
    """`compute_rollout_rejection_mask`: the tokens that pass every option, (B, T) bool, and the metrics.

    `token_k1,seq_mean_k3` with one threshold for all or one for each. That of k1, `0.5_1.25`, bounds sampler / trainer,
    the reciprocal of the ratio; the others are an upper bound of the divergence. Raises ValueError where there is no
    token.
    """
    some_token(mask_BT)
    names = list(dict.fromkeys(name.strip() for name in options.split(",")))
    bounds = [bound.strip() for bound in str(thresholds).split(",")]
    bounds = bounds * len(names) if len(bounds) == 1 else bounds
    kept_BT = mask_BT
    found: dict[str, float] = {}
    for name, bound in zip(names, bounds, strict=True):
        passes_BT, of_option = _passes(name, bound, log_ratio_BT, mask_BT)
        kept_BT = kept_BT & passes_BT
        found |= of_option
    found["rollout_rs_masked_fraction"] = float(token_mean(~kept_BT, mask_BT))
    found["rollout_rs_seq_masked_fraction"] = float(share((mask_BT & ~kept_BT).any(1)))
    return kept_BT, found


def _passes(option: str, threshold: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
    level, _, divergence = option.rpartition("_")
    if level not in LEVELS or divergence not in DIVERGENCES or option == "seq_max_k1":
        raise ValueError(f"verl has no rollout_rs={option}")
    high, low = _bounds(divergence, threshold)
    values_BT = DIVERGENCES[divergence](log_ratio_BT.clamp(-BOUND, BOUND))
    if level != "token":
        values_BT = _of_sequence(level, values_BT, mask_BT).expand_as(values_BT)
    passes_BT = (values_BT <= high) & (values_BT >= low)
    return passes_BT, _rejection_metrics(option, values_BT, passes_BT, mask_BT, high, low)


def _bounds(divergence: str, threshold: str) -> tuple[float, float]:
    """Upper and lower bound of a divergence; only k1, a log ratio, has a lower one."""
    low, _, high = threshold.rpartition("_")
    if divergence != "k1":
        return float(threshold), -math.inf
    return math.log(float(high)), math.log(float(low) if low else 1 / float(high))


def _of_sequence(level: str, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    if level == "seq_sum":
        return torch.where(mask_BT, values_BT, 0.0).sum(1, keepdim=True)
    if level == "seq_mean":
        return row_mean(values_BT, mask_BT)
    largest_B1 = values_BT.masked_fill(~mask_BT, -math.inf).amax(1, keepdim=True)
    return torch.where(largest_B1 == -math.inf, 0.0, largest_B1)


def _rejection_metrics(
    option: str, values_BT: Tensor, passes_BT: Tensor, mask_BT: Tensor, high: float, low: float
) -> dict[str, float]:
    """`compute_rs_metrics`: of the tokens and of the sequences that are not empty."""
    nonempty_B = mask_BT.any(1)
    by_token = option.startswith("token")
    sequence_N = (row_mean(values_BT, mask_BT) if by_token else values_BT)[nonempty_B, 0]
    unit = values_BT[mask_BT] if by_token else sequence_N
    bounded_BT = values_BT.clamp(0.0 if low == -math.inf else low, high)
    found = {
        "mean": token_mean(values_BT, mask_BT),
        "max": unit.max(),
        "min": unit.min(),
        "fraction_high": share(unit > high),
        "fraction_low": share(unit < low),
        "std": bounded_std(bounded_BT, mask_BT),
        "seq_mean": sequence_N.mean(),
        "seq_std": std(sequence_N),
        "seq_max": sequence_N.max(),
        "seq_min": sequence_N.min(),
        "seq_max_deviation": sequence_N.abs().max(),
        "seq_fraction_high": share(sequence_N > high),
        "seq_fraction_low": share(sequence_N < low),
        "masked_fraction": token_mean(~passes_BT, mask_BT),
        "seq_masked_fraction": share((mask_BT & ~passes_BT).any(1)[nonempty_B]),
    }
    return {f"rollout_rs_{option}_{name}": float(value) for name, value in found.items()}
