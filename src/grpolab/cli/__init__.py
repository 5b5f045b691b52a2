"""`grpolab COMMAND`: every room's door. Each command imports its room when it is called, so that all start fast."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from grpolab.cli import checking, diagnosing, keeping, linting, reading, running, tuning
from grpolab.cli.common import FAILURE, INTERRUPTED, WRONG_REQUEST, Command
from grpolab.errors import RequestError
from grpolab.paths import DISK_ERRORS


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

    groups = {"": commands}

    def add(name: str, command: Command, text: str, results: bool = True, **options: Any) -> argparse.ArgumentParser:
        group, _, word = name.rpartition(" ")  # `track sync` is the command sync of the group track
        if group not in groups:
            title = f"commands: `grpolab {group} -h`"
            groups[group] = commands.add_parser(group, help=title).add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(word, help=text, description=text, allow_abbrev=False, **options)
        sub.set_defaults(command=command)
        if results:
            sub.add_argument("--results", metavar="FOLDER", help="default: machine.results of conf/run.yaml")
        return sub

    for room in (running, tuning, reading, diagnosing, linting, checking, keeping):
        room.add_commands(add)
    parsed, rest = parser.parse_known_args(arguments)
    # argparse does not take overrides that stand after an option: `sweep smoke --jobs 1 seed=2`
    if any(text.startswith("-") for text in rest) or (rest and "overrides" not in parsed):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides += rest
    return parsed
