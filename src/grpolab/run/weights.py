"""Weights as safetensors: no code is ever loaded with them."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write parameters by name, then rename."""
    part = path.with_suffix(".part")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Parameters by name, on the CPU."""
    return load_file(path)
