"""The interface of an engine, and the engine of this machine: long-lived workers that do one job after another.

The engines of Ray and Slurm are in `cluster.py`. Engines share no state except the run folders.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from grpolab.paths import DISK_ERRORS, PYTHON, Results, plain
from grpolab.registry import resolve
from grpolab.run.folder import record_failure
from grpolab.run.memory import cores
from grpolab.run_files import Record
from grpolab.sweep.jobs import RUN, Job, Request, Schedule
from grpolab.sweep.ledger import no_outcome
from grpolab.vocabulary import COMPLETED, FAILED

ENGINES = {  # launcher -> its engine, imported only if it is asked for
    "ray": "grpolab.sweep.cluster:RayEngine",
    "slurm": "grpolab.sweep.cluster:SlurmEngine",
}
WORKER_COMMAND = (*PYTHON, "-m", "grpolab.sweep.worker")
TICK_SECONDS = 0.5  # between two checks of limits and of other commands' outcomes
GRACE_SECONDS = 20.0  # at least, for a run to reach its next rollout boundary
MOST_ATTEMPTS = 2  # of a job, if its worker is killed
MOST_FAILED_STARTS = 3  # of workers in one slot, in a row
# Exit codes of workers that were killed from outside; after SIGTERM a worker writes a checkpoint and exits with 0.
KILLED_FROM_OUTSIDE = {0, -signal.SIGTERM, -signal.SIGKILL}
# Otherwise glibc returns freed memory to the system at once, and each step pays for its pages again.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(512 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}


@dataclass(frozen=True)
class Death:
    """The end of a worker before its job was done."""

    reason: str
    again: bool = False  # True: the job may not be to blame, and is tried again
    gently: bool = False  # True: the run may write a checkpoint before it is killed


class WorkerStartError(Exception):
    """No worker can be started."""


class Listener(Protocol):
    """Receives the events of a sweep.

    `stepped`: a job has finished so many steps. `returned`: a job's worker died, and the job is tried again.
    `finished`: the outcome is `missing` if the run was told to leave, or the disk could not store it.
    """

    def started(self, job: Job, slot: int) -> None: ...
    def stepped(self, job: Job, step: int) -> None: ...
    def returned(self, job: Job, reason: str) -> None: ...
    def finished(self, job: Job, outcome: Record) -> None: ...
    def note(self, text: str) -> None: ...


class Assignment:
    """A job that a worker has."""

    def __init__(self, job: Job) -> None:
        self.job, self.step = job, 0
        self.began = self.last_heard = time.monotonic()
        self._longest_step = 0.0  # seconds between two signs of life

    def heard(self) -> None:
        now = time.monotonic()
        self._longest_step, self.last_heard = max(self._longest_step, now - self.last_heard), now

    def grace_seconds(self) -> float:
        """Return how long the job may take to its next rollout boundary: twice its longest step so far."""
        return max(GRACE_SECONDS, 2 * self._longest_step, 2 * (time.monotonic() - self.last_heard))

    def passed_limit(self, memory_mib: Callable[[], float | None]) -> Death | None:
        """Return the limit of the settings' `machine` that the job has passed; warm starts have no timeout."""
        limits, now = self.job.settings["machine"], time.monotonic()
        timeout, hang, ceiling = limits["cell_timeout_seconds"], limits["hang_seconds"], limits["memory_mib"]
        if self.job.kind == RUN and timeout is not None and now - self.began > timeout:
            return Death(f"longer than machine.cell_timeout_seconds={timeout:g}", gently=True)
        if hang is not None and now - self.last_heard > hang:
            return Death(f"no sign of life for {hang:g} s (machine.hang_seconds)", again=True)
        if ceiling is not None and (used := memory_mib() or 0) > ceiling:
            return Death(f"the worker used {used:.0f} MiB, more than machine.memory_mib={ceiling}")
        return None


class Engine(ABC):
    """Does the jobs of a schedule. It is a context manager, because it may hold a connection to a cluster."""

    schedule: Schedule
    listener: Listener

    def __init__(self, results: Results, places: int, attempts: int = MOST_ATTEMPTS) -> None:
        self.results, self.places, self.attempts = results, places, attempts  # places: jobs that run at once
        self._said_waiting = False

    def __enter__(self) -> Self:
        """Connect. Raises RequestError, and leaves nothing behind, if that is not possible."""
        return self

    def __exit__(self, *_: object) -> None: ...  # noqa: B027

    @abstractmethod
    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job and report to the listener. Raises WorkerStartError."""

    @abstractmethod
    def leave(self, signature: str) -> None:
        """Stop a run at a checkpoint, from which it can go on later; its outcome is then `missing`."""

    def next_job(self) -> Job | None:
        """Return the next job that no process is doing; mark those as finished that other commands have done."""
        for job in self.schedule.ready():
            if outcome := job.outcome(self.results):
                self.finish(job, outcome)
            elif not job.is_taken(self.results):
                return job
            else:
                self.schedule.pass_over(job)
        return None

    def say_waiting(self) -> None:
        """Say once that other commands run all remaining jobs."""
        if self.schedule and not self._said_waiting:
            self._said_waiting = True
            self.listener.note(f"{self.schedule.waiting} left, which another command runs: waiting for their outcomes")

    def handle_death(self, job: Job, death: Death, step: int) -> None:
        """Try a job again after its worker's death, or record its failure."""
        if is_elsewhere := job.is_taken(self.results):  # the worker only waited for another process that does the job
            self.schedule.put_back(job)
        if is_elsewhere or (death.again and self.schedule.retry(job, self.attempts)):
            self.listener.returned(job, death.reason)
        else:
            self.finish(job, {"outcome": FAILED, "reason": death.reason}, step)

    def finish(self, job: Job, outcome: Record, step: int = 0) -> None:
        """Remove a finished job from the schedule; if it failed, record that, and fail the runs that waited for it."""
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


def make_engine(request: Request, jobs: int | None, command: Sequence[str] = WORKER_COMMAND) -> Engine:
    """Return the engine for a request, with `jobs` workers (default: what the machine has); nothing is started yet."""
    settings = [cell.settings for cell in request.cells.values()]
    threads, logs = max(cell.machine.threads for cell in settings), request.results.studies / request.name
    if request.launcher:
        engine: Engine = resolve(ENGINES[request.launcher.name])(
            request.results, request.launcher, jobs, threads, logs / request.launcher.name
        )
        return engine
    uses_gpu = any(cell.device == "cuda" for cell in settings)
    return WorkerPool(request.results, worker_slots(jobs, uses_gpu, threads), logs, command)


def worker_environment(threads: int) -> dict[str, str]:
    """Return a worker's environment variables, by which torch sizes its thread pools when it is imported."""
    sizes = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return sizes | KEEP_MEMORY


def worker_slots(jobs: int | None, uses_gpu: bool, threads: int) -> list[dict[str, str]]:
    """Return each worker's environment. There are `jobs` workers; by default, one for each GPU or each `threads` cores.

    GPUs are dealt to the workers through CUDA_VISIBLE_DEVICES.
    """
    devices = gpus() if uses_gpu else []
    count = jobs or len(devices) or max(1, cores() // threads)
    visible = [{"CUDA_VISIBLE_DEVICES": device} for device in devices] or [{}]
    return [worker_environment(threads) | visible[index % len(visible)] for index in range(count)]


def gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [device.strip() for device in visible.split(",") if device.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    return [str(index) for index, line in enumerate(listing.splitlines()) if line.startswith("GPU ")]


class WorkerProcess:
    """A worker process and its job."""

    def __init__(self, slot: int, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.slot, self.log = slot, log
        self.assignment: Assignment | None = None
        self.is_ready = False
        self._buffer = b""
        self._death: Death | None = None  # set when we end it
        self._deadline = 0.0
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            # In a process group of its own, so that its children can be ended with it.
            pipe, variables = subprocess.PIPE, {**os.environ, **environment}
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=file, env=variables, process_group=0
            )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.assignment is None and self._death is None

    def assign(self, job: Job) -> None:
        self.assignment = Assignment(job)
        request = {"job": job.kind, "signature": job.signature, "settings": plain(job.settings)}
        with suppress(BrokenPipeError):  # it has just died: the end of its output says so
            self.stdin.write(json.dumps(request).encode() + b"\n")
            self.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the new events; None if the worker has died."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if self.assignment:
            self.assignment.heard()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def watch(self) -> None:
        """End the worker if its job has passed a limit."""
        if self._death is None and self.assignment and (death := self.assignment.passed_limit(self._memory_mib)):
            self._death, self._deadline = death, time.monotonic() + (self.grace_seconds() if death.gently else 0)
            self.process.terminate()
        if self._death and time.monotonic() >= self._deadline:
            self.process.kill()
        if self.process.poll() is not None:  # a child of it would hold its locks and its output open
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def grace_seconds(self) -> float:
        """Return how long it may take to end once it is told to."""
        return self.assignment.grace_seconds() if self.assignment else GRACE_SECONDS

    def _memory_mib(self) -> float | None:
        with suppress(psutil.Error):  # it has just died
            return float(psutil.Process(self.process.pid).memory_info().rss / 2**20)
        return None

    def death(self) -> Death:
        """Wait for the worker's end and return the reason: `worker died (signal 11)`."""
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        # A kernel that is out of memory sends SIGKILL, and leaves no other trace.
        perhaps = ", perhaps out of memory" if code == -signal.SIGKILL else ""
        return self._death or Death(f"worker died ({how}){perhaps}", again=code in KILLED_FROM_OUTSIDE)


class WorkerPool(Engine):
    """The engine of this machine. If a worker dies, at most its job fails, and the worker is replaced.

    It has one thread, because the kernel ends a worker with the *thread* that started it (`die_with_parent`).
    """

    def __init__(
        self, results: Results, slots: Sequence[dict[str, str]], logs: Path, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        """`slots` holds the environment of each worker, as `worker_slots` returns it."""
        super().__init__(results, len(slots))
        self.slots, self.logs, self.command = slots, logs, command
        self.workers: list[WorkerProcess] = []

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job; no process is left behind. Raises WorkerStartError."""
        self.schedule, self.listener, self.workers = schedule, listener, []
        self._selector = selectors.DefaultSelector()
        self._failed_starts: Counter[int] = Counter()  # by slot, in a row
        try:
            for slot in range(min(self.places, schedule.waiting)):
                self._start(slot)
            while schedule:
                self._assign()
                for key, _ in self._selector.select(TICK_SECONDS):
                    self._listen(key.data)
                for worker in self.workers:
                    worker.watch()
            for worker in self.workers:
                worker.stdin.close()
        except BaseException:
            for worker in self.workers:
                worker.process.terminate()
            if graces := [worker.grace_seconds() for worker in self.workers if worker.assignment]:
                longest = f"{max(graces):.0f} s"
                listener.note(f"stopping: a run has {longest} to end its step with a checkpoint; Ctrl-C skips that")
            raise
        finally:
            self._await_end()
            self._selector.close()

    def _await_end(self) -> None:
        """Wait for the workers, which have been told to end; kill those that need too long, and all at a Ctrl-C."""
        deadlines = [time.monotonic() + worker.grace_seconds() for worker in self.workers]
        try:
            for worker, deadline in zip(self.workers, deadlines, strict=True):
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()

    def leave(self, signature: str) -> None:
        for worker in self.workers:
            if worker.assignment and worker.assignment.job.signature == signature:
                worker.process.send_signal(signal.SIGUSR1)

    def _start(self, slot: int) -> None:
        worker = WorkerProcess(slot, self.command, self.slots[slot], self.logs / f"worker-{slot}.log")
        self.workers.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _assign(self) -> None:
        for worker in self.workers:
            if worker.is_idle and (job := self.next_job()):
                self.schedule.hand_out(job)
                worker.assign(job)
                self.listener.started(job, worker.slot)
        if all(worker.is_idle for worker in self.workers):  # nothing was handed out: the rest runs in other commands
            self.say_waiting()

    def _listen(self, worker: WorkerProcess) -> None:
        events = worker.read()
        if events is None:
            self._replace(worker)
            return
        for event in events:
            if event["event"] == "ready":
                worker.is_ready = True
                del self._failed_starts[worker.slot]
            elif assignment := worker.assignment:
                if event["event"] == "step":
                    assignment.step = event["rollout_step"]
                    self.listener.stepped(assignment.job, assignment.step)
                elif event["event"] == "done":
                    worker.assignment = None
                    self.finish(assignment.job, event["outcome"], assignment.step)

    def _replace(self, worker: WorkerProcess) -> None:
        """Give up the job of a dead worker, and start another worker."""
        self._selector.unregister(worker.stdout)
        self.workers.remove(worker)
        death, slot = worker.death(), worker.slot
        if not worker.is_ready:
            self._failed_starts[slot] += 1
            if self._failed_starts[slot] == MOST_FAILED_STARTS:
                times = f"{MOST_FAILED_STARTS} times: see {worker.log}"
                raise WorkerStartError(f"{death.reason} before it was ready, {times}")
        if assignment := worker.assignment:
            self.handle_death(assignment.job, death, assignment.step)
        if self.schedule.waiting:
            self._start(slot)
