"""Read the files of one run: outcome, warm start, records of a journal. Each reader checks the content.

An absent file has not been written yet: a reader returns None, or nothing. A damaged one raises Damaged, with its path.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from grpolab.errors import Damaged
from grpolab.paths import open_file
from grpolab.vocabulary import DAMAGED, MISSING, OUTCOMES

Record = dict[str, Any]
MOST_BYTES = 1 << 30  # that are read of a file

JOURNAL, TIMING, WEIGHTS = "journal.jsonl", "timing.jsonl", "policy.safetensors"
NONE = type(None)
TEXT, COUNT, NUMBER = (str, NONE), (int, NONE), (int, float, NONE)
# What a value must be: a type (bool is no int), one of several, a list of a shape, or an object. An object must have
# the keys of its shape except those that end in `?`, and may have others; {EACH: shape} is an object with any keys.
Shape: TypeAlias = "type | tuple[Shape, ...] | list[Shape] | Mapping[str, Shape]"
EACH = "*"
_OUTCOME: Shape = {
    **{"outcome?": str, "final?": (NONE, {EACH: NUMBER}), "seconds?": NUMBER},
    **dict.fromkeys(("reason?", "error?", "policy_sha256?", "journal_sha256?"), TEXT),
    **dict.fromkeys(("rollout_steps?", "optimizer_steps?", "completions?"), COUNT),
}
WARM_START: dict[str, Shape] = {
    "signature": str,
    "sha256": str,
    "accuracy": NUMBER,
    "steps": int,
    "seconds": (int, float),
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
    if check_shape(outcome, _OUTCOME, path).get("outcome") not in known:
        raise Damaged(f"{path} has no outcome that is one of {', '.join(sorted(known))}")
    return outcome


def read_warm_start(folder: Path) -> Record | None:
    """Return the outcome of a warm start after checking its weights; None if there is none yet. Raises Damaged."""
    path = folder / "outcome.json"
    if (made := read_object(path)) is None:
        return None
    made = {key: value for key, value in check_shape(made, WARM_START, path).items() if key in WARM_START}
    if made["steps"] and weights_sha256(folder / WEIGHTS) != made["sha256"]:
        raise Damaged(f"{folder / WEIGHTS} has not the weights that outcome.json was written for (sha256)")
    return made


def parse_object(content: bytes, where: str) -> Record:
    """Return the object in some JSON. Raises Damaged, which begins with `where`."""
    try:
        record = json.loads(content.decode("utf-8-sig"), parse_int=_parse_int)  # json lets half a surrogate pair pass
        if b"\\ud" in content or b"\\uD" in content:  # half a surrogate pair is text that nothing could write again
            json.dumps(record, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{where} cannot be read: {first_line(error)}") from error
    if not isinstance(record, dict):
        raise Damaged(f"{where} holds no object")
    return record


def _parse_int(digits: str) -> int:
    """Return a whole number of at most 64 bits. Raises ValueError for a longer one, which no table holds."""
    if -(2**63) <= (number := int(digits)) < 2**63:
        return number
    raise ValueError(f"the number {digits:.20}.. has more than 64 bits")


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


def check_shape(record: Record, shape: Shape, path: Path) -> Record:
    """Return the record. Raises Damaged with the key and the value that do not have the shape."""
    if misfit := find_misfit(record, shape, ""):
        raise Damaged(f"{path} is damaged: {misfit}")
    return record


def find_misfit(value: Any, shape: Shape, where: str) -> str:
    """Say which part of a value does not have the shape, as in `its seeds.3 is 'x'`; '' if all of it has."""
    subject = f"its {where}" if where else "it"
    if isinstance(shape, tuple):
        if "" in (misfits := [find_misfit(value, alternative, where) for alternative in shape]):
            return ""
        wrong = f"{subject} is {value!r:.60}"
        return next((misfit for misfit in misfits if misfit != wrong), wrong)
    kind: Any = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return f"{subject} is {value!r:.60}"  # made here alone: it takes long of a whole plan
    if isinstance(shape, type):
        return ""
    parts: dict[str, tuple[Any, Shape]]
    if isinstance(shape, list):
        parts = {str(number): (item, shape[0]) for number, item in enumerate(value)}
    elif EACH in shape:
        parts = {name: (item, shape[EACH]) for name, item in value.items()}
    else:
        if lacking := [name for name in shape if not name.endswith("?") and name not in value]:
            return f"{subject} lacks {', '.join(lacking)}"
        shapes = {name.removesuffix("?"): inner for name, inner in shape.items()}
        parts = {name: (value[name], inner) for name, inner in shapes.items() if name in value}
    prefix = f"{where}." if where else ""
    of_parts = (find_misfit(item, inner, f"{prefix}{name:.60}") for name, (item, inner) in parts.items())
    return next(filter(None, of_parts), "")


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's text."""
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
