"""Replays torchtune's GRPO losses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.torchtune import DIALECT, LOSSES


def forward(loss: str, options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The loss of a class; the simple one takes the current policy, detached, for the old."""
    given = loss_inputs(inputs, advantages=inputs["seq_advantages"][:, None])
    if loss == "GRPOSimpleLoss":
        given = loss_inputs(inputs, advantages=given.advantages, old_log_probs_BT=inputs["logprobs"].detach())
    return replay_loss(DIALECT, DIALECT.objective({**options, "loss": loss}), given)


PEER = Peer(
    functions={f"{loss}.forward": functools.partial(forward, loss) for loss in LOSSES},
    limits=("`torchtune/completion` sums over a whole minibatch: in micro-batches it is another loss.",),
)
