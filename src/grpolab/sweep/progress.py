"""What a sweep says while it runs: the plan first, then one live table, or plain lines where nobody watches."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grpolab.sweep.schedule import Job
from grpolab.vocabulary import COMPLETED, DIVERGED, FAILED

SILENCE_SECONDS = 60.0  # without a line, where the output is no terminal


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


class Estimate:
    """How long is left, from the seconds that a unit of cost has taken so far."""

    def __init__(self, seconds_per_cost: float | None, workers: int) -> None:
        self._prior, self._workers = seconds_per_cost, workers
        self._seconds = self._cost = 0.0

    def learn(self, cost: float, seconds: float) -> None:
        """So much of a run took so long."""
        self._seconds += seconds
        self._cost += cost

    def left(self, cost: float) -> str:
        """`about 12 min`, or that nothing is known yet."""
        rate = self._seconds / self._cost if self._cost else self._prior
        return "no estimate yet" if rate is None else f"about {duration(rate * cost / self._workers)}"


@dataclass
class Active:
    """A job that a worker has."""

    job: Job
    slot: int
    since: float  # when its last step ended
    step: int = 0

    @property
    def cost_left(self) -> float:
        """What is still to be done of the job's cost."""
        return self.job.cost * (1 - self.step / max(1, self.job.steps))

    def advance(self, step: int, now: float) -> tuple[float, float]:
        """The job is at `step` now; cost and seconds of what it has done since the last time."""
        before, since, self.step, self.since = self.cost_left, self.since, step, now
        return before - self.cost_left, now - since


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

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        """The job has an outcome."""
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
        waiting = sum(job.cost for name, job in self._open.items() if name not in self.active)
        return self.estimate.left(waiting + sum(active.cost_left for active in self.active.values()))

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
        counts = " · ".join(f"{name} {self.outcomes[name]}" for name in (COMPLETED, DIVERGED, FAILED))
        head = f"{self.count()} {counts} · running {len(self.active)} · {self.rate()} · {self.left()} left"
        table = Table(box=None, pad_edge=False, show_header=False)
        for active in sorted(self.active.values(), key=lambda active: active.slot):
            table.add_row(f"worker {active.slot}", active.job.label, f"step {active.step}/{active.job.steps}")
        return Group(Text(head), table)

    def __enter__(self) -> Progress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        self._live.__exit__(kind, error, trace)


def first_line(outcome: dict[str, Any] | None) -> str:
    """The first line of an outcome's reason; empty where there is none."""
    return str((outcome or {}).get("reason") or "").partition("\n")[0]


def outcome_line(job: Job, outcome: dict[str, Any]) -> str:
    """`failed: symmetric/addition, seed 0: worker died (signal 9)`."""
    return f"{outcome['outcome']}: {job.label}" + (f": {first_line(outcome)}" if outcome.get("reason") else "")


def make_progress(jobs: list[Job], estimate: Estimate) -> Progress:
    """A live table on a terminal, else plain lines."""
    return LiveProgress(jobs, estimate) if sys.stdout.isatty() else Progress(jobs, estimate)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of texts."""
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False).print(table)
