"""What this machine offers to workers: cores, or GPUs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpolab.paths import Results, read_json
from grpolab.run.folder import is_alive, is_held
from grpolab.vocabulary import COMPLETED

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


# ----------------------------------------------------------------------------------------------------------------------
# In which order jobs run: warm starts first and each once, then the longest cells whose warm start is there.


MOST_ATTEMPTS = 2  # of a job whose worker was killed


@dataclass(frozen=True)
class Job:
    """What a worker is asked to do."""

    kind: Literal["warm_start", "run"]
    signature: str
    label: str
    settings: dict[str, Any]
    cost: float
    steps: int  # what progress counts
    warm_start: str | None = None  # signature of the warm start that must exist before


class Schedule:
    """Jobs that wait, are ready, or are out with a worker."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._open = {job.signature: job for job in sorted(jobs, key=lambda job: job.cost, reverse=True)}
        self._out: set[str] = set()
        self._attempts: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is left to finish."""
        return bool(self._open)

    @property
    def waiting(self) -> int:
        """Jobs that no worker has."""
        return len(self._open) - len(self._out)

    def ready(self) -> Iterable[Job]:
        """Jobs that a worker may have now, the next one first; those that wait for a warm start are not among them."""
        jobs = [job for job in self._waiting() if job.warm_start not in self._open]
        return sorted(jobs, key=lambda job: job.kind != "warm_start")  # stable: keeps the order by cost

    def add(self, jobs: Iterable[Job]) -> None:
        """Put further jobs on the list, behind those that are there; each signature once."""
        for job in jobs:
            self._open.setdefault(job.signature, job)

    def hand_out(self, job: Job) -> None:
        """A worker has the job."""
        self._out.add(job.signature)

    def put_back(self, job: Job) -> None:
        """The worker has it no longer, and it is not done."""
        self._out.discard(job.signature)

    def finished(self, job: Job, succeeded: bool) -> list[Job]:
        """Take a job off the list; the runs that can never start, because it was their warm start and failed."""
        del self._open[job.signature]
        self._out.discard(job.signature)
        lost = not succeeded and job.kind == "warm_start"
        return [other for other in self._open.values() if other.warm_start == job.signature] if lost else []

    def retried(self, job: Job, again: bool) -> bool:
        """After a worker's death: True where the job goes back on the list, False where it is to be `finished`.

        Tried a second time (`again`) is what may have been killed for reasons of its surroundings: a kill from outside
        (by the kernel that was short of memory, by a person) and a silence. A run goes on from its checkpoint, so that
        little is done twice. A crash, an exit, a timeout and a passed ceiling are the job's own: they would come again.
        """
        self._attempts[job.signature] = self._attempts.get(job.signature, 0) + 1
        if not again or self._attempts[job.signature] >= MOST_ATTEMPTS:
            return False
        self.put_back(job)
        return True

    def drop_waiting(self) -> int:
        """Give up what no worker has; how many jobs that were."""
        dropped = self._waiting()
        for job in dropped:
            del self._open[job.signature]
        return len(dropped)

    def _waiting(self) -> list[Job]:
        return [job for job in self._open.values() if job.signature not in self._out]


# ----------------------------------------------------------------------------------------------------------------------
# How a worker ends before its job does: killed by its parent at a limit of `machine`, or by somebody else.


# Kills that come from outside; a worker that was asked to stop (SIGTERM) exits with 0 after a checkpoint.
FROM_OUTSIDE = {0, -signal.SIGTERM, -signal.SIGKILL}


@dataclass(frozen=True)
class Death:
    """Why a worker ended."""

    reason: str
    again: bool = False  # perhaps not the job's own doing: worth a second attempt
    gently: bool = False  # it is asked before it is killed, so that it leaves a checkpoint


def at_limit(job: Job, seconds: float, silence: float, rss_mib: float) -> Death | None:
    """The limit that a worker has passed: `seconds` since it got the job, `silence` seconds since its last event.

    A warm start has no timeout: its `max_steps` bounds it, and every cell of its seed would fail with it.
    """
    limits = job.settings["machine"]
    timeout, hang, ceiling = limits["cell_timeout_seconds"], limits["hang_seconds"], limits["memory_mib"]
    if job.kind == "run" and timeout is not None and seconds > timeout:
        return Death(f"longer than machine.cell_timeout_seconds={timeout:g}", gently=True)
    if hang is not None and silence > hang:
        return Death(f"no sign of life for {hang:g} s (machine.hang_seconds)", again=True)
    if ceiling is not None and rss_mib > ceiling:
        return Death(f"the worker used {rss_mib:.0f} MiB, more than machine.memory_mib={ceiling}")
    return None


def of_exit(code: int) -> Death:
    """From what the system says about a process that has ended: `worker died (signal 11)`."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    # The kernel's last resort is SIGKILL; it leaves no other trace that we may read.
    perhaps = ", perhaps out of memory" if code == -signal.SIGKILL else ""
    return Death(f"worker died ({how}){perhaps}", again=code in FROM_OUTSIDE)


# ----------------------------------------------------------------------------------------------------------------------
# What other commands do in the same results folder, on this machine or another: no cell is run twice at once.


def outcome_of(job: Job, results: Results) -> dict[str, Any] | None:
    """The outcome that somebody has reached; None where there is none yet."""
    if job.kind == "run":
        return read_json(results.run(job.signature) / "outcome.json")
    made = read_json(results.warm_start(job.signature) / "outcome.json")
    return None if made is None else {"outcome": COMPLETED, "reason": None, **made}


def is_taken(job: Job, results: Results) -> bool:
    """Whether a process does the job now: it holds the lock, or its heartbeat is within its lease."""
    if job.kind == "warm_start":
        return is_held(results.warm_starts / f"{job.signature}.lock")
    return is_run_taken(results.run(job.signature))


def is_run_taken(folder: Path) -> bool:
    """The same of a run folder."""
    beat = read_json(folder / "running.json")
    return is_held(folder / ".lock") or (beat is not None and is_alive(beat, time.time()))
