"""A long-lived process that does one job after another: `python -m grpolab.sweep.worker`.

It reads one JSON object a line, {"job": "warm_start" | "run", "signature": "...", "settings": {...}}, and prints
events. A job fails if its settings no longer have that signature, because data or code has changed. The worker imports
everything once, dies with its parent, and ends when its standard input is closed. SIGTERM stops it at the next rollout
boundary with a checkpoint; SIGUSR1 makes it stop only its run in this way, and take the next job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpolab.credentials import masked_output, without_secrets_in
from grpolab.paths import Results, is_refusal
from grpolab.run.parallel import die_with_parent
from grpolab.settings.resolved import Resolved
from grpolab.sweep.ledger import no_outcome
from grpolab.vocabulary import FAILED, MISSING

Send = Callable[[dict[str, Any]], None]

LEFT = {"outcome": MISSING, "reason": "left at a rollout boundary"}


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which then sends SIGTERM
    die_with_parent()
    with contextlib.suppress(OSError):  # out of memory, Linux ends a worker before its parent
        Path("/proc/self/oom_score_adj").write_text("500")
    Worker(claim_stdout()).serve()
    return 0


def claim_stdout() -> Send:
    """Return a function that sends events on standard output; from now on, other prints go to standard error."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    return send


class Worker:
    """Does jobs in turn. An error in a job is its outcome and never ends the worker."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._stopping = self._leaving = self._in_run = False

    def serve(self) -> None:
        """Announce readiness, then answer each line of standard input."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        import grpolab.run.train  # noqa: F401  (seconds: torch and transformers)

        self.send({"event": "ready"})
        for line in sys.stdin:
            self.answer(json.loads(line))
            if self._stopping:  # the signal came after the run's last rollout boundary
                return

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._leaving = True
            return
        self._stopping = True
        if not self._in_run:  # only a run has a checkpoint to write
            raise SystemExit(0)

    def answer(self, request: dict[str, Any]) -> None:
        kind, name = request["job"], request["signature"]

        def on_step(step: int) -> None:
            self.send({"event": "step", "signature": name, "rollout_step": step})

        self._leaving = False  # a signal may have come after the previous run
        self._in_run = kind == "run"
        try:
            outcome = do_job(kind, name, request["settings"], on_step, lambda: self._stopping or self._leaving)
        finally:
            self._in_run = False
        if outcome is LEFT and self._stopping:
            raise SystemExit(0)
        self.send({"event": "done", "signature": name, "outcome": outcome})


def do_job(
    kind: str, name: str, values: dict[str, Any], on_step: Callable[[int], None], stop: Callable[[], bool]
) -> dict[str, Any]:
    """Do the run or warm start that was planned with the signature `name`; return its outcome, an error included.

    `on_step` receives the number of finished steps. A run asks `stop` at each rollout boundary; if it returns True the
    run writes a checkpoint and its outcome is LEFT.
    """
    from grpolab.run import train, warm_start  # here, because they import torch
    from grpolab.run.folder import describe_error

    settings = Resolved.as_planned(values, **{"signature" if kind == "run" else "warm_start_signature": name})
    results = Results.open(settings.machine.results)
    try:
        with masked_output():
            if kind == "run":
                return train.run(settings, results, on_step=on_step, stop=stop)
            return warm_start.ensure(settings, results, on_step).as_outcome(settings.warm_start.target_accuracy)
    except train.Interrupted:
        return LEFT
    except Exception as error:
        if is_refusal(error, results.root):
            return no_outcome(error, results.root)
        trace = "".join(traceback.format_exception(error))
        return without_secrets_in({"outcome": FAILED, "reason": describe_error(error), "error": trace})


if __name__ == "__main__":
    sys.exit(main())
