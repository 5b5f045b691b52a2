"""What a tuning says while it runs: a line for each trial that ends, with the time left and what pruning has saved."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from grpolab.sweep.progress import SILENCE_SECONDS, outcome_line
from grpolab.sweep.schedule import Job
from grpolab.sweep.tuning.arms import override
from grpolab.sweep.tuning.trials import COMPLETE, Record
from grpolab.sweep.tuning.tuner import Tuner
from grpolab.sweep.wording import duration
from grpolab.vocabulary import FAILED


class TuningProgress:
    """The pool's listener; the tuner hears through it of each step."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner, self.total = tuner, tuner.open_trials()
        self.ended = 0
        self.busy_seconds = 0.0  # of workers, on jobs
        self.full = self.run = 0  # optimiser steps of the trials that ended: without pruning, and really done
        self._began = self._said = time.monotonic()
        self._since: dict[str, float] = {}
        self._steps: dict[str, str] = {}  # of what runs, in words
        self._console = Console(highlight=False, soft_wrap=True)
        tuner.ended = self.trial_ended

    @property
    def saved(self) -> float:
        """Share of the optimiser steps that pruning has saved."""
        return 1 - self.run / self.full if self.full else 0.0

    def trial_ended(self, label: str, record: Record) -> None:
        """A line about it."""
        self.ended += 1
        self.full += record["optimizer_steps"]["full"]
        self.run += record["timing"]["optimizer_steps"]
        means = {metric: score["mean"] for metric, score in record["scores"].items()}
        said = [f"{metric} {mean:.4g}" for metric, mean in means.items() if isinstance(mean, float)]
        said += [record["reason"]] if record["state"] != COMPLETE else []
        left = (time.monotonic() - self._began) / self.ended * (self.total - self.ended)
        saved = f", pruning saved {self.saved:.0%} of the steps" if self.full > self.run else ""
        rest = f"(about {duration(left)} left{saved})"
        self.note(f"[{self.ended}/{self.total}] {label} {record['state']}: {', '.join(said)} {rest}")

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""
        self._since[job.signature] = time.monotonic()
        self._steps[job.signature] = f"{job.label} begins"

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps: the tuner looks at what it says."""
        self._steps[job.signature] = f"{job.label} at step {step}/{job.steps}"
        if job.kind == "run":
            self.tuner.look(job.signature)
        if time.monotonic() - self._said > SILENCE_SECONDS:
            self.note(f"[{self.ended}/{self.total}] running: {', '.join(self._steps.values())}")

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""
        self._stop_clock(job)
        self.note(f"{job.label}: {reason}; it is tried again")

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """The job is done, or was left."""
        self._stop_clock(job)
        if outcome["outcome"] == FAILED or outcome.get("disk_full"):
            self.note(outcome_line(job, outcome))

    def note(self, text: str) -> None:
        """Something to be said at once."""
        self._said = time.monotonic()
        self._console.print(text, markup=False)

    def _stop_clock(self, job: Job) -> None:
        self._steps.pop(job.signature, None)
        if job.signature in self._since:
            self.busy_seconds += time.monotonic() - self._since.pop(job.signature)


def values_line(values: dict[str, Any]) -> str:
    """`learning_rate=0.00041 epsilon=0.31`."""
    return " ".join(override(key, value) for key, value in values.items())
