"""What this machine offers to workers: cores, or GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# glibc gives freed tensors back to the system at once, and every step would pay for their pages again.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(512 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Slot:
    """A place for one worker at a time."""

    index: int
    environment: dict[str, str]
    log: Path


def slots(jobs: int | None, uses_gpu: bool, threads: int, logs: Path) -> list[Slot]:
    """The slots of a sweep: `jobs` of them, by default one per GPU where the runs use it, else one per `threads` cores.

    GPUs are dealt out in turn through CUDA_VISIBLE_DEVICES.
    """
    devices = gpus() if uses_gpu else []
    count = jobs or len(devices) or max(1, cores() // threads)
    # torch's and the tokenizer's thread pools are sized when they are imported.
    common = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    common |= KEEP_MEMORY
    return [
        Slot(
            index,
            common | ({"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} if devices else {}),
            logs / f"worker-{index}.log",
        )
        for index in range(count)
    ]


def cores() -> int:
    """Cores that this process may use: its affinity, and a container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or no limit (`max`)
        return allowed


def gpus() -> list[str]:
    """Ids of the GPUs that this process may use."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [device.strip() for device in visible.split(",") if device.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    return [str(index) for index, line in enumerate(listing.splitlines()) if line.startswith("GPU ")]
