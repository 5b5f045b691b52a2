"""What every engine does with a schedule's jobs: which one is next, what its end means, which limit it has passed.

An engine is the pool of this machine (`pool.py`), Ray (`ray_engine.py`) or Slurm (`slurm_engine.py`). The run folders
are where they meet: nothing of a run is known to its engine alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from grpolab.paths import DISK_ERRORS, Results
from grpolab.run.folder import record_failure
from grpolab.sweep.jobs import RUN, Job, Schedule
from grpolab.sweep.ledger import no_outcome
from grpolab.vocabulary import COMPLETED, FAILED

Outcome = dict[str, Any]

TICK_SECONDS = 0.5  # between two looks at the limits, and at what other commands have finished
GRACE_SECONDS = 20.0  # for a run to reach its next rollout boundary
MOST_ATTEMPTS = 2  # of a job whose worker was killed


@dataclass(frozen=True)
class Death:
    """Why a worker ended before its job: killed by us at a limit of `machine`, or by somebody else."""

    reason: str
    again: bool = False  # perhaps not the job's own doing: worth another attempt
    gently: bool = False  # it is asked before it is killed, so that it leaves a checkpoint


class WorkerStartError(Exception):
    """Workers die before they are ready, or none can be had."""


class Listener(Protocol):
    """Who is told what happens."""

    def started(self, job: Job, slot: int) -> None:
        """A worker has begun the job."""

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps."""

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""

    def finished(self, job: Job, outcome: Outcome) -> None:
        """The job has an outcome; `missing` where the disk refused to take one, or it was to be left."""

    def note(self, text: str) -> None:
        """Something to be said at once."""


class Engine(ABC):
    """Does a schedule's jobs. As a context it holds what it needs for that, a cluster perhaps."""

    def __init__(self, results: Results, places: int, attempts: int = MOST_ATTEMPTS) -> None:
        self.results, self.places, self.attempts = results, places, attempts  # places: jobs that are out at once
        self._said_waiting = False

    def __enter__(self) -> Self:
        """Take hold. Raises RequestError where that is not possible; nothing is left behind then."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027
        """Let go."""

    @abstractmethod
    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job, and tell the listener. Raises WorkerStartError."""

    @abstractmethod
    def leave(self, signature: str) -> None:
        """Have a run left off at its next rollout boundary, with a checkpoint; it is then finished as `missing`."""

    def begin(self, schedule: Schedule, listener: Listener) -> None:
        """What is to be done, and who is told."""
        self.schedule, self.listener = schedule, listener

    def next(self) -> Job | None:
        """The next job that nobody else does; what others have finished meanwhile is taken off the list."""
        for job in self.schedule.ready():
            if outcome := job.outcome(self.results):
                self.finish(job, outcome)
            elif not job.is_taken(self.results):
                return job
            else:
                self.schedule.pass_over(job)
        return None

    def say_waiting(self) -> None:
        """Said once, where all that is left is in other hands."""
        if self.schedule and not self._said_waiting:
            self._said_waiting = True
            self.listener.note(f"{self.schedule.waiting} left, which another command runs: waiting for their outcomes")

    def lost(self, job: Job, death: Death, step: int) -> None:
        """A job's worker has ended before it: it has failed, or is on the list again."""
        waited = job.is_taken(self.results)  # for somebody else who does it
        if waited:
            self.schedule.put_back(job)
        if waited or (death.again and self.schedule.retried(job, self.attempts)):
            self.listener.returned(job, death.reason)
        else:
            self.finish(job, {"outcome": FAILED, "reason": death.reason}, step)

    def finish(self, job: Job, outcome: Outcome, step: int = 0) -> None:
        """A job has an outcome; a failure that nobody has written down yet is."""
        if job.kind == RUN and outcome["outcome"] == FAILED:
            folder = self.results.run(job.signature)
            try:
                outcome = record_failure(folder, str(outcome["reason"]), step, outcome.get("error"))
            except OSError as error:
                if error.errno not in DISK_ERRORS:
                    raise
                outcome = no_outcome(error, folder)
        self.listener.finished(job, outcome)
        reason = f"its warm start failed: {outcome['reason']}"
        for orphan in self.schedule.finished(job, outcome["outcome"] == COMPLETED):
            self.finish(orphan, {"outcome": outcome["outcome"], "reason": reason})
        if outcome.get("disk_full") and (dropped := self.schedule.drop_waiting()):
            self.listener.note(f"the disk is full: {dropped} further jobs are not started")


def passed_limit(job: Job, seconds: float, silent: float, mib: Callable[[], float | None]) -> Death | None:
    """The limit of `machine` that a job has passed: it runs for `seconds`, the last `silent` without a step.

    A warm start has no timeout: its `max_steps` bounds it, and every cell of its seed would fail with it.
    """
    limits = job.settings["machine"]
    timeout, hang, ceiling = limits["cell_timeout_seconds"], limits["hang_seconds"], limits["memory_mib"]
    if job.kind == RUN and timeout is not None and seconds > timeout:
        return Death(f"longer than machine.cell_timeout_seconds={timeout:g}", gently=True)
    if hang is not None and silent > hang:
        return Death(f"no sign of life for {hang:g} s (machine.hang_seconds)", again=True)
    if ceiling is not None and (used := mib() or 0) > ceiling:
        return Death(f"the worker used {used:.0f} MiB, more than machine.memory_mib={ceiling}")
    return None
