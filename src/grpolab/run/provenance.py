"""What a run is made of: commit and dirty diff, lock file, packages, hardware, data; and what of torch is global.

Torch's global settings decide bits, and are set before every warm start and every run.
"""

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


def set_up_torch(settings: RunSettings) -> None:
    """The threads of these settings; on a GPU deterministic algorithms."""
    torch.set_num_threads(settings.machine.threads)
    if settings.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first matrix product
        torch.use_deterministic_algorithms(True)


def hash_lock(lock: Path) -> str | None:
    """SHA-256 of the versions that a lock file names; None where there is none.

    The hashes of their files are left out: a list that has one more file of the same version is the same program.
    """
    if not lock.exists():
        return None
    versions = re.sub(r" \\\n(?: +--hash=\S+(?: \\)?\n)+", "\n", lock.read_text())
    return hashlib.sha256(versions.encode()).hexdigest()


@functools.cache
def of_program() -> dict[str, Any]:
    """The part that is the same for all runs of a process. Results are left out of the diff: they are its outcome."""
    root = project_root()
    plain = ("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false")  # whatever the user's git is set to
    diff = git(root, *plain, "diff", "--no-ext-diff", "--no-color", "HEAD", "--", ".", ":(exclude)results")
    return {
        "commit": commit(root),
        "dirty": bool(diff),
        "diff": diff or "",
        "lock_sha256": hash_lock(root / "requirements" / "lock.txt"),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
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
    """The processor's model: Linux names it per core, other systems in one place."""
    with suppress(OSError):
        if model := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return model[1]
    return platform.processor() or platform.machine()


def _mkl() -> str | None:
    """MKL's version, and what the environment asks of it; None where torch has none.

    Which code it then chooses cannot be asked: torch's build keeps those functions to itself. It shows in `float32`.
    """
    version = re.search(r"Math Kernel Library Version ([\d.]+)", torch.__config__.show())
    asked = [f"{name}={os.environ[name]}" for name in MKL_VARIABLES if name in os.environ]
    return " ".join([version[1], *asked]) if version else None


def _float32_fingerprint() -> str:
    """Eight hex digits of the SHA-256 of float32 results on fixed inputs: other digits, other code of torch or MKL.

    Matrix products of the shapes of a tiny model, exp, log and log-softmax, which round differently by code path.
    """
    numbers = torch.arange(64 * 128, dtype=torch.float32).mul(0.7548777).frac().mul(8).sub(4).reshape(64, 128)
    results = (numbers @ numbers.T, numbers.T @ numbers, numbers.exp(), numbers.abs().log(), numbers.log_softmax(-1))
    return hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()[:8]
