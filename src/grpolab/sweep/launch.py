"""Train the jobs of a request on an engine, and mirror them to the tracking store meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from grpolab.errors import Damaged
from grpolab.paths import Results
from grpolab.registry import resolve
from grpolab.run import tracking
from grpolab.run_files import read_warm_start
from grpolab.sweep.engine import WORKER_COMMAND, Engine, WorkerPool, WorkerStartError, worker_slots
from grpolab.sweep.jobs import RUN, WARM_START, Job, Request, Schedule
from grpolab.sweep.ledger import duration
from grpolab.sweep.progress import Estimate, show_progress
from grpolab.terminal import say

Draw = Callable[[Results, str], None]

ENGINES = {  # launcher -> its engine, imported only if it is asked for
    "ray": "grpolab.sweep.cluster:RayEngine",
    "slurm": "grpolab.sweep.cluster:SlurmEngine",
}
# Longest waits for the tracking store: at the end, and after Ctrl-C.
MIRROR_SECONDS, INTERRUPTED_SECONDS = 600.0, 5.0


def train(request: Request, todo: Sequence[Job], engine: Engine) -> None:
    places = min(engine.places, len(todo))
    try:
        with show_progress(todo, make_estimate(request, places), request.results) as progress:
            progress.note(f"workers: {places}; {progress.left()}")
            engine.run(Schedule(todo), progress)
    except WorkerStartError as error:
        say(error)


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


def make_estimate(request: Request, workers: int) -> Estimate:
    """Return an estimate that has learnt from the finished runs and warm starts in the results folder."""
    estimate = Estimate(workers)
    for name, state in request.states().items():
        if state.outcome and state.outcome.get("seconds"):
            estimate.learn(RUN, request.cells[name].cost, state.outcome["seconds"], whole=True)
    for name, cell in {cell.warm_start: cell for cell in request.cells.values()}.items():
        made = None
        with suppress(Damaged):
            made = read_warm_start(request.results.warm_start(name))
        if made and made["steps"]:
            estimate.learn(WARM_START, cell.warm_start_cost, made["seconds"], whole=True)
    return estimate


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
