"""TRL 1.16.0: `trl/trainer/grpo_trainer.py`, `GRPOTrainer._compute_loss`.

Its own way: the mask is applied last, as a factor, so that what is not finite at padding poisons the loss; CISPO's
`epsilon_high` is the cap itself; the temperatures of SAPO and the gammas of VESPO are float32; the sampler's weights
enter VESPO's product; the entropy bonus has its own mean over the tokens that are learnt from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.learn import objective as core
from grpolab.learn.corrections import off_policy_keep, sampler_weight
from grpolab.learn.dialects import Dialect, unmasked
from grpolab.learn.dialects.trl_metrics import clip_metrics, reduced, sampling_metrics
from grpolab.learn.kernels.parts import KernelParts
from grpolab.learn.kernels.weighted import VESPO_LEAST, VESPO_LOG_RATIO, gamma_weight
from grpolab.learn.objective import Loss, LossInputs, Objective, SamplerCorrection, Stages
from grpolab.peer_defaults import TRL
from grpolab.registry import AGGREGATIONS, resolve

# loss_type -> kernel and aggregation.
LOSSES = {
    "grpo": ("clipped", "sequence_mean"),
    "bnpo": ("clipped", "token_mean_microbatch"),
    "dr_grpo": ("clipped", "token_sum_constant"),
    "dapo": ("clipped", "token_mean_rollout"),
    "luspo": ("clipped", "sequence_sum"),
    "cispo": ("cispo", "token_mean_rollout"),
    "sapo": ("sapo", "sequence_mean"),
    "vespo": ("vespo", "token_mean_rollout"),
}
OPTIONS = {
    "sapo": {"temperature_positive": "sapo_temperature_pos", "temperature_negative": "sapo_temperature_neg"},
    "vespo": {
        "k_positive": "vespo_k_pos",
        "lambda_positive": "vespo_lambda_pos",
        "k_negative": "vespo_k_neg",
        "lambda_negative": "vespo_lambda_neg",
    },
}


def objective(options: Mapping[str, Any]) -> Objective:
    """The point on our axes of a `GRPOConfig`. Raises ValueError for what TRL does not have."""
    o = TRL | dict(options)
    if o["loss_type"] not in LOSSES:
        raise ValueError(f"loss_type={o['loss_type']}: TRL has {', '.join(LOSSES)}")
    if o["importance_sampling_level"] not in ("token", "sequence"):
        raise ValueError(f"importance_sampling_level={o['importance_sampling_level']}: TRL has token, sequence")
    kernel, aggregation = LOSSES[o["loss_type"]]
    weighted = o["use_vllm"] and o["vllm_importance_sampling_correction"]
    return Objective(
        importance_sampling_level=o["importance_sampling_level"],
        kernel=kernel,
        kernel_options={ours: o[theirs] for ours, theirs in OPTIONS.get(kernel, {}).items()},
        epsilon=1.0 if kernel == "cispo" else o["epsilon"],  # no lower bound
        epsilon_high=o["epsilon"] if o["epsilon_high"] is None else o["epsilon_high"],
        delta=o["delta"] if kernel == "clipped" else None,
        loss_form="min_positive",
        aggregation=aggregation,
        **_kl(o["beta"], o["use_bias_correction_kl"]),
        entropy_coef=o["entropy_coef"],
        top_entropy_quantile=o["top_entropy_quantile"] if o["top_entropy_quantile"] < 1 else None,
        off_policy_mask_threshold=o["off_policy_mask_threshold"],
        sampler_correction=_weight(o) if weighted else None,
    )


def _kl(beta: float, corrected: bool) -> dict[str, Any]:
    if not beta:
        return {"beta": beta, "kl_estimator": None, "kl_gradient": None}
    return {"beta": beta, "kl_estimator": "k3", "kl_gradient": "importance_weighted" if corrected else "plain"}


def _weight(o: Mapping[str, Any]) -> SamplerCorrection:
    level, _, mode = o["vllm_importance_sampling_mode"].partition("_")
    if level not in ("token", "sequence") or mode not in ("truncate", "mask"):
        raise ValueError(f"vllm_importance_sampling_mode={o['vllm_importance_sampling_mode']} is not of TRL")
    low, high = o["vllm_importance_sampling_clip_min"], o["vllm_importance_sampling_clip_max"]
    return SamplerCorrection(level, mode, 0.0 if low is None else low, math.inf if high is None else high)


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """The inputs as they are, but the sampler's log-probs in float32, as they come from vLLM."""
    sampler_BT = inputs.sampler_log_probs_BT
    return inputs if sampler_BT is None else replace(inputs, sampler_log_probs_BT=sampler_BT.float())


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The core's ratio; a token's also at padding."""
    token = objective.importance_sampling_level == "token"
    return core.importance_ratio(objective, log_ratio_BT if token else log_ratio_BT * mask_BT, mask_BT)


def kernel(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> KernelParts:
    """The core's kernel in TRL's units: CISPO's cap is `epsilon_high` itself, and a kernel's options are float32."""
    if objective.kernel == "cispo":
        objective = replace(objective, epsilon_high=objective.epsilon_high - 1)
    if objective.kernel == "vespo":
        log_ratio_BT = vespo_log_ratio(objective, inputs, log_ratio_BT)
    return core.run_kernel(replace(objective, kernel_options=float32_options(objective)), inputs, log_ratio_BT, ratio)


def float32_options(objective: Objective) -> dict[str, float]:
    """The kernel's options as `torch.where` of two Python numbers makes them; VESPO's lambdas at least 1e-4."""
    given = {name: max(value, 1e-4) if "lambda" in name else value for name, value in objective.kernel_options.items()}
    return {name: as_float32(value) for name, value in given.items()}


def as_float32(value: float) -> float:
    """The nearest float32."""
    return float(torch.tensor(value, dtype=torch.float32))


def vespo_log_ratio(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor) -> Tensor:
    """What VESPO adds up in each row: the tokens' log ratios and the sampler's log weights; (B, columns).

    A row with something that is no number counts as infinitely far, where phi is 0.
    """
    log_BT = log_ratio_BT.detach().clamp(-VESPO_LOG_RATIO, VESPO_LOG_RATIO) * inputs.mask_BT
    if objective.sampler_correction is not None:
        weight = vllm_weight(objective, inputs)
        log_BT = torch.cat([log_BT, weight.log().clamp(math.log(VESPO_LEAST), VESPO_LOG_RATIO)], 1)
    return torch.where(log_BT.isnan().any(1, keepdim=True), VESPO_LOG_RATIO, log_BT)


def vllm_weight(objective: Objective, inputs: LossInputs) -> Tensor:
    """The sampler's weight, 1 for a token whose log-prob the sampler did not give (NaN); (B, T) or (B, 1)."""
    rule, sampler_BT, old_BT = objective.sampler_correction, inputs.sampler_log_probs_BT, inputs.old_log_probs_BT
    assert rule is not None
    assert sampler_BT is not None
    given_BT = torch.where(sampler_BT.isnan(), old_BT, sampler_BT)
    return sampler_weight(old_BT, given_BT, inputs.mask_BT, rule.level, rule.mode, rule.low, rule.high)


def entropy_keep(objective: Objective, inputs: LossInputs) -> Tensor:
    """1 for tokens whose entropy is at least the quantile, which is float32, else 0; (B, T)."""
    assert inputs.entropy_BT is not None
    entropy_BT, mask_BT, share = inputs.entropy_BT.detach(), inputs.mask_BT, objective.top_entropy_quantile
    if share is None or not mask_BT.any():
        return mask_BT.to(entropy_BT.dtype)
    bound = torch.quantile(entropy_BT[mask_BT].float(), 1 - share)
    return ((entropy_BT >= bound.to(entropy_BT.dtype)) & mask_BT).to(entropy_BT.dtype)


def leave_out(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The kernel's loss times off-policy mask and entropy mask."""
    log_probs_BT, sampler_BT = inputs.log_probs_BT.detach(), inputs.sampler_log_probs_BT
    if (threshold := objective.off_policy_mask_threshold) is not None:
        behaviour_BT = inputs.old_log_probs_BT if sampler_BT is None else sampler_BT
        behaviour_BT = torch.where(behaviour_BT.isnan(), log_probs_BT, behaviour_BT)
        keep = off_policy_keep(inputs.advantages, behaviour_BT, log_probs_BT, inputs.mask_BT, threshold)
        per_token = per_token * keep
    if objective.top_entropy_quantile is not None:
        per_token = per_token * entropy_keep(objective, inputs)
    return per_token


def weigh(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The loss times the sampler's weight; VESPO has it inside."""
    if objective.sampler_correction is None or objective.kernel == "vespo":
        return per_token
    return per_token * vllm_weight(objective, inputs)


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor | None:
    """k3, also at padding, times the ratio with its gradient.

    The two log ratios stand apart, as in the source: far from the reference the gradient is a sum of terms e^q that
    cancel, and rounds by their order.
    """
    own = objective.kl_estimator == "k3" and objective.kl_input_clamp is None and objective.kl_output_clamp is None
    if not own or objective.kl_gradient not in ("plain", "importance_weighted"):  # what TRL does not have
        return unmasked.kl(objective, inputs, ratio)
    log_probs_BT, reference_BT = inputs.log_probs_BT, inputs.reference_log_probs_BT
    if not objective.beta or reference_BT is None:
        return None
    k3_BT = torch.exp(reference_BT - log_probs_BT) - (reference_BT - log_probs_BT) - 1
    return k3_BT * ratio if objective.kl_gradient == "importance_weighted" else k3_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """The loss as one number, with a token count in float32; what is not finite at padding stays so.

    Row means are divided in the order of the source, for the sake of terms that cancel (see `kl`).
    """
    mask_BT, totals = inputs.mask_BT.to(per_token.dtype), inputs.totals
    if objective.aggregation == "sequence_mean":
        rows_B = (per_token * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        return rows_B.sum() / (totals.sequences / totals.micro_batches) / totals.micro_batches
    totals = replace(totals, rollout_tokens=as_float32(totals.rollout_tokens))
    return (per_token * resolve(AGGREGATIONS[objective.aggregation])(mask_BT, totals)).sum()


def bonus(objective: Objective, inputs: LossInputs) -> Tensor:
    """Mean entropy of the tokens that are learnt from, over micro-batches."""
    assert inputs.entropy_BT is not None
    keep_BT = entropy_keep(objective, inputs)
    return (inputs.entropy_BT * keep_BT).sum() / keep_BT.sum().clamp(min=1) / inputs.totals.micro_batches


STAGES = Stages(prepare, unmasked.log_ratio, ratio, kernel, leave_out, weigh, kl, average=average, bonus=bonus)


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """What a micro-batch logs, and the sampler's part of what a generation batch logs."""
    found: dict[str, float] = {}
    if objective.entropy_coef:
        policy_loss = float(average(objective, inputs, loss.per_token))
        own_scale = objective.aggregation == "token_mean_rollout"  # the others are divided by the accumulation later
        found["policy_loss"] = policy_loss if own_scale else policy_loss * inputs.totals.micro_batches
        found["entropy_coef"] = objective.entropy_coef
    if loss.kl_ref_BT is not None:
        found["kl"] = reduced(loss.kl_ref_BT, inputs.mask_BT)
    if inputs.entropy_BT is not None:
        found["entropy"] = reduced(inputs.entropy_BT, inputs.mask_BT)
    if objective.kernel == "clipped":
        found |= clip_metrics(objective, inputs, loss.ratio)
    elif objective.kernel == "cispo":
        clipped = (loss.ratio > objective.epsilon_high) & (inputs.advantages > 0)
        found["cispo_clip_ratio"] = reduced(clipped, inputs.mask_BT)
    elif objective.kernel == "vespo":
        log_BT = vespo_log_ratio(objective, inputs, loss.log_ratio_BT)
        phi = gamma_weight(inputs.advantages, log_BT, float32_options(objective))
        found["vespo/phi_seq_mean"] = reduced(phi, inputs.mask_BT)
    if objective.sampler_correction is not None:
        prepared = prepare(objective, inputs)
        found |= sampling_metrics(objective, prepared, vllm_weight(objective, prepared))
    return found


DIALECT = Dialect(objective, STAGES, metrics)
