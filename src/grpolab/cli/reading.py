"""Commands that show and draw results; they train nothing."""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from grpolab.cli.common import (
    FAILURE,
    OK,
    UNDECIDED,
    Add,
    count,
    machine_defaults,
    results_of,
    tracking_uri,
)
from grpolab.errors import RequestError
from grpolab.paths import REPORT_FILES, Results
from grpolab.study_names import planned_name
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED

if TYPE_CHECKING:
    from grpolab.doctor import Diagnosis
    from grpolab.doctor.other_runs import FoundRun

LOGS = ("trl", "verl", "roll")
SOURCES = ("trl", "verl", "mlflow", "wandb-export")


def add_commands(add: Add) -> None:
    """status, figures, report, compare, ui, show, diff, vocabulary, diagnose."""
    status = add("status", _status, "how far the cells of a study are")
    status.add_argument("study", nargs="?", metavar="STUDY")
    status.add_argument("--json", action="store_true")
    for name, command, text in (
        ("figures", _figures, "draw a study's figures and tables; trains nothing"),
        ("report", _report, "draw a study's figures and tables and write its report; trains nothing"),
        ("ui", _ui, "MLflow's pages, with a link to the study's charts"),
    ):
        sub = add(name, command, text)
        shown = "STUDY|FOLDER" if name == "report" else "STUDY"
        several = "*" if name == "report" else "?"
        help_text = "default: the collection that is planned here"
        sub.add_argument("study", nargs=several, metavar=shown, help=help_text)
        if name == "report":
            sub.epilog = "with --from: curves, differences and stability of runs that others made, found in folders"
            sub.add_argument("--from", dest="source", choices=SOURCES, help="FOLDERs hold logs; mlflow: its database")
            text = "an arm and its folders; default: by configs, names or folders (repeatable)"
            sub.add_argument("--arm", action="append", default=[], metavar="NAME=FOLDER,...", help=text)
            sub.add_argument("--baseline", metavar="ARM", help="with --from: default the first arm")
            sub.add_argument("--out", type=Path, metavar="DIR", help="with --from: default results/imported/NAME")
            sub.add_argument("--brief", action="store_true", help="print its first screen, and write nothing")
        if name == "figures":
            sub.add_argument("--seeds", action="store_true", help="a thin line for each seed too")
        if name == "ui":
            sub.add_argument("--port", type=count, default=5000)
            sub.add_argument("--uri", help="tracking store; default: machine.tracking_uri of conf/run.yaml")
    compare = add("compare", _compare, "whether what was swept here agrees with another outcome, with intervals")
    compare.epilog = "exit code: 0 all is bit-equal or agrees within its margin, 1 something differs, 3 neither is sure"
    compare.add_argument("folder", metavar="FOLDER", type=Path, help="results/reference, or another results folder")
    compare.add_argument("study", nargs="?", metavar="STUDY", help="default: every study that both know")
    show = add("show", _show, "completions of a run with rewards, advantages, ratios and clip marks")
    show.add_argument("run", metavar="RUN", help="signature, the beginning of one, or a run folder")
    show.add_argument("--step", type=int, metavar="N", help="rollout step; default: the last that was kept")
    show.add_argument("--prompts", type=count, default=2, metavar="N", help="prompts to show")
    diff = add("diff", _diff, "settings in which two runs differ, and the paired effect where a study compares them")
    diff.add_argument("runs", nargs=2, metavar="RUN")
    add("vocabulary", _vocabulary, "every metric, tag and outcome with its meaning, as Markdown", results=False)
    diagnose = add("diagnose", _diagnose, "why a run looks the way it does: causes with evidence, and what is normal")
    diagnose.add_argument(
        "run", metavar="RUN|FILE", help="signature, the beginning of one, run folder, MLflow run id; a log, its folder"
    )
    text = "FILE is its log: trainer_state.json, .csv, .jsonl or a console's; default: by the names in it"
    diagnose.add_argument("--from", dest="framework", choices=LOGS, help=text)
    diagnose.add_argument("--uri", help="RUN is in this tracking store; default: machine.tracking_uri of conf/run.yaml")
    diagnose.add_argument("--json", action="store_true")


def _status(arguments: argparse.Namespace) -> None:
    from grpolab.sweep.ledger import describe_status, status

    results = results_of(arguments)
    summaries = status(results, arguments.study and planned_name(results, arguments.study), time.time())
    if arguments.json:
        say(json.dumps(summaries, indent=1))
        return
    if not summaries:
        say("no study is planned yet: run `grpolab sweep STUDY`")
    for name, summary in summaries.items():
        counts = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
        kept = f" ({summary['committed']} of them committed)" if summary["committed"] else ""
        say(f"{name}: {summary['planned']} planned: {counts}{kept}")
        for row in summary["cells"]:
            if details := describe_status(row):
                say(f"  {row['state']}: {row['variant']}, seed {row['seed']} ({row['signature']}): {details}")
        if DAMAGED in summary["states"]:
            say(f"  damaged runs are left out: `grpolab sweep {name} --retry-failed` trains them anew")


def _figures(arguments: argparse.Namespace) -> None:
    from grpolab.report import page
    from grpolab.studies import drawing

    results = results_of(arguments)
    drawing.ensure_geometry(results)
    for path in page.draw(results, _study_of(arguments, results), arguments.seeds):
        say(path)


def _report(arguments: argparse.Namespace) -> None:
    from grpolab.run import tracking

    if arguments.source:
        _report_of_others(arguments)
        return
    for option in ("arm", "baseline", "out"):
        if getattr(arguments, option):
            raise RequestError(f"--{option} needs --from, which is one of {', '.join(SOURCES)}")
    if len(arguments.study) > 1:
        raise RequestError(f"STUDY={' '.join(arguments.study)}: one study, or --from with folders")
    arguments.study = arguments.study[0] if arguments.study else None
    results = results_of(arguments)
    study = _study_of(arguments, results)
    if arguments.brief:
        from grpolab.report.screen import screen

        say(screen(results, study))
        return
    from grpolab.studies import drawing

    drawing.draw_all(results, study)
    for sentence in drawing.unmet(results, study):
        say(f"precondition {sentence}")
    for name in REPORT_FILES:
        say(results.output(study) / name)
    uri = tracking.store_uri(machine_defaults()["tracking_uri"], results)
    is_planned = results.plan(study).is_file()  # else the committed reference was drawn
    if uri and is_planned and (problem := tracking.synchronise(results, uri, [study])):
        say(problem, error=True)


def _report_of_others(arguments: argparse.Namespace) -> None:
    """Write the report of runs that other programs left in folders or in MLflow's database."""
    from grpolab.doctor import other_runs

    if arguments.brief:
        raise RequestError("--brief is of studies: --from writes a report")
    folders_of_arms = dict(map(_arm, arguments.arm))
    folders = list(dict.fromkeys(arguments.study)) or [
        folder for folders in folders_of_arms.values() for folder in folders
    ]
    if not folders:
        raise RequestError(f"--from={arguments.source} needs FOLDERs with the logs of runs, or --arm")
    if folders_of_arms and (outside := set(folders).symmetric_difference(chain(*folders_of_arms.values()))):
        raise RequestError(f"FOLDER={', '.join(sorted(outside))} is not in exactly one --arm, or is named besides them")
    results = results_of(arguments)
    if arguments.source == "mlflow":
        runs, notes = _mlflow_runs(folders)
    else:
        framework = arguments.source if arguments.source in LOGS else None
        runs, notes = other_runs.find_runs(framework, folders)
    name = arguments.out.name if arguments.out else Path(folders[0]).resolve().stem
    output = arguments.out or results.root / "imported" / name
    report = other_runs.write_report(results, name, runs, notes, folders_of_arms, arguments.baseline, output)
    say(report.with_suffix(".html"))
    say(report)


def _arm(text: str) -> tuple[str, list[str]]:
    """Parse `NAME=FOLDER,FOLDER`."""
    name, _, folders = text.partition("=")
    if not name or not folders.strip(","):
        raise RequestError(f"--arm={text} is not NAME=FOLDER,FOLDER")
    return name, [folder for folder in folders.split(",") if folder]


def _mlflow_runs(folders: list[str]) -> tuple[list[FoundRun], list[str]]:
    """Return the runs in MLflow's databases that the doctor can read, and notes on the others."""
    from grpolab.doctor.evidence import to_evidence
    from grpolab.doctor.other_runs import FoundRun
    from grpolab.readers.log_folders import FoundLog
    from grpolab.readers.logs import read_rows
    from grpolab.run import tracking

    tracking.set_environment()
    from grpolab.run.tracking.store import read_runs

    runs, refused = list[FoundRun](), list[str]()
    for folder in folders:
        place = Path(folder, "mlflow.db") if Path(folder).is_dir() else Path(folder)
        uri = folder if "://" in folder else tracking.sqlite_uri(place)
        if Path(folder).is_dir() and not place.is_file() and any(Path(folder).glob("*/meta.yaml")):
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # it is only read; MLflow refuses such a store by default
            uri = Path(folder).resolve().as_uri()
        for run, rows in read_runs(uri):
            name = f"{run.info.run_name} ({run.info.run_id[:8]})"
            try:
                evidence = to_evidence(read_rows(name, rows))
            except RequestError as refusal:
                refused.append(str(refusal))
            else:
                runs.append(FoundRun(FoundLog(name, folder, place, run.data.params), evidence))
    if not runs:
        why = f"; {refused[0]}" if refused else ""
        raise RequestError(f"FOLDER={', '.join(folders)} holds no run in MLflow that the doctor can read{why}")
    return runs, [f"{len(refused)} of its runs left out: {refused[0]}"] if refused else []


def _study_of(arguments: argparse.Namespace, results: Results) -> str:
    from grpolab.report.plans import default_study

    return planned_name(results, arguments.study) if arguments.study else default_study(results)


def _compare(arguments: argparse.Namespace) -> int:
    from grpolab.report.compare import AGREES, DIFFERS, compare

    results = results_of(arguments)
    text, verdict = compare(results, arguments.folder, arguments.study and planned_name(results, arguments.study))
    say(text)
    return {AGREES: OK, DIFFERS: FAILURE}.get(verdict, UNDECIDED)


def _ui(arguments: argparse.Namespace) -> None:
    from grpolab.run.tracking import ui

    results = results_of(arguments)
    study = _study_of(arguments, results)
    ui.serve(results, tracking_uri(results, arguments.uri), study, arguments.port)


def _show(arguments: argparse.Namespace) -> None:
    from grpolab.report import inspect

    say(inspect.show(results_of(arguments), arguments.run, arguments.step, arguments.prompts))


def _diff(arguments: argparse.Namespace) -> None:
    from grpolab.report import inspect

    say(inspect.diff(results_of(arguments), *arguments.runs))


def _vocabulary(_arguments: argparse.Namespace) -> None:
    from grpolab.meanings import page

    say(page(), end="")


def _diagnose(arguments: argparse.Namespace) -> None:
    from grpolab.doctor import page

    diagnosis = _diagnosis(arguments)
    say(json.dumps(page.record(diagnosis), indent=1) if arguments.json else page.text(diagnosis))


def _diagnosis(arguments: argparse.Namespace) -> Diagnosis:
    """Diagnose a log, a trainer's folder, a run folder, or a run of the tracking store."""
    from grpolab.doctor import diagnose, diagnose_log, diagnose_rows, examine
    from grpolab.report import inspect
    from grpolab.run import tracking

    name, place = arguments.run, Path(arguments.run)
    if place.is_dir() and not (place / "settings.yaml").is_file():  # as a trainer leaves it, with its checkpoints
        from grpolab.doctor.other_runs import find_only_run

        return examine(find_only_run(arguments.framework, name))
    if arguments.framework or place.is_file():
        return diagnose_log(arguments.framework, place)
    if not place.exists() and (place.suffix or len(place.parts) > 1):
        raise RequestError(f"RUN={name}: there is no such file or folder; `grpolab status --json` lists signatures")
    results = results_of(arguments)
    if not arguments.uri:
        try:
            return diagnose(inspect.find_run(results, name))
        except RequestError:
            if len(name) != 32 or not results.store.is_file():  # an MLflow run id has 32 hex digits
                raise
    uri = tracking_uri(results, arguments.uri)
    tracking.set_environment()
    from grpolab.run.tracking.store import read_run

    # An MLflow run: by its folder if it is ours and here, else by the metrics in the store.
    tags, rows = read_run(uri, name)
    folder = results.run(tags["signature"]) if "signature" in tags else None
    return diagnose(folder) if folder and folder.is_dir() else diagnose_rows(name, rows)
