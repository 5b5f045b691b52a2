"""What stands in the files of a results folder: one reader for each kind of file, which checks what it has read.

A file that is not there has not been written yet: None, or nothing. One that is not what was written there raises
Damaged, with its path; whoever reads many runs goes on with the others.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from grpolab.bounded import read_own_mapping
from grpolab.errors import Damaged, RequestError
from grpolab.identity import file_sha256
from grpolab.paths import SIGNATURE, STUDY_NAME, open_file
from grpolab.quantities import Thresholds
from grpolab.vocabulary import DAMAGED, MISSING, OUTCOMES, RESULTS

Record = dict[str, Any]
THRESHOLDS = {field.name for field in fields(Thresholds)}
MOST_BYTES = 1 << 30  # that are read of a file

JOURNAL, TIMING, WEIGHTS = "journal.jsonl", "timing.jsonl", "policy.safetensors"
_TEXT, _COUNT, _NUMBER = (str, type(None)), (int, type(None)), (int, float, type(None))
# Key -> what its value may be, where it is there.
_OUTCOME: dict[str, tuple[type, ...]] = {
    **{"outcome": (str,), "reason": _TEXT, "error": _TEXT, "final": (dict,)},
    **{"rollout_steps": _COUNT, "optimizer_steps": _COUNT, "completions": _COUNT, "seconds": _NUMBER},
    **{"policy_sha256": _TEXT, "journal_sha256": _TEXT},
}
_PROVENANCE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("warm_start", "dataset", "content", "hardware", "framework"), (dict, type(None))),
    **{"diff": _TEXT, "commit": _TEXT, "lock_sha256": _TEXT, "python": _TEXT},
    **{"results_version": _COUNT, "threads": _COUNT},
}
_WARM_START: dict[str, tuple[type, ...]] = {
    **{"signature": (str,), "sha256": (str,), "accuracy": _NUMBER, "steps": (int,), "seconds": (int, float)},
}
_PLAN: dict[str, tuple[type, ...]] = {
    **{"study": (str,), "file": (str,), "includes": (list,), "question": (str,), "title": (str,), "commit": _TEXT},
    **dict.fromkeys(("cells", "figures", "seeds", "hypotheses", "looks", "primary", "shown"), (list,)),
    **{"factors": (dict,), "compare": (str,), "baseline": (str,), "primary_metric": (str,), "stability": (dict,)},
}
_CELL: dict[str, tuple[type, ...]] = {
    **{"variant": (str,), "levels": (dict,), "seed": (int,), "signature": (str,), "settings": (dict,)},
    **{"rollout_steps": (int,)},
}


def read_object(path: Path) -> Record | None:
    """The object in a JSON file; None where there is no file. Raises Damaged."""
    return None if (content := read_bytes(path)) is None else parse_object(content, str(path))


def read_outcome(folder: Path) -> Record | None:
    """A run's outcome; None where it has none yet. Raises Damaged."""
    path = folder / "outcome.json"
    if (outcome := read_object(path)) is None:
        return None
    known = OUTCOMES.keys() - {MISSING, DAMAGED}
    if outcome.get("outcome") not in known:
        raise Damaged(f"{path} has no outcome that is one of {', '.join(sorted(known))}")
    return _checked(outcome, _OUTCOME, path)


def read_result(folder: Path) -> Record | None:
    """`read_outcome`, and where it is a result, whether the files that a report reads are those it was written for.

    An outcome without the journal's hash, as other programs may write, says nothing about its journal. Raises Damaged.
    """
    outcome = read_outcome(folder)
    if outcome and outcome["outcome"] in RESULTS:
        if (recorded := outcome.get("journal_sha256")) is not None:
            path = folder / JOURNAL
            try:
                found = file_sha256(path)
            except OSError as error:
                raise Damaged(f"{path} cannot be read: {error.strerror}") from error
            check_journal(folder, recorded, found)
        if provenance := read_provenance(folder):
            check_provenance(folder, provenance)
        read_lines(folder / TIMING)
    return outcome


def outcome_or_damage(folder: Path) -> Record | None:
    """`read_result`; of a run that is damaged the outcome `damaged`, with the reason."""
    try:
        return read_result(folder)
    except Damaged as damage:
        return {"outcome": DAMAGED, "reason": str(damage)}


def check_journal(folder: Path, recorded: str, found: str) -> None:
    """Raises Damaged where a journal's hash is not the one in outcome.json."""
    if found != recorded:
        raise Damaged(f"{folder / JOURNAL} is not the journal that outcome.json was written for (journal_sha256)")


def check_provenance(folder: Path, provenance: Record) -> None:
    """Raises Damaged where what a run was made of does not say what a report needs; TRL's runs are not reported."""
    items = (provenance.get("dataset") or {}).get("evaluation_items")
    if "framework" not in provenance and not isinstance(items, int):
        raise Damaged(f"{folder / 'provenance.json'} does not say how many items were evaluated")


def check_policy(folder: Path, outcome: Record) -> None:
    """Raises Damaged where the weights of a run are not those that its outcome names."""
    recorded = outcome.get("policy_sha256")
    if recorded is not None and (folder / WEIGHTS).exists() and weights_sha256(folder / WEIGHTS) != recorded:
        raise Damaged(f"{folder / WEIGHTS} has not the weights that outcome.json was written for (policy_sha256)")


def read_provenance(folder: Path) -> Record:
    """What a run was made of; empty where it failed before it wrote that. Raises Damaged."""
    path = folder / "provenance.json"
    return _checked(read_object(path) or {}, _PROVENANCE, path)


def read_settings(folder: Path) -> Record:
    """A run's settings; empty where it has none yet. Raises Damaged."""
    path = folder / "settings.yaml"
    if not os.path.lexists(path):
        return {}
    try:
        return read_own_mapping(str(path))
    except RequestError as error:
        raise Damaged(str(error)) from error


def read_warm_start(folder: Path) -> Record | None:
    """The outcome of a warm start, whose weights are checked; None where there is none yet. Raises Damaged."""
    path = folder / "outcome.json"
    if (made := read_object(path)) is None:
        return None
    made = {key: value for key, value in made.items() if key in _WARM_START}
    if lacking := _WARM_START.keys() - made:
        raise Damaged(f"{path} lacks {', '.join(sorted(lacking))}")
    _checked(made, _WARM_START, path)
    if made["steps"] and weights_sha256(folder / WEIGHTS) != made["sha256"]:
        raise Damaged(f"{folder / WEIGHTS} has not the weights that outcome.json was written for (sha256)")
    return made


def read_plan(path: Path) -> Record | None:
    """A study's plan, as it was written or as it was packed for the reference; None where there is none.

    Raises Damaged.
    """
    if (plan := read_object(path)) is None:
        return None
    variants = plan.pop("variants", None)
    if variants is not None:
        common = plan.pop("settings", {})
        try:
            plan["cells"] = [_cell(variant, common, seed) for variant in variants for seed in variant["runs"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"{path} is no plan: its variants cannot be read ({_why(error)})") from error
    if lacking := {"includes", "cells"} - plan.keys():
        raise Damaged(f"{path} is no plan: it lacks {', '.join(sorted(lacking))}")
    _checked(plan, _PLAN, path)
    for name in (*([plan["study"]] if "study" in plan else []), *plan["includes"]):
        if not isinstance(name, str) or not STUDY_NAME.fullmatch(name):
            raise Damaged(f"{path} names the study {name!r}, which is no name of a study")
    for name, value in plan.get("stability", {}).items():
        if name not in THRESHOLDS or isinstance(value, bool) or not isinstance(value, int | float):
            raise Damaged(f"{path} is damaged: its stability.{name:.60} is {value!r:.60}")
    runs = set()
    for cell in plan["cells"]:
        if not isinstance(cell, dict) or not {"variant", "seed", "signature"} <= cell.keys():
            raise Damaged(f"{path} has a cell that lacks its variant, seed or signature: {cell!r:.60}")
        _checked(cell, _CELL, path)
        if not SIGNATURE.fullmatch(cell["signature"]):
            raise Damaged(f"{path} names the run {cell['signature']!r}, which is no signature")
        if (run := (cell["variant"], cell["seed"])) in runs:
            raise Damaged(f"{path} has two cells of variant {run[0]!r:.60} and seed {run[1]}")
        runs.add(run)
    return plan


def _cell(variant: Record, common: Record, seed: str) -> Record:
    shared = {key: value for key, value in variant.items() if key != "runs"}
    settings = {**common, **variant["settings"], "seed": int(seed)}
    return {**shared, "seed": int(seed), "signature": variant["runs"][seed], "settings": settings}


def read_lines(path: Path) -> list[Record]:
    """The records of a journal that grows no more; none where there is no file. Raises Damaged, with the line."""
    return parse_lines(read_bytes(path) or b"", path)


def parse_lines(content: bytes, path: Path) -> list[Record]:
    """The records in a journal's bytes. Raises Damaged, with the line."""
    return [parse_object(line, f"{path}, line {number}") for number, line in enumerate(content.splitlines(), start=1)]


def parse_object(content: bytes, where: str) -> Record:
    """The object in some JSON; `where` it stands is what Damaged, which is raised, begins with."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{where} cannot be read: {_why(error)}") from error
    if not isinstance(record, dict):
        raise Damaged(f"{where} holds no object")
    return record


def weights_sha256(file: Path) -> str | None:
    """`Policy.fingerprint` of the weights in a safetensors file, without torch; None where it is no such file.

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
    """A file's bytes; None where there is no file. Raises Damaged, also where a pipe or a device is in its place."""
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


def _checked(record: Record, types: dict[str, tuple[type, ...]], path: Path) -> Record:
    for key, allowed in types.items():
        if key in record and not isinstance(record[key], allowed):
            raise Damaged(f"{path} is damaged: its {key} is {record[key]!r:.60}")
    return record


def _why(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
