"""What it costs that a run can be resumed: `python benchmarks/checkpoint_cost.py [key=value ...]`.

The run is that of conf/run.yaml (Hydra overrides change it), long enough for several checkpoints at the interval of
machine.checkpoint_seconds. Both numbers belong to that one run, so what is compared is the machine with itself:

- seconds in checkpoints over seconds of the run, its warm start left out; beside it the same for the heartbeat, the
  journal and the evaluations' item scores;
- start-up: seconds from the call of `run` on the interrupted run to the first line of its loop, in a fresh process
  whose imports are done. In it are lock, warm start, model, data, provenance and checkpoint.

Promised are at most 2% and 3 seconds; the exit code is 1 where that is not so.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

ROLLOUT_STEPS = 600
CHECKPOINTS_WANTED = 3
MOST_SHARE, MOST_SECONDS = 0.02, 3.0
TIMED = {
    "checkpoints": "train.save_checkpoint",
    "heartbeats": "Heartbeat.beat",
    "journal": "Journal.flush",
    "item scores": "Recorder.evaluation",
}


def main(overrides: Sequence[str]) -> int:
    """Print the table; the exit code."""
    from grpolab.sweep.compose import compose

    settings = compose([f"rollout_steps={ROLLOUT_STEPS}", *overrides])
    with tempfile.TemporaryDirectory() as folder:
        seconds, spent, calls = in_fresh_process(interrupted_run, settings.model_dump(), folder)
        print(f"run: {seconds:.1f} s, {settings.planned_steps} rollout steps, interrupted before its outcome")
        for name in TIMED:
            each = f"{calls[name]} of {1000 * spent[name] / max(1, calls[name]):.1f} ms"
            print(f"  {name:<12} {100 * spent[name] / seconds:5.2f} % of it ({each})")
        started = in_fresh_process(start_up, settings.model_dump(), folder)
        print(f"start-up of the resumed run: {started:.2f} s beyond imports")
        if calls["checkpoints"] < CHECKPOINTS_WANTED:
            print(f"fewer than {CHECKPOINTS_WANTED} checkpoints: give rollout_steps=N to make it longer")
    return int(spent["checkpoints"] > MOST_SHARE * seconds or started > MOST_SECONDS)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns there."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def interrupted_run(values: dict[str, Any], folder: str) -> tuple[float, dict[str, float], dict[str, int]]:
    """Do the run up to its last rollout boundary: its seconds, and those inside of what is timed, with its calls."""
    from grpolab.paths import Results
    from grpolab.run import folder as folder_module
    from grpolab.run import recorder, train, warm_start
    from grpolab.settings.run import RunSettings

    settings, results = RunSettings.model_validate(values), Results.open(folder)
    warm_start.ensure(settings, results)
    spent: dict[str, float] = dict.fromkeys(TIMED, 0.0)
    calls: dict[str, int] = dict.fromkeys(TIMED, 0)
    owners: dict[str, Any] = {
        "train": train,
        "Recorder": recorder.Recorder,
        "Heartbeat": folder_module.Heartbeat,
        "Journal": folder_module.Journal,
    }
    for name, method in TIMED.items():
        owner, attribute = method.split(".")
        setattr(owners[owner], attribute, timed(getattr(owners[owner], attribute), name, spent, calls))
    done: list[int] = []
    started = time.perf_counter()
    try:
        train.run(settings, results, on_step=done.append, stop=lambda: done[-1] == settings.planned_steps)
    except train.Interrupted:
        return time.perf_counter() - started, spent, calls
    raise RuntimeError("the run was not interrupted")


def timed(call: Callable[..., Any], name: str, spent: dict[str, float], calls: dict[str, int]) -> Callable[..., Any]:
    """The same call, its seconds counted."""

    def counted(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            spent[name] += time.perf_counter() - started
            calls[name] += 1

    return counted


def start_up(values: dict[str, Any], folder: str) -> float:
    """Seconds from the call to the loop, of a run that has a checkpoint."""
    from grpolab.paths import Results
    from grpolab.run import train
    from grpolab.settings.run import RunSettings

    settings, results = RunSettings.model_validate(values), Results.open(folder)
    began = 0.0

    def loop(parts: Any, *_others: Any) -> None:
        nonlocal began
        assert parts.state.rollout_step == settings.planned_steps
        began = time.perf_counter()

    setattr(train, "training_loop", loop)  # noqa: B010  (mypy: another signature)
    started = time.perf_counter()
    train.run(settings, results)
    return began - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
