"""`python -m grpolab.run.tracking --results FOLDER --uri URI STUDY...`: mirror run folders into MLflow.

Follows the studies' plans and run folders while its standard input is open, then brings everything up to date once
more, summaries included, and exits 0. What could not be written is said in one sentence on standard error, exit code 1.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from pathlib import Path

POLL_SECONDS = 5.0
NICENESS = 10  # the workers' cores come first
# Read by mlflow when it is imported or used: no telemetry, and a server that is down is given up on within seconds.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def main() -> int:
    """Run until standard input ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpolab.run.tracking", description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--uri", required=True)
    parser.add_argument("studies", nargs="+", metavar="STUDY")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which then closes our standard input
    os.nice(NICENESS)
    os.environ.update({**ENVIRONMENT, **os.environ})
    problem = follow(arguments.results, arguments.uri, arguments.studies)
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def follow(root: Path, uri: str, studies: list[str]) -> str | None:
    """Synchronise again and again; returns what the last time could not write."""
    from grpolab.paths import Results
    from grpolab.run.tracking.mirror import StudyMirror

    mirror = StudyMirror(Results(root.resolve()), uri, studies)
    while not _input_ended(POLL_SECONDS):
        mirror.attempt()
    return mirror.attempt(last=True)


def _input_ended(seconds: float) -> bool:
    """Wait for the end of standard input, at most so long."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    sys.exit(main())
