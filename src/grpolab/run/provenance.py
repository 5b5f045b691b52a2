"""A run's provenance (commit and diff, lock file, packages, hardware), and torch's global settings."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from grpolab import RESULTS_VERSION, __version__
from grpolab.paths import commit, git, project_root
from grpolab.settings.run import RunSettings

MKL_VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE")
PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "numpy"),
    *("hydra-core", "pydantic", "mlflow", "safetensors"),
)


def set_up_torch(settings: RunSettings) -> None:
    """Set the number of threads and, on a GPU, deterministic algorithms; before every warm start and every run."""
    torch.set_num_threads(settings.machine.threads)
    if settings.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product
        torch.use_deterministic_algorithms(True)


def hash_lock(lock: Path) -> str | None:
    """Return the SHA-256 of the versions in a lock file, without the hashes of files; None if there is none."""
    if not lock.exists():
        return None
    versions = re.sub(r" \\\n(?: +--hash=\S+(?: \\)?\n)+", "\n", lock.read_text())
    return hashlib.sha256(versions.encode()).hexdigest()


def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is absent, as MLflow may be where runs are not tracked."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


@functools.cache
def of_program() -> dict[str, Any]:
    """Return the part of the provenance that all runs of a process share. The diff leaves results out."""
    root = project_root()
    options = ("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false")  # whatever the user's git is set to
    diff = git(root, *options, "diff", "--no-ext-diff", "--no-color", "HEAD", "--", ".", ":(exclude)results")
    return {
        "commit": commit(root),
        "dirty": bool(diff),
        "diff": diff or "",
        "lock_sha256": hash_lock(root / "requirements" / "lock.txt"),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "grpolab": __version__,
        "results_version": RESULTS_VERSION,
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkl": _mkl(),
            "float32": _float32_fingerprint(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "threads": torch.get_num_threads(),
    }


def _cpu() -> str:
    """Return the processor's model."""
    with suppress(OSError):
        if model := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return model[1]
    return platform.processor() or platform.machine()


def _mkl() -> str | None:
    """Return MKL's version and the environment variables that steer it; None if torch has no MKL."""
    version = re.search(r"Math Kernel Library Version ([\d.]+)", torch.__config__.show())
    variables = [f"{name}={os.environ[name]}" for name in MKL_VARIABLES if name in os.environ]
    return " ".join([version[1], *variables]) if version else None


def _float32_fingerprint() -> str:
    """Return eight hex digits of the SHA-256 of float32 results that round differently by code path."""
    numbers = torch.arange(64 * 128, dtype=torch.float32).mul(0.7548777).frac().mul(8).sub(4).reshape(64, 128)
    results = (numbers @ numbers.T, numbers.T @ numbers, numbers.exp(), numbers.abs().log(), numbers.log_softmax(-1))
    return hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()[:8]
