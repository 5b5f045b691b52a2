"""OpenRLHF 0.11.2 (2026-09-14; the vectors: 3c3be62, 0.11.0): openrlhf/models/loss.py `PolicyLoss`, ray/ppo_actor.py.

Its own way: padding is multiplied by the mask only at the end; the KL is computed in float32; KL and entropy are means
over tokens even if the loss is a mean over sequences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import OPENRLHF_KL_CLAMP, openrlhf
from grpolab.grpo.advantages import advantages
from grpolab.grpo.baselines import group_std
from grpolab.grpo.loss import Loss, LossInputs
from grpolab.grpo.ratios import bounded_weight, row_mean
from grpolab.registry import KL_ESTIMATORS, resolve
from grpolab.settings.objective import Objective, SamplerCorrection


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the sampler's weight; seq-mask-tis drops rows by their geometric mean, and keeps tokens' own weights."""
    judged, weight_BT = judged_weight(rule, inputs), shared.sampler_log_ratio(inputs).exp()
    if rule.level == "token":
        return bounded_weight(rule, judged)
    return torch.where((judged >= rule.low) & (judged <= rule.high), weight_BT, 0.0)


def judged_weight(rule: SamplerCorrection, inputs: LossInputs) -> Tensor:
    """Return what the bounds are for: each token's weight, or each row's geometric mean; (B, T) or (B, 1)."""
    log_weight_BT = shared.sampler_log_ratio(inputs)
    return (log_weight_BT if rule.level == "token" else row_mean(log_weight_BT, inputs.mask_BT)).exp()


def approx_kl(log_probs: Tensor, base: Tensor, estimator: str) -> Tensor:
    """Return `compute_approx_kl` before its clamp, in float32; k3 as (e^q - 1) - q, which rounds unlike the core's."""
    q = base.float() - log_probs.float()
    estimate: Tensor = q.exp() - 1 - q if estimator == "k3" else resolve(KL_ESTIMATORS[estimator])(q)
    return estimate


def float32_kl(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the KL to the reference of each token before its clamp, (B, T)."""
    assert inputs.reference_log_probs_BT is not None
    return approx_kl(inputs.log_probs_BT, inputs.reference_log_probs_BT, objective.kl_estimator or "k1")


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return the KL of each token, (B, T), clamped to +-10 for every estimator."""
    return float32_kl(objective, inputs).clamp(-OPENRLHF_KL_CLAMP, OPENRLHF_KL_CLAMP)


def add_kl_penalty(objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor) -> Tensor:
    """Add the KL with a weight that makes it a mean over tokens, however the loss is averaged."""
    weight: Tensor | float = objective.beta
    if objective.aggregation == "sequence_mean_nonempty":
        lengths_B1, totals = inputs.mask_BT.sum(1, keepdim=True), inputs.totals
        weight = weight * lengths_B1 * (totals.nonempty_sequences / totals.tokens)
    return per_token + weight * kl_ref_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average as `aggregate_loss` does: NaN if there is a NaN at padding, or no token."""
    if objective.aggregation not in ("token_mean_minibatch", "sequence_mean_nonempty"):
        return shared.average_with_padding(objective, inputs, per_token)
    mask_BT, totals = inputs.mask_BT, inputs.totals
    masked_BT = per_token * mask_BT
    if objective.aggregation == "token_mean_minibatch":
        return masked_BT.sum() / totals.tokens
    return (masked_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum() / totals.nonempty_sequences


def average_entropy(objective: Objective, inputs: LossInputs, entropy_BT: Tensor) -> Tensor:
    """Average the entropy over tokens."""
    return average(objective.but(aggregation="token_mean_minibatch"), inputs, entropy_BT)


def token_mean(values_BT: Tensor, mask_BT: Tensor) -> float:
    return float((values_BT * mask_BT).sum() / mask_BT.sum())


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return means over tokens; `ppo_clip_ratio` is the share of tokens whose loss PPO's own clip changed."""
    mask_BT = inputs.mask_BT
    logged = {
        "ppo_clip_ratio": token_mean(shared.find_clipped_losses(objective, inputs.advantages, loss.ratio), mask_BT),
        "ppo_kl": token_mean(inputs.old_log_probs_BT - inputs.log_probs_BT, mask_BT),
    }
    if (rule := objective.sampler_correction) is not None:
        logged["vllm_kl"] = token_mean(-shared.sampler_log_ratio(inputs), mask_BT)
        judged = judged_weight(rule, inputs)
        outside = ((judged < rule.low) | (judged > rule.high)).float()
        logged["is_filter_ratio"] = token_mean(outside, mask_BT) if rule.level == "token" else float(outside.mean())
    return logged


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss; a batch with global counts is one of `dp_size` equal parts.

    With the correction, GSPO's ratio is to the sampler's policy, but its `ppo_kl` is still to the old one.
    """
    point, batch = openrlhf(options), shared.make_loss_inputs(inputs)
    for name, option in (("tokens", "batch_num_tokens"), ("nonempty_sequences", "global_batch_size")):
        if (count := options.get(option)) is not None:
            totals: dict[str, Any] = {name: count / options.get("dp_size", 1)}
            batch = replace(batch, totals=replace(batch.totals, **totals))
    corrected = options.get("enable_vllm_is_correction") or options.get("is_correction_level", "off") != "off"
    if not (corrected and point.importance_sampling_level == "sequence"):
        return shared.replay_loss(FRAMEWORK, point, batch)
    replayed = shared.replay_loss(FRAMEWORK, point, replace(batch, old_log_probs_BT=inputs["rollout_logprobs"]))
    drift_BT = (inputs["old_logprobs"] - inputs["logprobs"]).detach()
    return replayed.with_metrics({"ppo_kl": token_mean(drift_BT, inputs["mask"])})


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay a KL estimate at each position, padding too, in float32."""
    values_BT = approx_kl(inputs["logprobs"], inputs["ref_logprobs"], options["kl_estimator"])
    return shared.sum_over_tokens(values_BT.clamp(-OPENRLHF_KL_CLAMP, OPENRLHF_KL_CLAMP), inputs["mask"])


# `algo.advantage.estimator` -> what is subtracted, what divides, and whether advantages of tokens are whitened.
ESTIMATOR = {
    "reinforce": ("none", "none", True),
    "reinforce_baseline": ("group_mean", "none", True),
    "rloo": ("leave_one_out", "none", False),
    "group_norm": ("group_mean", "group", False),
    "dr_grpo": ("group_mean", "none", False),
    "flash_reinforce": ("batch_mean", "none", False),
}


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards minus their baseline as returns: sums from each position on; padding positions are steps too.

    Whitening uses the tokens' mean and variance (over N, at least 1e-8) in float32.
    """
    if options["estimator"] not in ESTIMATOR:
        raise ValueError(f"estimator={options['estimator']} needs a critic")
    baseline, scale, whitened = ESTIMATOR[options["estimator"]]
    rewards_B, mask_BT = inputs["rewards"], inputs["mask"]
    scored = shared.score_groups(rewards_B, inputs["group_size"])
    shaped_B = advantages(scored, baseline, scale, 1e-9)
    gamma = options["gamma"] if options["estimator"] == "reinforce" else 1.0
    shaped_BT = shared.put_at_last_token(shaped_B, mask_BT)
    returns_BT = advantages_BT = shared.sum_discounted_rewards(shaped_BT, torch.ones_like(mask_BT), gamma)
    if whitened:
        low_N, mask_N = returns_BT.float().flatten(), mask_BT.flatten()
        mean = torch.where(mask_N, low_N, 0.0).sum() / mask_N.sum()
        variance = torch.where(mask_N, (low_N - mean).pow(2), 0.0).sum() / mask_N.sum()
        advantages_BT = (returns_BT - mean) * (1.0 if options["no_std_norm"] else variance.clamp(min=1e-8).rsqrt())
    metrics = {"group_reward_std": group_std(scored, 0.0).tolist(), "return": shaped_B.tolist()}
    return Replayed(metrics=metrics, tensors={"advantages": advantages_BT, "returns": returns_BT})


FRAMEWORK = Framework(
    objective=openrlhf,
    prepare=shared.keep_padding,
    log_ratio=shared.masked_log_ratio,
    importance_weight=importance_weight,
    kl=kl,
    add_kl_penalty=add_kl_penalty,
    average=average,
    average_entropy=average_entropy,
    metrics=metrics,
    replays={
        "PolicyLoss.forward": replay_loss,
        "compute_approx_kl": replay_kl,
        "RemoteExperienceMaker.compute_advantages_and_returns": replay_advantages,
    },
)
