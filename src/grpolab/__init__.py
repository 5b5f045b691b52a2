"""GRPO Lab: which part of GRPO matters, answered with tracked, paired, reproducible ablations."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Part of every run's signature. Raise it whenever a change of code changes what a run computes
# (tests/test_golden_run.py fails and says so); old runs are then kept but never reused.
RESULTS_VERSION = 3

# The layout of results/: raised when files in it move or change shape, so that an older folder is refused.
FOLDER_FORMAT = 1

# The API (api.py): loaded by its first use, so that commands start fast.
if TYPE_CHECKING:
    from grpolab.api import (
        LoadedStudy,
        LossFunction,
        Picture,
        RequestError,
        compare,
        decide,
        diagnose,
        load,
        objective,
        sweep,
        train,
    )

__all__ = [
    "LoadedStudy",
    "LossFunction",
    "Picture",
    "RequestError",
    "compare",
    "decide",
    "diagnose",
    "load",
    "objective",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module grpolab has no attribute {name}")
    return getattr(import_module("grpolab.api"), name)
