"""In which order jobs run: warm starts first and each once, then the longest cells whose warm start is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

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
