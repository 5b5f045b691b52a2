"""`running.json` says who runs a cell and how far it is; it is gone when the outcome stands."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import psutil

from grpolab.paths import write_json_atomic

INTERVAL = 1.0  # least seconds between two beats
# The process of another machine cannot be looked at: its heartbeat counts for so long.
LEASE_SECONDS = 600.0
CLOCK_TOLERANCE = 2.0  # seconds between two readings of a process's start time


class Heartbeat:
    """Written at most once in INTERVAL seconds of the clock that the caller passes in."""

    def __init__(self, folder: Path, rollout_steps: int) -> None:
        self.path = folder / "running.json"
        self.rollout_steps = rollout_steps
        self.owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "process_start": _start(psutil.Process()),
        }
        self._last = float("-inf")

    def beat(self, rollout_step: int, now: float) -> None:
        """Say that the run lives, `now` in unix seconds."""
        if abs(now - self._last) >= INTERVAL:
            self._last = now
            beat = {**self.owner, "rollout_step": rollout_step, "rollout_steps": self.rollout_steps, "time": now}
            write_json_atomic(self.path, beat, durable=False)  # after a power cut nobody runs


def is_alive(beat: dict[str, Any], now: float) -> bool:
    """Whether the owner of a heartbeat still runs at `now`: the same process, or within its lease elsewhere."""
    if beat["host"] != socket.gethostname():
        return bool(abs(now - beat["time"]) < LEASE_SECONDS)
    try:
        process = psutil.Process(beat["pid"])
        same = abs(_start(process) - beat["process_start"]) < CLOCK_TOLERANCE
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _start(process: psutil.Process) -> float:
    """Seconds from the machine's start to the process's, which a clock that is set does not move."""
    return process.create_time() - psutil.boot_time()
