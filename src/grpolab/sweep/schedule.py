"""In which order jobs run: warm starts first and each once, then the longest cells whose warm start is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

MOST_ATTEMPTS = 2  # of a warm start whose worker died: many cells wait for it


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

    def next(self) -> Job | None:
        """The next job, now out; None where all that is left waits for a warm start or is out."""
        ready = [job for job in self._open.values() if job.signature not in self._out and self._is_ready(job)]
        job = min(ready, key=lambda job: job.kind != "warm_start", default=None)  # min keeps the order by cost
        if job:
            self._out.add(job.signature)
        return job

    def _is_ready(self, job: Job) -> bool:
        return job.warm_start not in self._open

    def finished(self, job: Job, succeeded: bool) -> list[Job]:
        """Take a job off the list; the runs that can never start, because it was their warm start and failed."""
        self._close(job)
        if succeeded or job.kind == "run":
            return []
        orphans = [other for other in self._open.values() if other.warm_start == job.signature]
        for orphan in orphans:
            self._close(orphan)
        return orphans

    def retried(self, job: Job) -> bool:
        """After a worker's death: True where the job goes back on the list, False where it is to be `finished`."""
        self._attempts[job.signature] = self._attempts.get(job.signature, 0) + 1
        if job.kind == "run" or self._attempts[job.signature] >= MOST_ATTEMPTS:
            return False
        self._out.discard(job.signature)
        return True

    def _close(self, job: Job) -> None:
        del self._open[job.signature]
        self._out.discard(job.signature)
