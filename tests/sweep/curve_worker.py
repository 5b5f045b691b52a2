"""A worker without torch whose runs have known curves, for the tests of the tuner. Protocol and journal are real.

The accuracy of a run rises to what its learning rate is worth, best at 1e-3. From 1e-2 on it rises, and then collapses;
from 1e-1 on the run diverges. CURVE_WORKER is a JSON object: {"log": file of the steps that were trained, "seconds": of
a step}. As after a real kill, a run goes on where its journal ends.
"""

import json
import math
import os
import signal
import time
from pathlib import Path

from fake_worker import say, serve

from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run.folder import Journal
from grpolab.run.lease import leased
from grpolab.settings.run import RunSettings

COLLAPSES, DIVERGES = 1e-2, 1e-1
ORDERS = json.loads(os.environ["CURVE_WORKER"])
leaving = []


def accuracy(settings: RunSettings, step: int) -> float:
    """Of a run after `step` rollout steps."""
    done, rate = step / settings.planned_steps, settings.learning_rate
    if rate >= COLLAPSES:
        return 0.3 + 0.6 * done if done <= 0.5 else 0.05
    worth = 0.6 - 0.2 * abs(math.log10(rate) + 3) + 0.01 * math.sin(settings.seed) - 0.05 * settings.epsilon
    return 0.3 + worth * done


def do(job: str, name: str, settings: RunSettings) -> dict:
    return (warm_start if job == "warm_start" else run)(name, settings, Results.open(settings.machine.results))


def warm_start(name: str, _settings: RunSettings, results: Results) -> dict:
    outcome = {"outcome": "completed", "reason": None, "accuracy": 0.3, "seconds": 0.1}
    with leased(results.warm_start(name)):
        made = {"signature": name, "sha256": "", "steps": 0}
        write_json_atomic(results.warm_start(name) / "outcome.json", outcome | made)
    return outcome


def run(name: str, settings: RunSettings, results: Results) -> dict:
    folder = results.run(name)
    with leased(folder):
        if outcome := read_json(folder / "outcome.json"):
            return outcome
        return train(folder, name, settings)


def train(folder: Path, name: str, settings: RunSettings) -> dict:
    leaving.clear()
    kept = (folder / "journal.jsonl").stat().st_size if (folder / "journal.jsonl").exists() else 0
    journal, timing = Journal(folder / "journal.jsonl", kept), Journal(folder / "timing.jsonl", kept)
    begun = (folder / "journal.jsonl").read_bytes().count(b"\n")
    if not begun:
        journal.append(kind="evaluation", rollout_step=0, **{"eval/accuracy_expected": 0.3})
    updates = settings.num_iterations * settings.num_minibatches
    for step in range(max(1, begun), settings.planned_steps + 1):
        time.sleep(ORDERS.get("seconds", 0.0))
        if settings.learning_rate >= DIVERGES and step > 2:
            return conclude(folder, "diverged", "the loss is nan", step - 1, updates)
        with Path(ORDERS["log"]).open("a") as log:
            log.write(f"{name} {step} {settings.seed} {os.getpid()}\n")
        journal.append(kind="evaluation", rollout_step=step, **{"eval/accuracy_expected": accuracy(settings, step)})
        journal.flush()
        timing.append(rollout_step=step - 1, **{"seconds/elapsed": 0.01 * step})
        timing.flush()
        say({"event": "step", "signature": name, "rollout_step": step, "rollout_steps": settings.planned_steps})
        if leaving:
            return {"outcome": "missing", "reason": "left at a rollout boundary"}
    return conclude(folder, "completed", None, settings.planned_steps, updates)


def conclude(folder: Path, outcome: str, reason: str | None, steps: int, updates: int) -> dict:
    record = {"outcome": outcome, "reason": reason, "rollout_steps": steps, "optimizer_steps": steps * updates}
    write_json_atomic(folder / "outcome.json", {**record, "seconds": 0.01 * steps})
    return {**record, "seconds": 0.01 * steps}


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: leaving.append(True))
    serve(do)
