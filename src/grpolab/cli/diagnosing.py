"""The doctor as a command: why a run looks the way it does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from grpolab.cli.common import OK, Add, machine_defaults, results_of
from grpolab.errors import RequestError

if TYPE_CHECKING:
    from grpolab.paths import Results
    from grpolab.report.diagnosis import Diagnosis

LOGS = ("trl", "verl", "roll")


def add_commands(add: Add) -> None:
    """diagnose."""
    text = "why a run looks the way it does: causes with evidence, and what is normal"
    sub = add("diagnose", _diagnose, text)
    sub.add_argument(
        "run", metavar="RUN|FILE", help="signature, the beginning of one, run folder, MLflow run id; a log"
    )
    sub.add_argument("--from", dest="peer", choices=LOGS, help="FILE is its log: trainer_state.json, .csv or .jsonl")
    sub.add_argument("--uri", help="RUN is in this tracking store; default: machine.tracking_uri of conf/run.yaml")
    sub.add_argument("--json", action="store_true")


def _diagnose(arguments: argparse.Namespace) -> int:
    from grpolab.report.diagnosis import words

    found = _diagnosis(arguments)
    print(json.dumps(words.record(found), indent=1) if arguments.json else words.text(found))
    return OK


def _diagnosis(arguments: argparse.Namespace) -> Diagnosis:
    """Of a log of another framework, a run folder, or a run of the tracking store."""
    from grpolab.report import inspect
    from grpolab.report.diagnosis import diagnose, diagnose_log

    if arguments.peer:
        return diagnose_log(arguments.peer, Path(arguments.run))
    results = results_of(arguments)
    if arguments.uri:
        return _tracked(results, arguments.uri, arguments.run)
    try:
        return diagnose(inspect.find_run(results, arguments.run))
    except RequestError:
        if len(arguments.run) != 32 or not results.store.is_file():  # an MLflow run id has 32 hex digits
            raise
    return _tracked(results, machine_defaults()["tracking_uri"], arguments.run)


def _tracked(results: Results, setting: str, run_id: str) -> Diagnosis:
    """Of an MLflow run: by its folder where it is one of ours and that is here, else by the metrics in the store."""
    from grpolab.report.diagnosis import diagnose, diagnose_rows
    from grpolab.run import tracking
    from grpolab.run.tracking.history import logged

    uri = tracking.store_uri(setting, results)
    if uri is None:
        raise RequestError("machine.tracking_uri of conf/run.yaml is empty, so nothing is tracked: give --uri")
    tracking.check_store(uri)
    tags, rows = logged(uri, run_id)
    folder = results.run(tags["signature"]) if "signature" in tags else None
    return diagnose(folder) if folder and folder.is_dir() else diagnose_rows(run_id, rows)
