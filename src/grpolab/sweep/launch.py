"""What a command that trains holds while it does: an engine, the tracking store's mirror, the handlers of signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from grpolab.paths import Results
from grpolab.registry import resolve
from grpolab.run import tracking
from grpolab.sweep.engine import WORKER_COMMAND, Engine, WorkerPool, worker_slots
from grpolab.sweep.jobs import Request
from grpolab.sweep.ledger import duration
from grpolab.terminal import say

ENGINES = {  # launcher -> its engine, imported only if it is asked for
    "ray": "grpolab.sweep.cluster:RayEngine",
    "slurm": "grpolab.sweep.cluster:SlurmEngine",
}
# Longest waits for the tracking store: at the end, and after Ctrl-C.
MIRROR_SECONDS, INTERRUPTED_SECONDS = 600.0, 5.0


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


@contextmanager
def mirrored(results: Results, uri: str | None, study: str) -> Iterator[None]:
    """Keep the tracking store up to date during the block; training never waits for it, failures are only reported."""
    if uri is None:
        yield
        return

    def say_tracking(sentence: str) -> None:
        say(f"tracking: {sentence}", flush=True)

    mirror = tracking.MirrorProcess(results, uri, [study], say_tracking)
    limit = INTERRUPTED_SECONDS
    try:
        yield
        limit = MIRROR_SECONDS
    finally:
        problems: list[str | None] = []
        closing = threading.Thread(target=lambda: problems.append(mirror.close()), daemon=True)
        closing.start()
        started = time.monotonic()
        closing.join(2.0)
        if closing.is_alive():
            say("bringing the tracking store up to date ...", flush=True)
            closing.join(limit)
        if closing.is_alive():  # it continues in the background and ends by itself
            say(f"tracking goes on in the background: not up to date after {duration(time.monotonic() - started)}")
        elif problems and problems[0]:
            say_tracking(f"{problems[0]}; `grpolab track sync` catches up")


@contextmanager
def interruptible(
    handler: Callable[[int, FrameType | None], None] = signal.default_int_handler, *numbers: int
) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, or install another `handler` for some signals."""
    before = {number: signal.signal(number, handler) for number in numbers or (signal.SIGTERM,)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
