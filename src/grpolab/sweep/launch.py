"""From checked plans to their outcomes: write the plans, train what is missing, mirror and draw it, say how it ended.

Exit codes: 0 every cell has an outcome, 1 something failed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any

from grpolab.errors import Damaged, RequestError
from grpolab.identity import signature
from grpolab.paths import DISK_ERRORS, REPORT_FILES, Results, is_refusal, plain, project_root
from grpolab.records import JOURNAL, outcome_or_damage, read_warm_start
from grpolab.run import tracking
from grpolab.run.folder import reason_of, record_failure
from grpolab.run.preflight import refuse_another
from grpolab.settings.run import RayLauncher, SlurmLauncher
from grpolab.sweep.engine import TICK_SECONDS, Engine, WorkerStartError
from grpolab.sweep.jobs import RUN, WARM_START, Job, Request, Schedule, warm_start_job
from grpolab.sweep.ledger import (
    TITLES,
    Facts,
    JournalReader,
    Record,
    cells_of_row,
    committed_outcomes,
    duration,
    first_line,
    no_outcome,
    result_lines,
    variant_row,
)
from grpolab.sweep.looks import Looks, standing, tally
from grpolab.sweep.plan import Plan
from grpolab.sweep.pool import WORKER_COMMAND, Pool, slots
from grpolab.sweep.progress import Estimate, Events, print_table, show_progress
from grpolab.sweep.ray_engine import RayEngine
from grpolab.sweep.slurm_engine import SlurmEngine
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED, FAILED, MISSING, RESULTS

Draw = Callable[[Results, str], None]

MIRROR_SECONDS = 600.0  # longest wait for the tracking store after the last run
INTERRUPTED_SECONDS = 5.0  # the same after Ctrl-C


def sweep(
    plans: Sequence[Plan],
    draw: Draw,
    jobs: int | None = None,
    retry_failed: bool = False,
    command: Sequence[str] = WORKER_COMMAND,
    events: Events | None = None,
    unmet: Callable[[Results, str], Sequence[str]] = lambda results, study: (),
    looks: Looks | None = None,
    repeat: bool = False,
) -> int:
    """Run the plans on `jobs` workers (default: what the machine has) and `draw` what came out; the exit code.

    `events`: whom a program that watches is told through; the rest of the output is prose for people. `unmet`: what of
    a study's preconditions its runs do not meet, a sentence each. `looks`: the plans are those of its first look, and
    it is gone on with those of the next while something is open. `repeat`: train what has a committed outcome too.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    request = Request(plans, count_committed=not repeat)
    todo = request.jobs(retry_failed)
    engine = engine_of(request, jobs, command)
    if looks and not todo:  # looks whose runs are all there leave the plan as it is, which may be of a later one
        request, todo = _next_look(request, looks, engine, retry_failed, events)
    trained, drawn = bool(todo), True
    with interruptible(), engine if todo else nullcontext():
        request.write_plans(retry_failed)
        _say_plan(request, todo, events)
        with mirrored(request.results, request.tracking_uri, request.name):
            while todo:
                _train(request, todo, engine, events)
                if not looks:
                    break
                request, todo = _next_look(request, looks, engine, retry_failed, events)
                request.write_plans(retry_failed)
                if todo:
                    _say_plan(request, todo, events)
            if not trained:
                say("0 cells to train: every run has its outcome")
            # Before the mirror ends, so that figures and tables reach the tracking store too.
            if trained or not _is_drawn(request):
                drawn = _draw(draw, request)
    _say_results(request, events)
    for sentence in unmet(request.results, request.name):
        say(f"precondition {sentence}")
    if repeat and (sentence := _repeated(request)):
        say(sentence)
    return _conclude(request, events, drawn)


def _train(request: Request, todo: list[Job], engine: Engine, events: Events | None) -> None:
    places = min(engine.places, len(todo))
    try:
        with show_progress(todo, _estimate(request, places), request.results, events) as progress:
            progress.note(f"workers: {places}; {progress.left()}")
            engine.run(Schedule(todo), progress)
    except WorkerStartError as error:
        say(error)


def _next_look(
    request: Request, looks: Looks, engine: Engine, retry_failed: bool, events: Events | None
) -> tuple[Request, list[Job]]:
    """What is asked for at the next look that has something to train, and that; else at the last one, and nothing.

    There is none after a look that lacks a result: with its first seeds incomplete, what it decides could change.
    """
    todo: list[Job] = []
    while not todo:
        states = request.states().values()
        if lacking := sum(state.state not in RESULTS for state in states):
            say(f"look {looks.size} waits: {lacking} of {len(states)} runs have no result")
            break
        try:
            answers = looks.decide(request.results, [plain(plan.document("", None)) for plan in request.plans])
        except RequestError as error:
            say(f"not decided: {error}")
            break
        size, (verdicts, open_) = looks.size, tally(answers)
        if events:
            events.send("look", seeds=size, verdicts=verdicts, open=open_)
        line, variants = standing(size, answers), looks.advance(answers)
        if variants:
            request = Request(looks.plans)
            todo = request.jobs(retry_failed)
            line += f"; next: {looks.size} seeds of {variants} variants, {_how_much(request, todo, engine.places)}"
        elif open_:
            line += "; that was the last look"
        if not events:
            say(line)
        if not variants:
            break
    return request, todo


def _how_much(request: Request, todo: list[Job], places: int) -> str:
    """`45 runs, about 20 min`; `all done` where nothing is left to train."""
    if not todo:
        return "all done"
    costs = defaultdict[str, float](float)
    for job in todo:
        costs[job.kind] += job.cost
    left = _estimate(request, min(places, len(todo))).left(costs).removesuffix(" left")
    runs = sum(job.kind == RUN for job in todo)
    return f"{runs} run{'' if runs == 1 else 's'}" + (f", {left}" if left else "")


def train_here(plan: Plan, events: Events | None = None, assess: Draw = lambda results, study: None) -> int:
    """Train the one run of a plan in this process, again where it failed before; the exit code. Raises as `sweep`.

    `assess` writes down what the tracking store is told of it besides its journal.
    """
    # Whoever asks for one run wants its folder.
    request = Request([plan], count_committed=False, workers=False)
    todo = request.jobs(retry_failed=True)
    request.write_plans(retry_failed=True)
    if events:
        _say_plan(request, todo, events)
    with interruptible(), mirrored(request.results, request.tracking_uri, request.name):
        if todo:
            _do_here(request, todo, events)
            if request.tracking_uri:
                assess(request.results, request.name)
        else:
            say("0 cells to train: the run has its outcome")
    folder = request.results.run(plan.cells[0].signature)
    if events:
        _say_results(request, events)
    elif (outcome := outcome_or_damage(folder)) and outcome["outcome"] != DAMAGED:
        journal = JournalReader(folder).read()
        say("\n".join(result_lines(outcome, journal.facts())))
        _say_unmoved(request, {folder.name: journal})
    say(f"run folder: {folder}")
    return _conclude(request, events)


def _do_here(request: Request, todo: list[Job], events: Events | None) -> None:
    """Do a run, and before it the warm start that it waits for, if that is not there.

    Where the warm start fails, the run meets the same error, and keeps it.
    """
    from grpolab.run import train, warm_start  # here, because they import torch

    results, (settings,) = request.results, [cell.settings for cell in request.cells.values()]
    if todo[-1].is_taken(results):
        say("another command runs it: waiting for its outcome")
    while todo[-1].is_taken(results):  # `train.run` would wait too, but Ctrl-C then ends at a step
        time.sleep(TICK_SECONDS)
    asked: list[int] = []

    def ask_to_stop(number: int, _frame: FrameType | None) -> None:  # at the next rollout boundary; the second time now
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    progressing = show_progress(todo, _estimate(request, 1), results, events)
    with progressing as progress, interruptible(ask_to_stop, signal.SIGINT, signal.SIGTERM):
        for job in todo:

            def on_step(step: int, job: Job = job) -> None:
                progress.stepped(job, step)
                if job.kind == WARM_START and asked:  # it has no checkpoint
                    raise KeyboardInterrupt

            progress.started(job, 0)
            outcome: dict[str, Any]
            try:
                if job.kind == WARM_START:
                    made = warm_start.ensure(settings, results, on_step)
                    outcome = made.told(settings.warm_start.target_accuracy)
                else:
                    refuse_another(job.signature, signature(settings.identity()), settings)
                    outcome = train.run(settings, results, on_step=on_step, stop=lambda: bool(asked))
            except train.Interrupted:
                raise KeyboardInterrupt from None
            except Exception as error:
                if is_refusal(error, results.root):
                    outcome = no_outcome(error, results.root)
                elif job.kind == RUN:
                    outcome = record_failure(job.folder(results), reason_of(error), 0)
                else:
                    outcome = {"outcome": FAILED, "reason": reason_of(error)}
            progress.finished(job, outcome)


def engine_of(request: Request, jobs: int | None, command: Sequence[str] = WORKER_COMMAND) -> Engine:
    """Who does the cells of a request, `jobs` at a time or as many as there are places; nothing is started yet."""
    settings = [cell.settings for cell in request.cells.values()]
    threads, logs = max(cell.machine.threads for cell in settings), request.results.studies / request.name
    if isinstance(request.launcher, RayLauncher):
        return RayEngine(request.results, request.launcher, jobs, threads, logs)
    if isinstance(request.launcher, SlurmLauncher):
        return SlurmEngine(request.results, request.launcher, jobs, threads, logs / "slurm")
    uses_gpu = any(cell.resolved().device == "cuda" for cell in settings)
    return Pool(slots(jobs, uses_gpu, threads, logs), request.results, command)


def _estimate(request: Request, workers: int) -> Estimate:
    """By what the cells and warm starts that are done have taken; no other machine's speed is a basis."""
    estimate = Estimate(workers)
    for name, state in request.states().items():
        if state.outcome and state.outcome.get("seconds"):
            estimate.learn(RUN, request.cells[name].cost, state.outcome["seconds"], whole=True)
    for name, cell in {cell.warm_start: cell for cell in request.cells.values()}.items():
        made = None
        with suppress(Damaged):
            made = read_warm_start(request.results.warm_start(name))
        if made and made["steps"]:
            estimate.learn(WARM_START, warm_start_job(cell).cost, made["seconds"], whole=True)
    return estimate


def _draw(draw: Draw, request: Request) -> bool:
    """Draw what came out; False where the disk refuses it, or the runs are not to be compared, which is said."""
    try:
        draw(request.results, request.name)
    except RequestError as error:
        say(f"not drawn: {error}")
        return False
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        say(f"not drawn: {error.filename or request.results.root}: {error.strerror}")
        return False
    return True


def _is_drawn(request: Request) -> bool:
    """Whether the report is younger than the plans and outcomes that it is made of: an import or a kill leaves others.

    By the time of a file's last change of any kind: a copy keeps the time of its content.
    """
    report = request.results.output(request.name) / "report.md"
    made_of = [request.results.plan(plan.study.name) for plan in request.plans]
    made_of += [request.results.run(name) / file for name in request.cells for file in ("outcome.json", JOURNAL)]
    made_of += [request.results.reference / "outcomes.parquet"]
    changed = max(file.stat().st_ctime for file in made_of if file.exists())
    return report.exists() and report.stat().st_ctime >= changed


def _say_plan(request: Request, todo: list[Job], events: Events | None) -> None:
    """What is asked for, and how much of it is done."""
    states = request.states()
    studies = [
        {
            "study": plan.study.name,
            "cells": len(plan.cells),
            "seeds": plan.seeds,
            "done": sum(states[cell.signature].outcome is not None for cell in plan.cells),
        }
        for plan in request.plans
        if plan.cells
    ]
    kinds = Counter(job.kind for job in todo)
    runs, done, warm_starts = len(states), len(states) - kinds[RUN], kinds[WARM_START]
    committed = sum(state.committed for state in states.values())
    if events:
        counts = {"runs": runs, "done": done, "committed": committed}
        events.send("plan", studies=studies, **counts, to_train=kinds[RUN], warm_starts=warm_starts)
        return
    rows = [[str(value).strip("[]") for value in study.values()] for study in studies]
    print_table(("study", "cells", "seeds", "done"), rows)
    shared = sum(len(plan.cells) for plan in request.plans) - runs
    common = f" ({shared} cells are shared)" if shared else ""
    warm = f"{warm_starts} warm start{'' if warm_starts == 1 else 's'} to make"
    kept = f" ({committed} of them in {request.results.reference})" if committed else ""
    say(f"{runs} different runs{common}, {done} done{kept}, {kinds[RUN]} to train, {warm}")
    asked = request.plans[-1:] if request.plans[-1].hypotheses else request.plans  # primary ones stand for all
    if open_ := [plan.study.name for plan in asked if _unregistered(plan)]:
        say(f"exploratory: hypotheses of {', '.join(open_)} are not registered with these seeds (`grpolab register`)")


def _unregistered(plan: Plan) -> bool:
    """Whether a hypothesis of the study is not registered with any of the plan's seeds."""
    fresh = {name for name, entry in plan.registered.items() if set(plan.seeds) & set(entry["seeds"])}
    return not fresh >= plan.hypotheses.keys()


def _say_results(request: Request, events: Events | None) -> None:
    """What came out of each variant: a table for each study."""
    states = request.states().items()
    done = {
        name: state.outcome
        for name, state in states
        if state.outcome and not state.committed and state.state != DAMAGED
    }
    journals = {name: JournalReader(request.results.run(name)).read() for name in done}
    results = {name: (outcome, journals[name].facts()) for name, outcome in done.items()}
    for plan in request.plans:
        runs = defaultdict[str, list[tuple[Record, Facts]]](list)
        for cell in plan.cells:
            if cell.signature in results:
                runs[cell.variant].append(results[cell.signature])
        rows = {variant: variant_row(of_variant) for variant, of_variant in runs.items()}
        if events and rows:
            events.send("results", study=plan.study.name, variants=rows)
        elif rows:
            say(f"{plan.study.name}: means over runs")
            print_table(TITLES, [cells_of_row(variant, row) for variant, row in rows.items()])
    _say_unmoved(request, journals)


def _say_unmoved(request: Request, journals: Mapping[str, JournalReader]) -> None:
    """Name the runs whose rewards are all equal: there was nothing to learn from, whatever else is printed of them."""
    unmoved = {name: reward for name, journal in journals.items() if (reward := journal.only_reward) is not None}
    for name, reward in [*unmoved.items()][:1]:
        where = f" in {len(unmoved)} of {len(journals)} runs, first {request.labels[name]}" if len(journals) > 1 else ""
        asked = f"`grpolab diagnose {name}{_option(request)}` says why"
        say(f"the reward never moved{where}: it is {reward:g} for every completion of the run; {asked}")


def _option(request: Request) -> str:
    """What names the results folder behind another command, where it is not the usual one."""
    return f" --results {request.results.root}" if request.results.root != project_root() / "results" else ""


def _repeated(request: Request) -> str:
    """How many of the runs that are committed too came out the same, by their journals' hashes; empty for none."""
    committed, states = committed_outcomes(request.results), request.states()
    both = [(committed[name], state.outcome) for name, state in states.items() if state.outcome and name in committed]
    equal = sum(kept["journal_sha256"] == made.get("journal_sha256") for kept, made in both)  # of a damaged one: none
    if not both:
        return ""
    end = (
        ""
        if equal == len(both)
        else "; another kind of CPU rounds otherwise: `grpolab compare results/reference` judges it"
    )
    return f"of {len(both)} runs that are committed too, {equal} are equal to the bit{end}"


def _conclude(request: Request, events: Events | None, drawn: bool | None = None) -> int:
    """Say how it ended and where to look; the exit code. `drawn`: whether the report is; None: it was not asked for."""
    states = request.states()
    counts = Counter(state.state for state in states.values())
    runs = "1 run" if len(states) == 1 else f"{len(states)} runs"
    say(f"{runs}: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
    for name, state in states.items():
        if state.state in (FAILED, DAMAGED):
            say(f"{state.state}: {request.labels[name]} ({name}): {first_line(state.outcome)}")
    if counts[FAILED]:
        say(f"the whole error: outcome.json in {request.results.runs}/; --retry-failed runs them again")
    if counts[DAMAGED]:
        say("damaged runs are left out of every report: --retry-failed trains them anew")
    if counts[MISSING]:
        say("missing runs have no outcome: the same command goes on with them")
    # What another command has drawn of runs of the same name is none of this one's.
    reports = [request.results.output(request.name) / name for name in REPORT_FILES] if drawn is not None else []
    places = [str(file) for file in reports if file.exists()]
    if request.tracking_uri:
        places.append(f"grpolab ui {request.name}{_option(request)}")
    if places:
        say(f"look: {', '.join(places)}")
    code = 0 if drawn is not False and sum(counts[name] for name in RESULTS) == len(states) else 1
    if events:
        events.send("end", counts=counts, exit_code=code)
    return code


@contextmanager
def mirrored(results: Results, uri: str | None, study: str) -> Iterator[None]:
    """Keep the tracking store up to date meanwhile. It never holds training up, and its failure is only said."""
    if uri is None:
        yield
        return

    def say_of_it(sentence: str) -> None:
        say(f"tracking: {sentence}", flush=True)

    mirror = tracking.MirrorProcess(results, uri, [study], say_of_it)
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
        if closing.is_alive():  # it then ends on its own
            say(f"tracking goes on in the background: not up to date after {duration(time.monotonic() - started)}")
        elif problems and problems[0]:
            say_of_it(f"{problems[0]}; `grpolab track sync` catches up")


@contextmanager
def interruptible(
    handler: Callable[[int, FrameType | None], None] = signal.default_int_handler, *numbers: int
) -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does; or another `handler` for some signals meanwhile."""
    before = {number: signal.signal(number, handler) for number in numbers or (signal.SIGTERM,)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
