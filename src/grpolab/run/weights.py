"""Weights as safetensors: no code is ever loaded with them."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from grpolab.paths import write_atomic


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write parameters by name."""
    # As bytes: the library's own writing reports a full disk as an error of its format.
    write_atomic(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Parameters by name, on the CPU."""
    return load_file(path)
