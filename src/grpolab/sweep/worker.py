"""A long-lived process that does one job after another: `python -m grpolab.sweep.worker`.

One JSON object per line: {"job": "warm_start" | "run", "signature": "...", "settings": {...}} on standard input, events
on standard output. A job whose settings no longer have that signature, because data or code has changed, fails. The
imports are paid once. It dies with its parent, ends when standard input ends, and on SIGTERM stops at the next rollout
boundary with a checkpoint. On SIGUSR1 it leaves its run in the same way, and takes the next job.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpolab.vocabulary import MISSING

PR_SET_PDEATHSIG = 1

Send = Callable[[dict[str, Any]], None]


def main() -> int:
    """Serve until standard input ends; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which then sends SIGTERM
    die_with_parent()
    offer_to_the_oom_killer()
    send = claim_stdout()
    worker = Worker(send)
    signal.signal(signal.SIGTERM, worker.on_sigterm)
    signal.signal(signal.SIGUSR1, worker.on_sigusr1)
    worker.serve()
    return 0


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def offer_to_the_oom_killer() -> None:
    """Where the machine runs out of memory, a worker is to go, and not its parent (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def claim_stdout() -> Send:
    """Keep standard output for events: whatever a library prints goes to standard error from now on."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    return send


class Worker:
    """Does jobs in turn; a job's error is its outcome, never the worker's end."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self._stopping = self._leaving = False
        self._can_stop_gently = False

    def on_sigusr1(self, _signal: int, _frame: object) -> None:
        """Leave the run that goes on at its next rollout boundary."""
        self._leaving = True

    def on_sigterm(self, _signal: int, _frame: object) -> None:
        """Stop at the next rollout boundary, or at once where nothing would be saved."""
        self._stopping = True
        if not self._can_stop_gently:
            raise SystemExit(0)

    def serve(self) -> None:
        """Announce readiness, then answer each line of standard input with events."""
        import grpolab.run.train  # noqa: F401  (seconds: torch and transformers)

        self.send({"event": "ready"})
        for line in sys.stdin:
            self._answer(json.loads(line))
            if self._stopping:  # the request to stop came too late for the run
                return

    def _answer(self, request: dict[str, Any]) -> None:
        from grpolab.identity import signature
        from grpolab.paths import Results
        from grpolab.run.preflight import refuse_another
        from grpolab.settings.run import RunSettings

        settings = RunSettings.model_validate(request["settings"])
        results = Results.open(settings.machine.results)
        if request["job"] == "warm_start":
            now, do = signature(settings.warm_start_identity()), self._warm_start
        else:
            now, do = signature(settings.identity()), self._run
        name = request["signature"]
        try:
            refuse_another(name, now, settings)
            outcome = do(name, settings, results)
        except Exception as error:
            outcome = _instead_of_outcome(error, results.root)
        self.send({"event": "done", "signature": name, "outcome": outcome})

    def _warm_start(self, name: str, settings: Any, results: Any) -> dict[str, Any]:
        from grpolab.run import warm_start

        def on_step(step: int) -> None:
            self._step(name, step, settings.warm_start.max_steps)

        made = warm_start.ensure(settings, results, on_step)
        return {"outcome": "completed", "reason": None, "accuracy": made.accuracy, "seconds": made.seconds}

    def _run(self, name: str, settings: Any, results: Any) -> dict[str, Any]:
        from grpolab.run import train

        self._leaving = False  # it came too late for the run before
        self._can_stop_gently = True
        try:
            return train.run(
                settings,
                results,
                on_step=lambda step: self._step(name, step, settings.planned_steps),
                stop=lambda: self._stopping or self._leaving,
            )
        except train.Interrupted:
            if self._stopping:
                raise SystemExit(0) from None
            return {"outcome": MISSING, "reason": "left at a rollout boundary"}
        finally:
            self._can_stop_gently = False

    def _step(self, name: str, step: int, steps: int) -> None:
        self.send({"event": "step", "signature": name, "rollout_step": step, "rollout_steps": steps})


def _instead_of_outcome(error: Exception, root: Path) -> dict[str, Any]:
    """What is answered for a job that raised: that the disk refused to be written, else a failure."""
    from grpolab.paths import is_refusal
    from grpolab.run.folder import reason_of
    from grpolab.sweep.ledger import no_outcome

    if is_refusal(error, root):
        return no_outcome(error, root)
    return {"outcome": "failed", "reason": reason_of(error), "error": "".join(traceback.format_exception(error))}


if __name__ == "__main__":
    sys.exit(main())
