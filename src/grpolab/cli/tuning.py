"""The command that tunes: the one place where tuner, linter and report meet."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grpolab.cli.common import Add, count
from grpolab.paths import Results

if TYPE_CHECKING:
    from grpolab.sweep.plan import Cell


def add_commands(add: Add) -> None:
    """tune."""
    text = "look for the best values of each arm of a study, with equal budgets (`tuning:` in its file)"
    tune = add("tune", _tune, text, results=False)
    tune.add_argument("study", metavar="STUDY")
    tune.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every trial")
    tune.add_argument("--jobs", type=count, metavar="N", help="workers; default: one per core, or per GPU")
    tune.add_argument("--storage", metavar="URI", help="journal:FILE (default: in the results) or a database's URI")


def _tune(arguments: argparse.Namespace) -> int:
    from grpolab.lint.equalities import why_the_same
    from grpolab.sweep.tuned import path_of
    from grpolab.sweep.tuning.arms import Arms, load_tuned
    from grpolab.sweep.tuning.command import check_effects, tune

    arms = Arms(load_tuned(arguments.study), arguments.overrides)
    check_effects(arms, why_the_same)
    return tune(arms, quantities, _draw, path_of(arms.study.name), arguments.jobs, arguments.storage)


def quantities(results: Results, cell: Cell) -> Mapping[str, float]:
    """The stability quantities of a finished run, as the report of a study with this one cell has them."""
    from grpolab.report.load import study_of
    from grpolab.report.runs import read_runs
    from grpolab.report.stability import stability_table

    plan = {"study": "", "compare": next(iter(cell.levels)), "primary_metric": "eval/accuracy_expected"}
    study = study_of(results, {**plan, "cells": [cell.document()]}, read_runs(results, [cell.signature]))
    row: Mapping[str, float] = stability_table(study).iloc[0].to_dict()
    return row


def _draw(results: Results, study: str) -> None:
    """Figures, tables and page of the tuning."""
    from grpolab.report.tuning import page

    print(page.write(results, study, print))
