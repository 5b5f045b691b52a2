"""Where a killed run goes on: the learner's state at a rollout boundary, with the journal's length at that moment.

Two generations are kept; a file that is torn or whose checksum is wrong is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from grpolab.learn.learner import LearnerState

GENERATIONS = ("latest.pt", "previous.pt")
DIGEST_BYTES = 32


def save(folder: Path, state: LearnerState, **position: Any) -> None:
    """Write the state and `position` (journal length and the like) as the latest generation."""
    buffer = io.BytesIO()
    torch.save(
        {
            "weights": state.policy.weights(),
            "optimizer": state.optimizer.state_dict(),
            "rollout_step": state.rollout_step,
            "optimizer_step": state.optimizer_step,
            "position": position,
        },
        buffer,
    )
    payload = buffer.getvalue()
    folder.mkdir(exist_ok=True)
    latest, previous = (folder / name for name in GENERATIONS)
    part = folder / "part.pt"
    with part.open("wb") as file:
        file.write(hashlib.sha256(payload).digest() + payload)
        file.flush()
        os.fsync(file.fileno())
    if latest.exists():
        latest.replace(previous)
    part.replace(latest)


def restore(folder: Path, state: LearnerState) -> dict[str, Any] | None:
    """Put the newest sound generation into `state` and return its position; None where there is none."""
    for name in GENERATIONS:
        saved = _read(folder / name)
        if saved is not None:
            state.policy.load_weights(saved["weights"])
            state.optimizer.load_state_dict(saved["optimizer"])
            state.rollout_step, state.optimizer_step = saved["rollout_step"], saved["optimizer_step"]
            return dict(saved["position"])
    return None


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content = path.read_bytes()
    payload = content[DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != content[:DIGEST_BYTES]:
        return None
    return torch.load(io.BytesIO(payload), weights_only=True)
