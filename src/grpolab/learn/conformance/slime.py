"""Replays slime's policy loss and reward post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from grpolab.learn.advantages import Scored, advantages
from grpolab.learn.aggregation import Totals
from grpolab.learn.conformance.common import groups_of, loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.slime import DIALECT
from grpolab.learn.objective import policy_loss

# The engine divides later: until then, loss and metrics are sums.
UNDIVIDED = Totals(
    sequences=1, nonempty_sequences=1, tokens=1, rollout_tokens=1, max_completion_length=1, micro_batches=1
)


def policy_loss_function(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """`policy_loss_function`, before the engine's division. The KL, float32, is added up before it joins the loss."""
    given, stages = replace(loss_inputs(inputs), totals=UNDIVIDED), DIALECT.stages
    objective = DIALECT.objective(options)
    found = replay_loss(DIALECT, objective, given)
    prepared = stages.prepare(objective, given)
    kl_BT = stages.kl(objective, prepared, torch.ones_like(given.mask_BT))
    if kl_BT is None:
        return found
    without = policy_loss(replace(objective, beta=0.0), given, stages)
    loss = without.total + objective.beta * stages.average(objective, prepared, kl_BT)
    return replace(found, loss=loss, metrics={**(found.metrics or {}), "loss": loss})


def post_process_rewards(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards less their group's mean, in float32; without groups of one size the whole batch is one."""
    rewards_B, size = inputs["rewards"].float(), inputs["group_size"] or len(inputs["rewards"])
    if not options["rewards_normalization"] or options["advantage_estimator"] in ("ppo", "reinforce_plus_plus"):
        return Replayed(tensors={"advantages": rewards_B})
    scaled = options["grpo_std_normalization"] and options["advantage_estimator"] != "reinforce_plus_plus_baseline"
    scored = Scored(rewards_B, groups_of(rewards_B, size))
    return Replayed(tensors={"advantages": advantages(scored, "group_mean", "group" if scaled else "none", 1e-6)})


PEER = Peer(
    functions={
        "policy_loss_function": policy_loss_function,
        "RolloutManager._post_process_rewards": post_process_rewards,
    },
    limits=("`use_rollout_logprobs` is the axis `old_log_probs: sampler` of a run, and is not replayed.",),
)
