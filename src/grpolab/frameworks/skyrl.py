"""SkyRL a9564572 (skyrl_train v0.4.0+516): `skyrl/backends/skyrl_train/utils/ppo_utils.py`.

Its own way: the reduction is multiplied into the advantages and the loss is a sum, so that Clip-Cov compares scaled
advantages with its window and KL-Cov's penalty is no mean; most ratios are float32 exponentials; the KL is always the
mean over rows of their means; a sampler mask only keeps or drops tokens, without weighting them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.kernels import binary_kl
from grpolab.frameworks.skyrl_options import LOG_RATIO, kl_clamps, objective
from grpolab.frameworks.verl import replay_outcome, replay_reinforce_plus_plus
from grpolab.grpo import loss as core
from grpolab.grpo.aggregation import Totals, aggregate, sequence_mean
from grpolab.grpo.loss import Loss, LossInputs, SurrogateParts
from grpolab.grpo.ratios import row_mean
from grpolab.registry import AGGREGATIONS, resolve
from grpolab.settings.objective import Objective, SamplerCorrection


def exp_float32(log_ratio: Tensor) -> Tensor:
    """Return SkyRL's `safe_exp_delta`."""
    return log_ratio.float().clamp(-LOG_RATIO, LOG_RATIO).exp().to(log_ratio.dtype)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the ratio as a bounded float32 exponential; a sequence's is bounded from above only, SAPO's is float64."""
    if objective.importance_sampling_level == "sequence_token":
        return shared.capped_sequence_token_ratio(log_ratio_BT, mask_BT)
    if objective.log_ratio_clamp is None or objective.importance_sampling_level != "token":
        return core.importance_ratio(objective, log_ratio_BT, mask_BT)
    if objective.kernel == "sapo":
        return log_ratio_BT.clamp(-LOG_RATIO, LOG_RATIO).exp()
    return exp_float32(log_ratio_BT)


def surrogate(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """Return the core's kernel, with the reduction inside the advantages; DPPO's loss is -r A of the kept tokens."""
    weights_BT = resolve(AGGREGATIONS[objective.aggregation])(inputs.mask_BT.to(ratio.dtype), inputs.totals)
    A = inputs.advantages * weights_BT
    parts = core.surrogate(objective, replace(inputs, advantages=A), log_ratio_BT, ratio)
    if not objective.kernel.startswith("dppo"):
        return parts
    counts = torch.ones_like(parts.active_low)
    if objective.kernel == "dppo_kl":  # a token whose KL is NaN is kept
        counts = ~binary_kl(inputs.log_probs_BT.detach(), inputs.old_log_probs_BT).isnan()
    low, high = parts.active_low & (A < 0) & counts, parts.active_high & counts
    dropped = low | high
    return replace(parts, loss=-(ratio * A * ~dropped), active_low=low, active_high=high, out_of_range=dropped)


def sampler_ratio_float32(level: str, inputs: LossInputs) -> Tensor:
    """Return exp(old - sampler) per token, (B, T), or of each row's summed or mean log ratio, (B, 1)."""
    log_BT = shared.sampler_log_ratio(inputs)
    if level == "sequence":
        log_BT = (log_BT * inputs.mask_BT).sum(1, keepdim=True)
    elif level == "geometric":
        log_BT = row_mean(log_BT, inputs.mask_BT)
    return exp_float32(log_BT)


def out_of_bounds(rule: SamplerCorrection, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return the tokens or rows whose ratio is below and above the bounds, bool."""
    weight = sampler_ratio_float32(rule.level, inputs)
    low, high = weight < rule.low, weight > rule.high
    if rule.level == "outlier":
        return (low & inputs.mask_BT).any(1, keepdim=True), (high & inputs.mask_BT).any(1, keepdim=True)
    return low, high


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the truncated weight or, for a mask, False where it drops."""
    if rule.mode == "truncate":
        return sampler_ratio_float32(rule.level, inputs).clamp(max=rule.high)
    low, high = out_of_bounds(rule, inputs)
    return ~(low | high)


def add_kl_penalty(objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor) -> Tensor:
    """Add beta times the KL with the weights of a mean over rows of row means.

    `average` only sums, because the advantages already hold the policy loss's reduction.
    """
    return per_token + objective.beta * kl_ref_BT * sequence_mean(inputs.mask_BT.to(kl_ref_BT.dtype), inputs.totals)


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Sum over the tokens, because the advantages already hold the reduction."""
    return (per_token * inputs.mask_BT).sum()


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return `loss_metrics` of the policy loss, and the worker's `policy_kl`."""
    parts, mask_BT, rule = loss.surrogate, inputs.mask_BT, objective.sampler_correction

    def mean(values: Tensor) -> Tensor:
        return (values * mask_BT).double().sum() / mask_BT.sum().clamp(min=1)

    none, clipped = torch.zeros(()), parts.active_low | parts.active_high
    counted = {"cispo": parts.out_of_range, "sapo": none, "kl_cov": none, "clip_cov": parts.dropped}
    logged = {"clip_ratio": mean(counted.get(objective.kernel, clipped))}
    if objective.kernel == "ratio":
        logged = {"importance_ratio": mean(loss.ratio)}
    elif objective.kernel == "cispo":
        values_N = loss.ratio.expand_as(mask_BT)[mask_BT] if mask_BT.any() else loss.ratio
        logged |= {
            "cispo/ratio_mean": mean(loss.ratio),
            "cispo/ratio_clamped_mean": mean(loss.ratio.clamp(objective.low, objective.high)),
            "cispo/ratio_max": values_N.max(),
            "cispo/ratio_min": values_N.min(),
        }
    if rule is not None:
        token_BT = sampler_ratio_float32("token", inputs) * mask_BT
        low, high = out_of_bounds(rule, inputs)
        logged |= {
            "is_ratio_mean": mean(token_BT),
            "is_ratio_std": token_BT.std() if token_BT.numel() > 1 else token_BT.new_tensor(torch.nan),
            "is_ratio_max": token_BT.max(),
            "is_ratio_min": token_BT.min(),
        }
        if rule.level == "token" and rule.mode == "truncate":
            logged["tis_token_clip_high_ratio"] = mean(high)
        elif rule.level == "token":
            logged["token_mask_ratio"] = mean(low | high)
        elif rule.mode == "truncate":
            logged["tis_seq_clip_high_ratio"] = high.double().mean()
        else:
            rows = {"geometric": "geo_sequence_mask", "sequence": "product_sequence_mask", "outlier": "outlier_seq"}
            for what, acted in (("under_low", low), ("over_high", high), ("masked", low | high)):
                logged[f"{rows[rule.level]}_{what}_ratio"] = acted.double().mean()
    if loss.kl_ref_BT is not None:
        logged["policy_kl"] = aggregate("sequence_mean", loss.kl_ref_BT, mask_BT, inputs.totals)
    return {name: float(value) for name, value in logged.items()}


LOSSES = (
    *(f"{name}_policy_loss" for name in ("ppo", "sapo", "gspo", "rollout_is", "dppo")),
    *(f"compute_policy_loss_{name}" for name in ("cispo", "clip_cov", "kl_cov")),
    "importance_sampling_loss",
)


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay a policy loss after its reduction; the KL is the worker's."""
    changed: dict[str, Any] = {"noise_BT": torch.zeros_like(inputs["advantages"])}
    anchored = options["policy_loss_type"] in ("rollout_is", "dppo") and "rollout_logprobs" in inputs
    if anchored or options.get("cispo", {}).get("cispo_anchor") == "rollout":
        changed["old_log_probs_BT"] = inputs["rollout_logprobs"]
    if options["loss_reduction"] == "prompt_mean":  # over the tokens of each prompt, and over the prompts
        pieces, bounds = [], inputs["prompt_boundaries"]
        for begin, end in bounds:
            tokens = max(int(inputs["mask"][begin:end].sum()), 1)
            pieces.append(inputs["advantages"][begin:end] / (len(bounds) * tokens))
        changed["advantages"] = torch.cat(pieces)
    batch = shared.make_loss_inputs(inputs, totals=Totals.of(inputs["mask"], options["max_seq_len"]), **changed)
    return shared.replay_loss(FRAMEWORK, objective({"use_kl_loss": False, **options}), batch)


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay the estimate, 0 at padding."""
    estimator = options["kl_estimator_type"]
    replayed = shared.replay_kl(inputs, estimator, *kl_clamps(estimator))
    values_BT = torch.where(inputs["mask"], replayed.tensors["per_token"], 0.0)
    return replace(replayed, tensors={"per_token": values_BT})


def replay_grpo(options: Options, inputs: Inputs) -> Replayed:
    """Replay verl's function; SkyRL's estimators are copies of it."""
    return replay_outcome("group_mean", "group" if options["grpo_norm_by_std"] else "none", options, inputs)


FRAMEWORK = Framework(
    objective=objective,
    prepare=shared.keep_padding,
    ratio=ratio,
    surrogate=surrogate,
    importance_weight=importance_weight,
    add_kl_penalty=add_kl_penalty,
    average=average,
    metrics=metrics,
    replays={
        **dict.fromkeys(LOSSES, replay_loss),
        "compute_approx_kl": replay_kl,
        "grpo": replay_grpo,
        "maxrl": partial(replay_outcome, "group_mean", "group_mean"),
        "rloo": partial(replay_outcome, "leave_one_out", "none", lone_reward=False),
        "reinforce++": replay_reinforce_plus_plus,
    },
)
