"""Keep the results folder in order: delete runs that no study asks for, import runs that another machine finished."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from grpolab import FOLDER_FORMAT, RESULTS_VERSION
from grpolab.content import file_sha256
from grpolab.errors import Damaged, RequestError
from grpolab.identity import absent, identified, in_words, keys_with_content, signature, unrecorded
from grpolab.paths import Results, is_refusal, read_json, write_json_atomic
from grpolab.records import read_plan, read_provenance, read_settings
from grpolab.run.folder import is_begun
from grpolab.run.lease import Lease, is_taken
from grpolab.run_files import JOURNAL, WEIGHTS, Record, read_outcome, read_warm_start, weights_sha256
from grpolab.study_names import available
from grpolab.sweep.plan import plans
from grpolab.terminal import say
from grpolab.vocabulary import RESULTS

MOST_PARTS = 4  # of a file's path within the folder of a run
HASHES = ("journal_sha256", "policy_sha256")  # in an outcome
NOT_IMPORTED = (".lease-*", "running.json", "*.part", "journal.arrow")  # process state, and a cache read unchecked


class Unneeded(NamedTuple):
    """A run or warm start that no study asks for."""

    folder: Path
    about: str
    kept: str = ""  # why it stays all the same

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        return f"{self.folder.parent.name}/{self.folder.name}: {self.about}, {size / 1e6:.1f} MB"


def prune(results: Results, consent: Callable[[str], bool]) -> Record:
    """List the runs and warm starts that no study asks for, and delete them if the user agrees; return both.

    A study is a plan in results/studies/ or a file in experiments/. Raises RequestError if one cannot be read.
    """
    items, deleted = list(find_unneeded(results)), 0
    to_delete = [item for item in items if not item.kept]
    for item in items:
        say(f"{item}; kept: {item.kept} (delete the folder by hand if nobody needs it)" if item.kept else item)
    if not to_delete:
        say(f"nothing to delete in {results.root}")
    elif consent(f"delete {len(to_delete)} folders that no study asks for from {results.root}?"):
        for folder, _, _ in to_delete:
            if Lease(folder).attempt():  # else a process has begun to work on it
                (folder / "outcome.json").unlink(missing_ok=True)  # first: half a folder must not look finished
                shutil.rmtree(folder)
                deleted += 1
        say(f"{deleted} folders deleted; the tracking store keeps what it has of them")
    return {"folders": [item._asdict() for item in items], "deleted": deleted}


def find_unneeded(results: Results) -> Iterator[Unneeded]:
    """Yield the runs, then the warm starts, that no study asks for and no process works on."""
    cells = [cell for name in available() for plan in plans(name) for cell in plan.cells]
    unread = {key for cell in cells for key in absent(cell.settings.content())}  # files and packages that are not here
    runs, warm_starts = {cell.signature for cell in cells}, {cell.warm_start for cell in cells}
    for name in results.planned():
        try:
            plan = read_plan(results.plan(name)) or {"cells": []}  # deleted meanwhile
        except Damaged as damage:
            raise RequestError(f"{damage}: without it nobody knows what it asks for") from damage
        runs |= {cell["signature"] for cell in plan["cells"]}
    keeps_warm_starts = bool(unread)
    for folder in _folders(results.runs):
        is_needed = folder.name in runs or is_taken(folder)
        try:
            provenance = read_provenance(folder)
            is_needed |= "framework" in provenance  # another trainer's run: no command here makes it again
            settings, outcome = ({}, None) if is_needed else (read_settings(folder), read_outcome(folder))
        except Damaged as damage:
            keeps_warm_starts = True
            if not is_needed:
                yield Unneeded(folder, f"damaged ({damage})", "nobody knows whose run it is")
            continue
        content, kept = provenance.get("content") or {}, ""
        if lacking := outcome and unrecorded(settings, content):
            kept = f"the content of its {lacking} was not recorded"
        elif shared := sorted(unread.intersection(keys_with_content(settings))):
            kept = f"a study names another {shared[0]} that is not on this machine, and may ask for this run"
        if is_needed or kept:
            warm_starts.add((provenance.get("warm_start") or {}).get("signature", ""))
        if not is_needed:
            words = [(outcome or {}).get("outcome", "unfinished")]
            words += [settings["task"]["name"], f"seed {settings['seed']}"] if "task" in settings else []
            yield Unneeded(folder, ", ".join(filter(None, [*words, in_words(content)])), kept)
    for folder in _folders(results.warm_starts):
        if not keeps_warm_starts and folder.name not in warm_starts and not is_taken(folder):
            yield Unneeded(folder, "of no run that stays")


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("[!.]*") if path.is_dir())


# `grpolab runs import`. Copying run folders by hand does the same without the checks.


def import_runs(source: Path, ours: Results) -> Record:
    """Copy finished runs from another results folder; what is here stays. Return counts, and a sentence per refusal.

    Raises RequestError if `source` is no results folder of this format.
    """
    written_as = (read_json(source / "format.json") or {}).get("format")
    if written_as is None:
        raise RequestError(f"FOLDER={source} is no results folder: it has no format.json")
    if written_as != FOLDER_FORMAT:
        raise RequestError(f"FOLDER={source} has format {written_as}, this program reads format {FOLDER_FORMAT}")
    if source.resolve() == ours.root.resolve():
        raise RequestError(f"FOLDER={source} is the results folder itself: name another one")
    theirs, counts, refused = Results(source), Counter[str](), list[str]()
    names = [("run", folder.name) for folder in _folders(theirs.runs)]
    names += [("study", file.parent.name) for file in theirs.studies.glob("*/plan.json")]
    for kind, name in names:
        try:
            counts[(_import_run if kind == "run" else _import_plan)(name, theirs, ours)] += 1
        except (RequestError, KeyError, OSError) as error:
            if is_refusal(error, ours.root):
                raise
            counts["refused"] += 1
            problem = f"its files lack the key {error}" if isinstance(error, KeyError) else error
            refused.append(f"{kind} {name}: {problem}")
            say(f"refused: {refused[-1]}")
    say(f"{source}: {', '.join(f'{count} {word}' for word, count in sorted(counts.items()) if word) or 'no run'}")
    return {"counts": {word: count for word, count in counts.items() if word}, "refused": refused}


def _import_plan(study: str, theirs: Results, ours: Results) -> str:
    _refuse_links(theirs.plan(study), theirs)
    plan, here = read_plan(theirs.plan(study)) or {}, read_plan(ours.plan(study))
    if plan.get("study") != study:
        raise RequestError(f"its plan there is that of {plan.get('study')}")
    _refuse_outside(ours, ours.plan(study))
    if here is None:
        write_json_atomic(ours.plan(study), plan)
    elif {**plan, "created": None, "commit": None} != {**here, "created": None, "commit": None}:
        say(f"study {study} is planned otherwise here: the plan here stays; `grpolab sweep {study}` writes it anew")
    return ""


def _import_run(name: str, theirs: Results, ours: Results) -> str:
    """Import a run with its warm start, and return what was done. Raises RequestError."""
    folder, target = theirs.run(name), ours.run(name)
    files = _list_files(folder, theirs)
    outcome = read_outcome(folder) or {}
    if outcome.get("outcome") not in RESULTS or is_taken(folder):
        return "left there without a result"
    _refuse_outside(ours, target)
    if is_begun(target) or is_taken(target):
        here = read_outcome(target)
        if here is None:
            raise RequestError("it is begun here and has no outcome yet")
        different = [key for key in ("outcome", *HASHES) if outcome.get(key) != here.get(key)]
        if different:
            raise RequestError(
                f"the run of this signature that is here has another {' and '.join(different)}; it stays"
            )
        return "here already"
    provenance = read_provenance(folder)
    _check_identity(folder, provenance)
    _import_warm_start(provenance.get("warm_start") or {}, theirs, ours)
    _copy(folder, files, target, lambda part: _find_changes(part, outcome))
    return "imported"


def _import_warm_start(made: Record, theirs: Results, ours: Results) -> None:
    """Import the warm start of a run. Raises RequestError if another one is here: pairs begin from the same one."""
    name = made.get("signature", "")
    folder, target = theirs.warm_start(name), ours.warm_start(name)
    files = _list_files(folder, theirs)
    _refuse_outside(ours, target)
    here, there = read_warm_start(target), read_warm_start(folder)
    if there is None or there["sha256"] != made["sha256"]:
        raise RequestError(f"its warm start {name} is not the one in {folder}")
    if here is None:
        _copy(folder, files, target, lambda part: ["sha256"] if read_warm_start(part) != there else [])
    elif here["sha256"] != there["sha256"]:
        raise RequestError(f"its warm start {name} differs from the one here: they could not be compared in pairs")


def _check_identity(folder: Path, provenance: Record) -> None:
    """Raise RequestError if the settings do not have the signature that names the folder."""
    version = provenance.get("results_version")
    if version != RESULTS_VERSION:
        raise RequestError(f"its results_version is {version}, this program's is {RESULTS_VERSION}")
    try:
        settings, content = read_settings(folder), provenance.get("content") or {}
        lacking = unrecorded(settings, content)
        name = signature(identified(_drop_empty({**settings, "machine": None}), content))
    except (Damaged, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RequestError(f"its settings.yaml cannot be read: {str(error).splitlines()[0]}") from error
    if lacking:
        raise RequestError(f"the content of its {lacking} was not recorded")
    if name != folder.name:
        raise RequestError(f"its settings.yaml is that of run {name}")


def _drop_empty(settings: Record) -> Record:
    """Leave out null values, as `Resolved.identity` does."""
    return {
        key: _drop_empty(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if value is not None
    }


def _find_changes(folder: Path, outcome: Record) -> list[str]:
    """Return the keys of the outcome whose hash is not that of the journal, or of the weights, in the folder."""
    journal = file_sha256(folder / JOURNAL) if (folder / JOURNAL).exists() else None
    hashes = zip(HASHES, (journal, weights_sha256(folder / WEIGHTS)), strict=True)
    return [key for key, sha256 in hashes if outcome[key] != sha256]


def _refuse_outside(results: Results, path: Path) -> None:
    """Raise Damaged if a link leads `path` out of the results folder; its top folders may be links themselves."""
    top, to = results.root / path.relative_to(results.root).parts[0], Path(os.path.realpath(path))
    if not to.is_relative_to(os.path.realpath(top)):
        raise Damaged(f"{path} leads out of {top}, to {to}: nothing is written there")


def _list_files(folder: Path, theirs: Results) -> list[Path]:
    """Return the files to import, relative to the folder. Raises RequestError if anything is a link, pipe or device."""
    _refuse_links(folder, theirs)
    files = list[Path]()
    for path in folder.rglob("*"):  # from the top down, and into no link
        place, kind = path.relative_to(folder), path.lstat().st_mode
        if len(place.parts) > MOST_PARTS:
            raise RequestError(f"{place} is deeper than any file of a run")
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise RequestError(f"{place} is a link, a pipe or a device: only files are imported")
        if stat.S_ISREG(kind) and not any(path.match(pattern) for pattern in NOT_IMPORTED):
            files.append(place)
    return files


def _refuse_links(path: Path, theirs: Results) -> None:
    if os.path.realpath(path) != os.path.join(os.path.realpath(theirs.root), path.relative_to(theirs.root)):
        raise RequestError(f"{path} is a link, or behind one: what lies elsewhere is not imported")


def _copy_file(source: Path, target: Path) -> None:
    """Copy content and times, follow no link, and sync, so that a power cut leaves no half file under a final name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened, target.open("xb") as copy:
        shutil.copyfileobj(opened, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
        times = os.fstat(opened.fileno())
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def _copy(folder: Path, files: list[Path], target: Path, find_changes: Callable[[Path], list[str]]) -> None:
    """Copy the files beside their place, check the copy, then move it there, the outcome last. Raises RequestError."""
    part, lease = target.with_name(f".{target.name}.part"), Lease(target)
    shutil.rmtree(part, ignore_errors=True)
    try:
        for file in files:
            _copy_file(folder / file, part / file)
        if changes := find_changes(part):
            raise RequestError(f"the files of {folder} do not have the {' and '.join(changes)} of its outcome.json")
        if not lease.attempt() or is_begun(target):
            raise RequestError(f"{target.name} is begun here: try again later")
        for entry in sorted(part.iterdir(), key=lambda path: path.name == "outcome.json"):
            entry.rename(target / entry.name)
    finally:
        lease.release()
        shutil.rmtree(part, ignore_errors=True)
