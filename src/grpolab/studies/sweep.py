"""`grpolab sweep`: train a study's missing runs, look by look if asked, draw its report, say how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress

from grpolab.errors import Damaged, RequestError
from grpolab.look.live import written_meanwhile
from grpolab.paths import DISK_ERRORS, REPORT_FILES, plain
from grpolab.run_files import JOURNAL, read_warm_start
from grpolab.studies import drawing, summary
from grpolab.studies.looks import Looks, summarize, tally
from grpolab.studies.progress import Estimate, send, show_progress
from grpolab.studies.session import interruptible, mirrored
from grpolab.sweep.engine import WORKER_COMMAND, Engine, WorkerStartError, make_engine
from grpolab.sweep.jobs import RUN, WARM_START, Job, Request, Schedule
from grpolab.sweep.ledger import committed_outcomes
from grpolab.sweep.plan import Plan
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
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Train what the plans lack on `jobs` workers (default: what the machine has), and draw the report.

    `repeat` also trains runs whose outcome is in results/reference/. With `looks` (stages of a sequential test),
    `plans` are those of the first look; later looks are trained while a hypothesis is undecided. Return the exit code:
    0 if every cell has an outcome, else 1.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    request = Request(plans, count_committed=not repeat)
    todo = request.jobs(retry_failed)
    engine = make_engine(request, jobs, command)
    if looks and not todo:  # go on to a look that has something to train; the plan on disk may be of a later one
        request, todo = _next_look(request, looks, engine, retry_failed)
    has_trained, is_drawn = bool(todo), True
    with interruptible(), engine if todo else nullcontext():
        request.write_plans(retry_failed)
        summary.say_plan(request, todo)
        if todo and report:
            file = request.results.output(request.name) / "report.html"
            say(f"to look at it meanwhile: {file} (from the first minute on), or `grpolab watch {request.name}`")
        with mirrored(request.results, request.tracking_uri, request.name):
            live = written_meanwhile(request.results, request.name) if todo and report else nullcontext()
            with live:
                while todo:
                    _train(request, todo, engine)
                    if not looks:
                        break
                    request, todo = _next_look(request, looks, engine, retry_failed)
                    request.write_plans(retry_failed)
                    if todo:
                        summary.say_plan(request, todo)
            if not has_trained:
                say("0 cells to train: every run has its outcome")
            # Before the mirror ends, so that figures and tables reach the tracking store too.
            if report and (has_trained or not _is_report_up_to_date(request)):
                is_drawn = _draw(request)
    results, name = request.results, request.name
    summary.say_results(request)
    for sentence in drawing.unmet(results, name) if report else ():
        say(f"precondition {sentence}")
    if repeat:
        _say_repeated(request)
    # Without `report` a report here is that of another command, of other runs.
    files = [results.output(name) / file for file in REPORT_FILES if report]
    places = [str(file) for file in files if file.exists()]
    places += [summary.ui_command(name, results)] if request.tracking_uri else []
    return summary.say_end(request.states(), request.labels, results, places, is_drawn)


def _next_look(request: Request, looks: Looks, engine: Engine, retry_failed: bool) -> tuple[Request, list[Job]]:
    """Return the request of the next look that has something to train, with its jobs; else of the last look, and none.

    If a look lacks a result, no further one is begun, because the missing seeds could change its decisions.
    """
    while True:
        states = request.states().values()
        if lacking := sum(state.state not in RESULTS for state in states):
            say(f"look {looks.size} waits: {lacking} of {len(states)} runs have no result")
            return request, []
        try:
            answers = looks.decide(request.results, [plain(plan.document("", None)) for plan in request.plans])
        except RequestError as error:
            say(f"not decided: {error}")
            return request, []
        size, (verdicts, open_) = looks.size, tally(answers)
        variants, todo, ahead = looks.advance(answers), list[Job](), "; that was the last look" if open_ else ""
        if variants:
            request = Request(looks.plans)
            todo = request.jobs(retry_failed)
            ahead = f"; next: {looks.size} seeds of {variants} variants, {_describe_jobs(request, todo, engine.places)}"
        if not send("look", seeds=size, verdicts=verdicts, open=open_):
            say(summarize(size, answers) + ahead)
        if todo or not variants:
            return request, todo


def _describe_jobs(request: Request, todo: Sequence[Job], places: int) -> str:
    """Return `45 runs, about 20 min`, or `all done` if nothing is left to train."""
    if not todo:
        return "all done"
    costs: dict[str, float] = {kind: sum(j.cost for j in todo if j.kind == kind) for kind in (RUN, WARM_START)}
    left = _make_estimate(request, min(places, len(todo))).describe(costs).removesuffix(" left")
    runs = sum(job.kind == RUN for job in todo)
    return f"{runs} run{'' if runs == 1 else 's'}" + (f", {left}" if left else "")


def _draw(request: Request) -> bool:
    """Draw the report. Return False, and say why, if the disk refuses it or the runs must not be compared."""
    try:
        drawing.draw_all(request.results, request.name)
        return True
    except RequestError as error:
        say(f"not drawn: {error}")
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        say(f"not drawn: {error.filename or request.results.root}: {error.strerror}")
    return False


def _is_report_up_to_date(request: Request) -> bool:
    """Return True if the report is younger than its plans and outcomes, which an import or a kill may have changed.

    By ctime: a copied file keeps its mtime.
    """
    report = request.results.output(request.name) / "report.md"
    sources = [request.results.plan(plan.study.name) for plan in request.plans]
    sources += [request.results.run(name) / file for name in request.cells for file in ("outcome.json", JOURNAL)]
    sources += [request.results.reference / "outcomes.parquet"]
    changed = max(file.stat().st_ctime for file in sources if file.exists())
    return report.exists() and report.stat().st_ctime >= changed


def _say_repeated(request: Request) -> None:
    """Say how many runs have the journal hash of their committed outcome."""
    committed = committed_outcomes(request.results)
    repeated = {name: state.outcome for name, state in request.states().items() if state.outcome and name in committed}
    # A damaged run has no hash; the committed outcome keeps the first digits.
    equal = sum(
        (made.get("journal_sha256") or "").startswith(committed[name]["journal_sha256"] or " ")
        for name, made in repeated.items()
    )
    if repeated:
        advice = "" if equal == len(repeated) else "; `grpolab compare results/reference` judges the others"
        say(f"of {len(repeated)} runs that are committed too, {equal} are equal to the bit{advice}")


def _train(request: Request, todo: Sequence[Job], engine: Engine) -> None:
    places = min(engine.places, len(todo))
    try:
        with show_progress(todo, _make_estimate(request, places), request.results) as progress:
            progress.note(f"workers: {places}; {progress.left()}")
            engine.run(Schedule(todo), progress)
    except WorkerStartError as error:
        say(error)


def _make_estimate(request: Request, workers: int) -> Estimate:
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
