"""What other commands do in the same results folder, on this machine or another: no cell is run twice at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from grpolab.paths import Results, read_json
from grpolab.run.heartbeat import is_alive
from grpolab.run.locks import is_held
from grpolab.sweep.schedule import Job
from grpolab.vocabulary import COMPLETED


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
