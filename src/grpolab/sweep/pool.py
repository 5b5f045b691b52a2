"""N worker processes and the jobs they do. A worker's death costs only its job; the worker is replaced.

One thread, because a child told to die with its parent dies with the *thread* that started it.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from grpolab.identity import plain
from grpolab.paths import Results
from grpolab.sweep.ledger import record_failure
from grpolab.sweep.machine import Slot
from grpolab.sweep.schedule import Job, Schedule
from grpolab.vocabulary import COMPLETED, FAILED

Outcome = dict[str, Any]

WORKER_COMMAND = (sys.executable, "-m", "grpolab.sweep.worker")
GRACE_SECONDS = 20.0  # for a worker to reach its next rollout boundary
MOST_FAILED_STARTS = 3


class WorkerStartError(Exception):
    """Workers die before they are ready."""


class Listener(Protocol):
    """Who is told what happens."""

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps."""

    def finished(self, job: Job, outcome: Outcome) -> None:
        """The job has an outcome."""

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
        slot.log.parent.mkdir(parents=True, exist_ok=True)
        with slot.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **slot.environment},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def assign(self, job: Job) -> None:
        """Hand the job over."""
        self.job, self.step = job, 0
        request = {"job": job.kind, "settings": plain(job.settings)}
        try:
            self.stdin.write(json.dumps(request).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass  # it has just died: the end of its output says so

    def read(self) -> list[dict[str, Any]] | None:
        """The events that have come in; None where it has died."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def how_it_died(self) -> str:
        """`worker died (signal 9)`."""
        code = self.process.wait()
        return f"worker died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"


class Pool:
    """Does a schedule's jobs; as a context manager it leaves no process behind."""

    def __init__(self, slots: Sequence[Slot], results: Results, command: Sequence[str] = WORKER_COMMAND) -> None:
        self.slots, self.results, self.command = slots, results, command
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job, and tell the listener. Raises WorkerStartError."""
        self.listener = listener
        for slot in self.slots[: schedule.waiting]:
            self._start(slot)
        while schedule:
            self._assign(schedule)
            for key, _ in self._selector.select():
                self._listen(key.data, schedule)

    def _start(self, slot: Slot) -> None:
        worker = Worker(slot, self.command)
        self.workers.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _assign(self, schedule: Schedule) -> None:
        for worker in self.workers:
            if worker.ready and worker.job is None and (job := schedule.next()):
                worker.assign(job)
                self.listener.started(job, worker.slot.index)

    def _listen(self, worker: Worker, schedule: Schedule) -> None:
        events = worker.read()
        if events is None:
            self._bury(worker, schedule)
            return
        for event in events:
            if event["event"] == "ready":
                worker.ready, self._failed_starts = True, 0
            elif event["event"] == "step" and worker.job:
                worker.step = event["rollout_step"]
                self.listener.stepped(worker.job, worker.step)
            elif event["event"] == "done" and worker.job:
                job, worker.job = worker.job, None
                self._finish(job, event["outcome"], worker.step, schedule)

    def _bury(self, worker: Worker, schedule: Schedule) -> None:
        """Replace a dead worker; its job has failed, or is tried once more."""
        self._selector.unregister(worker.stdout)
        self.workers.remove(worker)
        reason = worker.how_it_died()
        self._failed_starts += not worker.ready
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise WorkerStartError(f"{reason} before it was ready, {self._failed_starts} times: see {worker.slot.log}")
        if worker.job and schedule.retried(worker.job):
            self.listener.note(f"{worker.job.label}: {reason}, starting it once more")
        elif worker.job:
            self._finish(worker.job, {"outcome": FAILED, "reason": reason}, worker.step, schedule)
        if schedule.waiting:
            self._start(worker.slot)

    def _finish(self, job: Job, outcome: Outcome, step: int, schedule: Schedule) -> None:
        if job.kind == "run" and outcome["outcome"] == FAILED:
            folder = self.results.run(job.signature)
            outcome = record_failure(folder, str(outcome["reason"]), step, outcome.get("error"))
        self.listener.finished(job, outcome)
        for orphan in schedule.finished(job, outcome["outcome"] == COMPLETED):
            reason = f"its warm start failed: {outcome['reason']}"
            self.listener.finished(orphan, record_failure(self.results.run(orphan.signature), reason, 0))

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
