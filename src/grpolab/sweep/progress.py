"""What a sweep says while it runs: one live table, plain lines where nobody watches, or events for a program."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpolab.sweep.estimate import Active, Estimate
from grpolab.sweep.events import STEP_SECONDS, Events
from grpolab.sweep.schedule import Job
from grpolab.sweep.wording import duration, first_line
from grpolab.vocabulary import COMPLETED, OUTCOMES

SILENCE_SECONDS = 60.0  # without a line, where the output is no terminal


class Progress:
    """Plain lines. Counts what happens, and says what is finished, as it happens."""

    def __init__(self, jobs: list[Job], estimate: Estimate) -> None:
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.estimate = estimate
        self.total = sum(job.kind == "run" for job in jobs)
        self.outcomes: Counter[str] = Counter()
        self.active: dict[str, Active] = {}
        self._open = {job.signature: job for job in jobs}
        self._began = self._said = time.monotonic()

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""
        self.active[job.signature] = Active(job, slot, time.monotonic())

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps."""
        cost, seconds = self.active[job.signature].advance(step, time.monotonic())
        if job.kind == "run":  # a warm start ends when it is good enough: its steps foretell nothing
            self.estimate.learn(cost, seconds)
        if time.monotonic() - self._said > SILENCE_SECONDS:
            self.say_where()

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""
        self.active.pop(job.signature, None)
        self.note(f"{job.label}: {reason}; it is tried again")

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """The job has an outcome; `missing` where the disk refused to take one."""
        self.active.pop(job.signature, None)
        del self._open[job.signature]
        if job.kind == "run":
            self.outcomes[outcome["outcome"]] += 1
        self.say_finished(job, outcome)

    def say_finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """One line."""
        seconds = f", {duration(outcome['seconds'])}" if outcome.get("seconds") else ""
        self.note(f"{self.count()} {outcome_line(job, outcome)}{seconds} ({self.left()} left)")

    def say_where(self) -> None:
        """One line about what runs."""
        where = ", ".join(f"{one.job.label} at step {one.step}/{one.job.steps}" for one in self.active.values())
        self.note(f"{self.count()} running: {where} ({self.left()} left)")

    def note(self, text: str) -> None:
        """Something to be said at once."""
        self._said = time.monotonic()
        self.console.print(text, markup=False)

    def count(self) -> str:
        """`[12/114]`."""
        return f"[{sum(self.outcomes.values())}/{self.total}]"

    def left(self) -> str:
        """Time left, in words."""
        return self.estimate.left(self.cost_left())

    def cost_left(self) -> float:
        """Of what no worker has, and of the rest of what they have."""
        waiting = sum(job.cost for name, job in self._open.items() if name not in self.active)
        return waiting + sum(active.cost_left for active in self.active.values())

    def rate(self) -> str:
        """Finished cells a minute."""
        return f"{60 * sum(self.outcomes.values()) / max(time.monotonic() - self._began, 1e-9):.1f} a minute"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put away."""


class LiveProgress(Progress):
    """The same as a table that is redrawn in place; only failures and notes scroll by."""

    def __init__(self, jobs: list[Job], estimate: Estimate) -> None:
        super().__init__(jobs, estimate)
        self._live = Live(console=self.console, get_renderable=self.draw, refresh_per_second=4)

    def say_finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """A line where the outcome needs one."""
        if outcome["outcome"] != COMPLETED:
            self.note(outcome_line(job, outcome))

    def say_where(self) -> None:
        """Nothing: it is on the screen."""

    def draw(self) -> RenderableType:
        """The table as it is now."""
        counts = [f"{name} {self.outcomes[name]}" for name in OUTCOMES if self.outcomes[name]]
        head = " · ".join([self.count(), *counts, f"running {len(self.active)}", self.rate(), f"{self.left()} left"])
        table = Table(box=None, pad_edge=False, show_header=False)
        for active in sorted(self.active.values(), key=lambda active: active.slot):
            speed = "" if active.seconds_per_step is None else f"{active.seconds_per_step:.2g} s a step"
            step = f"step {active.step}/{active.job.steps}"
            table.add_row(f"worker {active.slot}", active.job.label, step, speed)
        return Group(Text(head), table)

    def __enter__(self) -> Progress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        self._live.__exit__(kind, error, trace)


class EventProgress(Progress):
    """The same as events."""

    def __init__(self, jobs: list[Job], estimate: Estimate, events: Events) -> None:
        super().__init__(jobs, estimate)
        self._events = events
        self._sent: dict[str, float] = {}  # when a job's step was last said

    def started(self, job: Job, slot: int) -> None:
        """A worker got the job."""
        super().started(job, slot)
        self._events.send("started", **_who(job), worker=slot)

    def stepped(self, job: Job, step: int) -> None:
        """The job has done so many steps."""
        super().stepped(job, step)
        now = time.monotonic()
        if step == job.steps or now - self._sent.get(job.signature, float("-inf")) >= STEP_SECONDS:
            self._sent[job.signature] = now
            self._events.send("step", signature=job.signature, step=step, steps=job.steps)

    def returned(self, job: Job, reason: str) -> None:
        """The worker died, and the job is on the list again."""
        self.active.pop(job.signature, None)
        self._events.send("returned", **_who(job), reason=reason)

    def say_finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """One event."""
        told = {key: outcome.get(key) for key in ("outcome", "reason", "seconds")}
        self._events.send("finished", **_who(job), **told, seconds_left=self.estimate.seconds_left(self.cost_left()))

    def say_where(self) -> None:
        """Nothing: steps are events."""


def _who(job: Job) -> dict[str, str]:
    return {"signature": job.signature, "kind": job.kind, "label": job.label}


def outcome_line(job: Job, outcome: dict[str, Any]) -> str:
    """`failed: symmetric/addition, seed 0: worker died (signal 9)`."""
    return f"{outcome['outcome']}: {job.label}" + (f": {first_line(outcome)}" if outcome.get("reason") else "")


def make_progress(jobs: list[Job], estimate: Estimate, events: Events | None = None) -> Progress:
    """Events where a program asked for them, a live table on a terminal, else plain lines."""
    if events:
        return EventProgress(jobs, estimate, events)
    return LiveProgress(jobs, estimate) if sys.stdout.isatty() else Progress(jobs, estimate)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of texts."""
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False).print(table)
