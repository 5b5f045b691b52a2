"""Commands that train: a run, a study, or the trials of a tuning."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from math import isnan
from typing import TYPE_CHECKING, Any, cast

from grpolab.cli import checking
from grpolab.cli.common import OK, Add, assess_runs, count, draw_all, results_of, seeds, unmet
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root
from grpolab.terminal import say
from grpolab.vocabulary import REGIME_SEEDS, REGIMES, REGISTRY

if TYPE_CHECKING:
    from grpolab.sweep.looks import Answer
    from grpolab.sweep.plan import Cell
    from grpolab.sweep.progress import Events


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
    tune.add_argument("--storage", metavar="URI", help="journal:FILE (default: in the results) or a database's URI")


def _train(arguments: argparse.Namespace) -> int:
    if arguments.page:
        from grpolab.sweep.compose import help_text

        say(help_text(arguments.overrides))
        return OK
    from grpolab.run import parallel
    from grpolab.sweep import launch
    from grpolab.sweep.plan import expand_multirun, expand_single

    with _events(arguments.json_lines) as events:
        plan = (expand_multirun if arguments.multirun else expand_single)(arguments.overrides, arguments.name)
        if parallel.rank() and not arguments.multirun:  # of torchrun's; the first process does the rest
            settings = plan.cells[0].settings
            return parallel.follow(settings, Results.open(settings.machine.results), parallel.rank())
        checking.warn([plan])
        if not arguments.multirun:
            return launch.train_here(plan, events, assess_runs)
        return launch.sweep([plan], draw_all, arguments.jobs, arguments.retry_failed, events=events)


def _sweep(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import launch
    from grpolab.sweep.looks import Looks
    from grpolab.sweep.plan import plans

    if arguments.max_seeds and not arguments.until_decided:
        raise RequestError("--max-seeds needs --until-decided: without it, --seeds says how many")
    if arguments.seeds and arguments.until_decided:
        raise RequestError(
            "--seeds and --until-decided exclude each other: it takes the registered seeds, or 0, 1, ..."
        )
    if arguments.repeat and arguments.until_decided:
        raise RequestError("--repeat and --until-decided exclude each other: what is committed decides as it is")
    asked, looks = plans(arguments.study, arguments.overrides, arguments.seeds), None
    if arguments.until_decided:
        looks = Looks(asked, _decide, arguments.max_seeds)
        asked = looks.plans
    checking.warn(asked)
    with _events(arguments.json_lines) as events:
        return launch.sweep(
            asked,
            draw_all,
            arguments.jobs,
            arguments.retry_failed,
            events=events,
            unmet=unmet,
            looks=looks,
            repeat=arguments.repeat,
        )


def _decide(results: Results, documents: list[dict[str, Any]]) -> list[Answer]:
    """What the report would say of the hypotheses of these plans."""
    from grpolab.report.claims import decide
    from grpolab.report.load import study_of
    from grpolab.report.reference import read_all
    from grpolab.report.statistics.looks import INCONCLUSIVE
    from grpolab.sweep.looks import Answer

    runs = read_all(results, dict.fromkeys(cell["signature"] for plan in documents for cell in plan["cells"]))
    claims = decide([study_of(results, plan, runs) for plan in documents])
    return [
        Answer(claim.study, claim.id, claim.where, claim.verdict, claim.verdict == INCONCLUSIVE, claim.seeds)
        for claim in claims
        if claim.is_finding
    ]


def _register(arguments: argparse.Namespace) -> None:
    from grpolab.identity import ABSENT, absent
    from grpolab.report.load import study_of
    from grpolab.report.questions import margins
    from grpolab.report.reference import read_all
    from grpolab.sweep.ledger import committed_outcomes
    from grpolab.sweep.plan import plans
    from grpolab.sweep.registration import register
    from grpolab.sweep.study import Study, load

    results, asked = results_of(arguments), plans(arguments.study, seeds=arguments.seeds)
    whole, kept = asked[-1], committed_outcomes(results)
    cells = [cell for plan in asked for cell in plan.cells]
    contents = [cell.settings.content() for cell in cells]
    if gone := {f"{key}={content[key][ABSENT]}" for content in contents for key in absent(content)}:
        raise RequestError(
            f"{named} of study {whole.study.name} is not here, and its content is part of what is registered: register"
            " where it is"
            for named in sorted(gone)
        )
    trained = {c.settings.seed for c in cells if c.signature in kept or results.run(c.signature).is_dir()}
    now, chose = datetime.now(UTC).isoformat(timespec="seconds"), load(REGIMES)
    fixed, explored = dict[str, dict[str, float | None]](), set[int]()
    for part in whole.parts or [whole]:
        prefix = f"{part.study.name}." if whole.parts else ""
        # Margins are from what explored and from what chose the regimes: whatever of the study was trained there.
        seeds = [*(seed for seed in part.study.seeds or [] if seed < REGIME_SEEDS), *(chose.seeds or [])]
        plan = part.with_seeds({cell.variant: seeds for cell in part.cells}).document(now, None)
        study = study_of(results, plan, read_all(results, dict.fromkeys(cell["signature"] for cell in plan["cells"])))
        explored |= {int(seed) for seed in study.done["seed"]}
        for hypothesis in part.study.hypotheses if isinstance(part.study, Study) else ():
            of = margins(study, hypothesis.model_dump())
            fixed[prefix + hypothesis.id] = {place: None if isnan(margin) else margin for place, margin in of.items()}
    if lonely := [name for name in whole.hypotheses if not fixed[name]]:
        raise RequestError(
            f"{name} of study {whole.study.name} compares arms that no task has together: it could never be decided"
            for name in lonely
        )
    rules = whole.seeds, whole.study.looks, fixed
    say(register(whole.study.name, whole.hypotheses, *rules, trained, sorted(explored), now))
    file = project_root() / REGISTRY
    say(f"commit {file} before a run of these seeds begins: its commit is what makes the verdicts confirmatory")


def _events(wanted: bool) -> AbstractContextManager[Events | None]:
    """Where events are sent to; None where the output is for people."""
    from grpolab.sweep.progress import json_lines

    return json_lines() if wanted else nullcontext()


def _tune(arguments: argparse.Namespace) -> int:
    from grpolab.sweep.tuning.arms import Arms, load_tuned
    from grpolab.sweep.tuning.command import tune
    from grpolab.sweep.tuning.settings import path_of

    arms = Arms(load_tuned(arguments.study), arguments.overrides)
    return tune(arms, quantities, _draw, path_of(arms.study.name), arguments.jobs, arguments.storage)


def quantities(results: Results, cell: Cell) -> Mapping[str, float]:
    """The stability quantities of a finished run, as the report of a study with this one cell has them."""
    from grpolab.report.journals import read_runs
    from grpolab.report.load import study_of
    from grpolab.report.stability import stability_table

    plan = {"study": "", "compare": next(iter(cell.levels)), "primary_metric": "eval/accuracy_expected"}
    study = study_of(results, {**plan, "cells": [cell.document()]}, read_runs(results, [cell.signature]))
    return cast(dict[str, float], stability_table(study).iloc[0].to_dict())


def _draw(results: Results, study: str) -> None:
    """Figures, tables and page of the tuning."""
    from grpolab.report.tuning import page

    say(page.write(results, study, say))
