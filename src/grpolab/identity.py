"""What makes two runs the same: a hash of everything that can change a result, and of nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

from grpolab import RESULTS_VERSION

SIGNATURE_LENGTH = 16


def plain(value: Any) -> Any:
    """Strict-JSON form of a value: infinities and NaN become the strings "inf", "-inf" and "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def dotted(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as (`task.name`, value) pairs, in order."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def signature(identity: dict[str, Any]) -> str:
    """The first 16 hex digits of SHA-256 over the canonical JSON of `identity` and `RESULTS_VERSION`.

    Key order does not matter. `identity` comes from `RunSettings.identity()` or `warm_start_identity()`, which leave
    out machine keys (paths, threads, tracking).
    """
    text = json.dumps({"results_version": RESULTS_VERSION, **plain(identity)}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_LENGTH]
