"""Exit codes, results folder, tracking store and number types that the commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

import yaml

from grpolab.errors import RequestError, printable
from grpolab.paths import Results, project_root

OK, FAILURE, WRONG_REQUEST, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130
Command = Callable[[argparse.Namespace], int | None]  # an exit code; None is OK
Add = Callable[..., argparse.ArgumentParser]


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(WRONG_REQUEST, f"grpolab: {printable(message)} (`{self.prog} --help`)\n")


def results_of(arguments: argparse.Namespace) -> Results:
    """Open the results folder that a command works on."""
    return Results.open(arguments.results or machine_defaults()["results"])


def machine_defaults() -> dict[str, str]:
    """Read `machine` of conf/run.yaml, without Hydra."""
    machine: dict[str, str] = yaml.safe_load((project_root() / "conf" / "run.yaml").read_text())["machine"]
    return machine


def tracking_uri(results: Results, given: str | None) -> str:
    """Return the given tracking store, or that of conf/run.yaml. Raises RequestError if it cannot be one."""
    from grpolab.run import tracking

    uri = tracking.store_uri(given or machine_defaults()["tracking_uri"], results)
    if uri is None:
        raise RequestError("machine.tracking_uri of conf/run.yaml is empty, so nothing is tracked: give --uri")
    tracking.check_store(uri)
    return uri


def count(text: str) -> int:
    """Parse a whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number >= 1")
    return int(text)


def seeds(text: str) -> list[int]:
    """Parse seeds for argparse: `3` is 0, 1, 2; `3,4,5` is a list."""
    from grpolab.sweep.schema import MOST_SEEDS

    parts = text.rstrip(",").split(",")
    whole = all(part.isdecimal() and int(part) < 2**63 for part in parts)
    if not whole or len(set(parts)) < len(parts) or text == "0" or ("," not in text and int(text) > MOST_SEEDS):
        raise argparse.ArgumentTypeError(f"{text} is not allowed: how many seeds, or a list of different ones: 3,4,5")
    return [int(part) for part in parts] if "," in text else list(range(int(text)))
