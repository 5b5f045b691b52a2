"""A run's diary: one strict-JSON object a line, appended, and cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from grpolab.identity import plain


def rounded(value: float) -> float:
    """Nine significant digits: float32 survives the round trip exactly, and the file stays small."""
    return float(f"{value:.9g}")


class Journal:
    """An append-only file. Lines are buffered until `flush`, so that a rollout step is written in one piece."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Open `path`, cut to its first `keep_bytes` bytes."""
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(keep_bytes)
        self._lines: list[bytes] = []

    def append(self, **record: Any) -> None:
        """Add one record; floats are rounded to nine digits, infinity becomes "inf"."""
        values = {key: rounded(value) if isinstance(value, float) else value for key, value in record.items()}
        self._lines.append(json.dumps(plain(values), allow_nan=False, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> int:
        """Hand the buffered lines to the operating system; returns the file's length in bytes."""
        self._file.write(b"".join(self._lines))
        self._lines.clear()
        self._file.flush()
        return self._file.tell()

    def sync(self) -> int:
        """Flush to the disk itself: what a checkpoint refers to must survive a power cut."""
        length = self.flush()
        os.fsync(self._file.fileno())
        return length

    def close(self) -> None:
        """Flush and close."""
        self.sync()
        self._file.close()
