"""Replays AReaL's actor losses and KL estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.conformance.common import loss_inputs, replay_kl, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.areal import DIALECT, REJECTION
from grpolab.learn.kl import kl_penalty
from grpolab.learn.objective import LossInputs
from grpolab.learn.ratios import masked_log_ratio, row_mean


def ppo_actor_loss_fn(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The PPO loss; `old_logprobs` are the proximal policy's, `rollout_logprobs` the behaviour policy's."""
    given = loss_inputs(inputs)
    rule = {**REJECTION, **(options.get("rejection_sampling") or {})}
    kept_BT = given.mask_BT if (rule["metric"], rule["agg"]) == ("ratio", "mean") else in_bounds(rule, given)
    return replay_loss(DIALECT, DIALECT.objective(options), given, kept_BT)


def in_bounds(rule: Mapping[str, Any], inputs: LossInputs) -> Tensor:
    """Tokens that rejection keeps where it does not bound the weight itself but a KL, a sum or a maximum; (B, T)."""
    assert inputs.sampler_log_probs_BT is not None
    mask_BT = inputs.mask_BT
    found = masked_log_ratio(inputs.old_log_probs_BT.float(), inputs.sampler_log_probs_BT.float(), mask_BT)
    if rule["metric"] != "ratio":
        own = torch.ones_like(found)
        found = kl_penalty(-found, rule["metric"].removeprefix("kl_"), "plain", None, None, own, own)
    if rule["level"] == "sequence":
        found = {"mean": row_mean, "sum": _row_sum, "max": _row_max}[rule["agg"]](found, mask_BT)
    if rule["metric"] == "ratio":
        found = found.exp()
    low = -torch.inf if rule["lower"] is None else rule["lower"]
    return mask_BT & (found >= low) & (found <= rule["upper"])


def _row_sum(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (values_BT * mask_BT).sum(1, keepdim=True)


def _row_max(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT, -torch.inf).amax(1, keepdim=True)


def sapo_loss_fn(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The SAPO loss."""
    names = {"tau_pos": "sapo_tau_pos", "tau_neg": "sapo_tau_neg"}
    renamed = {names.get(name, name): value for name, value in options.items()}
    return replay_loss(DIALECT, DIALECT.objective({**renamed, "use_sapo_loss": True}), loss_inputs(inputs))


def kl_estimator(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The KL of the reward, in float32."""
    clamp = 10.0 if options["apply_clamp"] else None
    return replay_kl(inputs, options["kl_estimator"], output_clamp=clamp, dtype=torch.float)


def normalization(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards less a mean, over the root mean square of what is left, as float32."""
    rewards_B, size = inputs["rewards"], inputs["group_size"]
    centred_B = rewards_B - mean_reward(options, rewards_B, size)
    if options["std_level"] is None:
        return Replayed(tensors={"advantages": centred_B.float()})
    centred_PN = centred_B.view(-1, size if options["std_level"] == "group" else len(rewards_B))
    unbiased = options.get("std_unbiased", True)
    divisor = centred_PN.shape[1] - unbiased  # a group of one is divided by 1
    scale_P1 = (
        (centred_PN.square().sum(1, keepdim=True) / divisor).sqrt() if divisor else torch.ones(len(centred_PN), 1)
    )
    scale_P1 = scale_P1 + options.get("eps", 1e-5)
    return Replayed(tensors={"advantages": (centred_PN / scale_P1).flatten().float()})


def mean_reward(options: Mapping[str, Any], rewards_B: Tensor, size: int) -> Tensor:
    """Mean of the group or batch, or of the others in it, 0 where there is none; (B,)."""
    if options["mean_level"] is None:
        return torch.zeros_like(rewards_B)
    rewards_PN = rewards_B.view(-1, size if options["mean_level"] == "group" else len(rewards_B))
    total_P1, count = rewards_PN.sum(1, keepdim=True), rewards_PN.shape[1]
    if not options.get("mean_leave1out"):
        return (total_P1 / count).expand_as(rewards_PN).flatten()
    return ((total_P1 - rewards_PN) / max(count - 1, 1)).flatten()


PEER = Peer(
    functions={
        "ppo_actor_loss_fn": ppo_actor_loss_fn,
        "sapo_loss_fn": sapo_loss_fn,
        "KLEstimator": kl_estimator,
        "Normalization.__call__": normalization,
    },
    limits=(
        (
            "M2PO, and clamping rejection by a KL, a sum or a maximum, are not carried; rejection by a KL, a sum or a"
            " maximum is replayed only."
        ),
    ),
)
