"""Replays prime-rl's losses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.prime_rl import DIALECT, per_sequence
from grpolab.learn.objective import policy_loss


def compute_loss(kind: str, options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The loss over the batch's tokens, and the metrics of each sequence; `old_logprobs` are the sampler's."""
    objective, given = DIALECT.objective({**options, "type": kind}), loss_inputs(inputs)
    loss = policy_loss(objective, given, DIALECT.stages)
    return replace(replay_loss(DIALECT, objective, given), metrics=per_sequence(objective, given, loss))


PEER = Peer(
    functions={
        "compute_loss + default_loss_fn": functools.partial(compute_loss, "default"),
        "compute_loss + ipo_loss_fn": functools.partial(compute_loss, "ipo"),
    }
)
