"""`python -m grpolab.run.tracking --results FOLDER --uri URI STUDY...`: mirror run folders into MLflow.

Follows the studies' plans and run folders while its standard input is open, then brings everything up to date once
more, summaries included, and exits 0. What could not be written is said in one sentence on standard error, exit code 1.
Before the end, standard output says when the store can no longer be used, and when it can again.

`--check --uri URI` only asks whether the store can be used, and says in the same way why not.
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

POLL_SECONDS, MOST_SECONDS = 5.0, 60.0  # between two looks at the run folders
SHARE = 0.05  # of a core that looking may take
LAST_ATTEMPTS = 3  # what comes in between, a lock say, may pass
NICENESS = 10  # the workers' cores come first


def main() -> int:
    """Run until standard input ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpolab.run.tracking", description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--repair", action="store_true")
    parser.add_argument("studies", nargs="*", metavar="STUDY")
    arguments = parser.parse_args()
    set_environment()
    if arguments.check:
        from grpolab.run.tracking.check import problem_of

        problem = problem_of(arguments.uri)
    else:
        os.nice(NICENESS)
        problem = follow(arguments.results, arguments.uri, arguments.studies, arguments.repair)
    if problem:
        say(problem, error=True)
    return 1 if problem else 0


def follow(root: Path, uri: str, studies: list[str], repair: bool) -> str | None:
    """Synchronise again and again; returns what the last time could not write."""
    from grpolab.run.tracking.mirror import StudyMirror  # mlflow, whose environment is set now

    mirror = StudyMirror(Results(root.resolve()), uri, studies, repair)
    before, pause = None, POLL_SECONDS
    while not _input_ended(pause):
        begun = time.process_time()
        problem = mirror.attempt()
        pause = min(max(POLL_SECONDS, (time.process_time() - begun) / SHARE), MOST_SECONDS)
        with suppress(BrokenPipeError):  # the command was killed; what is left is written all the same
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
    """Wait for the end of standard input, at most so long."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    sys.exit(main())
