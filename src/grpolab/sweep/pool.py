"""N worker processes and the jobs they do. A worker's death costs at most its job; the worker is replaced.

One thread, because a child told to die with its parent dies with the *thread* that started it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import psutil

from grpolab.identity import plain
from grpolab.paths import DISK_ERRORS, Results
from grpolab.run.folder import record_failure
from grpolab.sweep import jobs
from grpolab.sweep.jobs import Death, Job, Schedule, Slot
from grpolab.sweep.ledger import no_outcome
from grpolab.vocabulary import COMPLETED, FAILED

Outcome = dict[str, Any]

# -P: what lies in the working directory is imported only where a run names it, as in the command itself.
WORKER_COMMAND = (sys.executable, "-P", "-m", "grpolab.sweep.worker")
GRACE_SECONDS = 20.0  # for a worker to reach its next rollout boundary
MOST_FAILED_STARTS = 3
TICK_SECONDS = 0.5  # between two looks at the limits, and at what other commands have finished
MIB = 2**20


class WorkerStartError(Exception):
    """Workers die before they are ready."""


class Listener(Protocol):
    """Who is told what happens."""

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps."""

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""

    def finished(self, job: Job, outcome: Outcome) -> None:
        """The job has an outcome; `missing` where the disk refused to take one, or it was to be left."""

    def note(self, text: str) -> None:
        """Something to be said at once."""


class Worker:
    """A worker process and the job that it has."""

    def __init__(self, slot: Slot, command: Sequence[str]) -> None:
        self.slot = slot
        self.job: Job | None = None
        self.step = 0
        self.ready = False
        self._buffer = b""
        self._verdict: Death | None = None  # why we end it
        slot.log.parent.mkdir(parents=True, exist_ok=True)
        with slot.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **slot.environment},
                process_group=0,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def assign(self, job: Job) -> None:
        """Hand the job over."""
        self.job, self.step = job, 0
        self.began = self.heard = time.monotonic()
        request = {"job": job.kind, "signature": job.signature, "settings": plain(job.settings)}
        try:
            self.stdin.write(json.dumps(request).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass  # it has just died: the end of its output says so

    def read(self) -> list[dict[str, Any]] | None:
        """The events that have come in; None where it has died."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        self.heard = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    @property
    def idle(self) -> bool:
        """Whether it can have a job."""
        return self.ready and self.job is None and self._verdict is None

    def end_at_limit(self) -> None:
        """End it where its job has passed a limit; the end of its output says when it is gone."""
        now = time.monotonic()
        if self.job and self._verdict is None:
            self._verdict = jobs.at_limit(self.job, now - self.began, now - self.heard, self._rss_mib())
            if self._verdict:
                self.process.terminate()
                self._deadline = now + (GRACE_SECONDS if self._verdict.gently else 0)
        if self._verdict and now >= self._deadline:
            self.process.kill()

    def end_its_children(self) -> None:
        """Where it has died: what it forked holds its locks, and its output open, whose end is what we wait for."""
        if self.process.poll() is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _rss_mib(self) -> float:
        try:
            return float(psutil.Process(self.process.pid).memory_info().rss) / MIB
        except psutil.Error:  # it has just died
            return 0.0

    def death(self) -> Death:
        """Why it ended."""
        code = self.process.wait()
        return self._verdict or jobs.of_exit(code)


class Pool:
    """Does a schedule's jobs; as a context manager it leaves no process behind."""

    def __init__(self, slots: Sequence[Slot], results: Results, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.slots, self.results, self.command = slots, results, command
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts: Counter[int] = Counter()  # by slot, in a row
        self._said_waiting = False

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job, and tell the listener. Raises WorkerStartError."""
        self.schedule, self.listener = schedule, listener
        for slot in self.slots[: schedule.waiting]:
            self._start(slot)
        while schedule:
            self._assign()
            for key, _ in self._selector.select(TICK_SECONDS):
                self._listen(key.data)
            for worker in self.workers:
                worker.end_at_limit()
                worker.end_its_children()

    def leave(self, signature: str) -> None:
        """Have a run left off at its next rollout boundary, with a checkpoint; it is then finished as `missing`."""
        for worker in self.workers:
            if worker.job and worker.job.signature == signature:
                worker.process.send_signal(signal.SIGUSR1)

    def _start(self, slot: Slot) -> None:
        worker = Worker(slot, self.command)
        self.workers.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _assign(self) -> None:
        for worker in self.workers:
            if worker.idle and (job := self._next()):
                self.schedule.hand_out(job)
                worker.assign(job)
                self.listener.started(job, worker.slot.index)
        if self.schedule and not self._said_waiting and all(worker.idle for worker in self.workers):
            self._said_waiting = True
            self.listener.note(f"{self.schedule.waiting} left, which another command runs: waiting for their outcomes")

    def _next(self) -> Job | None:
        """The next job that nobody else does; what others have finished meanwhile is taken off the list."""
        for job in self.schedule.ready():
            if outcome := jobs.outcome_of(job, self.results):
                self._finish(job, outcome)
            elif not jobs.is_taken(job, self.results):
                return job
        return None

    def _listen(self, worker: Worker) -> None:
        events = worker.read()
        if events is None:
            self._bury(worker)
            return
        for event in events:
            if event["event"] == "ready":
                worker.ready = True
                del self._failed_starts[worker.slot.index]
            elif event["event"] == "step" and worker.job:
                worker.step = event["rollout_step"]
                self.listener.stepped(worker.job, worker.step)
            elif event["event"] == "done" and worker.job:
                job, worker.job = worker.job, None
                self._finish(job, event["outcome"], worker.step)

    def _bury(self, worker: Worker) -> None:
        """Replace a dead worker; its job has failed, or is on the list again."""
        self._selector.unregister(worker.stdout)
        self.workers.remove(worker)
        death = worker.death()
        if not worker.ready and self._is_given_up(worker.slot, death):
            return
        if worker.job:
            self._release(worker.job, death, worker.step)
        if self.schedule.waiting:
            self._start(worker.slot)

    def _is_given_up(self, slot: Slot, death: Death) -> bool:
        """Whether no worker gets ready in this slot; the others go on. Raises WorkerStartError where there is none."""
        self._failed_starts[slot.index] += 1
        if self._failed_starts[slot.index] < MOST_FAILED_STARTS:
            return False
        reason = f"{death.reason} before it was ready, {MOST_FAILED_STARTS} times: see {slot.log}"
        if not self.workers:
            raise WorkerStartError(reason)
        self.listener.note(f"worker {slot.index} is given up: {reason}")
        return True

    def _release(self, job: Job, death: Death, step: int) -> None:
        """What becomes of the job of a dead worker, which may only have waited for somebody else who does it."""
        if jobs.is_taken(job, self.results):
            self.schedule.put_back(job)
        elif not self.schedule.retried(job, death.again):
            self._finish(job, {"outcome": FAILED, "reason": death.reason}, step)
            return
        self.listener.returned(job, death.reason)

    def _finish(self, job: Job, outcome: Outcome, step: int = 0) -> None:
        if job.kind == "run" and outcome["outcome"] == FAILED:
            outcome = self._record(job, outcome, step)
        self.listener.finished(job, outcome)
        reason = f"its warm start failed: {outcome['reason']}"
        for orphan in self.schedule.finished(job, outcome["outcome"] == COMPLETED):
            self._finish(orphan, {"outcome": outcome["outcome"], "reason": reason})
        if outcome.get("disk_full") and (dropped := self.schedule.drop_waiting()):
            self.listener.note(f"the disk is full: {dropped} further jobs are not started")

    def _record(self, job: Job, outcome: Outcome, step: int) -> Outcome:
        folder = self.results.run(job.signature)
        try:
            return record_failure(folder, str(outcome["reason"]), step, outcome.get("error"))
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            return no_outcome(error, folder)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the workers end: by the end of their input, or by SIGTERM where something went wrong."""
        for worker in self.workers:
            worker.process.terminate() if kind else worker.stdin.close()
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._selector.close()
