"""What a command that trains holds while it does: the tracking store's mirror, and the handlers of signals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grpolab.paths import Results
from grpolab.run import tracking
from grpolab.studies.facts import duration
from grpolab.terminal import say

# Longest waits for the tracking store: at the end, and after Ctrl-C.
MIRROR_SECONDS, INTERRUPTED_SECONDS = 600.0, 5.0


@contextmanager
def mirrored(results: Results, uri: str | None, study: str) -> Iterator[None]:
    """Keep the tracking store up to date during the block; training never waits for it, failures are only reported."""
    if uri is None:
        yield
        return

    def say_tracking(sentence: str) -> None:
        say(f"tracking: {sentence}", flush=True)

    mirror = tracking.MirrorProcess(results, uri, [study], say_tracking)
    limit = INTERRUPTED_SECONDS
    try:
        yield
        limit = MIRROR_SECONDS
    finally:
        problems: list[str | None] = []
        closing = threading.Thread(target=lambda: problems.append(mirror.close()), daemon=True)
        closing.start()
        started = time.monotonic()
        closing.join(2.0)
        if closing.is_alive():
            say("bringing the tracking store up to date ...", flush=True)
            closing.join(limit)
        if closing.is_alive():  # it continues in the background and ends by itself
            say(f"tracking goes on in the background: not up to date after {duration(time.monotonic() - started)}")
        elif problems and problems[0]:
            say_tracking(f"{problems[0]}; `grpolab track sync` catches up")


@contextmanager
def interruptible(
    handler: Callable[[int, FrameType | None], None] = signal.default_int_handler, *numbers: int
) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, or install another `handler` for some signals."""
    before = {number: signal.signal(number, handler) for number in numbers or (signal.SIGTERM,)}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
