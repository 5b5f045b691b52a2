"""Replays NeMo-RL's clipped loss and KL estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.advantages import by_group
from grpolab.learn.conformance.common import loss_inputs, replay_kl, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.nemo_rl import DIALECT
from grpolab.learn.returns import whiten


def clipped_pg_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The loss; without `rollout_logprobs` the sampler is the old policy."""
    changed = {"sampler_log_probs_BT": inputs.get("rollout_logprobs", inputs["old_logprobs"])}
    if options.get("force_on_policy_ratio"):
        changed["old_log_probs_BT"] = inputs["logprobs"].detach()
    given = loss_inputs(inputs, **changed)
    return replay_loss(DIALECT, DIALECT.objective(options), given)


def calculate_kl(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The estimate without a weight."""
    return replay_kl(inputs, options["kl_type"], options["input_clamp"], options["output_clamp"])


def grpo_advantages(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards less their baseline, over the std of what the baseline is the mean of, all in float32."""
    rewards_B = inputs["rewards"].float()
    baseline_B, std_B = baseline_and_std(rewards_B, inputs, options["use_leave_one_out_baseline"])
    advantages_B = rewards_B - baseline_B
    if options["normalize_rewards"]:
        advantages_B = torch.where(std_B > 0, advantages_B / (std_B + 1e-6), advantages_B)
    return Replayed(tensors={"advantages": advantages_B[:, None].expand_as(inputs["mask"])})


def reinforce_plus_plus(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards, less their group's mean where that is asked for, whitened over the tokens, padding too."""
    rewards_B = inputs["rewards"].float()
    if options["minus_baseline"]:
        rewards_B = rewards_B - baseline_and_std(rewards_B, inputs, leave_one_out=False)[0]
    rewards_BT = rewards_B[:, None].expand_as(inputs["mask"])
    return Replayed(tensors={"advantages": whiten(rewards_BT, inputs["mask"], "population")})


def baseline_and_std(rewards_B: Tensor, inputs: Mapping[str, Any], leave_one_out: bool) -> tuple[Tensor, Tensor]:
    """Mean and std of a group, or of its others, (B,) each: the variance E[x^2] - E[x]^2 cancels where they are close.

    A group of one is its own baseline.
    """

    def mean(rewards_PN: Tensor) -> Tensor:
        others_NN = torch.ones(rewards_PN.shape[1], rewards_PN.shape[1]) - leave_one_out * torch.eye(
            rewards_PN.shape[1]
        )
        return torch.stack([others_NN @ rewards_N for rewards_N in rewards_PN]) / (len(others_NN) - leave_one_out)

    def baseline(rewards_PN: Tensor) -> Tensor:
        return rewards_PN if rewards_PN.shape[1] == 1 else mean(rewards_PN)

    def std(rewards_PN: Tensor) -> Tensor:
        count = torch.tensor(float(rewards_PN.shape[1] - leave_one_out))
        if rewards_PN.shape[1] == 1:
            return torch.zeros_like(rewards_PN)
        variance_PN = (mean(rewards_PN.square()) - mean(rewards_PN).square()) * (count / (count - 1))
        return variance_PN.sqrt().nan_to_num(0)

    group_B = torch.as_tensor(inputs["group_ids"])
    return by_group(group_B, baseline, rewards_B), by_group(group_B, std, rewards_B)


PEER = Peer(
    functions={
        "ClippedPGLossFn.__call__": clipped_pg_loss,
        "calculate_kl": calculate_kl,
        "GRPOAdvantageEstimator.compute_advantage": grpo_advantages,
        "ReinforcePlusPlusAdvantageEstimator.compute_advantage": reinforce_plus_plus,
    },
    limits=("the NLL on positive examples (VAPO) is not carried.",),
)
