"""What a run was made of: commit and dirty diff, lock file, packages, hardware, data."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from grpolab import RESULTS_VERSION, __version__
from grpolab.paths import project_root

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "hydra-core",
    "pydantic",
    "mlflow",
    "safetensors",
)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@functools.cache
def of_program() -> dict[str, Any]:
    """The part that is the same for all runs of a process. Results are left out of the diff: they are its outcome."""
    root = project_root()
    commit = _git(root, "rev-parse", "HEAD")
    diff = _git(root, "diff", "HEAD", "--", ".", ":(exclude)results")
    lock = root / "requirements" / "lock.txt"
    return {
        "commit": commit.strip() if commit else None,
        "dirty": bool(diff),
        "diff": diff or "",
        "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else None,
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "grpolab": __version__,
        "results_version": RESULTS_VERSION,
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "threads": torch.get_num_threads(),
    }
