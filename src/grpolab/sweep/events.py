"""`--json-lines`: what happens, as one JSON object a line on standard output, for programs that watch a sweep.

    plan      studies (study, cells, seeds, done), runs, done, to_train, warm_starts
    started   signature, kind (run or warm_start), label, worker
    step      signature, step, steps, accuracy and clip (null before they are known); at most one a second and job, and
              its last
    returned  signature, kind, label, reason: its worker died, and it is tried again
    finished  signature, kind, label, outcome (`missing`: the disk refused it), reason, seconds, result, seconds_left
              (of all; null: no estimate); result: accuracy_start, accuracy_end, the same of reward and entropy,
              clip_low, clip_high, ratio_min, ratio_max
    results   study, variants: for each its runs by outcome, means of the facts of a result, and of seconds
    note      text: whatever else is said, tracking and paths of reports among it
    end       counts (runs by outcome), exit_code
    interrupted   instead of the end, after Ctrl-C or SIGTERM: exit code 130

Each has `event` and `time` (unix seconds). Nothing else reaches standard output; a wrong request is said on standard
error, with exit code 2 and no event.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from grpolab.identity import plain

STEP_SECONDS = 1.0  # least time between two steps of a job


class Events:
    """Writes events."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def send(self, event: str, **values: Any) -> None:
        """One line, at once."""
        said = {"event": event, "time": round(time.time(), 3), **values}
        self._out.write(json.dumps(plain(said), allow_nan=False) + "\n")
        self._out.flush()


class Notes(io.TextIOBase):
    """A file whose lines become notes."""

    def __init__(self, events: Events) -> None:
        self._events, self._rest = events, ""

    def write(self, text: str) -> int:
        """Keep what is no whole line yet."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._events.send("note", text=line)
        return len(text)


@contextmanager
def json_lines() -> Iterator[Events]:
    """Have everything that is printed meanwhile said as an event."""
    events = Events(sys.stdout)
    try:
        with redirect_stdout(Notes(events)):
            yield events
    except KeyboardInterrupt:
        events.send("interrupted")
        raise
