"""A run's weights and checkpoints. Loading either never runs code.

A checkpoint is the learner's state at a rollout boundary, with the journal's length at that moment. The last two are
kept: if the newer one is damaged, or does not fit the journal, the older one is used.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from grpolab.grpo.step import LearnerState
from grpolab.paths import write_atomic

GENERATIONS = ("latest.pt", "previous.pt")
DIGEST_BYTES = 32

Position = dict[str, Any]  # where the run stood at a checkpoint: the journal's length and the like


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write parameters by name."""
    # Serialised first, because the library reports a full disk as a format error if it writes the file itself.
    write_atomic(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}))


def save_state(folder: Path, state: LearnerState, optimizer: dict[str, Any], **position: Any) -> None:
    """Write all state and `position` as the latest generation; if that fails, the earlier ones stay."""
    steps = {"rollout_step": state.rollout_step, "optimizer_step": state.optimizer_step}
    tensors = {"weights": state.policy.weights(), "optimizer": optimizer}
    if state.sampler is not None:
        tensors["sampler"] = state.sampler.weights()
    buffer = io.BytesIO()
    torch.save({**tensors, **steps, "position": position}, buffer)
    payload = buffer.getbuffer()  # of a language model 1.6 GB, which is not copied
    latest, previous = (folder / name for name in GENERATIONS)
    new = folder / "new.part"  # the next process deletes it if the process dies before the renames
    write_atomic(new, hashlib.sha256(payload).digest(), payload)
    if latest.exists():
        latest.replace(previous)
    new.replace(latest)


def restore_state(
    folder: Path, state: LearnerState, misfit: Callable[[Position], str | None] = lambda position: None
) -> tuple[Position, list[str]]:
    """Load the newest sound generation into `state`.

    Returns its position (empty if there is no checkpoint), and a sentence for each newer checkpoint that was passed
    over because it is damaged, or because `misfit` finds a problem with its position.
    """
    problems = []
    for path in (folder / name for name in GENERATIONS):
        if not path.exists():
            continue
        with path.open("rb") as file:
            digest, payload = file.read(DIGEST_BYTES), file.read()
        problem: str | None = "its checksum is wrong"
        if hashlib.sha256(payload).digest() == digest:
            saved = torch.load(io.BytesIO(payload), weights_only=True)
            problem = misfit(saved["position"])
        if problem:
            problems.append(f"{folder.name}/{path.name} cannot be used: {problem}")
            continue
        state.policy.load_weights(saved["weights"])
        if state.sampler is not None:
            state.sampler.load_weights(saved["sampler"])
        state.optimizer.load_state_dict(saved["optimizer"])
        state.rollout_step, state.optimizer_step = saved["rollout_step"], saved["optimizer_step"]
        return saved["position"], problems
    return {}, problems
