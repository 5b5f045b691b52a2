"""Replays ROLL's worker losses, KL estimators and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from grpolab.learn.advantages import Scored, advantages
from grpolab.learn.conformance.common import (
    at_last_token,
    groups_of,
    loss_inputs,
    masked_whiten,
    replay_kl,
    replay_loss,
)
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.roll import DIALECT, ESTIMATOR, KL
from grpolab.learn.returns import Moments, discounted_returns, running_normalized

BASELINE = {None: "none", "batch": "batch_mean", "group": "group_mean"}  # `norm_mean_type` -> ours


def worker_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """base_worker.py, rlvr/actor_worker.py and agentic/agentic_actor_worker.py: one loss, their options apart."""
    scores = {"rewards_B1": inputs["scores"][:, None]} if "scores" in inputs else {}
    return replay_loss(DIALECT, DIALECT.objective(options), loss_inputs(inputs, **scores))


def pg_worker_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """rlvr/actor_pg_worker.py: the variant and its numbers are read from `actor_train`."""
    return worker_loss({"pg_variant": "vanilla", **options, **options.get("actor_train", {})}, inputs)


def compute_approx_kl(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """A KL estimate of each token, times the mask; only k3 is clamped."""
    name = options["kl_penalty"]
    found = replay_kl(inputs, ESTIMATOR[name], output_clamp=KL["kl_output_clamp"] if name == "k3" else None)
    assert found.tensors is not None
    values_BT = found.tensors["per_token"] * inputs["mask"]
    return Replayed(values_BT.sum(), found.scale, tensors={"per_token": values_BT})


def compute_advantage(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Normalised rewards, and in float32 their discounted sum from each position on, whitened and masked.

    The reward stands at the last token; every position is a step, padding too.
    """
    rewards_B, mask_BT = _normalized(options, inputs), inputs["mask"]
    rewards_BT = at_last_token(rewards_B.float(), mask_BT)
    returns_BT = discounted_returns(rewards_BT, torch.ones_like(mask_BT), options["gamma"])
    found_BT = returns_BT
    if options["whiten_advantages"] and mask_BT.sum() > 1:
        found_BT = masked_whiten(returns_BT, mask_BT)
    found_BT = found_BT * mask_BT
    if (bound := options.get("advantage_clip")) is not None:
        found_BT = found_BT.clamp(-bound, bound)
    return Replayed(tensors={"normalized_rewards": rewards_B, "advantages": found_BT, "returns": returns_BT})


def _normalized(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> torch.Tensor:
    """`reward_norm`, which has the group's std only with the group's mean; grpo always has both."""
    chosen = options["norm_mean_type"], options["norm_std_type"]
    mean, std = ("group", "group") if options["adv_estimator"] == "grpo" else chosen
    rewards_B = inputs["rewards"]
    if mean == std == "running":
        return running_normalized(rewards_B, Moments())[0]
    if "running" in (mean, std) or (std == "group" and mean != "group"):
        raise ValueError(f"norm_mean_type={mean} with norm_std_type={std} is not replayed")
    scored = Scored(rewards_B, groups_of(rewards_B, inputs["group_size"]))
    return advantages(scored, BASELINE[mean], std or "none", 1e-6)


PEER = Peer(
    functions={
        "ActorWorker.loss_func": worker_loss,
        "ActorPGWorker.loss_func": pg_worker_loss,
        "compute_approx_kl": compute_approx_kl,
        "reward_norm + compute_advantage": compute_advantage,
    },
    limits=(
        (
            "response filters, difficulty and length weights of samples and `gigpo` are not carried, nor are "
            "`rl_loss_coef` other than 1 and a weight per segment."
        ),
    ),
)
