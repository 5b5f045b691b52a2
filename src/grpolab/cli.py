"""`grpolab COMMAND`: every room's door. Each command imports its room when it is called, so that all start fast."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from grpolab.errors import RequestError
from grpolab.paths import REFERENCE_STUDY, Results, project_root

OK, FAILURE, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
Command = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one command; returns 0, 1 where something failed, 2 where the request was wrong, 130 after Ctrl-C."""
    parsed = _parse(arguments)
    command: Command = parsed.command
    try:
        return command(parsed)
    except RequestError as error:
        for problem in error.problems:
            print(f"grpolab: {problem}", file=sys.stderr)
        return WRONG_REQUEST
    except BrokenPipeError:  # `grpolab status | head`: nobody reads on, and Python's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"grpolab: {error.filename or 'the disk'}: {error.strerror}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("interrupted: what has an outcome stays, the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="grpolab", description="Which part of GRPO matters? Ablations with evidence.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str, results: bool = True, **options: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        sub.set_defaults(command=command)
        if results:
            sub.add_argument("--results", metavar="FOLDER", help="default: machine.results of conf/run.yaml")
        return sub

    _add_running(add)
    _add_reading(add)
    parsed, rest = parser.parse_known_args(arguments)
    # argparse does not take overrides that stand after an option: `sweep smoke --jobs 1 seed=2`
    if any(text.startswith("-") for text in rest) or (rest and "overrides" not in parsed):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides += rest
    return parsed


def _add_running(add: Add) -> None:
    text = "train one run with Hydra overrides; -m: every combination"
    train = add("train", _train, text, results=False, add_help=False)
    train.add_argument("-h", "--help", action="store_true", dest="page")
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("--name", default="adhoc")
    train.add_argument("--jobs", type=_count)
    train.add_argument("overrides", nargs="*")

    sweep = add("sweep", _sweep, "run a study of experiments/: train what is missing, and track it", results=False)
    sweep.add_argument("study", metavar="STUDY")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every cell")
    sweep.add_argument("--seeds", type=_seeds, metavar="N", help="seeds 0 to N-1, or a list: 3,4,5")
    sweep.add_argument("--jobs", type=_count, metavar="N", help="workers; default: one per core, or per GPU")
    sweep.add_argument("--retry-failed", action="store_true", help="run failed cells again; their error is kept")


def _add_reading(add: Add) -> None:
    status = add("status", _status, "how far the cells of a study are")
    status.add_argument("study", nargs="?", metavar="STUDY")
    status.add_argument("--json", action="store_true")
    for name, command, text in (
        ("figures", _figures, "draw a study's figures and tables; trains nothing"),
        ("report", _report, "draw a study's figures and tables and write its report; trains nothing"),
        ("ui", _ui, "MLflow's pages, with a link to the study's charts"),
    ):
        sub = add(name, command, text)
        sub.add_argument("study", nargs="?", default=REFERENCE_STUDY, metavar="STUDY")
        if name == "ui":
            sub.add_argument("--port", type=_count, default=5000)
            sub.add_argument("--uri", help="tracking store; default: machine.tracking_uri of conf/run.yaml")
    show = add("show", _show, "completions of a run with rewards, advantages, ratios and clip marks")
    show.add_argument("run", metavar="RUN", help="signature, the beginning of one, or a run folder")
    show.add_argument("--step", type=int, metavar="N", help="rollout step; default: the last that was kept")
    show.add_argument("--prompts", type=_count, default=2, metavar="N", help="prompts to show")
    diff = add("diff", _diff, "settings in which two runs differ, and the paired effect where a study compares them")
    diff.add_argument("runs", nargs=2, metavar="RUN")
    add("geometry", _geometry, "write the table behind the analytic figures")
    add("regimes", _regimes, "whether the reference's baseline learns and clipping acts, as docs/regimes.md")
    add("vocabulary", _vocabulary, "every metric, tag and outcome with its meaning, as Markdown", results=False)
    add("export-reference", _export_reference, "keep the reference study's outcome in results/reference/")


def _train(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import adhoc, describe, launch

    if arguments.page:
        print(describe.help_text())
        return OK
    if arguments.multirun:
        return launch.sweep([adhoc.expand_multirun(arguments.overrides, arguments.name)], _draw_all, arguments.jobs)
    return launch.train_here(adhoc.expand_single(arguments.overrides, arguments.name))


def _sweep(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import launch
    from grpolab.sweep.plan import plans

    asked = plans(arguments.study, arguments.overrides, arguments.seeds)
    return launch.sweep(asked, _draw_all, arguments.jobs, arguments.retry_failed)


def _status(arguments: argparse.Namespace) -> int:
    from grpolab.sweep.ledger import print_status

    print_status(_results(arguments), arguments.study, arguments.json)
    return OK


def _figures(arguments: argparse.Namespace) -> int:
    from grpolab.report import page

    results = _results(arguments)
    _ensure_geometry(results)
    for path in page.draw(results, arguments.study):
        print(path)
    return OK


def _report(arguments: argparse.Namespace) -> int:
    from grpolab.run import tracking

    results = _results(arguments)
    _draw_all(results, arguments.study)
    uri = tracking.store_uri(_machine_defaults()["tracking_uri"], results)
    if uri and results.plan(arguments.study).is_file():  # not where the committed reference was drawn
        problem = tracking.synchronise(results, uri, [arguments.study])
        if problem:
            print(problem, file=sys.stderr)
    return OK


def _draw_all(results: Results, study: str) -> None:
    from grpolab.report import page

    _ensure_geometry(results)
    print(page.write(results, study, print))


def _ui(arguments: argparse.Namespace) -> int:
    from grpolab.run import tracking, ui

    results = _results(arguments)
    uri = tracking.store_uri(arguments.uri or _machine_defaults()["tracking_uri"], results)
    if uri is None:
        raise RequestError("machine.tracking_uri of conf/run.yaml is empty, so nothing is tracked: give --uri")
    ui.serve(results, uri, arguments.study, arguments.port)
    return OK


def _show(arguments: argparse.Namespace) -> int:
    from grpolab.report import inspect

    print(inspect.show(_results(arguments), arguments.run, arguments.step, arguments.prompts))
    return OK


def _diff(arguments: argparse.Namespace) -> int:
    from grpolab.report import inspect

    print(inspect.diff(_results(arguments), *arguments.runs))
    return OK


def _geometry(arguments: argparse.Namespace) -> int:
    results = _results(arguments)
    results.geometry.unlink(missing_ok=True)
    _ensure_geometry(results)
    print(results.geometry)
    return OK


def _ensure_geometry(results: Results) -> None:
    """The table behind the analytic figures: reports read files, and only the learning room can compute this one."""
    if results.geometry.exists():
        return
    import csv
    import io

    from grpolab.learn import geometry
    from grpolab.paths import write_text_atomic

    rows, text = geometry.table(), io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(results.geometry, text.getvalue())


def _regimes(arguments: argparse.Namespace) -> int:
    from grpolab.report import regimes

    print(regimes.page(_results(arguments)))
    return OK


def _vocabulary(_arguments: argparse.Namespace) -> int:
    from grpolab.report import metrics

    print(metrics.page(), end="")
    return OK


def _export_reference(arguments: argparse.Namespace) -> int:
    from grpolab.report.reference import export_reference

    for file in export_reference(_results(arguments)):
        print(file)
    return OK


def _results(arguments: argparse.Namespace) -> Results:
    return Results.open(arguments.results or _machine_defaults()["results"])


def _machine_defaults() -> dict[str, str]:
    """`machine` of conf/run.yaml, read without Hydra."""
    machine: dict[str, str] = yaml.safe_load((project_root() / "conf" / "run.yaml").read_text())["machine"]
    return machine


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number >= 1")
    return int(text)


def _seeds(text: str) -> list[int]:
    parts = text.rstrip(",").split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts) or text == "0":
        raise argparse.ArgumentTypeError(f"{text} is not allowed: how many seeds, or a list of different ones: 3,4,5")
    return [int(part) for part in parts] if "," in text else list(range(int(text)))
