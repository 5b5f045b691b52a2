"""verl 1dda039b, `verl/trainer/ppo/rollout_corr_helper.py`: sampler weights and their metrics.

The log ratio is log(trainer / sampler) throughout, and bounded by 20 wherever it is exponentiated. An empty sequence
counts as one with the value 0, except where the function says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import base
from grpolab.frameworks.base import Dialect
from grpolab.frameworks.defaults import VERL
from grpolab.grpo import loss as core
from grpolab.grpo.kl import k1, k3
from grpolab.grpo.loss import Loss, LossInputs, LossRecipe, Objective, SamplerCorrection
from grpolab.grpo.ratios import masked_log_ratio, row_mean, sampler_weight
from grpolab.registry import AGGREGATIONS, resolve

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


# ----------------------------------------------------------------------------------------------------------------------
# verl 1dda039b (2026-08-22, v0.8.0+337): `verl/trainer/ppo/core_algos.py` and `verl/workers/utils/losses.py`.
#
# Its own way: gspo, sapo and geo_mean average their loss by sequences whatever `loss_agg_mode` says, which KL and
# entropy follow; the ratio of gspo is at most e^10; geo_mean takes the geometric mean of a sequence's sampler weights;
# padding is masked only where it is added up; the loss of no token at all is NaN.


KERNEL = {
    "vanilla": "clipped",
    "gspo": "clipped",
    "sapo": "sapo",
    "cispo": "cispo",
    "geo_mean": "gmpo",
    "gpg": "policy_gradient",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "dro": "dro",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}
BYPASS = {"ppo_clip": "vanilla", "reinforce": "gpg"}  # bypass_mode's `loss_type`
CLAMPED = {"vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"}
# Sequences are counted as in training: all of the minibatch, empty ones too (`global_batch_size`).
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "token_sum_constant",
}
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
SAFETY_BOUND = 20.0  # of log ratios, and of the logarithm of a sampler weight
TINY = 1e-10  # added to the weights of geo_mean before their logarithm


def objective(options: Mapping[str, Any]) -> Objective:
    """The point on our axes of verl's actor options. Raises ValueError for what verl does not have."""
    o = VERL | dict(options)
    policy, correction = ({**VERL[name], **(o[name] or {})} for name in ("policy_loss", "rollout_correction"))
    mode, weighted = policy["loss_mode"], bool(correction["rollout_is"])
    try:
        if mode == "bypass_mode":  # its ratio to the sampler takes the place of the weight
            mode, weighted = BYPASS[correction["loss_type"]], weighted and correction["loss_type"] == "reinforce"
        return Objective(
            importance_sampling_level="sequence_token" if mode == "gspo" else "token",
            log_ratio_clamp=SAFETY_BOUND if mode in CLAMPED else None,
            kernel=KERNEL[mode],
            kernel_options=_kernel_options(mode, o, policy),
            epsilon=o["clip_ratio"] if o["clip_ratio_low"] is None else o["clip_ratio_low"],
            epsilon_high=o["clip_ratio"] if o["clip_ratio_high"] is None else o["clip_ratio_high"],
            delta=None,
            dual_clip=o["clip_ratio_c"] if mode == "vanilla" else None,
            loss_form="max_negative",
            aggregation=AGGREGATION[o["loss_agg_mode"]],
            **_kl(o["use_kl_loss"], o["kl_loss_coef"], o["kl_loss_type"]),
            entropy_coef=o["entropy_coeff"],
            sampler_correction=_weight(**correction) if weighted else None,
        )
    except KeyError as unknown:
        raise ValueError(f"verl has no {unknown}") from unknown


def _kernel_options(mode: str, o: Mapping[str, Any], policy: Mapping[str, Any]) -> dict[str, float]:
    found = {
        "sapo": {"temperature_positive": o["tau_pos"], "temperature_negative": o["tau_neg"]},
        "clip_cov": {
            "share": policy["clip_cov_ratio"],
            "lower": policy["clip_cov_lb"],
            "upper": policy["clip_cov_ub"],
        },
        "kl_cov": {"share": policy["kl_cov_ratio"], "coefficient": policy["ppo_kl_coef"]},
        "dro": {"coefficient": policy["dro_beta"]},
        "dppo_tv": {"cap": o["clip_ratio_c"]},
        "dppo_kl": {"cap": o["clip_ratio_c"]},
    }
    if mode == "dro" and not (policy["dro_beta"] or 0) > 0:
        raise ValueError(f"policy_loss.dro_beta={policy['dro_beta']} must be more than 0 for loss_mode=dro")
    return found.get(mode, {})


def _kl(on: bool, coefficient: float, name: str) -> dict[str, Any]:
    """`kl_loss_type`; a `+` behind it is the gradient of k2."""
    estimator, bounded = KL[name.removesuffix("+")], KL[name.removesuffix("+")] == "k3"
    axes = {
        "kl_estimator": estimator,
        "kl_gradient": "straight_through" if name.endswith("+") else "plain",
        "kl_input_clamp": 20.0 if bounded else None,
        "kl_output_clamp": 10.0 if bounded else None,
    }
    return {"beta": coefficient, **axes} if on else {"beta": 0.0, **dict.fromkeys(axes)}


def _weight(rollout_is: str, rollout_is_threshold: float | str, **others: Any) -> SamplerCorrection:
    """`2.0` truncates the weight (TIS), `0.5_2.0` makes it 0 outside (IcePop)."""
    low, _, high = str(rollout_is_threshold).rpartition("_")
    if low:
        return SamplerCorrection(rollout_is, "mask", float(low), float(high))
    return SamplerCorrection(rollout_is, "truncate", math.exp(-SAFETY_BOUND), float(high))


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The core's ratio; gspo's at most e^10, beyond which there is no gradient."""
    if objective.importance_sampling_level != "sequence_token":
        return core.importance_ratio(objective, log_ratio_BT, mask_BT)
    return base.capped_sequence_token_ratio(log_ratio_BT, mask_BT)


def correct_importance(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The loss times the sampler weights; that of geo_mean times the geometric mean of a sequence's weights."""
    rule = objective.sampler_correction
    if rule is None or objective.kernel != "gmpo":
        return core.correct_importance(objective, inputs, per_token)
    assert inputs.sampler_log_probs_BT is not None
    weight = sampler_weight(
        inputs.old_log_probs_BT, inputs.sampler_log_probs_BT, inputs.mask_BT, rule.level, rule.mode, rule.low, rule.high
    )
    return per_token * row_mean((weight + TINY).log(), inputs.mask_BT).exp()


def loss_aggregation(objective: Objective) -> str:
    """How the policy loss is averaged."""
    by_sequence = objective.importance_sampling_level == "sequence_token" or objective.kernel in ("sapo", "gmpo")
    return "sequence_mean" if by_sequence else objective.aggregation


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The loss as one number, NaN where there is no token to average over."""
    return aggregate(loss_aggregation(objective), inputs, per_token)


def entropy_bonus(objective: Objective, inputs: LossInputs) -> Tensor:
    """The entropy that the bonus raises."""
    assert inputs.entropy_BT is not None
    return aggregate(objective.aggregation, inputs, inputs.entropy_BT)


def aggregate(name: str, inputs: LossInputs, values: Tensor) -> Tensor:
    """`agg_loss`: by tokens it takes the values of tokens, by sequences it multiplies those of the others by 0."""
    mask_BT, totals = inputs.mask_BT, inputs.totals
    if name == "token_mean_minibatch":
        return torch.where(mask_BT, values, 0.0).sum() / torch.tensor(totals.tokens)
    weights_BT = resolve(AGGREGATIONS[name])(mask_BT.to(values.dtype), totals)
    counted = mask_BT if name == "token_sum" else mask_BT.any(1, keepdim=True)
    return (torch.where(counted, values, 0.0) * weights_BT).sum()


def add_kl_penalty(objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor) -> Tensor:
    """The loss of each token with its KL, which is averaged by `loss_agg_mode` also where the loss is not."""
    mask_BT, names = inputs.mask_BT, (objective.aggregation, loss_aggregation(objective))
    own, of_loss = (resolve(AGGREGATIONS[name])(mask_BT.to(kl_ref_BT.dtype), inputs.totals) for name in names)
    return per_token + objective.beta * torch.where(mask_BT, own / of_loss, 0.0) * kl_ref_BT


def masked_means(values: Mapping[str, Tensor], mask_BT: Tensor) -> dict[str, float]:
    """Means over the tokens, 0 without any."""
    if not values:
        return {}
    values_KBT = torch.stack([value.expand_as(mask_BT) for value in values.values()])  # masks become numbers
    sums_K = torch.where(mask_BT, values_KBT, 0.0).sum((1, 2), dtype=torch.double)
    return dict(zip(values, (sums_K / mask_BT.sum().clamp(min=1)).tolist(), strict=True))


def clip_fractions(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, Tensor]:
    """What each loss mode counts under the names of the dual clip, as masks of tokens."""
    parts, A = loss.surrogate, inputs.advantages
    counted: tuple[Tensor, ...] = ()
    match objective.kernel:
        case "clipped":
            counted = clipped_losses(objective, A, loss.ratio)
        case "sapo":
            counted = (parts.dropped, parts.dropped)  # none
        case "cispo":
            counted = (parts.capped, parts.dropped)
        case "gmpo":
            counted = (parts.out_of_range & (A > 0), parts.out_of_range & (A < 0))
        case "clip_cov":
            counted = (parts.dropped,)
        case "dppo_tv" | "dppo_kl":
            counted = (parts.active_low | parts.active_high, parts.capped)
    return dict(zip(("actor/pg_clipfrac", "actor/pg_clipfrac_lower"), counted, strict=False))


def clipped_losses(objective: Objective, A: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Where the clip, and after it the dual clip, changed the loss itself: a product may round where r did not."""
    negated = -A
    plain, clipped = negated * ratio, negated * ratio.clamp(1 - objective.epsilon, 1 + objective.epsilon_high)
    cap = torch.inf if objective.dual_clip is None else objective.dual_clip
    return clipped > plain, (torch.maximum(plain, clipped) > negated * cap) & (A < 0)


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """The metrics of `ppo_loss`, and those of the rollout correction where there is one."""
    mask_BT = inputs.mask_BT
    sampler_BT = None if objective.sampler_correction is None else inputs.sampler_log_probs_BT
    tokens = clip_fractions(objective, inputs, loss)
    if objective.kernel != "policy_gradient":
        tokens["actor/ppo_kl"] = loss.log_ratio_BT.abs() if objective.kernel == "kl_cov" else -loss.log_ratio_BT
    elif sampler_BT is not None:  # bypass_mode
        tokens["actor/ppo_kl"] = masked_log_ratio(sampler_BT, inputs.log_probs_BT, mask_BT)
    found = masked_means(tokens, mask_BT)
    found["actor/pg_loss"] = float(
        average(objective, inputs, correct_importance(objective, inputs, loss.surrogate.loss))
    )
    if inputs.entropy_BT is not None:
        found["actor/entropy_loss"] = float(entropy_bonus(objective, inputs))
    if loss.kl_ref_BT is not None:
        found["kl_loss"] = float(aggregate(objective.aggregation, inputs, loss.kl_ref_BT))
        found["kl_coef"] = objective.beta
    if sampler_BT is not None and mask_BT.any():
        found |= correction_metrics(objective.sampler_correction, inputs.old_log_probs_BT, sampler_BT, mask_BT)
    return found


RECIPE = LossRecipe(
    prepare=base.as_given,
    log_ratio=base.log_ratio,
    ratio=ratio,
    correct_importance=correct_importance,
    kl=base.kl,
    add_kl_penalty=add_kl_penalty,
    average=average,
    entropy_bonus=entropy_bonus,
)
DIALECT = Dialect(objective, RECIPE, metrics)
