"""Watching runs from other processes: journals that grow, and locks that programs hold."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpolab.errors import Damaged
from grpolab.run_files import parse_object


class Tail:
    """A reader of a growing journal: it reads each complete line once.

    If the file was cut back or replaced by another one, it is read again from its start, so the caller must accept a
    record twice.
    """

    def __init__(self, path: Path, beginning: bytes = b"") -> None:
        """Follow `path`, and skip lines that do not start with `beginning`."""
        self._path, self._beginning = path, beginning
        self._offset = 0
        self.restarts = 0  # how often the file was read again from its start

    def read(self) -> list[dict[str, Any]]:
        """Return the records since the last call. Raises Damaged if the first lines are no records."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._restart()
                file.seek(self._offset)
                lines = file.read()
        except FileNotFoundError:
            return []
        lines = lines[: lines.rfind(b"\n") + 1]  # the last line may be incomplete
        try:
            kept = [line for line in lines.splitlines() if line.startswith(self._beginning)]
            records = [parse_object(line, str(self._path)) for line in kept]
        except Damaged:
            if not self._offset:
                raise
            self._restart()
            return self.read()
        self._offset += len(lines)
        return records

    def _restart(self) -> None:
        self._offset = 0
        self.restarts += 1


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a file's lock (`flock`) on this machine; wait until another holder releases it or dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Return True if a process holds the file's lock now."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two such checks do not collide
    except BlockingIOError:
        return True
    except OSError:  # no such file: nobody has held it
        return False
    return False
