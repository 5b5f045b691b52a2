"""Worker processes, as many as the machine has places for, and the jobs they do.

A worker's death costs at most its job; the worker is replaced. One thread, because a child told to die with its parent
dies with the *thread* that started it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from grpolab.paths import PYTHON, Results, plain
from grpolab.run.memory import cores
from grpolab.sweep.engine import GRACE_SECONDS, TICK_SECONDS, Death, Engine, Listener, WorkerStartError, passed_limit
from grpolab.sweep.jobs import Job, Schedule

WORKER_COMMAND = (*PYTHON, "-m", "grpolab.sweep.worker")
MOST_FAILED_STARTS = 3
# glibc gives freed tensors back to the system at once, and every step would pay for their pages again.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(512 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
# Kills that come from outside; a worker that was asked to stop (SIGTERM) exits with 0 after a checkpoint.
FROM_OUTSIDE = {0, -signal.SIGTERM, -signal.SIGKILL}


@dataclass(frozen=True)
class Slot:
    """A place for one worker at a time: a core or some, or a GPU."""

    index: int
    environment: dict[str, str]
    log: Path


def slots(jobs: int | None, uses_gpu: bool, threads: int, logs: Path) -> list[Slot]:
    """The slots of a sweep: `jobs` of them, by default one per GPU where the runs use it, else one per `threads` cores.

    GPUs are dealt out in turn through CUDA_VISIBLE_DEVICES.
    """
    devices = gpus() if uses_gpu else []
    count = jobs or len(devices) or max(1, cores() // threads)
    places = []
    for index in range(count):
        gpu = {"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} if devices else {}
        places.append(Slot(index, environment(threads) | gpu, logs / f"worker-{index}.log"))
    return places


def environment(threads: int) -> dict[str, str]:
    """What a worker must find set before it imports anything: thread pools are sized then."""
    common = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return common | KEEP_MEMORY


def gpus() -> list[str]:
    """Ids of the GPUs that this process may use."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [device.strip() for device in visible.split(",") if device.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    return [str(index) for index, line in enumerate(listing.splitlines()) if line.startswith("GPU ")]


class WorkerProcess:
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

    def watch(self) -> None:
        """End it where its job has passed a limit; the end of its output says when it is gone."""
        now = time.monotonic()
        verdict = self.job and passed_limit(self.job, now - self.began, now - self.heard, self._mib)
        if verdict and self._verdict is None:
            self._verdict = verdict
            self.process.terminate()
            self._deadline = now + (GRACE_SECONDS if verdict.gently else 0)
        if self._verdict and now >= self._deadline:
            self.process.kill()
        if self.process.poll() is not None:  # what it forked holds its locks, and its output open
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _mib(self) -> float | None:
        with suppress(psutil.Error):  # it has just died
            return float(psutil.Process(self.process.pid).memory_info().rss / 2**20)
        return None

    def death(self) -> Death:
        """Why it ended: `worker died (signal 11)`."""
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        # The kernel's last resort is SIGKILL; it leaves no other trace that we may read.
        perhaps = ", perhaps out of memory" if code == -signal.SIGKILL else ""
        return self._verdict or Death(f"worker died ({how}){perhaps}", again=code in FROM_OUTSIDE)


class Pool(Engine):
    """The engine of this machine."""

    def __init__(self, slots: Sequence[Slot], results: Results, command: Sequence[str] = WORKER_COMMAND) -> None:
        super().__init__(results, len(slots))
        self.slots, self.command = slots, command
        self.workers: list[WorkerProcess] = []

    def run(self, schedule: Schedule, listener: Listener) -> None:
        """Do every job, and tell the listener; no process is left behind. Raises WorkerStartError."""
        self.begin(schedule, listener)
        self.workers = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts: Counter[int] = Counter()  # by slot, in a row
        try:
            for slot in self.slots[: min(self.places, schedule.waiting)]:
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
            raise
        finally:
            deadline = time.monotonic() + GRACE_SECONDS
            for worker in self.workers:
                try:
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.process.kill()
                    worker.process.wait()
            self._selector.close()

    def leave(self, signature: str) -> None:
        """As every engine does."""
        for worker in self.workers:
            if worker.job and worker.job.signature == signature:
                worker.process.send_signal(signal.SIGUSR1)

    def _start(self, slot: Slot) -> None:
        worker = WorkerProcess(slot, self.command)
        self.workers.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _assign(self) -> None:
        for worker in self.workers:
            if worker.idle and (job := self.next()):
                self.schedule.hand_out(job)
                worker.assign(job)
                self.listener.started(job, worker.slot.index)
        if all(worker.idle for worker in self.workers):
            self.say_waiting()

    def _listen(self, worker: WorkerProcess) -> None:
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
                self.finish(job, event["outcome"], worker.step)

    def _bury(self, worker: WorkerProcess) -> None:
        """Replace a dead worker; its job has failed, or is on the list again. Raises WorkerStartError."""
        self._selector.unregister(worker.stdout)
        self.workers.remove(worker)
        death, slot = worker.death(), worker.slot
        if not worker.ready:
            self._failed_starts[slot.index] += 1
            if self._failed_starts[slot.index] == MOST_FAILED_STARTS:
                reason = f"{death.reason} before it was ready, {MOST_FAILED_STARTS} times: see {slot.log}"
                if not self.workers:
                    raise WorkerStartError(reason)
                self.listener.note(f"worker {slot.index} is given up: {reason}")
                return
        if job := worker.job:
            self.lost(job, death, worker.step)
        if self.schedule.waiting:
            self._start(slot)
