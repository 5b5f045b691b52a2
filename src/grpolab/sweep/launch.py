"""From checked plans to their outcomes: write the plans, train what is missing, mirror and draw it, say how it ended.

Exit codes: 0 every cell has an outcome, 1 something failed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grpolab.paths import Results, project_root
from grpolab.run import tracking
from grpolab.sweep.machine import slots
from grpolab.sweep.plan import Plan
from grpolab.sweep.pool import WORKER_COMMAND, Pool, WorkerStartError
from grpolab.sweep.progress import Estimate, duration, first_line, make_progress, print_table
from grpolab.sweep.request import Request
from grpolab.sweep.schedule import Job, Schedule
from grpolab.vocabulary import COMPLETED, DIVERGED, FAILED

Draw = Callable[[Results, str], None]

# What a unit of cost takes with the tiny model on one core: for the first estimate only.
TINY_SECONDS_PER_COST = 2.8e-5
MIRROR_SECONDS = 600.0  # longest wait for the tracking store after the last run
INTERRUPTED_SECONDS = 5.0  # the same after Ctrl-C


def sweep(
    plans: Sequence[Plan],
    draw: Draw,
    jobs: int | None = None,
    retry_failed: bool = False,
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Run the plans on `jobs` workers (default: what the machine has) and `draw` what came out; the exit code.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    request = _begin(plans, retry_failed)
    todo = request.jobs()
    settings = [cell.settings for cell in request.cells.values()]
    uses_gpu = any(one.resolved().device == "cuda" for one in settings)
    places = slots(jobs, uses_gpu, max(one.machine.threads for one in settings), request.results.studies / request.name)
    estimate = _estimate(request, len(places))
    _print_plan(request, todo)
    with _interruptible(), _mirrored(request):
        if todo:
            print(f"workers: {len(places)}; time: {estimate.left(sum(job.cost for job in todo))}")
            _run_on_workers(todo, estimate, Pool(places, request.results, command))
        else:
            print("0 cells to train: every run has its outcome")
        # Before the mirror ends, so that figures and tables reach the tracking store too.
        if todo or not (request.results.output(request.name) / "report.md").exists():
            draw(request.results, request.name)
    return _conclude(request)


def train_here(plan: Plan) -> int:
    """Train the one run of a plan in this process, again where it failed before; the exit code. Raises as `sweep`."""
    request = _begin([plan], retry_failed=True)
    todo = [job for job in request.jobs() if job.kind == "run"]
    with _interruptible(), _mirrored(request):
        for job in todo:
            _run_here(request, job)
        if not todo:
            print("0 cells to train: the run has its outcome")
    for name in request.cells:
        print(f"run folder: {request.results.run(name)}")
    return _conclude(request)


def _begin(plans: Sequence[Plan], retry_failed: bool) -> Request:
    request = Request(plans)
    request.write_plans()
    if retry_failed:
        request.set_failures_aside()
    return request


def _run_on_workers(todo: list[Job], estimate: Estimate, pool: Pool) -> None:
    try:
        with make_progress(todo, estimate) as progress, pool:
            pool.run(Schedule(todo), progress)
    except WorkerStartError as error:
        print(error)


def _run_here(request: Request, job: Job) -> None:
    from grpolab.run.train import run  # here, because it imports torch

    with make_progress([job], _estimate(request, 1)) as progress:
        progress.started(job, 0)
        settings = request.cells[job.signature].settings
        outcome = run(settings, request.results, on_step=lambda step: progress.stepped(job, step))
        progress.finished(job, outcome)


def _estimate(request: Request, workers: int) -> Estimate:
    """From the runs that are done, else from what the tiny model is known to take, else none."""
    done = [(request.cells[name].cost, state.outcome) for name, state in request.states().items() if state.outcome]
    timed = [(cost, outcome["seconds"]) for cost, outcome in done if outcome.get("seconds")]
    if timed:
        return Estimate(sum(seconds for _, seconds in timed) / sum(cost for cost, _ in timed), workers)
    tiny = all(cell.settings.model.name == "tiny" for cell in request.cells.values())
    return Estimate(TINY_SECONDS_PER_COST if tiny else None, workers)


def _print_plan(request: Request, todo: list[Job]) -> None:
    """What is asked for, and how much of it is done."""
    states = request.states()
    studies = [plan for plan in request.plans if plan.cells]
    done = [sum(states[cell.signature].outcome is not None for cell in plan.cells) for plan in studies]
    print_table(
        ("study", "cells", "seeds", "done"),
        [
            (plan.study.name, str(len(plan.cells)), ", ".join(map(str, plan.seeds)), str(count))
            for plan, count in zip(studies, done, strict=True)
        ],
    )
    kinds = Counter(job.kind for job in todo)
    shared = sum(len(plan.cells) for plan in studies) - len(request.cells)
    common = f" ({shared} cells are shared)" if shared else ""
    print(
        f"{len(states)} different runs{common}, {len(states) - kinds['run']} done, {kinds['run']} to train,"
        f" {kinds['warm_start']} warm starts to make"
    )


def _conclude(request: Request) -> int:
    """Say how it ended and where to look; the exit code."""
    states = request.states()
    counts = Counter(state.state for state in states.values())
    runs = "1 run" if len(states) == 1 else f"{len(states)} runs"
    print(f"{runs}: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
    for name, state in states.items():
        if state.state == FAILED:
            print(f"failed: {request.labels[name]} ({name}): {first_line(state.outcome)}")
    if counts[FAILED]:
        print(f"the whole error: outcome.json in {request.results.runs}/; --retry-failed runs them again")
    elsewhere = f" --results {request.results.root}" if request.results.root != project_root() / "results" else ""
    print(f"look: {request.results.output(request.name)}/report.md, grpolab ui {request.name}{elsewhere}")
    return 0 if counts[COMPLETED] + counts[DIVERGED] == len(states) else 1


@contextmanager
def _mirrored(request: Request) -> Iterator[None]:
    """Keep the tracking store up to date meanwhile. It never holds training up, and its failure is only said."""
    if request.tracking_uri is None:
        yield
        return
    mirror = tracking.MirrorProcess(request.results, request.tracking_uri, [request.name])
    try:
        yield
    except BaseException:
        _close(mirror, INTERRUPTED_SECONDS)
        raise
    _close(mirror, MIRROR_SECONDS)


def _close(mirror: tracking.MirrorProcess, limit: float) -> None:
    """Wait at most `limit` seconds; a mirror that is not ready then ends on its own."""
    problems: list[str | None] = []
    closing = threading.Thread(target=lambda: problems.append(mirror.close()), daemon=True)
    closing.start()
    started = time.monotonic()
    closing.join(2.0)
    if closing.is_alive():
        print("bringing the tracking store up to date ...", flush=True)
        closing.join(limit)
    if closing.is_alive():
        print(f"tracking goes on in the background: not up to date after {duration(time.monotonic() - started)}")
    elif problems and problems[0]:
        print(f"tracking: {problems[0]}; the same command again catches up")


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does."""

    def interrupt(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
