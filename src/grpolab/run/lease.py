"""Leases: at most one process works in a folder, on all machines that share its file system.

A lease is a file `.lease-<number>` that names its holder. A process takes a folder by creating the next number, which
the file system lets only one process do (`flock` may work on one machine only). The highest number counts, and no
number is used twice. A lease ends when its file says so: its holder released the folder, or another process took the
folder over. A holder that was only frozen reads that before it writes anything (`Lease.check`).

On one machine a lease lasts as long as its holder's process. From elsewhere it lasts as long as its file is touched.
Clocks of two machines are never compared: the file system tells how old a file is. Before a silent lease is taken over
it is watched for a while, so that none ends because the file system hung, or has no clock of its own.
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
LEASE_SECONDS = 300.0  # without a touch, after which the holder counts as dead
WATCH_SECONDS = 40.0  # more than two beats
POLL_SECONDS = 0.2  # between two attempts to get a folder that another process has
CLOCK_SECONDS = 60.0  # between two readings of the file system's clock
CLOCK_TOLERANCE = 2.0  # seconds between two readings of a process's start time
NAME = re.compile(r"\.lease-[1-9][0-9]{0,17}")
MOST_BYTES = 1 << 16  # of a lease file that is read


class LeaseLost(Exception):
    """Another process has taken the folder over: nothing more may be written to it."""


class Host:
    """This machine, as the holder of leases; a benchmark simulates others by subclasses."""

    def __init__(self) -> None:
        self.held: set[str] = set()  # tokens of the leases of this process
        self.session: str | None = None  # of the command that started this process on a cluster and would see it die
        self._clock, self._looked = 0.0, -math.inf

    def holder(self) -> dict[str, Any]:
        """Return the content of this process's lease: a token, the machine, the process and its start time."""
        holder = {"token": uuid.uuid4().hex, **_machine(), "pid": os.getpid()}
        holder["process_start"] = _start_time(psutil.Process())
        return holder | ({"session": self.session} if self.session else {})

    def lives(self, holder: dict[str, Any]) -> bool | None:
        """Return True if a holder's process exists; None if that cannot be seen from here."""
        here = _machine()
        token, pid, start = (holder.get(key) for key in ("token", "pid", "process_start"))
        if not here.keys() <= holder.keys() or any(holder[key] != here[key] for key in ("host", "machine")):
            return None
        if not (isinstance(token, str) and isinstance(pid, int) and isinstance(start, int | float) and 0 < pid < 2**31):
            return None
        if holder["boot"] != here["boot"]:
            return False
        if holder["processes"] != here["processes"]:  # another container of this machine
            return None
        if pid == os.getpid():
            return token in self.held
        try:
            process = psutil.Process(pid)
            is_same = abs(_start_time(process) - start) < CLOCK_TOLERANCE
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.monotonic()

    def file_time(self, folder: Path) -> float:
        """Return the time (unix seconds) that the file system would give to a file written now."""
        if self.now() - self._looked >= CLOCK_SECONDS:
            self._clock = time.time() - self.now()
            with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:  # it may be read-only
                self._clock = os.fstat(file.fileno()).st_mtime - self.now()
            self._looked = self.now()
        return self.now() + self._clock

    def touch(self, file: Path) -> None:
        """Set the file's time to that of the file system."""
        os.utime(file)


HERE = Host()


class Lease:
    """The right of one process to work in a folder; `attempt` gets it."""

    def __init__(self, folder: Path, host: Host = HERE) -> None:
        self.folder, self.host = folder, host
        self._file, self._content, self._token = folder, b"", ""
        self._watched, self._since = (folder, 0.0), 0.0
        self._ends = threading.Event()
        self._beats: threading.Thread | None = None

    def attempt(self) -> bool:
        """Take the folder, and create it if absent; return False if another process has it or may still have it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = _find_leases(self.folder)
        if files and not self._is_over(files[-1]):
            return False
        holder, number = self.host.holder(), _number(files[-1].name) + 1 if files else 1
        file, content, token = self.folder / f".lease-{number}", json.dumps(holder).encode(), holder["token"]
        self.host.held.add(token)
        if not write_new(file, content):  # another process was faster
            self.host.held.discard(token)
            return False
        self._file, self._content, self._token = file, content, token
        for earlier in files:
            _end(earlier)
        return True

    def _is_over(self, file: Path) -> bool:
        """Return True if the lease has ended, or stayed untouched for long and also while it was watched."""
        silence, touched = _silence(file, self.host)
        if silence < LEASE_SECONDS or math.isinf(silence):
            return math.isinf(silence)
        if self._watched != (file, touched):
            self._watched, self._since = (file, touched), self.host.now()
        return self.host.now() - self._since >= WATCH_SECONDS

    def check(self) -> None:
        """Raise LeaseLost if another process has taken the folder. Called before each write that lasts."""
        try:
            content = self._file.read_bytes()  # a network file system may answer `stat`, but not `open`, from a cache
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # these two: it was deleted with the folder
                raise
            content = b""
        if content != self._content:
            raise LeaseLost(f"{self.folder} has been taken over by another process")

    def checked(self, on_step: Callable[[int], None]) -> Callable[[int], None]:
        """Return a function that checks, then calls another: at each step, before the step's records are written."""

        def check_and_call(step: int) -> None:
            self.check()
            on_step(step)

        return check_and_call

    def beat(self) -> None:
        """Touch the lease, to show that its holder lives. Raises LeaseLost."""
        self.check()
        with suppress(FileNotFoundError):
            self.host.touch(self._file)

    def keep(self) -> None:
        """Beat in a thread from now on, until `release`."""

        def beats() -> None:
            while not self._ends.wait(BEAT_SECONDS):
                with suppress(OSError, LeaseLost):  # the next check raises it again
                    self.beat()

        self._beats = threading.Thread(target=beats, daemon=True)
        self._beats.start()

    def release(self) -> None:
        """Give the folder up; do nothing if another process has it."""
        self._ends.set()
        if self._beats:
            self._beats.join()
        self.host.held.discard(self._token)
        with suppress(OSError, LeaseLost):
            self.check()
            _end(self._file)


@contextmanager
def leased(folder: Path) -> Iterator[Lease]:
    """Hold the folder alone; wait for another holder to release it or to die."""
    lease = Lease(folder)
    while not lease.attempt():
        time.sleep(POLL_SECONDS)
    lease.keep()
    try:
        yield lease
    finally:
        lease.release()


def is_taken(folder: Path, host: Host = HERE) -> bool:
    """Return True if a process works in the folder now, as far as this machine can tell."""
    files = _find_leases(folder)
    return bool(files) and _silence(files[-1], host)[0] < LEASE_SECONDS


def end_of_session(folder: Path, session: str) -> None:
    """End the session's lease on the folder, after the cluster has said that its process is dead."""
    for file in _find_leases(folder)[-1:]:
        with suppress(OSError):
            if (_read(file)[0] or {}).get("session") == session:
                _end(file)


def _find_leases(folder: Path) -> list[Path]:
    """Return the leases of a folder; the last one counts."""
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names, key=_number)]


def _number(name: str) -> int:
    return int(name.removeprefix(".lease-"))


def _silence(file: Path, host: Host) -> tuple[float, float]:
    """Return the seconds since the last touch (0: its holder is seen to live, inf: it has ended), and that time."""
    try:
        holder, touched = _read(file)
    except OSError:  # deleted with its folder, or no file
        return math.inf, 0.0
    lives = False if holder == {} else host.lives(holder) if holder else None
    if lives is not None:
        return (0.0 if lives else math.inf), touched
    # A time in the future means another clock; its distance counts too, and then the lease is watched.
    return abs(host.file_time(file.parent) - touched), touched


def _read(file: Path) -> tuple[dict[str, Any] | None, float]:
    """Return a lease's holder ({}: it ended; None: unreadable) and the time of its last touch. Raises OSError."""
    with open(file, "rb", opener=_open_file) as opened:
        content, touched = opened.read(MOST_BYTES), os.fstat(opened.fileno()).st_mtime
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        holder = None
    return holder if isinstance(holder, dict) else None, touched


def _open_file(file: str, flags: int) -> int:
    """Open a file that may have been replaced by a link, or by a pipe that would block."""
    return os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _end(file: Path) -> None:
    """Write into a lease that it has ended. This works on a full disk, and unlike deletion keeps the number used."""
    try:
        with open(file, "rb+", buffering=0, opener=_open_file) as opened:
            opened.write(b"{}".ljust(os.fstat(opened.fileno()).st_size))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EISDIR, errno.ELOOP):  # these three: it has ended as it is
            raise


@cache
def _machine() -> dict[str, Any]:
    """Identify the machine, its last start, and the namespace of its process numbers; None on another system."""
    machine: dict[str, Any] = dict.fromkeys(("machine", "boot", "processes"))
    with suppress(OSError):
        machine["machine"] = Path("/etc/machine-id").read_text().strip()  # hosts may share a name
    with suppress(OSError):
        machine["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine["processes"] = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), **machine}


def _start_time(process: psutil.Process) -> float:
    """Return seconds from the machine's start to the process's, which setting the clock does not move."""
    return process.create_time() - psutil.boot_time()
