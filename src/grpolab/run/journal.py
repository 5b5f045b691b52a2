"""A run's diary: one strict-JSON object a line, appended, and cut back to the checkpoint on resume."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from grpolab.identity import plain


def rounded(value: float) -> float:
    """Nine significant digits: float32 survives the round trip exactly, and the file stays small."""
    return float(f"{value:.9g}")


def line(record: dict[str, Any]) -> bytes:
    """A record as it stands in a file; floats are rounded to nine digits, infinity becomes "inf"."""
    values = {key: rounded(value) if isinstance(value, float) else value for key, value in record.items()}
    return json.dumps(plain(values), allow_nan=False, separators=(",", ":")).encode() + b"\n"


class Journal:
    """An append-only file. Lines are buffered until `flush`, so that a rollout step is written in one piece."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Open `path`, cut to the whole lines among its first `keep_bytes` bytes."""
        kept = path.read_bytes()[:keep_bytes] if keep_bytes and path.exists() else b""
        kept = kept[: kept.rfind(b"\n") + 1]  # the file may be shorter than was said: nothing is padded
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(len(kept))
        self._digest = hashlib.sha256(kept)
        self._lines: list[bytes] = []

    @property
    def sha256(self) -> str:
        """Checksum of the file, the lines that wait for `flush` left out."""
        return self._digest.hexdigest()

    def append(self, **record: Any) -> None:
        """Add one record."""
        self._lines.append(line(record))

    def flush(self) -> int:
        """Hand the buffered lines to the operating system; returns the file's length in bytes."""
        content = b"".join(self._lines)
        self._lines.clear()
        self._file.write(content)
        self._file.flush()
        self._digest.update(content)
        return self._file.tell()

    def sync(self) -> int:
        """Flush to the disk itself: what a checkpoint refers to must survive a power cut."""
        length = self.flush()
        os.fsync(self._file.fileno())
        return length

    def close(self) -> None:
        """Flush and close; closed also where the disk is full."""
        with self._file:
            self.sync()
