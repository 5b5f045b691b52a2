"""Commands that train."""

from __future__ import annotations

import argparse

from grpolab.cli.common import OK, Add, count, draw_all, seeds


def add_commands(add: Add) -> None:
    """train, sweep."""
    text = "train one run with Hydra overrides; -m: every combination"
    train = add("train", _train, text, results=False, add_help=False)
    train.add_argument("-h", "--help", action="store_true", dest="page")
    train.add_argument("-m", "--multirun", action="store_true")
    train.add_argument("--name", default="adhoc")
    train.add_argument("--jobs", type=count)
    train.add_argument("overrides", nargs="*")

    sweep = add("sweep", _sweep, "run a study of experiments/: train what is missing, and track it", results=False)
    sweep.add_argument("study", metavar="STUDY")
    sweep.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides for every cell")
    sweep.add_argument("--seeds", type=seeds, metavar="N", help="seeds 0 to N-1, or a list: 3,4,5")
    sweep.add_argument("--jobs", type=count, metavar="N", help="workers; default: one per core, or per GPU")
    sweep.add_argument("--retry-failed", action="store_true", help="run failed cells again; their error is kept")


def _train(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import adhoc, describe, launch

    if arguments.page:
        print(describe.help_text())
        return OK
    if arguments.multirun:
        return launch.sweep([adhoc.expand_multirun(arguments.overrides, arguments.name)], draw_all, arguments.jobs)
    return launch.train_here(adhoc.expand_single(arguments.overrides, arguments.name))


def _sweep(arguments: argparse.Namespace) -> int:
    from grpolab.sweep import launch
    from grpolab.sweep.plan import plans

    asked = plans(arguments.study, arguments.overrides, arguments.seeds)
    return launch.sweep(asked, draw_all, arguments.jobs, arguments.retry_failed)
