"""Commands that train."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from grpolab.cli import linting
from grpolab.cli.common import OK, Add, count, draw_all, seeds, unmet

if TYPE_CHECKING:
    from grpolab.sweep.events import Events


def add_commands(add: Add) -> None:
    """train, sweep."""
    text = "train one run with Hydra overrides; -m: every combination"
    train = add("train", _train, text, results=False, add_help=False)
    train.add_argument("-h", "--help", action="store_true", dest="page")
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("--name", default="adhoc")
    train.add_argument("overrides", nargs="*", metavar="key=value")
    _add_options(train)

    sweep = add("sweep", _sweep, "run a study of experiments/: train what is missing, and track it", results=False)
    sweep.add_argument("study", metavar="STUDY")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every cell")
    sweep.add_argument("--seeds", type=seeds, metavar="N", help="seeds 0 to N-1, or a list: 3,4,5")
    _add_options(sweep)


def _add_options(command: argparse.ArgumentParser) -> None:
    """What everything that trains several runs takes."""
    command.add_argument("--jobs", type=count, metavar="N", help="workers; default: one per core, or per GPU")
    command.add_argument("--retry-failed", action="store_true", help="run failed cells again; their error is kept")
    command.add_argument("--json-lines", action="store_true", help="one JSON object per event, for programs")


def _train(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import adhoc, describe, launch

    if arguments.page:
        print(describe.help_text(arguments.overrides))
        return OK
    name, overrides = arguments.name, arguments.overrides
    with _events(arguments.json_lines) as events:
        plan = (adhoc.expand_multirun if arguments.multirun else adhoc.expand_single)(overrides, name)
        linting.warn([plan])
        if not arguments.multirun:
            return launch.train_here(plan, events)
        return launch.sweep([plan], draw_all, arguments.jobs, arguments.retry_failed, events=events)


def _sweep(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import launch
    from grpolab.sweep.plan import plans

    asked = plans(arguments.study, arguments.overrides, arguments.seeds)
    linting.warn(asked)
    with _events(arguments.json_lines) as events:
        return launch.sweep(asked, draw_all, arguments.jobs, arguments.retry_failed, events=events, unmet=unmet)


def _events(wanted: bool) -> AbstractContextManager[Events | None]:
    """Where events are sent to; None where the output is for people."""
    if not wanted:
        return nullcontext()
    from grpolab.sweep.events import json_lines

    return json_lines()
