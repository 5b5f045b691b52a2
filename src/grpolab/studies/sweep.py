"""`grpolab sweep`: train a study's missing runs, look by look if asked, draw its report, say how it ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext

from grpolab.errors import RequestError
from grpolab.paths import DISK_ERRORS, REPORT_FILES, plain
from grpolab.run_files import JOURNAL
from grpolab.studies import drawing
from grpolab.studies.looks import Looks, summarize, tally
from grpolab.sweep.engine import WORKER_COMMAND, Engine
from grpolab.sweep.jobs import RUN, Job, Request
from grpolab.sweep.launch import (
    interruptible,
    make_engine,
    make_estimate,
    mirrored,
    say_end,
    say_plan,
    say_results,
    train,
)
from grpolab.sweep.ledger import committed_outcomes
from grpolab.sweep.plan import Plan
from grpolab.sweep.progress import Events
from grpolab.terminal import say
from grpolab.vocabulary import RESULTS


def sweep(
    plans: Sequence[Plan],
    jobs: int | None = None,
    *,
    retry_failed: bool = False,
    repeat: bool = False,
    report: bool = True,
    looks: Looks | None = None,
    events: Events | None = None,
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Train what the plans lack on `jobs` workers (default: what the machine has), and draw it. Return the exit code.

    `repeat`: train runs with a committed outcome too. `report`: draw what came out. `looks`: `plans` are those of the
    first look; the next follow while a hypothesis is open. The exit code is 0 if every cell has an outcome, else 1.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    request = Request(plans, count_committed=not repeat)
    todo = request.jobs(retry_failed)
    engine = make_engine(request, jobs, command)
    if looks and not todo:  # go on to a look that has something to train; the plan on disk may be of a later one
        request, todo = _next_look(request, looks, engine, retry_failed, events)
    trained, drawn = bool(todo), True
    with interruptible(), engine if todo else nullcontext():
        request.write_plans(retry_failed)
        say_plan(request, todo, events)
        with mirrored(request.results, request.tracking_uri, request.name):
            while todo:
                train(request, todo, engine, events)
                if not looks:
                    break
                request, todo = _next_look(request, looks, engine, retry_failed, events)
                request.write_plans(retry_failed)
                if todo:
                    say_plan(request, todo, events)
            if not trained:
                say("0 cells to train: every run has its outcome")
            # Before the mirror ends, so that figures and tables reach the tracking store too.
            if report and (trained or not _is_drawn(request)):
                drawn = _draw(request)
    say_results(request, events)
    for sentence in drawing.unmet(request.results, request.name) if report else ():
        say(f"precondition {sentence}")
    if repeat and (sentence := _repeated(request)):
        say(sentence)
    # A report that another command has drawn of runs of the same name is not this command's.
    files = [request.results.output(request.name) / name for name in REPORT_FILES] if report else []
    tracked, reports = request.name if request.tracking_uri else None, [str(file) for file in files if file.exists()]
    return say_end(request.states(), request.labels, request.results, tracked, events, reports, drawn)


def _next_look(
    request: Request, looks: Looks, engine: Engine, retry_failed: bool, events: Events | None
) -> tuple[Request, list[Job]]:
    """Return the request of the next look that has something to train, with its jobs; else of the last look, and none.

    A look that lacks a result is the last one: with its seeds incomplete, what it decides could change.
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
        line, variants = summarize(size, answers), looks.advance(answers)
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
    """Return `45 runs, about 20 min`, or `all done` if nothing is left to train."""
    if not todo:
        return "all done"
    costs = defaultdict[str, float](float)
    for job in todo:
        costs[job.kind] += job.cost
    left = make_estimate(request, min(places, len(todo))).left(costs).removesuffix(" left")
    runs = sum(job.kind == RUN for job in todo)
    return f"{runs} run{'' if runs == 1 else 's'}" + (f", {left}" if left else "")


def _draw(request: Request) -> bool:
    """Draw the report. Return False, and say why, if the disk refuses it or the runs must not be compared."""
    try:
        drawing.draw_all(request.results, request.name)
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
    """Return True if the report is younger than its plans and outcomes, which an import or a kill may have changed.

    By ctime: a copied file keeps its mtime.
    """
    report = request.results.output(request.name) / "report.md"
    made_of = [request.results.plan(plan.study.name) for plan in request.plans]
    made_of += [request.results.run(name) / file for name in request.cells for file in ("outcome.json", JOURNAL)]
    made_of += [request.results.reference / "outcomes.parquet"]
    changed = max(file.stat().st_ctime for file in made_of if file.exists())
    return report.exists() and report.stat().st_ctime >= changed


def _repeated(request: Request) -> str:
    """Say how many runs have the journal hash of their committed outcome; '' if none is committed."""
    committed, states = committed_outcomes(request.results), request.states()
    both = [(committed[name], state.outcome) for name, state in states.items() if state.outcome and name in committed]
    equal = sum(kept["journal_sha256"] == made.get("journal_sha256") for kept, made in both)  # of a damaged one: none
    if not both:
        return ""
    advice = "" if equal == len(both) else "; `grpolab compare results/reference` judges the others"
    return f"of {len(both)} runs that are committed too, {equal} are equal to the bit{advice}"
