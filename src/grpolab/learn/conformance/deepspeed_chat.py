"""Replays DeepSpeed-Chat: the actor's loss, and rewards with GAE of given values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.deepspeed_chat import DEFAULTS, DIALECT, advantages_and_returns, token_rewards


def actor_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The loss; there are no metrics."""
    return replay_loss(DIALECT, DIALECT.objective(options), loss_inputs(inputs))


def rewards_and_advantages(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Rewards of all columns, and advantages and returns of the answer's."""
    fields = {name: options[name] for name in DEFAULTS if name in options}
    start = options.get("prompt_len", 1) - 1
    rewards_BT, kept_BT = token_rewards(
        inputs["old_logprobs"], inputs["ref_logprobs"], inputs["reward_score"], inputs["mask"], start, **fields
    )
    values_BT = torch.where(kept_BT, inputs["values"], 0.0)
    advantages_BT, returns_BT = advantages_and_returns(rewards_BT[:, start:], values_BT[:, start:], **fields)
    return Replayed(tensors={"rewards": rewards_BT, "advantages": advantages_BT, "returns": returns_BT})


PEER = Peer(
    functions={
        "DeepSpeedPPOTrainer.actor_loss_fn": actor_loss,
        "DeepSpeedPPOTrainer.compute_rewards + get_advantages_and_returns": rewards_and_advantages,
    },
    limits=("its advantages need a critic: GAE with given values is replayed, the preset has the group mean.",),
)
