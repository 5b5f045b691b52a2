"""The identity of a run: a hash of everything that can change a result, and of nothing else.

Settings may name data files, a user's task or reward, or a local model. Their content (`content.py`) is part of the
identity, not their name: a changed file makes another run, a moved file does not.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpolab import RESULTS_VERSION
from grpolab.paths import plain

SIGNATURE_LENGTH = 16
ABSENT = "absent"  # key of content that cannot be read
COMMIT = re.compile(r"[0-9a-f]{40}")
STEPS = ("kernel", "aggregation", "framework")  # of the loss; an import path (`module:name`) is code from elsewhere
_NAMED_BY_TASK = {  # keys of a task that name its content
    "jsonl": ("task.train_file", "task.evaluation_file"),
    "custom": ("task.path",),
    **dict.fromkeys(("reasoning_gym", "dataset"), ("task.dataset",)),
}
_LIBRARIES = (Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))


def dotted(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings as (`task.name`, value) pairs, in order."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def signature(identity: dict[str, Any]) -> str:
    """Return the first 16 hex digits of SHA-256 over the canonical JSON of `identity` and `RESULTS_VERSION`.

    Key order does not matter. `identity` comes from `Resolved.identity()` or `warm_start_identity()`, which leave out
    machine keys (paths, threads, tracking).
    """
    text = json.dumps({"results_version": RESULTS_VERSION, **plain(identity)}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_LENGTH]


def identified(settings: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with contents (`content_of`) in place of names."""
    if not content:
        return dict(settings)
    result = copy.deepcopy(dict(settings))
    for key, value in content.items():
        group, _, last = key.rpartition(".")
        place = result.get(group, {}) if group else result
        if last in place:
            place[last] = value
    return result


def keys_with_content(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys of resolved settings that name something outside of them which can change a result."""
    task, reward, model = (settings.get(group) or {} for group in ("task", "reward", "model"))
    # A hub model or data set is identified by its commit, which is a setting; without a commit it is a local folder.
    keys = [] if COMMIT.fullmatch(str(task.get("revision"))) else [*_NAMED_BY_TASK.get(str(task.get("name")), ())]
    if reward.get("function"):
        keys.append("reward.function")
    if model.get("name") == "pretrained" and not COMMIT.fullmatch(str(model.get("revision"))):
        keys.append("model.path")
    return keys + [key for key in STEPS if ":" in str(settings.get(key))]


def unrecorded(settings: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return the keys of a run's settings whose content has no recorded hash, joined by 'and'."""
    return " and ".join(key for key in keys_with_content(settings) if key not in content)


def absent(content: Mapping[str, Any]) -> list[str]:
    """Return the keys of contents that could not be read."""
    return [key for key, value in content.items() if ABSENT in value]


def in_words(content: Mapping[str, Any]) -> str:
    """Return each key with the beginning of its content's hash: `task.train_file 3fa1b2c4`."""
    return ", ".join(f"{key} {short_hash(value)}" for key, value in content.items())


def short_hash(value: dict[str, Any]) -> str:
    """Return eight digits that tell people one content from another."""
    return signature(value)[:8]


def is_library(file: Path) -> bool:
    """Return True if code is a library's, not the user's: Python's own, installed, or of this program."""
    return "site-packages" in file.parts or any(file.is_relative_to(library) for library in _LIBRARIES)
