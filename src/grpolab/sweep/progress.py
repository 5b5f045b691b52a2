"""Progress of a sweep and the time left, as a live table, plain lines, or events for a program (`--json-lines`).

The table is drawn on rich's `Live`: the bars of `rich.progress` assume one speed. An event is a JSON object on a line
of standard output, with `event` and `time` (unix seconds):

    plan         studies (study, cells, seeds, done), runs, done, committed, to_train, warm_starts
    started      signature, kind (run or warm_start), label, worker
    step         signature, step, steps, accuracy and clip (null until known); at most one a second
    returned     signature, kind, label, reason: its worker died, and it is tried again
    finished     signature, kind, label, outcome (`missing`: the disk refused it), reason, seconds, result (the facts of
                 `ledger.JournalReader`), seconds_left (of all; null: no estimate)
    look         seeds, verdicts (hypotheses by verdict), open (names); before the `plan` of the next (--until-decided)
    results      study, variants: runs by outcome, means of the facts and of seconds
    note         text: everything else that is said
    end          counts (runs by outcome), exit_code
    interrupted  in place of `end` after Ctrl-C or SIGTERM: exit code 130

A wrong request is reported on standard error, with exit code 2 and no event.
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
from grpolab.sweep.jobs import RUN, WARM_START, Job
from grpolab.sweep.ledger import JournalReader, duration, first_line
from grpolab.terminal import visible
from grpolab.vocabulary import COMPLETED, OUTCOMES

STEP_SECONDS = 1.0  # between two `step` events of a job
SILENCE_SECONDS = 60.0  # without a line on an output that is no terminal
LOOK_SECONDS = 0.5  # between two reads of a job's journal
WIDE = 1000  # characters of a table that no terminal shows
NEVER = float("-inf")


class Estimate:
    """The time left, from the speed of what is done; runs and warm starts have a speed each.

    Whole jobs count as soon as one is done, because they include what is not a step; until then steps count.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # (kind, whole job or step) -> seconds, cost
        self._done = defaultdict[tuple[str, bool], list[float]](lambda: [0.0, 0.0])

    def learn(self, kind: str, cost: float, seconds: float, whole: bool) -> None:
        """Note that this much cost, or a `whole` job of this cost, took so long."""
        self._done[kind, whole][0] += seconds
        self._done[kind, whole][1] += cost

    def seconds(self, kind: str, cost: float) -> float | None:
        """Return the expected seconds for this cost; None if nothing of the kind is done yet."""
        seconds, done = self._done[kind, True] if self._done[kind, True][1] else self._done[kind, False]
        return seconds / done * cost if done > 0 else None

    def seconds_left(self, costs: Mapping[str, float]) -> float | None:
        """Return the expected seconds for these costs by kind, on all workers; None if one is not known."""
        of_kinds = [self.seconds(kind, cost) for kind, cost in costs.items() if cost > 0]
        known = [seconds for seconds in of_kinds if seconds is not None]
        return sum(known) / self.workers if len(known) == len(of_kinds) else None

    def left(self, costs: Mapping[str, float]) -> str:
        """Return `about 12 min left`, `no estimate yet`, or what is known of the warm starts; '' if nothing is left."""
        if not any(cost > 0 for cost in costs.values()):
            return ""
        warm = costs.get(WARM_START, 0.0)
        warm_seconds = self.seconds(WARM_START, warm) if warm > 0 else None
        # A warm start may end before its last step.
        about = "about" if warm_seconds is None or self._done[WARM_START, True][1] else "at most"
        seconds = self.seconds_left(costs)
        if seconds is not None:
            return f"{about} {duration(seconds)} left"
        if warm_seconds is not None:
            return f"warm starts: {about} {duration(warm_seconds / self.workers)} left, runs: no estimate yet"
        return "no estimate yet"


@dataclass
class Active:
    """A job that a worker does."""

    job: Job
    slot: int
    since: float  # when its last step ended
    journal: JournalReader
    read_at: float = NEVER  # when its journal was last read
    sent_at: float = NEVER  # when its last `step` event was sent
    step: int = 0
    stepped: bool = False  # in this session
    seconds_per_step: float | None = None  # None before the second step: the first takes longer

    def at_step(self) -> str:
        """Return `step 3/50`; a warm start may end before its last."""
        return f"step {self.step}/{self.job.steps}{' at most' if self.job.kind == WARM_START else ''}"


class Progress:
    """Listens to an engine, counts, and prints a line for each job that is finished."""

    def __init__(self, jobs: list[Job], estimate: Estimate, results: Results) -> None:
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.estimate, self.results = estimate, results
        self.total: Counter[str] = Counter(job.kind for job in jobs)
        self.outcomes: Counter[str] = Counter()  # of runs
        self.warm_starts = 0  # that are done
        self.active: dict[str, Active] = {}
        self._open = {job.signature: job for job in jobs}
        self._began = self._last_line = time.monotonic()

    def started(self, job: Job, slot: int) -> None:
        self.active[job.signature] = Active(job, slot, time.monotonic(), JournalReader(job.folder(self.results)))

    def stepped(self, job: Job, step: int) -> None:
        active, now = self.active[job.signature], time.monotonic()
        if active.stepped:  # before that the model was made, and the steps may be another session's
            steps, seconds = step - active.step, now - active.since
            self.estimate.learn(job.kind, job.cost * steps / max(1, job.steps), seconds, whole=False)
            active.seconds_per_step = seconds / max(1, steps)
        active.step, active.since, active.stepped = step, now, True
        if now - active.read_at >= LOOK_SECONDS:
            active.read_at = now
            active.journal.read()
        if now - self._last_line > SILENCE_SECONDS:
            self.say_where()

    def returned(self, job: Job, reason: str) -> None:
        self.active.pop(job.signature, None)
        self.note(f"{job.label}: {reason}; it is tried again")

    def finished(self, job: Job, outcome: dict[str, Any]) -> None:
        active = self.active.pop(job.signature, None)
        del self._open[job.signature]
        if outcome.get("seconds") and active:  # not what another command has done
            self.estimate.learn(job.kind, job.cost, outcome["seconds"], whole=True)
        if job.kind == RUN:
            self.outcomes[outcome["outcome"]] += 1
        else:
            self.warm_starts += 1
        self.say_finished(job, outcome, active.journal.read() if active else None)

    def say_finished(self, job: Job, outcome: dict[str, Any], journal: JournalReader | None) -> None:
        """Print a line about a job that has an outcome."""
        parts = [outcome_line(job, outcome)]
        parts += [duration(outcome["seconds"])] if outcome.get("seconds") else []
        of = " on training prompts" if job.kind == WARM_START else ""  # a run's is on those held out
        parts += [short + of] if journal and (short := journal.in_short()) else []
        parts += ["the reward never moved"] if journal and journal.only_reward is not None else []
        self.note(f"{self.count(job.kind)} {', '.join(parts)}{self._left_in_brackets()}")

    def say_where(self) -> None:
        """Print a line about the running jobs."""
        running = [
            ", ".join(filter(None, [f"{active.job.label} {active.at_step()}", active.journal.in_short()]))
            for active in self.active.values()
        ]
        self.note(f"{self.count()} running: {'; '.join(running)}{self._left_in_brackets()}")

    def note(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.console.print(visible(text), markup=False)

    def count(self, kind: str = RUN) -> str:
        """Return `[12/114]`, or `[warm start 1/3]`."""
        if kind == WARM_START:
            return f"[warm start {self.warm_starts}/{self.total[WARM_START]}]"
        return f"[{self.outcomes.total()}/{self.total[RUN]}]"

    def left(self) -> str:
        """Return the time left in words, or ''."""
        return self.estimate.left(self.costs_left())

    def _left_in_brackets(self) -> str:
        return f" ({left})" if (left := self.left()) else ""

    def costs_left(self) -> dict[str, float]:
        """Return the cost that is left, by kind of job."""
        costs = {RUN: 0.0, WARM_START: 0.0}
        for name, job in self._open.items():
            done = self.active[name].step / max(1, job.steps) if name in self.active else 0.0
            costs[job.kind] += job.cost * (1 - done)
        return costs


class LiveProgress(Progress):
    """Draws a table in place; only failures and notes scroll by."""

    def say_finished(self, job: Job, outcome: dict[str, Any], journal: JournalReader | None) -> None:
        if outcome["outcome"] != COMPLETED or outcome.get("reason"):
            self.note(outcome_line(job, outcome))

    def say_where(self) -> None:
        """Do nothing: it is on the screen."""

    def draw(self) -> RenderableType:
        """Return the table as it is now."""
        head = [self.count()]
        if self.total[WARM_START]:
            head.append(f"warm starts {self.warm_starts}/{self.total[WARM_START]}")
        head += [f"{name} {self.outcomes[name]}" for name in OUTCOMES if self.outcomes[name]]
        head += [f"running {len(self.active)}"] if self.active else []
        if self.outcomes:
            head.append(f"{60 * self.outcomes.total() / max(time.monotonic() - self._began, 1e-9):.1f} a minute")
        head += [left] if (left := self.left()) else []
        table = Table(box=None, pad_edge=False, show_header=False)
        for active in sorted(self.active.values(), key=lambda active: active.slot):
            speed = "" if active.seconds_per_step is None else f"{active.seconds_per_step:.2g} s a step"
            about = active.journal.in_short() or "begins"
            table.add_row(f"worker {active.slot}", plain_text(active.job.label), active.at_step(), speed, about)
        return Group(Text(" · ".join(head)), table)


class Events(io.TextIOBase):
    """Writes events. As a file it turns each line that is written to it into a note."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._rest = out, ""  # an unfinished line

    def send(self, event: str, **values: Any) -> None:
        """Write one event."""
        record = {"event": event, "time": round(time.time(), 3), **values}
        self._out.write(json.dumps(without_secrets_in(plain(record)), allow_nan=False) + "\n")
        self._out.flush()

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self.send("note", text=line)
        return len(text)


@contextmanager
def json_lines() -> Iterator[Events]:
    """Turn everything that is printed meanwhile into events."""
    events = Events(sys.stdout)
    try:
        with redirect_stdout(events):
            yield events
    except KeyboardInterrupt:
        events.send("interrupted")
        raise


class EventProgress(Progress):
    """Sends events."""

    def __init__(self, jobs: list[Job], estimate: Estimate, results: Results, events: Events) -> None:
        super().__init__(jobs, estimate, results)
        self._events = events

    def _send(self, event: str, job: Job, **values: Any) -> None:
        self._events.send(event, signature=job.signature, kind=job.kind, label=job.label, **values)

    def started(self, job: Job, slot: int) -> None:
        super().started(job, slot)
        self._send("started", job, worker=slot)

    def stepped(self, job: Job, step: int) -> None:
        super().stepped(job, step)
        active, now = self.active[job.signature], time.monotonic()
        if step == job.steps or now - active.sent_at >= STEP_SECONDS:
            active.sent_at = now
            facts = {"clip": active.journal.clip_now, "accuracy": active.journal.facts().get("accuracy_end")}
            self._events.send("step", signature=job.signature, step=step, steps=job.steps, **facts)

    def returned(self, job: Job, reason: str) -> None:
        self.active.pop(job.signature, None)
        self._send("returned", job, reason=reason)

    def say_finished(self, job: Job, outcome: dict[str, Any], journal: JournalReader | None) -> None:
        says = {key: outcome.get(key) for key in ("outcome", "reason", "seconds")}
        result, left = journal.facts() if journal else {}, self.estimate.seconds_left(self.costs_left())
        self._send("finished", job, **says, result=result, seconds_left=left)

    def say_where(self) -> None:
        """Do nothing: steps are events."""


def outcome_line(job: Job, outcome: dict[str, Any]) -> str:
    """Return `failed: symmetric/addition, seed 0: worker died (signal 9)`."""
    return f"{outcome['outcome']}: {job.label}" + (f": {first_line(outcome)}" if outcome.get("reason") else "")


@contextmanager
def show_progress(
    jobs: list[Job], estimate: Estimate, results: Results, events: Events | None = None
) -> Iterator[Progress]:
    """Send events if a program asked for them, draw a table on a terminal, else print lines."""
    if events:
        yield EventProgress(jobs, estimate, results, events)
    elif sys.stdout.isatty():
        table = LiveProgress(jobs, estimate, results)
        with Live(console=table.console, get_renderable=table.draw, refresh_per_second=4):
            yield table
    else:
        yield Progress(jobs, estimate, results)


def plain_text(text: str) -> Text:
    """Return a table cell with the text as it is: rich reads `a[red]` as markup."""
    return Text(visible(text))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of texts; rows are never broken unless a terminal is narrow."""
    table = Table(*(Column(plain_text(title)) for title in titles), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(plain_text, row))
    width = None if sys.stdout.isatty() else WIDE
    Console(file=sys.stdout, highlight=False, width=width).print(table)
