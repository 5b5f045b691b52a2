"""Commands that show and draw results; they train nothing."""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpolab.cli.common import (
    FAILURE,
    JSON,
    OK,
    RESULTS,
    UNDECIDED,
    URI,
    command,
    count,
    flag,
    machine_defaults,
    number_between,
    option,
    require,
    results_of,
    say_files,
    say_result,
    study_of,
    tracking_uri,
)
from grpolab.errors import RequestError
from grpolab.framework_names import LOG_NAMES
from grpolab.identity import short_hash
from grpolab.paths import REPORT_FILES, Results, write_text_atomic
from grpolab.study_names import available, planned_name
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED, LOOKS

if TYPE_CHECKING:
    from grpolab.doctor.causes import Finding
    from grpolab.doctor.evidence import Evidence
    from grpolab.doctor.other_runs import FoundRun
    from grpolab.report.load import StudyRuns

LOGS = tuple(LOG_NAMES)
SOURCES = (*LOGS, "mlflow", "wandb-export")
STUDY_HERE = option("study", nargs="?", metavar="STUDY", help="default: the one that is planned here")


@command(RESULTS, option("study", nargs="?", metavar="STUDY"), JSON)
def status(arguments: argparse.Namespace) -> None:
    """Say how far the cells of a study are."""
    from grpolab.studies.status import describe_status, status

    results = results_of(arguments)
    summaries = status(results, arguments.study and planned_name(results, arguments.study), time.time())
    lines = list[str]()
    for name, summary in summaries.items():
        counts = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
        kept = f" ({summary['committed']} of them committed)" if summary["committed"] else ""
        lines.append(f"{name}: {summary['planned']} planned: {counts}{kept}")
        for row in summary["cells"]:
            if details := describe_status(row):
                lines.append(f"  {row['state']}: {row['variant']}, seed {row['seed']} ({row['signature']}): {details}")
        if DAMAGED in summary["states"]:
            lines.append(f"  damaged runs are left out: `grpolab sweep {name} --retry-failed` trains them anew")
    say_result(arguments, summaries, "\n".join(lines) or "no study is planned yet: run `grpolab sweep STUDY`")


@command(RESULTS, STUDY_HERE, JSON, flag("--seeds", "a thin line for each seed too"))
def figures(arguments: argparse.Namespace) -> None:
    """Draw a study's figures and tables; train nothing."""
    from grpolab.report import page
    from grpolab.studies import drawing

    results = results_of(arguments)
    drawing.ensure_geometry(results)
    say_files(arguments, page.draw(results, study_of(arguments.study, results), arguments.seeds))


@command(
    RESULTS,
    option("study", nargs="*", metavar="STUDY|FOLDER", help="default: the one that is planned here"),
    option("--from", dest="source", choices=SOURCES, help="FOLDERs hold logs; mlflow: its database"),
    option(
        "--arm", action="append", default=[], metavar="NAME=FOLDER,...", help="repeatable; default: by config or name"
    ),
    option("--baseline", metavar="ARM", help="with --from: default the first arm"),
    option("--out", type=Path, metavar="DIR", help="with --from: default results/imported/NAME-DIGEST"),
    flag("--figures", "with --from: figures (PNG, PDF) and tables in LaTeX too, which a study has anyway"),
    flag("--brief", "print its first screen, and write nothing"),
    JSON,
    epilog="with --from: curves, differences and stability of runs that others made, found in folders",
)
def report(arguments: argparse.Namespace) -> None:
    """Draw a study's figures and tables and write its report; train nothing."""
    if arguments.source:
        _report_of_others(arguments)
        return
    for name in ("arm", "baseline", "out", "figures"):
        if getattr(arguments, name):
            raise RequestError(f"--{name} needs --from, which is one of {', '.join(SOURCES)}")
    if len(arguments.study) > 1:
        raise RequestError(f"STUDY={' '.join(arguments.study)}: one study, or --from with folders")
    results = results_of(arguments)
    asked = next(iter(arguments.study), None)
    if asked and Path(asked).is_dir() and asked not in {*available(), *results.planned()}:
        raise RequestError(f"STUDY={asked} is a folder: `grpolab report --from trl {asked}` reads logs of TRL in it")
    study = study_of(asked, results)
    if arguments.brief:
        if arguments.json:
            arguments.result = _claims(results, study)
        else:
            from grpolab.report.screen import screen

            say(screen(results, study))
        return
    from grpolab.run import tracking
    from grpolab.studies import drawing

    drawing.draw_all(results, study)
    for sentence in drawing.unmet(results, study):
        say(f"precondition {sentence}")
    say_files(arguments, [results.output(study) / name for name in REPORT_FILES])
    uri = tracking.store_uri(machine_defaults()["tracking_uri"], results)
    is_planned = results.plan(study).is_file()  # else the committed reference was drawn
    if uri and is_planned and (problem := tracking.synchronise(results, uri, [study])):
        say(problem, error=True)


@command(
    *(RESULTS, option("study", metavar="STUDY"), JSON),
    option("--out", type=Path, metavar="DIR", help="default: results/studies/STUDY/paper"),
)
def export_paper(arguments: argparse.Namespace) -> None:
    """Write a study as the appendix of a paper: LaTeX, figures, tables, checklist and references."""
    from grpolab.report import paper
    from grpolab.studies import drawing

    results = results_of(arguments)
    study = planned_name(results, arguments.study)
    drawing.ensure_geometry(results)
    say_files(arguments, paper.write(results, study, arguments.out or results.studies / study / "paper"))


def _claims(results: Results, name: str) -> dict[str, Any]:
    """Return every claim that is decided, with its numbers and its sentence."""
    from grpolab.report.claims import decide
    from grpolab.report.load import load

    studies = load(results, name)
    claims = [{key: value for key, value in vars(claim).items() if key != "question"} for claim in decide(studies)]
    return {"study": name, "question": studies[-1].plan["question"], "claims": claims}


def _report_of_others(arguments: argparse.Namespace) -> None:
    """Write the report of runs that other programs left in folders or in MLflow's database."""
    from grpolab.readers.log_folders import find_all

    if arguments.brief:
        raise RequestError("--brief is of studies: --from writes a report")
    arms = dict(map(_arm, arguments.arm))
    of_arms = list(chain(*arms.values()))
    folders = list(dict.fromkeys(arguments.study)) or of_arms
    if not folders:
        raise RequestError(f"--from={arguments.source} needs FOLDERs with the logs of runs, or --arm")
    if arms and (outside := set(folders).symmetric_difference(of_arms)):
        raise RequestError(f"FOLDER={', '.join(sorted(outside))} is not in exactly one --arm, or is named besides them")
    logs = [] if arguments.source == "mlflow" else find_all(folders)
    from grpolab.doctor import other_runs  # behind what may be refused: it loads pandas

    results = results_of(arguments)
    if arguments.source == "mlflow":
        runs, notes = _mlflow_runs(folders)
    else:
        runs, notes = other_runs.find_runs(arguments.source if arguments.source in LOGS else None, logs)
    output = arguments.out or results.root / "imported" / f"{Path(folders[0]).resolve().stem}-{_digest(folders)}"

    def charts(study: StudyRuns, causes: Mapping[str, tuple[Finding, ...]]) -> str:
        from grpolab.look import page

        return page.application([study], [], datetime.now(UTC), causes)

    report = other_runs.write_report(results, runs, notes, arms, arguments.baseline, output, charts, arguments.figures)
    say_files(arguments, [report.with_suffix(".html"), report])


def _digest(places: Iterable[str | Path]) -> str:
    """Return letters that tell apart what is written about files of one name in different folders."""
    return short_hash({"places": [str(Path(place).resolve()) for place in places]})


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
    from grpolab.studies.stored_runs import read_runs

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


@command(RESULTS, STUDY_HERE, option("--port", type=count, default=8010))
def watch(arguments: argparse.Namespace) -> None:
    """Serve a study's page on 127.0.0.1, written anew while its runs train."""
    from grpolab.look.live import make_server

    results = results_of(arguments)
    server = make_server(results, study_of(arguments.study, results), arguments.port)
    say(f"http://{server.server_address[0]!s}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt), server:
        server.serve_forever()


@command(RESULTS, STUDY_HERE, option("--port", type=count, default=5000), URI)
def ui(arguments: argparse.Namespace) -> None:
    """Open MLflow's pages, with a link to the study's charts."""
    from grpolab.studies import ui

    require("mlflow")
    results = results_of(arguments)
    study = study_of(arguments.study, results)
    ui.serve(results, tracking_uri(results, arguments.uri), study, arguments.port)


@command(
    RESULTS,
    option("folder", metavar="FOLDER", type=Path, help="results/reference, or another results folder"),
    option("study", nargs="?", metavar="STUDY", help="default: every study that both know"),
    JSON,
    epilog="exit code: 0 all is bit-equal or agrees within its margin, 1 something differs, 3 neither is sure",
)
def compare(arguments: argparse.Namespace) -> int:
    """Compare what was swept here with another outcome, with intervals."""
    from grpolab.report.compare import AGREES, DIFFERS, compare, in_a_word

    results = results_of(arguments)
    study = arguments.study and planned_name(results, arguments.study)
    text, verdict, rows = compare(results, arguments.folder, study)
    say_result(arguments, {"verdict": in_a_word(verdict), "comparisons": [row.record() for row in rows]}, text)
    return {AGREES: OK, DIFFERS: FAILURE}.get(verdict, UNDECIDED)


POSITIVE = number_between(0, math.inf)


@command(
    RESULTS,
    option("study", nargs="?", metavar="STUDY", help="that has runs, made here or committed"),
    option(
        "--from", dest="file", type=Path, metavar="FILE", help=".csv with arm, seed, score (task); or a folder of logs"
    ),
    option("--baseline", metavar="ARM", help="with --from: default the first arm"),
    option("--sd", type=POSITIVE, help="of one arm's scores over seeds, without any runs"),
    option("--correlation", type=number_between(-1, 1), help="with --sd: of two arms' scores of one seed; default 0"),
    option("--difference", type=POSITIVE, help="to be seen; default: the study's margin, .15 of its baseline's gain"),
    option("--power", type=number_between(0, 1), default=0.8, help="chance to see it; default .8"),
    option("--hypotheses", type=count, metavar="N", help="that are decided together; default: the study's, else 1"),
    JSON,
)
def power(arguments: argparse.Namespace) -> None:
    """Say how many seeds a difference needs, paired and unpaired, and what few seeds get wrong."""
    from grpolab.report import power_screen

    given = [arguments.study, arguments.file, arguments.sd]
    if sum(value is not None for value in given) != 1:
        raise RequestError("power needs one of STUDY, --from FILE and --sd")
    for name, of in (("baseline", "file"), ("correlation", "sd")):
        if getattr(arguments, name) is not None and getattr(arguments, of) is None:
            raise RequestError(f"--{name}={getattr(arguments, name)} needs {'--from' if of == 'file' else '--sd'}")
    difference, hypotheses, looks = arguments.difference, arguments.hypotheses or 1, LOOKS
    if arguments.study is None and difference is None:
        raise RequestError("--difference is missing: the difference of two scores that is to be seen, a number > 0")
    of, about = str(arguments.file), ""
    if arguments.sd is not None:
        noises = [power_screen.of_numbers(arguments.sd, arguments.correlation or 0.0, difference)]
        of = "a comparison of two arms"
    elif arguments.file is not None and arguments.file.is_dir():
        from grpolab.doctor.other_runs import find_runs, make_study
        from grpolab.readers.log_folders import find_all

        runs, _ = find_runs(None, find_all([of]))
        study, _, _ = make_study(results_of(arguments), arguments.file.resolve().name, runs, {}, arguments.baseline)
        noises = power_screen.of_study(study, difference)
    elif arguments.file is not None:
        noises = power_screen.of_table(arguments.file, arguments.baseline, difference)
    else:
        from grpolab.report.load import load
        from grpolab.report.plans import plans_of

        results = results_of(arguments)
        name = planned_name(results, arguments.study)
        if not plans_of(results, name)[-1]["cells"]:
            raise RequestError(f"STUDY={name} is a collection: name one of its studies")
        study = load(results, name)[-1]
        noises = power_screen.of_study(study, difference)
        asked = [h for h in study.plan.get("hypotheses", []) if not h["by_construction"]]
        hypotheses = arguments.hypotheses or max(len(asked), 1)
        of, looks = study.name, tuple(study.plan.get("looks") or LOOKS)
        about = "" if difference else f" (the margin: .15 of what {study.baseline} gains)"
    asked_for = noises, of, arguments.power, hypotheses, looks
    say_result(arguments, power_screen.record(*asked_for), power_screen.screen(*asked_for, about))


@command(
    RESULTS,
    option("run", metavar="RUN", help="signature, the beginning of one, or a run folder"),
    option("--step", type=int, metavar="N", help="rollout step; default: the last that was kept"),
    option("--prompts", type=count, default=2, metavar="N", help="prompts to show"),
    JSON,
)
def show(arguments: argparse.Namespace) -> None:
    """Show completions of a run with rewards, advantages, ratios and clip marks."""
    from grpolab.report import inspect

    say_result(arguments, *inspect.show(results_of(arguments), arguments.run, arguments.step, arguments.prompts))


@command(RESULTS, JSON, option("runs", nargs=2, metavar="RUN"))
def diff(arguments: argparse.Namespace) -> None:
    """Show the settings in which two runs differ, and the paired effect where a study compares them."""
    from grpolab.report import inspect

    say_result(arguments, *inspect.diff(results_of(arguments), *arguments.runs))


@command(JSON)
def vocabulary(arguments: argparse.Namespace) -> None:
    """Print every metric, tag and outcome with its meaning, as Markdown."""
    from grpolab import meanings
    from grpolab.quantities import QUANTITIES, Thresholds
    from grpolab.vocabulary import OUTCOMES

    value = {"metrics": list(meanings.METRICS.values()), "quantities": QUANTITIES, "thresholds": vars(Thresholds())}
    value |= {"positions": meanings.POSITIONS, "histograms": meanings.HISTOGRAM_FIELDS}
    value |= {"outcomes": OUTCOMES, "tags": meanings.TAGS}
    say_result(arguments, value, meanings.page().removesuffix("\n"))


@command(
    RESULTS,
    option("run", metavar="RUN|FILE", help="signature or its beginning, run folder, MLflow run id; a log, its folder"),
    option("--from", dest="framework", choices=LOGS, help="FILE is its log; default: by the names in it"),
    option("--run", dest="of_chart", metavar="NAME", help="FILE is W&B's chart of several runs: which"),
    option("--config", type=Path, metavar="FILE", help="the settings of a log's run; default: what lies beside it"),
    *(URI, JSON, flag("--html", "write its page, with its curves: diagnoses/RUN.html in the results")),
)
def diagnose(arguments: argparse.Namespace) -> None:
    """Explain why a run looks the way it does: causes with evidence, and what is normal."""
    run = evidence_of(arguments)
    from grpolab.doctor import examine, page

    diagnosis = examine(run)
    if arguments.html:
        from grpolab.look.page import of_run

        results = results_of(arguments)
        name, place = re.sub(r"[^\w.-]+", "_", run.run)[-100:], Path(arguments.run)
        name += f"-{_digest([place])}" if place.is_file() else ""
        file = results.root / "diagnoses" / f"{name}.html"
        write_text_atomic(file, of_run(results, run, diagnosis, datetime.now(UTC)))
        say_files(arguments, [file])
        return
    say_result(arguments, page.record(diagnosis), page.text(diagnosis))


def evidence_of(arguments: argparse.Namespace) -> Evidence:
    """Read a log, a trainer's folder, a run folder, or a run of the tracking store."""
    from grpolab.readers.log_folders import find_config, near_files

    name, place, of_log = arguments.run, Path(arguments.run), arguments.framework or arguments.of_chart
    if place.is_dir() and not (place / "settings.yaml").is_file():  # as a trainer leaves it, with its checkpoints
        from grpolab.doctor.other_runs import find_only_run

        return find_only_run(arguments.framework, name, arguments.config)
    if not place.exists() and (of_log or place.suffix or len(place.parts) > 1):
        near = near_files(place) or "; `grpolab status --json` lists signatures"
        raise RequestError(f"RUN={name}: there is no such file or folder{near}")
    from grpolab.doctor.evidence import to_evidence
    from grpolab.doctor.run_folder import read_run
    from grpolab.readers.logs import read_log, read_rows
    from grpolab.report import inspect

    if place.name == "journal.jsonl" and (place.parent / "settings.yaml").is_file() and not of_log:
        name = str(place.parent)  # what the run's settings say is not in its journal
    elif of_log or place.is_file():
        log = read_log(arguments.framework, place, arguments.of_chart)
        return to_evidence(log.with_config(*find_config(place, given=arguments.config)))
    results = results_of(arguments)
    if not arguments.uri:
        try:
            return read_run(inspect.find_run(results, name))
        except RequestError:
            if len(name) != 32 or not results.store.is_file():  # an MLflow run id has 32 hex digits
                raise
    from grpolab.run import tracking

    uri = tracking_uri(results, arguments.uri)
    tracking.set_environment()
    from grpolab.studies.stored_runs import read_runs

    # An MLflow run: by its folder if it is ours and here, else by the metrics in the store.
    run, rows = next(read_runs(uri, name))
    folder = results.run(run.data.tags["signature"]) if "signature" in run.data.tags else None
    return read_run(folder) if folder and folder.is_dir() else to_evidence(read_rows(name, rows))
