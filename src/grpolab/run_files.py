"""Read the files of one run: outcome, warm start, records of a journal. Each reader checks the content.

An absent file has not been written yet: a reader returns None, or nothing. A damaged one raises Damaged, with its path.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

from grpolab.errors import Damaged
from grpolab.paths import open_file
from grpolab.vocabulary import DAMAGED, MISSING, OUTCOMES

Record = dict[str, Any]
MOST_BYTES = 1 << 30  # that are read of a file

JOURNAL, TIMING, WEIGHTS = "journal.jsonl", "timing.jsonl", "policy.safetensors"
TEXT, COUNT, NUMBER = (str, type(None)), (int, type(None)), (int, float, type(None))
# Key -> the types that its value may have, where it is there.
Types = dict[str, tuple[type, ...]]
_OUTCOME: Types = {
    **{"outcome": (str,), "final": (dict,), "seconds": NUMBER},
    **dict.fromkeys(("reason", "error", "policy_sha256", "journal_sha256"), TEXT),
    **dict.fromkeys(("rollout_steps", "optimizer_steps", "completions"), COUNT),
}
WARM_START: Types = {
    **{"signature": (str,), "sha256": (str,), "accuracy": NUMBER, "steps": (int,), "seconds": (int, float)},
}


def read_object(path: Path) -> Record | None:
    """Return the object in a JSON file; None if there is no file. Raises Damaged."""
    return None if (content := read_bytes(path)) is None else parse_object(content, str(path))


def read_outcome(folder: Path) -> Record | None:
    """Return a run's outcome; None if it has none yet. Raises Damaged."""
    path = folder / "outcome.json"
    if (outcome := read_object(path)) is None:
        return None
    known = OUTCOMES.keys() - {MISSING, DAMAGED}
    if check_types(outcome, _OUTCOME, path).get("outcome") not in known:
        raise Damaged(f"{path} has no outcome that is one of {', '.join(sorted(known))}")
    return outcome


def read_warm_start(folder: Path) -> Record | None:
    """Return the outcome of a warm start after checking its weights; None if there is none yet. Raises Damaged."""
    path = folder / "outcome.json"
    if (made := read_object(path)) is None:
        return None
    made = {key: value for key, value in made.items() if key in WARM_START}
    if lacking := WARM_START.keys() - made:
        raise Damaged(f"{path} lacks {', '.join(sorted(lacking))}")
    check_types(made, WARM_START, path)
    if made["steps"] and weights_sha256(folder / WEIGHTS) != made["sha256"]:
        raise Damaged(f"{folder / WEIGHTS} has not the weights that outcome.json was written for (sha256)")
    return made


def parse_object(content: bytes, where: str) -> Record:
    """Return the object in some JSON. Raises Damaged, which begins with `where`."""
    try:
        record = json.loads(content.decode("utf-8-sig"))  # json itself would let half a surrogate pair pass
        if b"\\ud" in content or b"\\uD" in content:  # half a surrogate pair is text that nothing could write again
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{where} cannot be read: {first_line(error)}") from error
    if not isinstance(record, dict):
        raise Damaged(f"{where} holds no object")
    return record


def weights_sha256(file: Path) -> str | None:
    """Return the `Policy.fingerprint` of a safetensors file, without torch; None if it is no such file.

    The format: the header's length in eight bytes, a JSON header with each tensor's place, the tensors' bytes.
    """
    digest = hashlib.sha256()
    try:
        with (
            open(file, "rb", opener=open_file) as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            header.pop("__metadata__", None)
            for name, tensor in sorted(header.items()):
                begin, end = tensor["data_offsets"]
                digest.update(name.encode())
                digest.update(data[start + begin : start + end])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes | None:
    """Return a file's bytes; None if there is no file. Raises Damaged, also for a pipe or a device in its place."""
    try:
        with open(path, "rb", opener=open_file) as file:
            content = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise Damaged(f"{path} has more than {MOST_BYTES >> 20} MiB, the most that is read of it")
    return content


def check_types(record: Record, types: Types, path: Path) -> Record:
    """Return the record. Raises Damaged if a value has a wrong type."""
    for key, allowed in types.items():
        if key in record and not isinstance(record[key], allowed):
            raise Damaged(f"{path} is damaged: its {key} is {record[key]!r:.60}")
    return record


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's text."""
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
