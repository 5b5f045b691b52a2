"""`grpolab COMMAND`: parse the command line. A command imports what it needs when it runs, so that all start fast."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from typing import Any

from grpolab import RESULTS_VERSION, __version__
from grpolab.cli import checking, keeping, reading, running
from grpolab.cli.common import (
    EXTRA_OF,
    FAILURE,
    INTERRUPTED,
    OK,
    WRONG_REQUEST,
    Parser,
    Subcommand,
    command,
    install_command,
    option,
    to_json,
)
from grpolab.errors import RequestError, near_matches
from grpolab.paths import DISK_ERRORS
from grpolab.study_names import available
from grpolab.terminal import say, say_uncaught


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one command. Return 0; 1 if something failed, 2 if the request was wrong, 130 after Ctrl-C.

    `compare` returns 1 if outcomes differ, and 3 if they neither differ nor agree for certain. With --json standard
    output has one JSON value, and what is said besides goes to standard error.
    """
    sys.excepthook = say_uncaught
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_json = "--json" in words
    try:
        parsed = parse(words)
        with redirect_stdout(sys.stderr) if is_json else nullcontext():
            code: int | None = parsed.command(parsed)
        if is_json:
            say(to_json(parsed.result))
        return code or OK
    except RequestError as error:
        return _refuse(WRONG_REQUEST, [f"grpolab: {problem}" for problem in error.problems], is_json)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRA_OF:
            raise
        install = install_command(EXTRA_OF[package])
        return _refuse(WRONG_REQUEST, [f"grpolab: this command needs {package}: `{install}` installs it"], is_json)
    except BrokenPipeError:  # as in `grpolab status | head`; Python's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return _refuse(WRONG_REQUEST, [f"grpolab: {error.filename!s:.60}: {error.strerror}"], is_json)
        if error.errno not in DISK_ERRORS:
            raise
        return _refuse(FAILURE, [f"grpolab: {error.filename or 'the disk'}: {error.strerror}"], is_json)
    except KeyboardInterrupt:
        stays = "interrupted: what has an outcome stays, the same command goes on from here"
        return _refuse(INTERRUPTED, [stays], is_json)


def _refuse(code: int, sentences: list[str], is_json: bool) -> int:
    """Say why there is no result, and return the exit code."""
    for sentence in sentences:
        say(sentence, error=True)
    if is_json:
        say(to_json({"error": [sentence.removeprefix("grpolab: ") for sentence in sentences]}))
    return code


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises RequestError."""
    parser, groups = parsers()
    words = list(words)
    _refuse_unknown_command(parser, groups, words)
    parsed, rest = parser.parse_known_args(words)
    # argparse does not take overrides that stand after an option: `sweep smoke --jobs 1 seed=2`
    if options := [text for text in rest if text.startswith("-")]:
        parsed.parser.error("; ".join(_unknown_option(parsed, option, words) for option in options))
    if rest and "overrides" not in parsed:
        parsed.parser.error(f"{' '.join(rest)} is more than the command takes")
    if rest:
        parsed.overrides += rest
    return parsed


def parsers() -> tuple[Parser, dict[str, Any]]:
    """Return the parser, and the subparsers of each group of commands, '' for those without a group."""
    parser = Parser(prog="grpolab", description="Which part of GRPO matters? Ablations with evidence.")
    version = f"grpolab {__version__}, results version {RESULTS_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    groups = {"": parser.add_subparsers(title="commands", metavar="COMMAND", required=True)}

    modules = (running, reading, checking, keeping)  # in the order of `grpolab -h`
    commands = [value for module in modules for value in vars(module).values() if isinstance(value, Subcommand)]
    for one in (*commands, _completion):
        group, _, word = one.name.rpartition(" ")
        if group not in groups:
            title = f"commands: `grpolab {group} -h`"
            groups[group] = groups[""].add_parser(group, help=title).add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(word, help=one.text, description=one.text, allow_abbrev=False, **one.parser)
        sub.set_defaults(command=one.body, parser=sub, result=None)
        for names, settings in one.options:
            sub.add_argument(*names, **settings)
    return parser, groups


@command(option("shell", choices=("bash", "zsh")))
def _completion(arguments: argparse.Namespace) -> None:
    """Print a script for tab completion: in ~/.bashrc: eval "$(grpolab completion bash)"."""
    from grpolab.cli.help import completion, list_names

    say(completion(arguments.shell, parsers()[1], available(), list_names()), end="")


def _refuse_unknown_command(parser: argparse.ArgumentParser, groups: dict[str, Any], words: list[str]) -> None:
    group = ""
    for word in words[:2]:
        if group not in groups or word.startswith("-"):
            return
        names = groups[group].choices
        if word not in names:
            parser.error(f"{f'{group} {word}'.strip()} is no command{near_matches(word, names)}")
        group = f"{group} {word}".strip()


def _unknown_option(parsed: argparse.Namespace, option: str, words: list[str]) -> str:
    """Return a sentence with what to write instead."""
    name, _, value = option.partition("=")
    options = re.findall(r"--[a-z-]+", parsed.parser.format_usage())
    if "overrides" in parsed and not any(known.startswith(name) for known in options):
        from grpolab.cli.help import guess_key

        behind = next((word for word in words[words.index(option) + 1 :] if not word.startswith("-")), "")
        if key := guess_key(name.lstrip("-").replace("-", "_")):
            return f"{name} is no option: settings are written key=value, here {key}={value or behind or '...'}"
    return f"{name} is no option of `{parsed.parser.prog}`{near_matches(name, options)}"
