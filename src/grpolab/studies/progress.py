"""Progress of a sweep and the time left: a live table on a terminal, else lines, or events for a program.

`docs/command_line.md` lists the events of `--json-lines`.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from grpolab.credentials import without_secrets_in
from grpolab.paths import Results, plain
from grpolab.studies.facts import JournalReader, duration, format_facts
from grpolab.sweep.jobs import RUN, WARM_START, Job
from grpolab.sweep.ledger import first_line
from grpolab.terminal import visible
from grpolab.vocabulary import COMPLETED, OUTCOMES

STEP_SECONDS = 1.0  # between two `step` events of a job
SILENCE_SECONDS = 60.0  # without a line on an output that is no terminal
WIDE = 1000  # characters in a line of a table that goes to a file or a pipe


class Estimate:
    """Estimates the time left from the speed so far, separately for runs and warm starts.

    Steps give the speed until a job has finished; then whole jobs do, because these take more than their steps.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # (kind, is a whole job) -> seconds, cost
        self._done = defaultdict[tuple[str, bool], list[float]](lambda: [0.0, 0.0])

    def learn(self, kind: str, cost: float, seconds: float, whole: bool) -> None:
        """Note that steps of this cost, or a `whole` job, took so long."""
        self._done[kind, whole][0] += seconds
        self._done[kind, whole][1] += cost

    def seconds_left(self, costs: Mapping[str, float]) -> float | None:
        """Return the expected seconds for these costs by kind, on all workers; None if the speed of one is unknown."""
        total = 0.0
        for kind, cost in costs.items():
            seconds, done = self._done[kind, self._done[kind, True][1] > 0]
            if cost > 0 and not done:
                return None
            total += seconds / done * cost if cost > 0 else 0
        return total / self.workers

    def describe(self, costs: Mapping[str, float]) -> str:
        """Return `about 12 min left`, `no estimate yet`, or an estimate of the warm starts only; '' if all is done."""
        warm = costs.get(WARM_START, 0)
        if not any(cost > 0 for cost in costs.values()):
            return ""
        # A warm start may end before its last step.
        about = "at most" if warm > 0 and not self._done[WARM_START, True][1] else "about"
        if (seconds := self.seconds_left(costs)) is not None:
            return f"{about} {duration(seconds)} left"
        if warm > 0 and (seconds := self.seconds_left({WARM_START: warm})) is not None:
            return f"warm starts: {about} {duration(seconds)} left, runs: no estimate yet"
        return "no estimate yet"


@dataclass
class RunningJob:
    """A job that a worker does."""

    job: Job
    slot: int
    since: float  # time of its last step
    journal: JournalReader
    sent_at: float = float("-inf")  # time of its last `step` event
    step: int = 0
    has_stepped: bool = False  # in this session
    seconds_per_step: float | None = None  # None before the second step: the first takes longer

    def position(self) -> str:
        """Return `step 3/50`; a warm start may end before its last."""
        return f"step {self.step}/{self.job.steps}{' at most' if self.job.kind == WARM_START else ''}"


class Progress:
    """Listens to an engine, counts, and prints a line for each finished job, or sends an event for each call.

    `is_live`: a table on a terminal is drawn in place, and only failures and notes scroll by.
    """

    def __init__(self, jobs: Sequence[Job], estimate: Estimate, results: Results, is_live: bool = False) -> None:
        self.is_live = is_live
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.estimate, self.results = estimate, results
        self.total = Counter(job.kind for job in jobs)
        self.outcomes: Counter[str] = Counter()  # of runs
        self.warm_starts = 0  # finished
        self.running: dict[str, RunningJob] = {}
        self._open = {job.signature: job for job in jobs}
        self._began = self._last_line = time.monotonic()

    def started(self, job: Job, slot: int) -> None:
        self.running[job.signature] = RunningJob(job, slot, time.monotonic(), JournalReader(job.folder(self.results)))
        send("started", **_name(job), worker=slot)

    def stepped(self, job: Job, step: int) -> None:
        running, now = self.running[job.signature], time.monotonic()
        if running.has_stepped:  # the first step includes loading, and may count steps of an earlier session
            steps, seconds = step - running.step, now - running.since
            self.estimate.learn(job.kind, job.cost * steps / max(1, job.steps), seconds, whole=False)
            running.seconds_per_step = seconds / max(1, steps)
        running.step, running.since, running.has_stepped = step, now, True
        journal = running.journal.read()
        is_due = step == job.steps or now - running.sent_at >= STEP_SECONDS
        facts = {"accuracy": journal.accuracy_now, "clip": journal.clip_now}
        if is_due and send("step", signature=job.signature, step=step, steps=job.steps, **facts):
            running.sent_at = self._last_line = now
        if now - self._last_line > SILENCE_SECONDS and not self.is_live:
            self.print_running()

    def returned(self, job: Job, reason: str) -> None:
        self.running.pop(job.signature, None)
        if not send("returned", **_name(job), reason=reason):
            self.note(f"{job.label}: {reason}; it is tried again")

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        running = self.running.pop(job.signature, None)
        self._open.pop(job.signature, None)  # a tuning's jobs are not known before
        if outcome.get("seconds") and running:  # another command's jobs say nothing about this machine
            self.estimate.learn(job.kind, job.cost, outcome["seconds"], whole=True)
        if job.kind == RUN:
            self.outcomes[outcome["outcome"]] += 1
        else:
            self.warm_starts += 1
        journal = running.journal.read() if running else None
        result, left = journal.facts() if journal else {}, self.estimate.seconds_left(self.costs_left())
        ended = {key: outcome.get(key) for key in ("outcome", "reason", "seconds")}
        if not send("finished", **_name(job), **ended, result=result, seconds_left=left):
            self.print_finished(job, outcome, journal)

    def print_finished(self, job: Job, outcome: dict[str, Any], journal: JournalReader | None) -> None:
        if self.is_live:
            if outcome["outcome"] != COMPLETED or outcome.get("reason"):
                self.note(outcome_line(job, outcome))
            return
        parts = [outcome_line(job, outcome), duration(outcome["seconds"]) if outcome.get("seconds") else ""]
        if journal and outcome.get("accuracy") is not None:  # a warm start's, which may end before its journal does
            course = format_facts({**journal.facts(), "accuracy_end": outcome["accuracy"]})["accuracy"]
            parts.append(f"accuracy {course or format(outcome['accuracy'], '.3f')} on training prompts")
        elif journal and (summary := journal.summarize()):
            parts.append(summary + (" on training prompts" if job.kind == WARM_START else ""))
        parts += ["the reward never moved"] if journal and journal.constant_reward is not None else []
        self.note(f"{self.count(job.kind)} {', '.join(filter(None, parts))}{self._left_in_brackets()}")

    def print_running(self) -> None:
        jobs = [
            ", ".join(filter(None, [f"{running.job.label} {running.position()}", running.journal.summarize()]))
            for running in self.running.values()
        ]
        self.note(f"{self.count()} running: {'; '.join(jobs)}{self._left_in_brackets()}")

    def note(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(visible(text), markup=False)

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def count(self, kind: str = RUN) -> str:
        """Return `[12/114]`, or `[warm start 1/3]`."""
        if kind == WARM_START:
            return f"[warm start {self.warm_starts}/{self.total[WARM_START]}]"
        return f"[{self.outcomes.total()}/{self.total[RUN]}]"

    def left(self) -> str:
        return self.estimate.describe(self.costs_left())

    def _left_in_brackets(self) -> str:
        return f" ({left})" if (left := self.left()) else ""

    def costs_left(self) -> dict[str, float]:
        """Return the cost that is left, by kind of job."""
        costs = {RUN: 0.0, WARM_START: 0.0}
        for name, job in self._open.items():
            done = self.running[name].step / max(1, job.steps) if name in self.running else 0.0
            costs[job.kind] += job.cost * (1 - done)
        return costs

    def draw(self) -> RenderableType:
        """Return the table of the running jobs below a line of counts."""
        head = [self.count()]
        if self.total[WARM_START]:
            head.append(f"warm starts {self.warm_starts}/{self.total[WARM_START]}")
        head += [f"{name} {self.outcomes[name]}" for name in OUTCOMES if self.outcomes[name]]
        head += [f"running {len(self.running)}"] if self.running else []
        if self.outcomes:
            head.append(f"{60 * self.outcomes.total() / max(self.seconds(), 1e-9):.1f} a minute")
        head += [left] if (left := self.left()) else []
        table = Table(box=None, pad_edge=False, show_header=False)
        for running in sorted(self.running.values(), key=lambda running: running.slot):
            speed = "" if running.seconds_per_step is None else f"{running.seconds_per_step:.2g} s a step"
            summary = running.journal.summarize() or "begins"
            table.add_row(f"worker {running.slot}", literal(running.job.label), running.position(), speed, summary)
        return Group(Text(" · ".join(head)), table)


def _name(job: Job) -> dict[str, str]:
    return {"signature": job.signature, "kind": job.kind, "label": job.label}


class EventStream(io.TextIOBase):
    """Stands in for standard output: each line that is printed becomes a note."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._rest = out, ""  # an unfinished line

    def send(self, event: str, **values: Any) -> None:
        record = {"event": event, "time": round(time.time(), 3), **values}
        self._out.write(json.dumps(without_secrets_in(plain(record)), allow_nan=False) + "\n")
        self._out.flush()

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self.send("note", text=line)
        return len(text)


def send(event: str, **values: Any) -> bool:
    """Send an event if a program reads this command's output (`--json-lines`); else return False."""
    if isinstance(sys.stdout, EventStream):
        sys.stdout.send(event, **values)
        return True
    return False


@contextmanager
def json_lines() -> Iterator[None]:
    """Write events to standard output, and everything that is printed meanwhile as notes."""
    with redirect_stdout(EventStream(sys.stdout)):
        try:
            yield
        except KeyboardInterrupt:
            send("interrupted")
            raise


@contextmanager
def show_progress(jobs: Sequence[Job], estimate: Estimate, results: Results) -> Iterator[Progress]:
    """Draw a table on a terminal, else print lines or send events."""
    if sys.stdout.isatty():  # never true of an EventStream
        progress = Progress(jobs, estimate, results, is_live=True)
        with Live(console=progress.console, get_renderable=progress.draw, refresh_per_second=4):
            yield progress
    else:
        yield Progress(jobs, estimate, results)


def outcome_line(job: Job, outcome: dict[str, Any]) -> str:
    """Return `failed: symmetric/addition, seed 0: worker died (signal 9)`."""
    return f"{outcome['outcome']}: {job.label}" + (f": {first_line(outcome)}" if outcome.get("reason") else "")


def literal(text: str) -> Text:
    """Return text for a table; rich would read `a[red]` as markup."""
    return Text(visible(text))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of texts; rows are never broken unless a terminal is narrow."""
    table = Table(*(Column(literal(title)) for title in titles), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(literal, row))
    width = None if sys.stdout.isatty() else WIDE
    Console(file=sys.stdout, highlight=False, width=width).print(table)
