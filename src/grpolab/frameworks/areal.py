"""AReaL cbff54d6 (v2.0.0+55): `areal/utils/functional/functional.py`, `ppo_actor_`, `sapo_` and `cispo_loss_fn`.

AReaL calls the old policy proximal, the sampler the behaviour policy. Its own way: rejected tokens leave the mask, but
not the denominator; with a sequence ratio, a row has its mean advantage; the ratio is 0 at padding. Before 2.0, as in
4aef98d8 (v1.0.4+17), of which the vectors are, rejected tokens had ratio 0 in the metrics too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.objectives import make_correction
from grpolab.frameworks.options import REJECTION, REJECTION_VALUES, areal, bounds_the_weight
from grpolab.grpo import loss as core
from grpolab.grpo.kl import kl_penalty
from grpolab.grpo.loss import Loss, LossInputs, importance_ratio
from grpolab.grpo.ratios import masked_log_ratio, row_mean, sampler_weight
from grpolab.settings.objective import Objective, SamplerCorrection


def behaviour_weight(rule: SamplerCorrection, inputs: LossInputs) -> Tensor:
    """Return the bounded ratio of proximal policy to sampler, in float32."""
    assert inputs.sampler_log_probs_BT is not None
    return sampler_weight(rule, inputs.old_log_probs_BT.float(), inputs.sampler_log_probs_BT.float(), inputs.mask_BT)


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Take rejected tokens out of the mask; with a sequence ratio, give each row its mean advantage."""
    rule, mask_BT = objective.sampler_correction, inputs.mask_BT
    if rule is not None and rule.mode == "mask":
        mask_BT = mask_BT & (behaviour_weight(rule, inputs) > 0)
    advantages = torch.where(mask_BT, inputs.advantages, 0.0)
    if objective.importance_sampling_level == "sequence":
        advantages = row_mean(advantages, mask_BT)
    return replace(inputs, advantages=advantages, mask_BT=mask_BT)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio, 0 at padding, (B, T)."""
    if objective.importance_sampling_level == "sequence":
        log_ratio_BT = torch.where(mask_BT, log_ratio_BT, 0.0)
    return torch.where(mask_BT, importance_ratio(objective, log_ratio_BT, mask_BT), 0.0)


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the behaviour weight, 0 at padding, (B, T)."""
    return torch.where(inputs.mask_BT, behaviour_weight(rule, inputs), 0.0)


def metrics(objective: Objective, inputs: LossInputs, loss: Loss, before_2: bool = False) -> dict[str, float]:
    """Return the actor's `stats_tracker`: means over all tokens, rejected ones too, with their own ratio."""
    mask_BT, kept_BT, ratio, parts = inputs.mask_BT, loss.ratio != 0, loss.ratio, loss.surrogate
    log_ratio_BT = masked_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    counted_BT = kept_BT
    if objective.importance_sampling_level == "token" and not before_2:
        ratio = log_ratio_BT.exp()
        if objective.kernel != "cispo":
            counted_BT, parts = mask_BT, core.surrogate(objective, inputs, log_ratio_BT, ratio)
    logged = {
        "importance_weight": ratio,
        "approx_kl": log_ratio_BT,
        "clip_ratio": (parts.active_low | parts.active_high | parts.capped) & counted_BT,
        "dual_clip_ratio": parts.outer & counted_BT,
        "actor_loss": loss.per_token,
    }
    if (rule := objective.sampler_correction) is not None:
        free = make_correction(rule.level, "truncate", 0.0, torch.inf)
        bounded = behaviour_weight(rule, inputs) != behaviour_weight(free, inputs)
        logged["rs_filtered_fraction"] = ~kept_BT | bounded
    tokens = max(int(mask_BT.sum()), 1)
    return {name: float(torch.where(mask_BT, value, 0).double().sum()) / tokens for name, value in logged.items()}


def replay_ppo(options: Options, inputs: Inputs) -> Replayed:
    """Replay the PPO loss; `old_logprobs` are the proximal policy's, `rollout_logprobs` the behaviour policy's."""
    batch = shared.make_loss_inputs(inputs)
    rule = {**REJECTION, **(options.get("rejection_sampling") or {})}
    kept_BT = batch.mask_BT if bounds_the_weight(rule) else find_kept_tokens(rule, batch)
    return shared.replay_loss(VECTORS, areal(options), batch, kept_BT)


def find_kept_tokens(rule: Mapping[str, Any], inputs: LossInputs) -> Tensor:
    """Return the tokens that rejection by a KL, a sum or a maximum keeps, (B, T)."""
    assert inputs.sampler_log_probs_BT is not None
    mask_BT = inputs.mask_BT
    judged = masked_log_ratio(inputs.old_log_probs_BT.float(), inputs.sampler_log_probs_BT.float(), mask_BT)
    if rule["metric"] != "ratio":
        own = torch.ones_like(judged)
        judged = kl_penalty(-judged, REJECTION_VALUES["metric"][rule["metric"]], "plain", None, None, own, own)
    if rule["level"] == "sequence":
        judged = {
            "mean": row_mean(judged, mask_BT),
            "sum": (judged * mask_BT).sum(1, keepdim=True),
            "max": torch.where(mask_BT, judged, -torch.inf).amax(1, keepdim=True),
        }[rule["agg"]]
    if rule["metric"] == "ratio":
        judged = judged.exp()
    low = -torch.inf if rule["lower"] is None else rule["lower"]
    return mask_BT & (judged >= low) & (judged <= rule["upper"])


def replay_sapo(options: Options, inputs: Inputs) -> Replayed:
    """Replay the SAPO loss."""
    renamed = {f"sapo_{name}" if name.startswith("tau_") else name: value for name, value in options.items()}
    return shared.replay_loss(VECTORS, areal({**renamed, "use_sapo_loss": True}), shared.make_loss_inputs(inputs))


def replay_cispo(options: Options, inputs: Inputs) -> Replayed:
    """Replay the CISPO loss."""
    return shared.replay_loss(FRAMEWORK, areal({**options, "use_cispo_loss": True}), shared.make_loss_inputs(inputs))


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay the KL of the reward, in float32."""
    clamp = 10.0 if options["apply_clamp"] else None
    return shared.replay_kl(inputs, options["kl_estimator"], output_clamp=clamp, dtype=torch.float)


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay AReaL's advantages as float32: subtract the mean of the group or batch, divide by its std plus eps.

    Either step may be off. With `mean_leave1out` the mean is that of the other members, 0 for a group of one. Where
    the unbiased divisor would be 0, the std counts as 1.
    """
    rewards_B = inputs["rewards"]
    width = {"group": inputs["group_size"], "batch": len(rewards_B)}
    if (level := options["mean_level"]) is not None:
        rewards_PN = rewards_B.view(-1, width[level])
        mean_PN = rewards_PN.sum(1, keepdim=True) / width[level]
        if options.get("mean_leave1out"):
            mean_PN = (rewards_PN.sum(1, keepdim=True) - rewards_PN) / max(width[level] - 1, 1)
        rewards_B = (rewards_PN - mean_PN).flatten()
    if (level := options["std_level"]) is not None:
        centred_PN, scale_P1 = rewards_B.view(-1, width[level]), torch.ones(len(rewards_B) // width[level], 1)
        if divisor := width[level] - options.get("std_unbiased", True):
            scale_P1 = (centred_PN.square().sum(1, keepdim=True) / divisor).sqrt()
        rewards_B = (centred_PN / (scale_P1 + options.get("eps", 1e-5))).flatten()
    return Replayed(tensors={"advantages": rewards_B.float()})


FRAMEWORK = Framework(
    objective=areal,
    prepare=prepare,
    ratio=ratio,
    importance_weight=importance_weight,
    metrics=metrics,
    replays={
        "ppo_actor_loss_fn": replay_ppo,
        "sapo_loss_fn": replay_sapo,
        "cispo_loss_fn": replay_cispo,
        "KLEstimator": replay_kl,
        "Normalization.__call__": replay_advantages,
    },
)
VECTORS = replace(FRAMEWORK, metrics=partial(metrics, before_2=True))  # the version of the vectors
