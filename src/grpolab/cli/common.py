"""Declare commands, and what they share: exit codes, options, number types, results folder and tracking store."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import yaml

from grpolab.errors import RequestError, listing
from grpolab.paths import Results, find_file
from grpolab.study_names import planned_name
from grpolab.terminal import say

OK, FAILURE, WRONG_REQUEST, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130
Body = Callable[[argparse.Namespace], int | None]  # an exit code; None is OK
Option = tuple[tuple[str, ...], dict[str, Any]]  # the arguments of `add_argument`


# Package -> the extra of pyproject.toml that brings it.
EXTRA_OF = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "huggingface_hub", "datasets"), "train"),
    **dict.fromkeys(("optuna", "cmaes"), "train"),
    **dict.fromkeys(("mlflow", "sqlalchemy"), "track"),
    **dict.fromkeys(("jupytext", "nbclient", "nbconvert", "ipykernel"), "notebooks"),
}
GROUPS = ("track", "runs")  # `track_sync` is the command sync of the group track


@dataclass(frozen=True)
class Subcommand:
    """A command of the command line, with its options."""

    name: str
    text: str  # its help
    options: tuple[Option, ...]
    parser: dict[str, Any]  # further arguments of `add_parser`
    body: Body


def command(*options: Option, **parser: Any) -> Callable[[Body], Subcommand]:
    """Make a function a command: its name is the command's name, its docstring the help text."""

    def make(body: Body) -> Subcommand:
        group, _, word = body.__name__.strip("_").partition("_")
        name = f"{group} {word}" if group in GROUPS else body.__name__.strip("_").replace("_", "-")
        return Subcommand(name, body.__doc__ or "", options, parser, body)

    return make


def option(*names: str, **settings: Any) -> Option:
    """Return an option or a positional argument."""
    return names, settings


def flag(name: str, help_text: str | None = None) -> Option:
    """Return an option without a value."""
    return option(name, action="store_true", help=help_text)


def count(text: str) -> int:
    """Parse a whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number >= 1")
    return int(text)


def number_between(low: float, high: float) -> Callable[[str], float]:
    """Return a parser, for argparse, of a number between two others."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            if low < float(text) < high:
                return float(text)
        allowed = f"a number > {low:g}" if high == math.inf else f"a number between {low:g} and {high:g}"
        raise argparse.ArgumentTypeError(f"{text} is not allowed: {allowed}")

    return parse


RESULTS = option("--results", metavar="FOLDER", help="default: machine.results of conf/run.yaml")
STUDY = option("study", metavar="STUDY")
JSON = flag("--json", "one JSON value on standard output, for programs")
URI = option("--uri", help="tracking store; default: machine.tracking_uri of conf/run.yaml")


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Refuse the request."""
        raise RequestError(f"{message} (`{self.prog} --help`)")


def say_result(arguments: argparse.Namespace, value: Any, text: object) -> None:
    """Print the text or, with --json, leave the value to `main`, which prints it alone (docs/command_line.md)."""
    if arguments.json:
        arguments.result = value
    else:
        say(text)


def say_files(arguments: argparse.Namespace, files: Iterable[object]) -> None:
    """Say which files a command wrote."""
    names = list(map(str, files))
    say_result(arguments, {"files": names}, "\n".join(names))


def say_failure(arguments: argparse.Namespace, sentence: str) -> int:
    """Say what failed, and return the exit code."""
    say(sentence, error=True)
    arguments.result = {"error": [sentence]}
    return FAILURE


def to_json(value: Any) -> str:
    """Write a value as strict JSON: NaN is null, an infinity "inf" or "-inf", a dataclass an object of its fields."""

    def encode(other: Any) -> Any:
        if is_dataclass(other):
            return vars(other)
        return other.tolist() if hasattr(other, "tolist") else str(other)  # numpy's and pandas' have it

    words = {"NaN": None, "Infinity": "inf", "-Infinity": "-inf"}
    return json.dumps(json.loads(json.dumps(value, default=encode), parse_constant=words.get), indent=1)


def results_of(arguments: argparse.Namespace) -> Results:
    """Open the results folder that a command works on: --results, from the working directory, or the project's."""
    named: str = arguments.results or ""
    return Results.open(Path(named).expanduser().absolute() if named else machine_defaults()["results"])


def study_of(study: str | None, results: Results) -> str:
    """Return the name of a command's study; where it names none, of the one that is planned here."""
    from grpolab.report.plans import default_study

    if study:
        return planned_name(results, study)
    default, planned = default_study(results), results.planned()
    if len(planned) > 1 and default not in planned and not results.committed_plan(default).is_file():
        raise RequestError(f"STUDY is missing: name one of {listing(planned, 60)}")
    return planned[0] if len(planned) == 1 else default


def machine_defaults() -> dict[str, str]:
    """Read `machine` of conf/run.yaml, without Hydra."""
    machine: dict[str, str] = yaml.safe_load(find_file("conf", "run.yaml").read_text())["machine"]
    return machine


def require(package: str) -> None:
    """Raise ModuleNotFoundError, which `main` answers with the extra to install, if a package is missing."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this program, from the folder, file or repository that it came from."""
    name, pip = f"grpolab[{','.join(extras)}]", "pip" if find_spec("pip") else "uv pip"
    with suppress(PackageNotFoundError):  # else it is on Python's path without having been installed
        origin = json.loads(distribution("grpolab").read_text("direct_url.json") or "{}")
        url, version_control = origin.get("url", ""), origin.get("vcs_info")
        if origin.get("dir_info", {}).get("editable"):
            return f"{pip} install -e {quote(unquote(urlsplit(url).path) + name.removeprefix('grpolab'))}"
        if version_control:
            url = f"{version_control['vcs']}+{url}@{version_control['commit_id']}"
        name += f" @ {url}" if url else ""
    return f"{pip} install {quote(name)}"


def tracking_uri(results: Results, uri: str | None) -> str:
    """Return this tracking store, or that of conf/run.yaml. Raises RequestError if it cannot be one."""
    from grpolab.run import tracking

    uri = tracking.store_uri(uri or machine_defaults()["tracking_uri"], results)
    if uri is None:
        raise RequestError("machine.tracking_uri of conf/run.yaml is empty, so nothing is tracked: give --uri")
    tracking.check_store(uri)
    return uri
