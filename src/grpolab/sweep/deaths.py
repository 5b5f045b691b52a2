"""How a worker ends before its job does: killed by its parent at a limit of `machine`, or by somebody else."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from grpolab.sweep.schedule import Job

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
