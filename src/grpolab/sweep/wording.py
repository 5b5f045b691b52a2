"""How durations and reasons are written, everywhere alike."""

from __future__ import annotations

from typing import Any


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def first_line(outcome: dict[str, Any] | None) -> str:
    """The first line of an outcome's reason; empty where there is none."""
    return str((outcome or {}).get("reason") or "").partition("\n")[0]
