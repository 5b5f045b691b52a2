"""`python -m grpolab.run.tracking JSON`: mirror run folders into MLflow, in a process of its own.

JSON has the arguments of `follow`; with `uri` alone it asks if the store can be used. Exits with 0, or with 1 and one
sentence on standard error.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
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
    """Do what the arguments ask for; return the exit code."""
    arguments = json.loads(sys.argv[1])
    set_environment()
    if "results" in arguments:
        os.nice(NICENESS)
        problem = follow(**arguments)
    else:
        from grpolab.run.tracking.store import find_problem  # imports mlflow, whose environment is set now

        problem = find_problem(**arguments)
    if problem:
        say(problem, error=True)
    return 1 if problem else 0


def follow(results: str, uri: str, studies: Sequence[str], rebuild: bool = False) -> str | None:
    """Synchronise until standard input ends, and once more with the summary runs; return what that could not write."""
    from grpolab.run.tracking.mirror import StudyMirror

    mirror = StudyMirror(Results(Path(results).resolve()), uri, studies, rebuild)
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
            break
    return problem


def _input_ended(seconds: float) -> bool:
    """Wait for the end of standard input, at most `seconds`."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    sys.exit(main())
