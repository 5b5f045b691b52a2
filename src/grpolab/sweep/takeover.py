"""`grpolab runs import`: take over finished runs of another results folder, another machine's say, each one checked.

Copying run folders by hand does the same without the checks: the folders are the ledger.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml

from grpolab import FOLDER_FORMAT, RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.identity import identified, signature, unrecorded
from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run.folder import exclusive, is_begun, is_held
from grpolab.sweep.jobs import is_run_taken
from grpolab.sweep.ledger import Record
from grpolab.vocabulary import RESULTS

TAKEN, PRESENT, UNFINISHED, REFUSED = "taken over", "here already", "left there without a result", "refused"


class Refused(Exception):
    """A folder that is not taken over, and why."""


def take_over(source: Path, results: Results) -> bool:
    """Copy what is finished in `source` and not here; what lies here stays as it is. True where nothing was refused.

    Raises RequestError where `source` is no results folder of this format.
    """
    theirs = _opened(source, results)
    import_of = Import(theirs, results)
    counts: Counter[str] = Counter()
    for folder in sorted(path for path in theirs.runs.glob("[!.]*") if path.is_dir()):
        try:
            counts[import_of.run(folder.name)] += 1
        except (Refused, KeyError) as refusal:
            counts[REFUSED] += 1
            what = f"its files lack the key {refusal}" if isinstance(refusal, KeyError) else refusal
            print(f"refused: run {folder.name}: {what}")
    _take_plans(theirs, results)
    said = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    print(f"{source}: {said or 'no run'}")
    return not counts[REFUSED]


def _opened(source: Path, results: Results) -> Results:
    found = (read_json(source / "format.json") or {}).get("format")
    if found is None:
        raise RequestError(f"FOLDER={source} is no results folder: it has no format.json")
    if found != FOLDER_FORMAT:
        raise RequestError(f"FOLDER={source} has format {found}, this program reads format {FOLDER_FORMAT}")
    if source.resolve() == results.root.resolve():
        raise RequestError(f"FOLDER={source} is the results folder itself: name another one")
    return Results(source)


class Import:
    """Folders from `theirs` to `ours`."""

    def __init__(self, theirs: Results, ours: Results) -> None:
        self.theirs, self.ours = theirs, ours

    def run(self, name: str) -> str:
        """What was done about a run. Raises Refused."""
        folder, target = self.theirs.run(name), self.ours.run(name)
        outcome = read_json(folder / "outcome.json") or {}
        if outcome.get("outcome") not in RESULTS or is_run_taken(folder):
            return UNFINISHED
        if is_begun(target) or is_run_taken(target):
            _compare(outcome, read_json(target / "outcome.json"))
            return PRESENT
        provenance = read_json(folder / "provenance.json") or {}
        _check_identity(folder, provenance)
        self._warm_start(provenance.get("warm_start", {}))
        _copy(folder, target, target / ".lock", lambda part: _check_content(part, outcome))
        return TAKEN

    def _warm_start(self, made: Record) -> None:
        """The warm start that a run began from comes with it: runs that are compared must have begun from the same."""
        name = made.get("signature", "")
        folder, target = self.theirs.warm_start(name), self.ours.warm_start(name)
        here, there = read_json(target / "outcome.json"), read_json(folder / "outcome.json")
        if there is None or there["sha256"] != made["sha256"]:
            raise Refused(f"its warm start {name} is not the one in {folder}")
        if here is None:
            _copy(folder, target, target.with_name(f"{name}.lock"), lambda part: _check_warm_start(part, there))
        elif here["sha256"] != there["sha256"]:
            raise Refused(f"its warm start {name} differs from the one here: they could not be compared in pairs")


def _compare(theirs: Record, ours: Record | None) -> None:
    """Raises Refused where the two are not the same outcome of one run."""
    if ours is None:
        raise Refused("it is begun here and has no outcome yet")
    keys = ("outcome", "journal_sha256", "policy_sha256")
    if different := [key for key in keys if theirs.get(key) != ours.get(key)]:
        raise Refused(f"the run of this signature that is here has another {' and '.join(different)}; it stays")


def _check_identity(folder: Path, provenance: Record) -> None:
    """Raises Refused where the settings are not those of the signature."""
    version = provenance.get("results_version")
    if version != RESULTS_VERSION:
        raise Refused(f"its results_version is {version}, this program's is {RESULTS_VERSION}: it would not be found")
    try:
        settings = yaml.safe_load((folder / "settings.yaml").read_text())
        content = provenance.get("content", {})
        lacking = unrecorded(settings, content)
        found = signature(identified(_set_keys({**settings, "machine": None}), content))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        raise Refused(f"its settings.yaml cannot be read: {str(error).splitlines()[0]}") from error
    if lacking:
        raise Refused(f"the content of its {lacking} was not recorded: it would not be found")
    if found != folder.name:
        raise Refused(f"its settings.yaml is that of run {found}")


def _set_keys(settings: Record) -> Record:
    """`RunSettings.identity` of written settings, also of those from before a key that is now empty existed."""
    return {
        key: _set_keys(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if value is not None
    }


def _check_content(folder: Path, outcome: Record) -> None:
    """Raises Refused where journal or weights are not those that the outcome was written for."""
    if outcome["journal_sha256"] != _sha256(folder / "journal.jsonl"):
        raise Refused("its journal.jsonl is not the one that outcome.json was written for (journal_sha256)")
    if outcome["policy_sha256"] != weights_sha256(folder / "policy.safetensors"):
        raise Refused("its policy.safetensors is not the one that outcome.json was written for (policy_sha256)")


def _check_warm_start(folder: Path, made: Record) -> None:
    """Raises Refused as above; a warm start without a step keeps no weights."""
    if made["steps"] and made["sha256"] != weights_sha256(folder / "policy.safetensors"):
        raise Refused(f"the weights of its warm start {made['signature']} are not those of its outcome.json (sha256)")


def _sha256(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def weights_sha256(file: Path) -> str | None:
    """`Policy.fingerprint` of the weights in a safetensors file, without torch; None where it is no such file.

    The format: the header's length in eight bytes, a JSON header with each tensor's place, the tensors' bytes.
    """
    digest = hashlib.sha256()
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            header.pop("__metadata__", None)
            for name, tensor in sorted(header.items()):
                begin, end = tensor["data_offsets"]
                digest.update(name.encode())
                digest.update(data[start + begin : start + end])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return digest.hexdigest()


def _copy(folder: Path, target: Path, lock: Path, check: Callable[[Path], None]) -> None:
    """Copy a folder, check the copy, and only then put it into its place, the outcome last. Raises Refused.

    Copying takes long. Who begins meanwhile has `lock`; who comes while we have it waits, and finds the outcome.
    """
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns(".lock", "running.json", "*.part"))
        check(part)
        for file in part.rglob("*"):
            if file.is_file():
                _flush(file)
        begun_here = Refused(f"{target.name} is begun here: try again later")
        if is_held(lock):
            raise begun_here
        with exclusive(lock):
            if is_begun(target):
                raise begun_here
            target.mkdir(exist_ok=True)
            for entry in sorted(part.iterdir(), key=lambda one: one.name == "outcome.json"):
                entry.rename(target / entry.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _flush(file: Path) -> None:
    """To the disk itself: after a power cut no whole name may stand on half a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _take_plans(theirs: Results, ours: Results) -> None:
    """Plans of studies that are not planned here; where one is, it stays, and a difference is said."""
    for file in sorted(theirs.studies.glob("*/plan.json")):
        study = file.parent.name
        plan, here = read_json(file), read_json(ours.plan(study))
        if plan is None:
            print(f"study {study}: its plan there cannot be read")
        elif here is None:
            write_json_atomic(ours.plan(study), plan)
        elif {**plan, "created": None, "commit": None} != {**here, "created": None, "commit": None}:
            print(
                f"study {study} is planned otherwise here: the plan here stays, `grpolab sweep {study}` writes it anew"
            )
