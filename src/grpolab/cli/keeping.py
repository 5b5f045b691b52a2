"""Commands that keep results in order: export, track, prune, import."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grpolab.cli.common import FAILURE, OK, Add, results_of, tracking_uri
from grpolab.errors import RequestError
from grpolab.paths import REFERENCE_STUDY, Results
from grpolab.records import read_plan
from grpolab.study_names import planned_name
from grpolab.terminal import say


def add_commands(add: Add) -> None:
    """geometry, export-reference, track sync, track verify, prune-runs, runs import."""
    add("geometry", _geometry, "write the tables behind the analytic figures")
    export = add("export-reference", _export_reference, "keep a study's outcome in results/reference/")
    export.add_argument(
        "study", nargs="?", default=REFERENCE_STUDY, metavar="STUDY", help=f"default: {REFERENCE_STUDY}"
    )
    export.add_argument("--append", action="store_true", help="add its finished seeds to what is there")
    sync = add("track sync", _track_sync, "bring the tracking store up to date with the run folders, or make it anew")
    sync.add_argument(
        "--rebuild", action="store_true", help="set the store aside and make it anew from the run folders"
    )
    verify = add("track verify", _track_verify, "compare the tracking store with the run folders; writes nothing")
    verify.add_argument("--json", action="store_true")
    for track in (sync, verify):
        track.add_argument("study", nargs="?", metavar="STUDY", help="default: every planned study")
        track.add_argument("--uri", help="tracking store; default: machine.tracking_uri of conf/run.yaml")
    prune = add("prune-runs", _prune_runs, "delete run folders that no planned study and no study file asks for")
    prune.add_argument("--dry-run", action="store_true", help="only list them")
    prune.add_argument("--yes", action="store_true", help="do not ask")
    take = add("runs import", _runs_import, "copy the finished runs of another results folder, each checked")
    take.add_argument("folder", metavar="FOLDER", type=Path, help="a results folder")


def _geometry(arguments: argparse.Namespace) -> None:
    from grpolab.studies import drawing

    results = results_of(arguments)
    for path in (results.geometry, results.surface):
        path.unlink(missing_ok=True)
    drawing.ensure_geometry(results)
    say(f"{results.geometry}\n{results.surface}")


def _export_reference(arguments: argparse.Namespace) -> None:
    from grpolab.report import screen
    from grpolab.report.export import export_reference

    results = results_of(arguments)
    for file in export_reference(results, planned_name(results, arguments.study), arguments.append):
        say(file)
    for file in screen.write_committed(results):
        say(file)


def _track_sync(arguments: argparse.Namespace) -> int:
    from grpolab.run import tracking
    from grpolab.studies import drawing

    results, uri, studies = _tracked(arguments)
    tracking.check_answer(uri)
    parts = {part for study in studies for part in (read_plan(results.plan(study)) or {}).get("includes", [])}
    for study in studies:
        if study not in parts:
            drawing.assess_runs(results, study)
    if problem := tracking.synchronise(results, uri, studies, arguments.rebuild):
        say(problem, error=True)
        return FAILURE
    say(f"up to date with the run folders: {uri} ({', '.join(studies) or 'no study is planned yet'})")
    return OK


def _track_verify(arguments: argparse.Namespace) -> int:
    from grpolab.run import tracking

    tracked = _tracked(arguments)
    tracking.set_environment()
    from grpolab.run.tracking.verify import print_verification

    return OK if print_verification(*tracked, arguments.json) else FAILURE


def _tracked(arguments: argparse.Namespace) -> tuple[Results, str, list[str]]:
    """Return the results, the URI of their store, and the studies to track. Raises RequestError."""
    from grpolab.sweep.ledger import planned_cells

    results = results_of(arguments)
    uri = tracking_uri(results, arguments.uri)
    if not arguments.study:
        return results, uri, results.planned()
    study = planned_name(results, arguments.study)
    planned_cells(results, study)  # refuses a study without a plan
    return results, uri, [study]


def _prune_runs(arguments: argparse.Namespace) -> None:
    from grpolab.sweep.housekeeping import prune

    asks = not (arguments.dry_run or arguments.yes)
    results = results_of(arguments)
    if arguments.dry_run and arguments.yes:
        raise RequestError("--dry-run and --yes exclude each other")
    if asks and not sys.stdin.isatty():
        raise RequestError("prune-runs deletes runs and there is no terminal to ask: give --dry-run or --yes")

    def consent(question: str) -> bool:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes") if asks else bool(arguments.yes)

    prune(results, consent)


def _runs_import(arguments: argparse.Namespace) -> int:
    from grpolab.sweep.housekeeping import import_runs

    return OK if import_runs(arguments.folder, results_of(arguments)) else FAILURE
