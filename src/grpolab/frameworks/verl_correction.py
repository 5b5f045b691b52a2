"""verl 1dda039b, `verl/trainer/ppo/rollout_corr_helper.py`: sampler weights, rejection, their metrics and replays.

A log ratio is log(trainer / sampler), within 20 of 0 before an exponential. An empty sequence has the value 0, unless
the function says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpolab.frameworks.framework import Inputs, Options, Replayed
from grpolab.frameworks.objectives import make_correction
from grpolab.frameworks.verl_options import BOUND, sampler_rule
from grpolab.grpo.kl import k1, k2, k3
from grpolab.grpo.ratios import masked_log_ratio, row_mean, sampler_weight
from grpolab.settings.objective import SamplerCorrection

DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3}
LEVELS = ("token", "seq_sum", "seq_mean", "seq_max")


def compute_weights(rule: SamplerCorrection, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the sampler weight of each token, 0 at padding, (B, T)."""
    return sampler_weight(rule, log_ratio_BT, torch.zeros_like(log_ratio_BT), mask_BT) * mask_BT


def mismatch_metrics(
    rule: SamplerCorrection | None, log_probs_BT: Tensor, sampler_log_probs_BT: Tensor, mask_BT: Tensor
) -> dict[str, float]:
    """Return `rollout_corr/*`: KL, perplexities and chi-squared of trainer and sampler, and the weights of a rule.

    Raises ValueError if there is no token.
    """
    refuse_no_token(mask_BT)
    log_ratio_BT = masked_log_ratio(log_probs_BT, sampler_log_probs_BT, mask_BT)
    known = (torch.where(mask_BT, values_BT, 0.0) for values_BT in (log_probs_BT, sampler_log_probs_BT))
    trainer_B, sampler_B = (-row_mean(values_BT, mask_BT)[:, 0] for values_BT in known)
    gap_B, token_ratio_BT = trainer_B - sampler_B, log_ratio_BT.clamp(-BOUND, BOUND).exp()
    sequence_ratio_B = log_ratio_BT.sum(1).clamp(-BOUND, BOUND).exp()
    metrics = {
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
    numbers = {name: float(value) for name, value in metrics.items()}
    if rule is not None:
        numbers |= weight_metrics(rule, log_ratio_BT, mask_BT)
    return {f"rollout_corr/{name}": value for name, value in numbers.items()}


def weight_metrics(rule: SamplerCorrection, log_ratio_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Return `compute_is_metrics`. A rule that truncates has no lower bound; these metrics use 1 / the upper one.

    Raises ValueError if there is no token.
    """
    refuse_no_token(mask_BT)
    free = make_correction(rule.level, "truncate", math.exp(-BOUND), math.exp(BOUND))
    weight_BT, raw_BT = (compute_weights(each, log_ratio_BT, mask_BT) for each in (rule, free))
    high, low = rule.high, rule.low if rule.mode == "mask" else 1 / rule.high
    sequence_B, raw_sequence_B = row_mean(weight_BT, mask_BT)[:, 0], row_mean(raw_BT, mask_BT)[:, 0]
    inside_BT = weight_BT.clamp(0, high)
    metrics = {
        "mean": token_mean(weight_BT, mask_BT),
        "std": bounded_std(inside_BT, mask_BT),
        "eff_sample_size": 1 / token_mean((inside_BT / (token_mean(inside_BT, mask_BT) + 1e-8)).square(), mask_BT),
        **sequence_statistics(sequence_B, (sequence_B - 1).abs()),
        "seq_fraction_high": share(raw_sequence_B > high),
        "seq_fraction_low": share(raw_sequence_B < low),
    }
    if rule.mode == "mask":
        metrics["oob_ratio"] = token_mean((raw_BT < low) | (raw_BT > high), mask_BT)
    if rule.level == "sequence":  # the logarithms of weight and bounds are compared, the latter in float32
        log_B = log_ratio_BT.sum(1)
        log_high, log_low = (torch.tensor(bound, dtype=torch.float).log() for bound in (high, low))
        metrics |= {"max": log_B.max().clamp(max=BOUND).exp(), "min": log_B.min().exp()}
        metrics |= {"ratio_fraction_high": share(log_B > log_high), "ratio_fraction_low": share(log_B < log_low)}
    else:
        too_high, too_low = (token_mean(outside_BT, mask_BT) for outside_BT in (raw_BT > high, raw_BT < low))
        metrics |= {"max": weight_BT[mask_BT].max(), "min": weight_BT[mask_BT].min()}
        metrics |= {"ratio_fraction_high": too_high, "ratio_fraction_low": too_low}
    return {f"rollout_is_{name}": float(value) for name, value in metrics.items()}


def reject(options: str, thresholds: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the tokens that pass every option, (B, T) bool, and `compute_rs_metrics`.

    Options are such as `token_k1,seq_mean_k3`, with one threshold for all or one for each. A threshold of k1, as
    `0.5_1.25`, bounds sampler / trainer, the reciprocal of the ratio; any other is the largest divergence that passes.
    Raises ValueError if there is no token.
    """
    refuse_no_token(mask_BT)
    names = list(dict.fromkeys(name.strip() for name in options.split(",")))
    bounds = [bound.strip() for bound in str(thresholds).split(",")]
    kept_BT, nonempty_B = mask_BT, mask_BT.any(1)
    metrics: dict[str, float] = {}
    for name, bound in zip(names, bounds * len(names) if len(bounds) == 1 else bounds, strict=True):
        values_BT, low, high = divergence_and_bounds(name, bound, log_ratio_BT, mask_BT)
        passes_BT = (values_BT <= high) & (values_BT >= low)
        kept_BT = kept_BT & passes_BT
        by_token = name.startswith("token")
        sequence_N = (row_mean(values_BT, mask_BT) if by_token else values_BT)[nonempty_B, 0]
        unit_N = values_BT[mask_BT] if by_token else sequence_N
        counted = {
            "mean": token_mean(values_BT, mask_BT),
            "max": unit_N.max(),
            "min": unit_N.min(),
            "fraction_high": share(unit_N > high),
            "fraction_low": share(unit_N < low),
            "std": bounded_std(values_BT.clamp(0.0 if low == -math.inf else low, high), mask_BT),
            **sequence_statistics(sequence_N, sequence_N.abs()),
            "seq_fraction_high": share(sequence_N > high),
            "seq_fraction_low": share(sequence_N < low),
            "masked_fraction": token_mean(~passes_BT, mask_BT),
            "seq_masked_fraction": share((mask_BT & ~passes_BT).any(1)[nonempty_B]),
        }
        metrics |= {f"rollout_rs_{name}_{metric}": float(value) for metric, value in counted.items()}
    metrics["rollout_rs_masked_fraction"] = float(token_mean(~kept_BT, mask_BT))
    metrics["rollout_rs_seq_masked_fraction"] = float(share((mask_BT & ~kept_BT).any(1)))
    return kept_BT, metrics


def divergence_and_bounds(
    option: str, threshold: str, log_ratio_BT: Tensor, mask_BT: Tensor
) -> tuple[Tensor, float, float]:
    """Return an option's divergence, (B, T), and its bounds; only k1, a log ratio, has a lower one."""
    level, _, divergence = option.rpartition("_")
    if level not in LEVELS or divergence not in DIVERGENCES or option == "seq_max_k1":
        raise ValueError(f"verl has no rollout_rs={option}")
    values_BT = DIVERGENCES[divergence](log_ratio_BT.clamp(-BOUND, BOUND))
    rows = {
        "seq_sum": torch.where(mask_BT, values_BT, 0.0).sum(1, keepdim=True),
        "seq_mean": row_mean(values_BT, mask_BT),
        "seq_max": row_max(values_BT, mask_BT),
    }
    values_BT = rows.get(level, values_BT).expand_as(values_BT)
    if divergence != "k1":
        return values_BT, -math.inf, float(threshold)
    low, _, high = threshold.rpartition("_")
    return values_BT, math.log(float(low) if low else 1 / float(high)), math.log(float(high))


def row_max(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return each sequence's largest value, (B, 1)."""
    largest_B1 = values_BT.masked_fill(~mask_BT, -math.inf).amax(1, keepdim=True)
    return torch.where(largest_B1 == -math.inf, 0.0, largest_B1)


def sequence_statistics(values_N: Tensor, deviation_N: Tensor) -> dict[str, Tensor]:
    """Return statistics of one number per sequence; the std has Bessel's correction, 0 for a single value."""
    return {
        "seq_mean": values_N.mean(),
        "seq_std": values_N.std() if len(values_N) > 1 else values_N.new_zeros(()),
        "seq_max": values_N.max(),
        "seq_min": values_N.min(),
        "seq_max_deviation": deviation_N.max(),
    }


def token_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT.double(), 0.0).sum() / mask_BT.sum().clamp(min=1)


def bounded_std(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return sqrt(E[x^2] - E[x]^2) over the tokens, 0 for a single one."""
    if mask_BT.sum() < 2:
        return values_BT.new_zeros(())
    variance = token_mean(values_BT.square(), mask_BT) - token_mean(values_BT, mask_BT).square()
    return variance.clamp(min=0).sqrt()


def share(condition: Tensor) -> Tensor:
    return condition.double().mean()


def refuse_no_token(mask_BT: Tensor) -> None:
    if not mask_BT.any():
        raise ValueError("the mask must have at least one token")


def refuse_zero_weights(rule: SamplerCorrection | None, log_ratio_BT: Tensor, mask_BT: Tensor) -> None:
    """Raise ValueError if a rule leaves no token a weight: verl's effective sample size divides by their sum."""
    if rule is not None and not compute_weights(rule, log_ratio_BT, mask_BT).any():
        raise ValueError("no token has a sampler weight")


def replay_weights(options: Options, inputs: Inputs) -> Replayed:
    """Replay `compute_rollout_correction_weights`.

    `rollout_is_batch_normalize` divides by the mean weight of a token, or of a sequence that is not empty.
    """
    rule, mask_BT = sampler_rule(options), inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    refuse_zero_weights(rule, log_ratio_BT, mask_BT)
    assert rule is not None
    weight_BT, metrics = compute_weights(rule, log_ratio_BT, mask_BT), weight_metrics(rule, log_ratio_BT, mask_BT)
    if options["rollout_is_batch_normalize"]:
        sequences_N = row_mean(weight_BT, mask_BT)[mask_BT.any(1)]
        mean = float(token_mean(weight_BT, mask_BT) if rule.level == "token" else sequences_N.mean())
        metrics["rollout_is_batch_norm_factor"] = mean if mean > 1e-8 else 1.0
        weight_BT = weight_BT / metrics["rollout_is_batch_norm_factor"]
    return Replayed(metrics=metrics, tensors={"weights": weight_BT})


def replay_rejection(options: Options, inputs: Inputs) -> Replayed:
    """Replay `compute_rollout_rejection_mask`."""
    mask_BT = inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    kept_BT, metrics = reject(options["rollout_rs"], options["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    return Replayed(metrics=metrics, tensors={"modified_mask": kept_BT.double()})
