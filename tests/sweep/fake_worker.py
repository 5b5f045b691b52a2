"""A worker without torch, for the tests of the pool: it speaks the protocol and writes outcomes, or dies when told to.

FAKE_WORKER is a JSON object: {"log": file of the jobs it was given, "die_in": [labels], "hang": seconds per run}.
A label is `warm_start` or the run's seed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from grpolab.identity import signature
from grpolab.paths import Results, write_json_atomic
from grpolab.settings import RunSettings
from grpolab.sweep.worker import die_with_parent


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    orders = json.loads(os.environ["FAKE_WORKER"])
    say({"event": "ready"})
    for line in sys.stdin:
        request = json.loads(line)
        settings = RunSettings.model_validate(request["settings"])
        warm = request["job"] == "warm_start"
        name = signature(settings.warm_start_identity() if warm else settings.identity())
        with Path(orders["log"]).open("a") as log:
            log.write(f"{request['job']} {name} {settings.seed} {settings.rollout_steps} {os.getpid()}\n")
        if ("warm_start" if warm else settings.seed) in orders.get("die_in", []):
            os.kill(os.getpid(), signal.SIGKILL)
        results = Results.open(settings.machine.results)
        folder = results.warm_start(name) if warm else results.run(name)
        if not warm:
            say({"event": "step", "signature": name, "rollout_step": 1, "rollout_steps": settings.rollout_steps})
            assert (results.warm_start(signature(settings.warm_start_identity())) / "outcome.json").exists()
            time.sleep(orders.get("hang", 0))
        outcome = {"outcome": "completed", "reason": None, "seconds": 0.1}
        write_json_atomic(folder / "outcome.json", outcome)
        say({"event": "done", "signature": name, "outcome": outcome})


def say(event: dict) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
