"""Who works in a folder: at most one process, on all the machines that share its file system.

A lease is a file `.lease-<number>` with its holder in it. Whoever takes the folder makes the next number, which the
file system lets one process do (`flock` may hold on one machine only); the highest counts, and none is used twice. It
is over when the file says so: its holder gave the folder up, or was taken for dead by the one who has it now. A holder
that was only frozen reads that in its file before it writes anything (`Lease.check`).

A holder on this machine has the folder as long as its process lives. One elsewhere touches its file, and has it as long
as that goes on. No two machines' clocks are compared: the file system tells how old a file is, and before a folder is
taken over its lease is watched, so that a file system that stood still, or has no clock of its own, ends none.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from grpolab.paths import write_new

BEAT_SECONDS = 15.0  # between two touches; a network file system may show them a minute late
LEASE_SECONDS = 300.0  # without a touch, and the holder is taken for dead
WATCH_SECONDS = 40.0  # more than two beats
POLL_SECONDS = 0.2  # between two attempts to get what another has
CLOCK_SECONDS = 60.0  # between two looks at the file system's clock
CLOCK_TOLERANCE = 2.0  # seconds between two readings of a process's start time
OVER = b"{}"
NAME = re.compile(r"\.lease-[1-9][0-9]{0,17}")
MOST_BYTES = 1 << 16  # of a lease that names somebody; else it cannot be read


class LeaseLost(Exception):
    """Another process has taken the folder over: nothing more may be written to it."""


class Host:
    """What a lease asks of the machine that it is held on; the simulation of scale has others."""

    def __init__(self) -> None:
        self.held: set[str] = set()  # tokens of the leases that this process has
        self.session: str | None = None  # of the command that has sent this process to a cluster, and sees it die
        self._clock, self._looked = 0.0, -math.inf

    def holder(self) -> dict[str, Any]:
        """This process, as a lease names it."""
        start = _start(psutil.Process())
        holder = {"token": uuid.uuid4().hex, **_machine(), "pid": os.getpid(), "process_start": start}
        return holder | ({"session": self.session} if self.session else {})

    def lives(self, holder: dict[str, Any]) -> bool | None:
        """Whether a holder's process is there; None where it cannot be seen from here."""
        here = _machine()
        if not here.keys() <= holder.keys() or any(holder[key] != here[key] for key in ("host", "machine")):
            return None
        token, pid, start = (holder.get(key) for key in ("token", "pid", "process_start"))
        if not isinstance(token, str) or not isinstance(pid, int) or not isinstance(start, int | float):
            return None  # it names nobody
        if not 0 < pid < 2**31:
            return None
        if holder["boot"] != here["boot"]:
            return False
        if holder["processes"] != here["processes"]:  # a container beside this one
            return None
        if pid == os.getpid():
            return token in self.held
        try:
            process = psutil.Process(pid)
            same = abs(_start(process) - start) < CLOCK_TOLERANCE
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def now(self) -> float:
        """Seconds, from any beginning, on a clock that is never set."""
        return time.monotonic()

    def file_time(self, folder: Path) -> float:
        """The time (unix seconds) that the file system gives to a file that is written now."""
        if self.now() - self._looked >= CLOCK_SECONDS:
            try:
                with tempfile.TemporaryFile(dir=folder) as file:
                    self._clock = os.fstat(file.fileno()).st_mtime - self.now()
            except OSError:  # it may be read only
                self._clock = time.time() - self.now()
            self._looked = self.now()
        return self.now() + self._clock

    def touch(self, file: Path) -> None:
        """Give the file the file system's time."""
        os.utime(file)


HERE = Host()


class Lease:
    """A folder, to work in which is one process's right; `attempt` gets it."""

    def __init__(self, folder: Path, host: Host = HERE) -> None:
        self.folder, self.host = folder, host
        self._file, self._content = folder, b""
        self._token = ""
        self._watched, self._since = (folder, 0.0), 0.0
        self._ends = threading.Event()
        self._beats: threading.Thread | None = None

    def attempt(self) -> bool:
        """Take the folder, which is made where there is none; False where another has it, or is being watched."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = _leases(self.folder)
        if files and not self._may_follow(files[-1]):
            return False
        holder, number = self.host.holder(), _number(files[-1].name) + 1 if files else 1
        file, content = self.folder / f".lease-{number}", json.dumps(holder).encode()
        self.host.held.add(holder["token"])
        if not write_new(file, content):  # another was faster
            self.host.held.discard(holder["token"])
            return False
        self._file, self._content, self._token = file, content, holder["token"]
        for earlier in files:
            _end(earlier)
        return True

    def _may_follow(self, file: Path) -> bool:
        """Whether the lease is over, or was silent for long and still is after having been watched."""
        silent, touched = _silence(file, self.host)
        if silent < LEASE_SECONDS or math.isinf(silent):
            return math.isinf(silent)
        if self._watched != (file, touched):
            self._watched, self._since = (file, touched), self.host.now()
        return self.host.now() - self._since >= WATCH_SECONDS

    def check(self) -> None:
        """Raises LeaseLost where the folder is another's by now. Before each write that lasts: who was frozen sees."""
        try:
            standing = self._file.read_bytes()  # opening asks the server, where looking may answer from a cache
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # else it was deleted with the folder
                raise
            standing = b""
        if standing != self._content:
            raise LeaseLost(f"{self.folder} has been taken over by another process")

    def beat(self) -> None:
        """Say that the holder lives. Raises LeaseLost."""
        self.check()
        with suppress(FileNotFoundError):
            self.host.touch(self._file)

    def keep(self) -> None:
        """Beat from now on, in a thread, until `release`."""

        def beats() -> None:
            while not self._ends.wait(BEAT_SECONDS):
                with suppress(OSError, LeaseLost):  # the next beat, or the next check, tells more
                    self.beat()

        self._beats = threading.Thread(target=beats, daemon=True)
        self._beats.start()

    def release(self) -> None:
        """Give the folder up; nothing where it is another's."""
        self._ends.set()
        if self._beats:
            self._beats.join()
        self.host.held.discard(self._token)
        with suppress(OSError, LeaseLost):
            self.check()
            _end(self._file)


@contextmanager
def leased(folder: Path) -> Iterator[Lease]:
    """Have the folder to oneself; waits for another holder to give it up or to die."""
    lease = Lease(folder)
    while not lease.attempt():
        time.sleep(POLL_SECONDS)
    lease.keep()
    try:
        yield lease
    finally:
        lease.release()


def is_taken(folder: Path, host: Host = HERE) -> bool:
    """Whether a process works in the folder now, on this machine or, as far as can be seen, on another."""
    files = _leases(folder)
    return bool(files) and _silence(files[-1], host)[0] < LEASE_SECONDS


def end_of_session(folder: Path, session: str) -> None:
    """End the lease that a process of the session has on the folder: the cluster says that it is dead."""
    for file in _leases(folder)[-1:]:
        with suppress(OSError):
            if (_read(file)[0] or {}).get("session") == session:
                _end(file)


def _leases(folder: Path) -> list[Path]:
    """The leases of a folder, the one that counts last."""
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names, key=_number)]


def _number(name: str) -> int:
    return int(name.removeprefix(".lease-"))


def _silence(file: Path, host: Host) -> tuple[float, float]:
    """Seconds since the holder was heard, and when that was; 0 where it is seen to live, inf where the lease is over.

    The file's age counts in both directions: where it comes from the future, clocks differ, and it is watched.
    """
    try:
        holder, touched = _read(file)
    except OSError:  # deleted with its folder, or no file
        return math.inf, 0.0
    lives = False if holder == {} else host.lives(holder) if holder else None
    if lives is not None:
        return (0.0 if lives else math.inf), touched
    return abs(host.file_time(file.parent) - touched), touched


def _read(file: Path) -> tuple[dict[str, Any] | None, float]:
    """Who a lease names, nobody where it is over, None where it cannot be read: a power cut has eaten it, or worse; and
    when it was touched. Raises OSError where it is no file.
    """
    with open(file, "rb", opener=_open_file) as opened:
        content, touched = opened.read(MOST_BYTES), os.fstat(opened.fileno()).st_mtime
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        holder = None
    return holder if isinstance(holder, dict) else None, touched


def _open_file(file: str, flags: int) -> int:
    """Whoever can write to the folder may have put a link there, or a pipe that would be waited for."""
    return os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _end(file: Path) -> None:
    """Say in a lease's file that it is over: in place, which needs no room on a full disk and keeps the name used."""
    try:
        with open(file, "rb+", buffering=0, opener=_open_file) as opened:
            opened.write(OVER.ljust(os.fstat(opened.fileno()).st_size))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EISDIR, errno.ELOOP):  # else it is no file, and over as it is
            raise


@cache
def _machine() -> dict[str, Any]:
    """The machine, its last start, and the namespace in which its processes have their numbers."""
    return {
        "host": socket.gethostname(),
        "machine": _said(lambda: Path("/etc/machine-id").read_text().strip()),  # hosts may have one name
        "boot": _said(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip()),
        "processes": _said(lambda: os.readlink("/proc/self/ns/pid")),
    }


def _said(by: Callable[[], str]) -> str | None:
    """What the system says; None where it is another kind of system."""
    try:
        return by()
    except OSError:
        return None


def _start(process: psutil.Process) -> float:
    """Seconds from the machine's start to the process's, which a clock that is set does not move."""
    return process.create_time() - psutil.boot_time()
