"""What of torch is global to a process and decides bits: set before every warm start and every run."""

from __future__ import annotations

import os

import torch

from grpolab.settings import RunSettings


def set_up_torch(settings: RunSettings) -> None:
    """The threads of these settings; on a GPU deterministic algorithms."""
    torch.set_num_threads(settings.machine.threads)
    if settings.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product
        torch.use_deterministic_algorithms(True)
