"""Commands that maintain results: tables behind figures, the committed outcome, the tracking store, run folders."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from grpolab.cli.common import (
    EXTRA_OF,
    FAILURE,
    JSON,
    OK,
    RESULTS,
    URI,
    command,
    flag,
    install_command,
    option,
    require,
    results_of,
    say_failure,
    say_files,
    say_result,
    tracking_uri,
)
from grpolab.errors import RequestError
from grpolab.paths import REFERENCE_STUDY, Results
from grpolab.records import read_plan
from grpolab.study_names import planned_name
from grpolab.terminal import say

TRACKED_STUDY = option("study", nargs="?", metavar="STUDY", help="default: every planned study")


@command(option("folder", metavar="FOLDER", help="new or empty"), JSON)
def init(arguments: argparse.Namespace) -> None:
    """Make a project of your own: a study, a task in Python, one in JSONL, and what goes around them."""
    from grpolab.new_project import make_project

    say_files(arguments, make_project(Path(arguments.folder)))
    missing = [EXTRA_OF[package] for package in ("torch", "mlflow") if find_spec(package) is None]
    first = f"{install_command(*missing)} && " if missing else ""
    say(f"now: {first}cd {quote(arguments.folder)} && make sweep")


@command(RESULTS, JSON)
def geometry(arguments: argparse.Namespace) -> None:
    """Write the tables behind the analytic figures."""
    from grpolab.studies import drawing

    results = results_of(arguments)
    for path in (results.geometry, results.surface):
        path.unlink(missing_ok=True)
    drawing.ensure_geometry(results)
    say_files(arguments, [results.geometry, results.surface])


@command(
    RESULTS,
    option("study", nargs="?", default=REFERENCE_STUDY, metavar="STUDY", help=f"default: {REFERENCE_STUDY}"),
    flag("--append", "add the study's finished seeds to the outcome that is there"),
    JSON,
)
def export_reference(arguments: argparse.Namespace) -> None:
    """Keep a study's outcome in results/reference/."""
    from grpolab.report import screen
    from grpolab.report.export import export_reference

    results = results_of(arguments)
    files = export_reference(results, planned_name(results, arguments.study), arguments.append)
    say_files(arguments, [*files, *screen.write_committed(results)])


@command(
    *(RESULTS, TRACKED_STUDY, URI, JSON),
    flag("--rebuild", "set the store aside and make it anew from the run folders"),
)
def track_sync(arguments: argparse.Namespace) -> int:
    """Bring the tracking store up to date with the run folders, or make it anew."""
    from grpolab.run import tracking
    from grpolab.studies import drawing

    results, uri, studies = _tracked(arguments)
    tracking.check_answer(uri)
    parts = {part for study in studies for part in (read_plan(results.plan(study)) or {}).get("includes", [])}
    for study in studies:
        if study not in parts:
            drawing.assess_runs(results, study)
    if problem := tracking.synchronise(results, uri, studies, arguments.rebuild):
        return say_failure(arguments, problem)
    text = f"up to date with the run folders: {uri} ({', '.join(studies) or 'no study is planned yet'})"
    say_result(arguments, {"uri": uri, "studies": studies}, text)
    return OK


@command(RESULTS, TRACKED_STUDY, URI, JSON)
def track_verify(arguments: argparse.Namespace) -> int:
    """Compare the tracking store with the run folders; write nothing."""
    from grpolab.run import tracking

    tracked = _tracked(arguments)
    tracking.set_environment()
    from grpolab.studies.stored_runs import compare_store, describe

    comparisons, problem = compare_store(*tracked)
    if problem:
        return say_failure(arguments, problem)
    say_result(arguments, comparisons, "\n".join(describe(comparisons)) or "no study is planned yet")
    return FAILURE if any(comparison.differences for comparison in comparisons) else OK


def _tracked(arguments: argparse.Namespace) -> tuple[Results, str, list[str]]:
    """Return the results, the URI of their store, and the studies to track. Raises RequestError."""
    from grpolab.studies.status import planned_cells

    require("mlflow")
    results = results_of(arguments)
    uri = tracking_uri(results, arguments.uri)
    if not arguments.study:
        return results, uri, results.planned()
    study = planned_name(results, arguments.study)
    planned_cells(results, study)  # refuses a study without a plan
    return results, uri, [study]


@command(RESULTS, flag("--dry-run", "only list them"), flag("--yes", "do not ask"), JSON)
def prune_runs(arguments: argparse.Namespace) -> None:
    """Delete run folders that no planned study and no study file asks for."""
    from grpolab.studies.housekeeping import prune

    asks = not (arguments.dry_run or arguments.yes)
    if arguments.dry_run and arguments.yes:
        raise RequestError("--dry-run and --yes exclude each other")
    if asks and (arguments.json or not sys.stdin.isatty()):
        raise RequestError("prune-runs deletes runs and there is no terminal to ask: give --dry-run or --yes")

    def consent(question: str) -> bool:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes") if asks else bool(arguments.yes)

    arguments.result = prune(results_of(arguments), consent)


@command(RESULTS, option("folder", metavar="FOLDER", type=Path, help="a results folder"), JSON)
def runs_import(arguments: argparse.Namespace) -> int:
    """Copy the finished runs of another results folder, each checked."""
    from grpolab.studies.housekeeping import import_runs

    arguments.result = import_runs(arguments.folder, results_of(arguments))
    return FAILURE if arguments.result["refused"] else OK


@command(
    RESULTS,
    option("run", metavar="RUN", help="a signature, or its first digits"),
    option("folder", metavar="FOLDER", type=Path, help="a folder that is not there yet"),
    JSON,
)
def runs_export(arguments: argparse.Namespace) -> None:
    """Write a run's final policy as a Hugging Face folder: weights, tokenizer, config, model card."""
    from grpolab.models.hugging_face import write_model
    from grpolab.report.inspect import find_run

    results = results_of(arguments)
    write_model(results, find_run(results, arguments.run), arguments.folder)
    text = (
        f"{arguments.folder}: AutoModelForCausalLM.from_pretrained reads it, and so does model.path={arguments.folder}"
    )
    say_result(arguments, {"files": [arguments.folder]}, text)
