"""`python -m grpolab.run.tracking --results FOLDER --uri URI STUDY...`: mirror run folders into MLflow.

Follows the studies until standard input ends, makes a last pass with the summary runs, and exits with 0, or with 1 and
one sentence on standard error. `--check --uri URI` only asks if the store can be used.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

from grpolab.paths import Results
from grpolab.run.tracking import set_environment
from grpolab.terminal import say

POLL_SECONDS, MOST_SECONDS = 5.0, 60.0  # between two passes
SHARE = 0.05  # of a core that passes may take
LAST_ATTEMPTS = 3
NICENESS = 10  # the workers' cores come first


def main() -> int:
    """Run until standard input ends; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpolab.run.tracking", description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("studies", nargs="*", metavar="STUDY")
    arguments = parser.parse_args()
    set_environment()
    if arguments.check:
        from grpolab.run.tracking.store import find_problem

        problem = find_problem(arguments.uri)
    else:
        os.nice(NICENESS)
        problem = follow(arguments.results, arguments.uri, arguments.studies, arguments.rebuild)
    if problem:
        say(problem, error=True)
    return 1 if problem else 0


def follow(root: Path, uri: str, studies: list[str], rebuild: bool = False) -> str | None:
    """Synchronise again and again; return what the last pass could not write."""
    from grpolab.run.tracking.mirror import StudyMirror  # imports mlflow, whose environment is set now

    mirror = StudyMirror(Results(root.resolve()), uri, studies, rebuild)
    before, pause = None, POLL_SECONDS
    while not _input_ended(pause):
        started = time.process_time()
        problem = mirror.attempt()
        pause = min(max(POLL_SECONDS, (time.process_time() - started) / SHARE), MOST_SECONDS)
        with suppress(BrokenPipeError):  # the command was killed; the last pass is made all the same
            if problem and not before:
                say(f"{problem}; it is tried again", flush=True)
            elif before and not problem:
                say("the tracking store can be used again and is up to date", flush=True)
        before = problem
    for _ in range(LAST_ATTEMPTS):
        if not (problem := mirror.attempt(last=True)):
            return None
    return problem


def _input_ended(seconds: float) -> bool:
    """Wait for the end of standard input, at most `seconds`."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    sys.exit(main())
