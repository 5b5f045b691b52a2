"""A run's folder: its journal, progress and outcome. It needs no torch, because commands that watch runs import it.

A journal is one strict-JSON object a line, appended; a resume cuts it back to the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpolab.credentials import without_secrets_in
from grpolab.errors import Damaged, RequestError
from grpolab.identity import is_library
from grpolab.paths import json_bytes, plain, write_atomic, write_json_atomic, write_new
from grpolab.run.lease import LeaseLost
from grpolab.run_files import read_outcome
from grpolab.terminal import say
from grpolab.vocabulary import FAILED


def line(record: dict[str, Any]) -> bytes:
    """Return a record as a line of a journal; infinity becomes "inf"."""
    # Nine digits keep every float32 exactly, and the file small.
    values = {key: float(f"{value:.9g}") if isinstance(value, float) else value for key, value in record.items()}
    return json.dumps(plain(values), allow_nan=False, separators=(",", ":")).encode() + b"\n"


class Journal:
    """An append-only file. Lines are buffered until `flush`, so that a rollout step is written in one piece."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Open `path`, cut to the whole lines among its first `keep_bytes` bytes.

        They are copied to a new file, because a process that lost the folder may still have the old one open.
        """
        kept = path.read_bytes()[:keep_bytes] if keep_bytes and path.exists() else b""
        kept = kept[: kept.rfind(b"\n") + 1]  # the file may be shorter than `keep_bytes`
        self.path = path
        if path.exists():
            write_atomic(path, kept, durable=bool(kept))
        self._file = path.open("ab")
        self._digest = hashlib.sha256(kept)
        self._lines: list[bytes] = []

    @property
    def sha256(self) -> str:
        """Checksum of the file, without lines that wait for `flush`."""
        return self._digest.hexdigest()

    def append(self, **record: Any) -> None:
        self._lines.append(line(record))

    def flush(self) -> int:
        """Hand the buffered lines to the operating system; return the file's length in bytes."""
        content = b"".join(self._lines)
        self._lines.clear()
        self._file.write(content)
        self._file.flush()
        self._digest.update(content)
        return self._file.tell()

    def sync(self) -> int:
        """Flush to the disk itself. Raises LeaseLost if another process has replaced the file."""
        length = self.flush()
        os.fsync(self._file.fileno())
        if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
            raise LeaseLost(f"{self.path} is written by another process")
        return length

    def close(self) -> None:
        """Flush and close, even if the disk is full. Raises as `sync`."""
        with self._file:
            self.sync()


INTERVAL = 1.0  # least seconds between two beats


class Heartbeat:
    """Writes `running.json`: how far a run is, and where it runs. The file is deleted with the outcome."""

    def __init__(self, folder: Path, rollout_steps: int) -> None:
        self.path, self.rollout_steps, self._last = folder / "running.json", rollout_steps, float("-inf")

    def beat(self, rollout_step: int, now: float) -> None:
        """Write how far the run is, `now` in unix seconds; at most once in INTERVAL seconds of that clock."""
        if abs(now - self._last) >= INTERVAL:
            self._last = now
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            beat = {**owner, "rollout_step": rollout_step, "rollout_steps": self.rollout_steps, "time": now}
            write_json_atomic(self.path, beat, durable=False)  # a power cut ends the run, so it need not be on disk


@dataclass(frozen=True)
class Outcome:
    """outcome.json: how a run ended, written last; unknown values are None. A sweep writes it for a dead worker."""

    outcome: str  # of the vocabulary
    reason: str | None  # where it did not run to its last rollout step; the first line says it all
    rollout_steps: int  # that were finished
    optimizer_steps: int | None = None
    completions: int | None = None
    final: dict[str, float] = field(default_factory=dict)  # metrics of the last finite evaluation
    policy_sha256: str | None = None
    journal_sha256: str | None = None
    seconds: float | None = None
    error: str | None = None  # traceback


def is_begun(folder: Path) -> bool:
    """Return True if the folder holds a run; one that failed before it started has an outcome, but no settings."""
    return (folder / "settings.yaml").exists() or (folder / "outcome.json").exists()


def find_outcome(folder: Path) -> dict[str, Any] | None:
    """Return a run's outcome; None if there is none or it is damaged, so that the run is done again."""
    try:
        return read_outcome(folder)
    except Damaged as damage:
        say(f"run {folder.name}: {damage}: it is trained anew", error=True, flush=True)
        return None


def conclude(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Write the outcome unless the run has one already; return the run's outcome."""
    record, file = without_secrets_in(asdict(outcome)), folder / "outcome.json"
    if not write_new(file, json_bytes(record)):
        if earlier := find_outcome(folder):
            record = earlier
        else:  # damaged
            write_json_atomic(file, record)
    (folder / "running.json").unlink(missing_ok=True)
    return record


def record_failure(folder: Path, reason: str, rollout_steps: int, error: str | None = None) -> dict[str, Any]:
    """Write that a run failed, unless it has an outcome already; return the run's outcome."""
    return conclude(folder, Outcome(FAILED, reason, rollout_steps, error=error))


def describe_error(error: BaseException) -> str:
    """Return an error as a sentence that begins with the line of user code that raised it."""
    text = str(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<") and not is_library(Path(frame.filename)):
            return f"{frame.filename}, line {frame.lineno}: {text}"
    return text
