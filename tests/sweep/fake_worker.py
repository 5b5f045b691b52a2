"""A worker without torch, for the tests of the pool: it speaks the protocol and writes outcomes, or does worse.

FAKE_WORKER is a JSON object: {"log": file of the jobs it was given, "seconds": a run's length, "lag": seconds between
being asked and beginning, "farewell": seconds between SIGTERM and its end, "misdeeds": {label: [what it does instead at
the first attempt, at the second, ...]}}. A label is `warm_start` or the run's seed; the misdeeds are functions of
MISDEEDS.
"""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run.lease import leased
from grpolab.run.parallel import die_with_parent
from grpolab.settings.resolved import Resolved
from grpolab.sweep.ledger import no_outcome

ORDERS = json.loads(os.environ.get("FAKE_WORKER", "{}"))
eaten = []

MISDEEDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: sys.exit(0),  # as after SIGTERM
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "eat": lambda: (eaten.append(bytearray(os.urandom(1)) * 300 * 2**20), time.sleep(60)),
    "fill_disk": lambda: no_outcome(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/journal.jsonl"), Path()),
    "meet_read_only": lambda: no_outcome(OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/run"), Path()),
    "fail": lambda: {"outcome": "failed", "reason": "MemoryError: ", "error": "Traceback ..."},
}


def serve(do: Callable[[str, str, Resolved], dict]) -> None:
    """The protocol of a worker; `do` a job of some kind, signature and settings, and return its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    say({"event": "ready"})
    for line in sys.stdin:
        request = json.loads(line)
        settings = Resolved.model_validate(request["settings"])
        warm = request["job"] == "warm_start"
        name = settings.warm_start_signature if warm else settings.signature
        say({"event": "done", "signature": name, "outcome": do(request["job"], name, settings)})


def do(job: str, name: str, settings: Resolved) -> dict:
    """The job's outcome, on disk too; or none, because this process is no more."""
    label = "warm_start" if job == "warm_start" else str(settings.seed)
    if lag := ORDERS.get("lag"):  # between being asked and beginning
        enter(Path(ORDERS["log"]), f"asked {name} {settings.seed} {settings.rollout_steps}")
        time.sleep(lag)
    results = Results.open(settings.machine.results)
    folder = results.run(name) if job == "run" else results.warm_start(name)
    with leased(folder):
        if standing := read_json(folder / "outcome.json"):
            return standing
        attempt = enter(Path(ORDERS["log"]), f"{job} {name} {settings.seed} {settings.rollout_steps}")
        instead = ORDERS.get("misdeeds", {}).get(label, [])[attempt : attempt + 1]
        if instead and (outcome := MISDEEDS[instead[0]]()):
            return outcome
        if job == "run":
            say({"event": "step", "signature": name, "rollout_step": 1, "rollout_steps": settings.rollout_steps})
            assert (results.warm_start(settings.warm_start_signature) / "outcome.json").exists()
            time.sleep(ORDERS.get("seconds", 0))
        outcome = {"outcome": "completed", "reason": None, "seconds": 0.1}
        if job == "warm_start":
            outcome |= {"signature": name, "sha256": "", "accuracy": None, "steps": 0}
        write_json_atomic(folder / "outcome.json", outcome)
        return outcome


def enter(log: Path, line: str) -> int:
    """Note the job down; how often it was begun before."""
    before = log.read_text().count(line) if log.exists() else 0
    with log.open("a") as file:
        file.write(f"{line} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES', '-')}\n")
    return before


def say(event: dict) -> None:
    print(json.dumps(event), flush=True)


def take_leave(*_: object) -> None:
    time.sleep(ORDERS.get("farewell", 0))
    sys.exit(bool(enter(Path(ORDERS["log"]), "asked-to-stop")))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, take_leave)
    serve(do)
