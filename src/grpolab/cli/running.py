"""Commands that train: a run, a study, or the trials of a tuning."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from grpolab.cli.checking import warn
from grpolab.cli.common import OK, Add, count, results_of, seeds
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root
from grpolab.terminal import say
from grpolab.vocabulary import REGISTRY

if TYPE_CHECKING:
    from grpolab.sweep.plan import Cell


def add_commands(add: Add) -> None:
    """train, sweep, register, tune."""
    text = "train one run with Hydra overrides; -m: every combination"
    train = add("train", _train, text, results=False, add_help=False)
    train.add_argument("-h", "--help", action="store_true", dest="page")
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("--name", default="adhoc")
    train.add_argument("overrides", nargs="*", metavar="key=value")

    sweep = add("sweep", _sweep, "run a study of experiments/: train what is missing, and track it", results=False)
    sweep.add_argument("study", metavar="STUDY")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every cell")
    sweep.add_argument("--seeds", type=seeds, metavar="N", help="seeds 0 to N-1, or a list: 3,4,5; 2010, is one seed")
    text = "look at its hypotheses after 5, 10, 15, 20 seeds (`looks:`), and add seeds only for what is open"
    sweep.add_argument("--until-decided", action="store_true", help=text)
    sweep.add_argument("--max-seeds", type=count, metavar="N", help="with --until-decided: the look to end with")
    text = "train what has a committed outcome too, and say whether it comes out the same"
    sweep.add_argument("--repeat", action="store_true", help=text)

    text = "write down a study's hypotheses, and the seeds that will decide them, before these are run"
    register = add("register", _register, text)
    register.add_argument("study", metavar="STUDY")
    register.add_argument("--seeds", type=seeds, metavar="LIST", help="seeds that will decide, e.g. 2000,2001,2002")

    text = "look for the best values of each arm of a study, with equal budgets (`tuning:` in its file)"
    tune = add("tune", _tune, text, results=False)
    tune.add_argument("study", metavar="STUDY")
    tune.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every trial")

    for command in (train, sweep, tune):
        command.add_argument("--jobs", type=count, metavar="N", help="workers; default: one per core, or per GPU")
    for command in (train, sweep):
        command.add_argument("--retry-failed", action="store_true", help="run failed cells again; their error is kept")
        command.add_argument("--json-lines", action="store_true", help="one JSON object per event, for programs")
    tune.add_argument(
        "--storage",
        metavar="URI",
        help="a database: sqlite:///FILE (default: in the results), postgresql://..., mysql://...",
    )


def _train(arguments: argparse.Namespace) -> int:
    from grpolab.sweep.compose import compose
    from grpolab.sweep.help import help_text

    if arguments.page:
        say(help_text(arguments.overrides))
        return OK
    from grpolab.lint.rules import check_run
    from grpolab.lint.study_rules import check_plans
    from grpolab.sweep.plan import cell_of, expand_multirun

    overrides, name = arguments.overrides, arguments.name
    with _output(arguments.json_lines):
        if arguments.multirun:
            from grpolab.studies.sweep import sweep

            plan = expand_multirun(overrides, name)
            warn(check_plans([plan]), plan.cells)
            return sweep([plan], arguments.jobs, retry_failed=arguments.retry_failed)
        from grpolab.run import follower, parallel
        from grpolab.studies.train import train

        settings = compose(overrides)
        cell = cell_of(settings, overrides)
        if rank := parallel.rank():  # of torchrun's; the first process does the rest
            return follower.follow(cell.settings, Results.open(settings.machine.results), rank)
        warn(check_run(settings), [cell])
        return train(cell, name, overrides)


def _sweep(arguments: argparse.Namespace) -> int:
    from grpolab.lint.study_rules import check_plans
    from grpolab.studies.looks import Looks
    from grpolab.studies.sweep import sweep
    from grpolab.sweep.plan import plans

    if arguments.max_seeds and not arguments.until_decided:
        raise RequestError("--max-seeds needs --until-decided: without it, --seeds says how many")
    if arguments.seeds and arguments.until_decided:
        raise RequestError(
            "--seeds and --until-decided exclude each other: it takes the registered seeds, or 0, 1, ..."
        )
    if arguments.repeat and arguments.until_decided:
        raise RequestError("--repeat and --until-decided exclude each other: what is committed decides as it is")
    planned, looks = plans(arguments.study, arguments.overrides, arguments.seeds), None
    if arguments.until_decided:
        looks = Looks(planned, arguments.max_seeds)
        planned = looks.plans
    warn(check_plans(planned), [cell for plan in planned for cell in plan.cells])
    with _output(arguments.json_lines):
        retry, repeat = arguments.retry_failed, arguments.repeat
        return sweep(planned, arguments.jobs, retry_failed=retry, repeat=repeat, looks=looks)


def _register(arguments: argparse.Namespace) -> None:
    from grpolab.studies.register import register_study
    from grpolab.sweep.plan import plans

    now = datetime.now(UTC).isoformat(timespec="seconds")
    say(register_study(plans(arguments.study, seeds=arguments.seeds), results_of(arguments), now))
    file = project_root() / REGISTRY
    say(f"commit {file} before a run of these seeds begins: its commit is what makes the verdicts confirmatory")


def _output(as_events: bool) -> AbstractContextManager[None]:
    """Return a context in which the output is events for a program, or as usual."""
    from grpolab.sweep.progress import json_lines

    return json_lines() if as_events else nullcontext()


def _tune(arguments: argparse.Namespace) -> int:
    from grpolab.sweep.tuning.arms import TunedStudy, load_tuned
    from grpolab.sweep.tuning.command import tune
    from grpolab.sweep.tuning.settings import tuned_file

    tuned = TunedStudy(load_tuned(arguments.study), arguments.overrides)
    return tune(tuned, quantities, _draw, tuned_file(tuned.study.name), arguments.jobs, arguments.storage)


def quantities(results: Results, cell: Cell) -> Mapping[str, float]:
    """Return the stability quantities of a finished run, as the report of a study with this one cell has them."""
    from grpolab.report.journals import read_runs
    from grpolab.report.load import study_of
    from grpolab.report.measures import stability_table

    plan = {"study": "", "compare": next(iter(cell.levels)), "primary_metric": "eval/accuracy_expected"}
    study = study_of(results, {**plan, "cells": [cell.document()]}, read_runs(results, [cell.signature]))
    return cast(dict[str, float], stability_table(study).iloc[0].to_dict())


def _draw(results: Results, study: str) -> None:
    from grpolab.report import tuning

    say(tuning.write(results, study, say))
