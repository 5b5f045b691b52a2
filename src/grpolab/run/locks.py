"""A lock that dies with its owner: `flock` on a file."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the file's lock; waits for another holder, whose death frees it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Whether somebody holds the file's lock at this moment."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who only ask do not see each other
    except BlockingIOError:
        return True
    except OSError:  # no such file: nobody has ever held it
        return False
    return False
