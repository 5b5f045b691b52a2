"""The parts that Ray and Slurm share: the job as a node does it, and the loop of the command that hands jobs out.

Machines meet only in the shared results folder, where the command reads how far a run is. A cluster is asked whether a
task has ended, and to end one; a run that was ended goes on from its last checkpoint.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import socket
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from grpolab import RESULTS_VERSION, __version__
from grpolab.errors import RequestError
from grpolab.paths import Results, commit, read_json
from grpolab.run.lease import HERE, end_of_session
from grpolab.settings.run import RayLauncher, SlurmLauncher
from grpolab.sweep.engine import TICK_SECONDS, Assignment, Death, Engine, Listener, Outcome, WorkerStartError
from grpolab.sweep.jobs import RUN, Job, Schedule
from grpolab.sweep.ledger import Record, last_row
from grpolab.sweep.worker import LEFT, do_job
from grpolab.vocabulary import MISSING

TAKEN = {"outcome": MISSING, "reason": "another command does it"}
CLOCK_SECONDS = 5.0  # most that clocks may differ: runs record when they began and ended
CANCEL_SECONDS = 45.0  # until a cancelled task has ended: Slurm kills after 30 s
MOST_REFUSALS, REFUSAL_SECONDS = 10, 30.0  # of submissions in a row, and between two


class NodeError(Exception):
    """A node that would not train what this machine would."""


@dataclass(frozen=True)
class NodeJob:
    """A job to be pickled and called on a node, where it is done as a worker of this machine would do it."""

    job: Job
    folder: str  # the command's working directory: relative paths in the settings start there
    mark: Path  # a file beside the logs, named by the session of the command
    expected: dict[str, Any]  # `describe_machine` of the command's machine

    def __call__(self) -> Outcome:
        """Return the job's outcome; TAKEN if another process has begun it since. Raises NodeError."""
        if problem := self.find_problem():
            raise NodeError(f"on node {socket.gethostname()} {problem}")
        os.chdir(self.folder)
        HERE.session = self.mark.name
        if self.job.is_taken(Results.open(self.job.settings["machine"]["results"])):
            return TAKEN
        return do_job(self.job.kind, self.job.signature, self.job.settings, lambda step: None, lambda: False)

    def find_problem(self) -> str | None:
        """Return what differs on this node from the command's machine."""
        if not Path(self.folder).is_dir():
            return f"there is no {self.folder}, the working directory of this command, which must be shared too"
        if not self.mark.exists():
            return f"{self.mark.parent} is another folder than here: machine.results must be on a shared file system"
        here = describe_machine(self.mark.parent)
        off = abs(here.pop("clock") - self.expected["clock"])
        for key, value in here.items():
            if value != self.expected[key]:
                return f"{key} is {value}, and here {self.expected[key]}: they must be the same"
        if off > CLOCK_SECONDS:
            return f"the clock is off by {off:.0f} s: runs are dated by it, and at most {CLOCK_SECONDS:g} s are allowed"
        return None

    def checkpoint(self) -> Any:
        """Return what submitit queues again after a pre-emption."""
        return importlib.import_module("submitit.helpers").DelayedSubmission(self)


def describe_machine(folder: Path) -> dict[str, Any]:
    """Return what must be equal on all machines. `clock`: seconds by which the folder's file system is ahead."""
    return {
        "grpolab": __version__,
        "commit": commit(Path(__file__).parents[3]),
        "results_version": RESULTS_VERSION,
        "torch": importlib.metadata.version("torch"),
        "clock": HERE.file_time(folder) - time.time(),
    }


class Submitted(Assignment):
    """A job that the cluster has; `began` and `last_heard` are infinite while it waits in a queue."""

    def __init__(self, job: Job, handle: Any, slot: int, progress: Record | None) -> None:
        super().__init__(job)
        self.began = self.last_heard = float("inf")
        self.handle, self.slot = handle, slot
        self.progress = progress  # what its folder last said; at first, what an earlier session left there
        self.end: Death | None = None  # why it is cancelled


class Cluster(Engine):
    """An engine that sends jobs to a cluster, each of whose nodes is checked when it begins a job."""

    def __init__(
        self, results: Results, settings: RayLauncher | SlurmLauncher, jobs: int | None, threads: int, logs: Path
    ) -> None:
        super().__init__(results, jobs or 1, attempts=1 + settings.retries)
        self.settings, self.jobs, self.threads, self.logs = settings, jobs, threads, logs
        self.session = f".session-{uuid.uuid4().hex}"
        self._submitted: dict[str, Submitted] = {}  # by signature
        self._left: set[str] = set()  # signatures of the runs that were told to leave
        self._refusals, self._not_before = 0, 0.0

    @abstractmethod
    def connect(self) -> None:
        """Reach the cluster and set `places`. Raises RequestError."""

    def disconnect(self) -> None:
        """Release what `connect` took."""

    @abstractmethod
    def submit(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Submit tasks; return a handle for each. Raises WorkerStartError if the cluster refuses them."""

    @abstractmethod
    def result_of(self, handle: Any) -> Any:
        """Return what a task returned, or its Death; None while it waits or runs."""

    @abstractmethod
    def cancel(self, handle: Any) -> None:
        """End a task at once."""

    def refusal(self, sentence: str) -> RequestError:
        """Return an error that names this launcher."""
        return RequestError(f"machine.launcher.name={self.settings.name}: {sentence}")

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.disconnect()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job. Interrupted, cancel what runs and what waits in the queue.

        Raises RequestError if a node cannot begin its job.
        """
        self.schedule, self.listener = schedule, listener
        self.logs.mkdir(parents=True, exist_ok=True)
        mark = self.logs / self.session
        mark.touch()
        try:
            self._expected = describe_machine(self.logs)
            while schedule:
                self._hand_out(mark)
                time.sleep(TICK_SECONDS)
                for submitted in list(self._submitted.values()):
                    self._follow(submitted)
        finally:
            self._cancel_all()
            mark.unlink()

    def leave(self, signature: str) -> None:
        """Cancel a run; it can go on from its last checkpoint."""
        if signature in self._submitted:
            self._left.add(signature)
            self.cancel(self._submitted[signature].handle)

    def _hand_out(self, mark: Path) -> None:
        jobs = list[Job]()
        if time.monotonic() >= self._not_before:
            while len(self._submitted) + len(jobs) < self.places and (job := self.next_job()):
                self.schedule.hand_out(job)
                jobs.append(job)
        if not jobs:
            if not self._submitted:
                self.say_waiting()
            return
        before = [self._progress(job) for job in jobs]
        try:
            handles = self.submit([NodeJob(job, os.getcwd(), mark, self._expected) for job in jobs])
            self._refusals = 0
        except WorkerStartError as error:
            self._refusals += 1
            if self._refusals == MOST_REFUSALS:
                raise
            for job in jobs:
                self.schedule.put_back(job)
            self._not_before = time.monotonic() + REFUSAL_SECONDS
            self.listener.note(f"{error}; tried again in {REFUSAL_SECONDS:.0f} s")
            return
        free = sorted(set(range(self.places)) - {submitted.slot for submitted in self._submitted.values()})
        for job, handle, slot, progress in zip(jobs, handles, free, before, strict=False):
            self._submitted[job.signature] = Submitted(job, handle, slot, progress)

    def _progress(self, job: Job) -> Record | None:
        """Return what a job's folder says of its progress: a run's heartbeat, a warm start's last step."""
        folder = job.folder(self.results)
        return read_json(folder / "running.json") if job.kind == RUN else last_row(folder / "journal.jsonl")

    def _follow(self, submitted: Submitted) -> None:
        """See how far a job is, whether it has ended, and whether it has passed a limit."""
        job, result, progress = submitted.job, self.result_of(submitted.handle), self._progress(submitted.job)
        folder = job.folder(self.results)
        if progress and progress != submitted.progress:
            submitted.progress = progress
            self._hear(submitted)
            step = int(progress["rollout_step" if job.kind == RUN else "step"])
            if step > submitted.step:
                submitted.step = step
                self.listener.stepped(job, step)
        if result is None:
            passed = submitted.passed_limit(lambda: (last_row(folder / "timing.jsonl") or {}).get("system/rss_mib"))
            if passed and submitted.end is None:
                submitted.end = passed
                self.cancel(submitted.handle)
            return
        del self._submitted[job.signature]
        if result == TAKEN:
            self.schedule.put_back(job)
            return
        if isinstance(result, Death):
            end_of_session(folder, self.session)  # its process is gone, whatever its lease says
            left = LEFT if job.signature in self._left else None
            if (outcome := job.outcome(self.results) or left) is None:
                if submitted.began == float("inf") and not (result.again or submitted.end):
                    raise self.refusal(f"{job.label} could not begin: {result.reason}")
                self._hear(submitted)
                self.lose(job, submitted.end or result, submitted.step)
                return
            result = outcome
        self._hear(submitted)
        self._left.discard(job.signature)
        self.finish(job, result, submitted.step)

    def _hear(self, submitted: Submitted) -> None:
        now = time.monotonic()
        if submitted.began > now:
            submitted.began = now
            self.listener.started(submitted.job, submitted.slot)
        submitted.last_heard = now

    def _cancel_all(self) -> None:
        """Cancel what is out, and end the leases of its processes, so that the same command can go on at once."""
        running, deadline = list(self._submitted.values()), time.monotonic() + CANCEL_SECONDS
        for submitted in running:
            self.cancel(submitted.handle)
        while running and time.monotonic() < deadline:
            for submitted in [one for one in running if self.result_of(one.handle) is not None]:
                end_of_session(submitted.job.folder(self.results), self.session)
                running.remove(submitted)
            time.sleep(TICK_SECONDS)
