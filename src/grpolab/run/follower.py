"""A process of a run with `data_parallel` that is not the first: `python -m grpolab.run.follower`, or torchrun's."""

from __future__ import annotations

import json
import os
import signal
import sys

from grpolab.credentials import masked_output
from grpolab.paths import Results
from grpolab.run.folder import describe_error, find_outcome
from grpolab.run.parallel import die_with_parent, joined
from grpolab.settings.resolved import Resolved
from grpolab.terminal import say
from grpolab.vocabulary import RESULTS


def follow(settings: Resolved, results: Results, place: int, meeting: str | None = None) -> int:
    """Do this process's share of a run and return the exit code; leave a run that has its outcome as it is."""
    from grpolab.grpo.processes import LostProcess
    from grpolab.run import train

    outcome = find_outcome(results.run(settings.signature))
    if outcome and outcome["outcome"] in RESULTS:  # the first process has found the same, and waits for nobody
        return 0
    _leave_signals_to_the_first()
    try:
        with joined(settings, place, meeting) as processes:
            train.follow(settings, results, processes)
    except LostProcess:  # whoever was lost, or the first, has said why
        return 1
    except Exception as error:
        say(f"grpolab: process {place} of {settings.data_parallel}: {describe_error(error)}", error=True, flush=True)
        return 1
    return 0


def _leave_signals_to_the_first() -> None:
    """Ctrl-C and SIGTERM reach all processes; the first one ends the run at a rollout boundary, for all."""
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.SIG_IGN)


def main() -> int:
    """Run as one of the processes that the first one starts; return the exit code."""
    _leave_signals_to_the_first()
    die_with_parent()
    ready = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints
    request = json.loads(sys.stdin.readline())
    import grpolab.run.train  # noqa: F401  (seconds: torch and transformers)

    os.write(ready, b".")
    os.close(ready)
    settings = Resolved.as_planned(request["settings"], signature=request["signature"])
    with masked_output():
        return follow(settings, Results.open(request["results"]), request["place"], request["meeting"])


if __name__ == "__main__":
    sys.exit(main())
