"""Commands that train: a run, a study, or the trials of a tuning."""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

from grpolab.cli.checking import warn
from grpolab.cli.common import JSON, OK, RESULTS, STUDY, command, count, flag, option, require, results_of, say_result
from grpolab.errors import RequestError, listing
from grpolab.paths import project_root
from grpolab.terminal import say
from grpolab.vocabulary import REGISTRY


def _seeds(text: str) -> list[int]:
    """Parse seeds for argparse: `3` is 0, 1, 2; `3,4,5` is a list."""
    from grpolab.sweep.fields import MOST_SEEDS

    parts = text.rstrip(",").split(",")
    whole = all(part.isdecimal() and int(part) < 2**63 for part in parts)
    if not whole or len(set(parts)) < len(parts) or text == "0" or ("," not in text and int(text) > MOST_SEEDS):
        raise argparse.ArgumentTypeError(f"{text} is not allowed: how many seeds, or a list of different ones: 3,4,5")
    return [int(part) for part in parts] if "," in text else list(range(int(text)))


OVERRIDES = option("overrides", nargs="*", default=[], metavar="key=value", help="Hydra overrides, for every run")
JOBS = option("--jobs", type=count, metavar="N", help="workers; default: one per core, or per GPU")
RETRY_FAILED = flag("--retry-failed", "run failed cells again; their error is kept")
JSON_LINES = flag("--json-lines", "one JSON object per event, for programs")


@command(
    option("-h", "--help", action="store_true", dest="page"),
    option("-m", "--multirun", action="store_true"),
    option("--name", default="adhoc"),
    *(OVERRIDES, JOBS, RETRY_FAILED, JSON_LINES),
    add_help=False,
)
def train(arguments: argparse.Namespace) -> int:
    """Train one run with Hydra overrides; with -m every combination."""
    from grpolab.cli.help import help_text
    from grpolab.sweep.compose import compose

    if arguments.page:
        say(help_text(arguments.overrides))
        return OK
    from grpolab.lint.rules import check_run
    from grpolab.lint.study_rules import check_plans
    from grpolab.studies.command_line import cell_of, expand_multirun

    require("torch")
    overrides, name = arguments.overrides, arguments.name
    with _output(arguments.json_lines):
        if arguments.multirun:
            from grpolab.studies.sweep import sweep

            plan = expand_multirun(overrides, name)
            warn(check_plans([plan]), plan.cells)
            return sweep([plan], arguments.jobs, retry_failed=arguments.retry_failed)
        from grpolab.studies.train import train

        settings = compose(overrides)
        cell = cell_of(settings, overrides)
        warn(check_run(settings), [cell])
        return train(cell, name, overrides)


def only_study() -> str:
    """Return the one study of the project. Raises RequestError if it has more, or none."""
    names = sorted(file.stem for file in (project_root() / "experiments").glob("*.yaml"))
    if len(names) == 1:
        return names[0]
    raise RequestError(f"STUDY is missing: name one of {listing(names, 60) or 'the studies in experiments/'}")


@command(
    option("study", nargs="?", metavar="STUDY", help="default: the project's, if it has one alone"),
    *(OVERRIDES, JOBS, RETRY_FAILED, JSON_LINES),
    option("--seeds", type=_seeds, metavar="N", help="seeds 0 to N-1, or a list: 3,4,5; 2010, is one seed"),
    flag("--until-decided", "look after 5, 10, 15, 20 seeds (`looks:`), and add seeds for hypotheses that are open"),
    option("--max-seeds", type=count, metavar="N", help="with --until-decided: the look to end with"),
    flag("--repeat", "train what has a committed outcome too, and say whether it comes out the same"),
)
def sweep(arguments: argparse.Namespace) -> int:
    """Run a study of experiments/: train what is missing, and track it."""
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
    require("torch")  # before workers start
    planned, looks = plans(arguments.study or only_study(), arguments.overrides, arguments.seeds), None
    if arguments.until_decided:
        looks = Looks(planned, arguments.max_seeds)
        planned = looks.plans
    warn(check_plans(planned), [cell for plan in planned for cell in plan.cells])
    with _output(arguments.json_lines):
        retry, repeat = arguments.retry_failed, arguments.repeat
        return sweep(planned, arguments.jobs, retry_failed=retry, repeat=repeat, looks=looks)


def _output(as_events: bool) -> AbstractContextManager[None]:
    """Return a context in which the output is events for a program, or as usual."""
    from grpolab.studies.progress import json_lines

    return json_lines() if as_events else nullcontext()


@command(
    *(RESULTS, STUDY, JSON),
    option("--seeds", type=_seeds, metavar="LIST", help="that will decide, e.g. 2000,2001,2002"),
)
def register(arguments: argparse.Namespace) -> None:
    """Write down a study's hypotheses, and the seeds that will decide them, before these are run."""
    from grpolab.studies.register import register_study
    from grpolab.sweep.plan import plans

    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = register_study(plans(arguments.study, seeds=arguments.seeds), results_of(arguments), now)
    file = project_root() / REGISTRY
    then = f"commit {file} before a run of these seeds begins: its commit is what makes the verdicts confirmatory"
    say_result(arguments, {"file": file, "registration": json.loads(line)}, f"{line}\n{then}")


@command(
    *(STUDY, OVERRIDES, JOBS, JSON_LINES),
    option("--storage", metavar="URI", help="of the trials; default: SQLite in the results"),
)
def tune(arguments: argparse.Namespace) -> int:
    """Look for the best values of each arm of a study, with equal budgets (`tuning:` in its file)."""
    from grpolab.studies.tune import tune
    from grpolab.sweep.tuning.arms import TunedStudy, load_tuned

    tuned = TunedStudy(load_tuned(arguments.study), arguments.overrides)
    with _output(arguments.json_lines):
        return tune(tuned, arguments.jobs, arguments.storage)
