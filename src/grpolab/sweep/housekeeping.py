"""What lies in the results folder: delete what nobody asks for, take over what another machine has finished."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path

from grpolab import FOLDER_FORMAT, RESULTS_VERSION
from grpolab.content import file_sha256
from grpolab.errors import Damaged, RequestError
from grpolab.identity import absent, identified, in_words, keys_with_content, signature, unrecorded
from grpolab.paths import Results, available, is_refusal, read_json, write_json_atomic
from grpolab.records import read_plan, read_provenance, read_settings
from grpolab.run.folder import is_begun
from grpolab.run.lease import Lease, is_taken
from grpolab.run_files import JOURNAL, WEIGHTS, read_outcome, read_warm_start, weights_sha256
from grpolab.sweep.ledger import Record
from grpolab.sweep.plan import plans
from grpolab.terminal import say
from grpolab.vocabulary import RESULTS

MB = 1e6
NOT_TAKEN = (".lease-*", "running.json", "*.part", "journal.arrow")  # of another's folder
DEEPEST = 3  # folders in a run's folder
TAKEN, PRESENT, UNFINISHED, REFUSED = "taken over", "here already", "left there without a result", "refused"


@dataclass(frozen=True)
class Unasked:
    """A folder that no study asks for."""

    kind: str  # `run` or `warm start`
    folder: Path
    about: str
    unrecorded: str = ""  # what of a run was not recorded and cannot be known any more

    @cached_property
    def bytes(self) -> int:
        """Its size."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    def __str__(self) -> str:
        return f"{self.kind} {self.folder.name}: {self.about}, {self.bytes / MB:.1f} MB"


def prune(results: Results, consent: Callable[[str], bool], named: Collection[str] = ()) -> None:
    """`grpolab prune-runs`: list what no study asks for, and delete it where `consent` to the question is given.

    Asked for is what a plan of results/studies/ names (of `grpolab train` the last command of each --name) and what a
    file of experiments/ makes on this machine. A run of data or code whose content was not recorded, as in old
    versions, is no study's any more and yet may be the only one of its kind: it goes only where it is `named`.
    Raises RequestError where one of these cannot be read, or a named run is none of them.
    """
    every = list(unasked(results, named))
    if wrong := sorted(set(named) - {item.folder.name for item in every if item.kind == "run"}):
        raise RequestError(f"RUN={', '.join(wrong)} is no run in {results.runs} that nobody asks for")
    kept = [item for item in every if item.unrecorded and item.folder.name not in named]
    to_delete = [item for item in every if item not in kept]
    for item in kept:
        say(
            f"kept: {item}: the content of its {item.unrecorded} was not recorded, so that no command uses it again;"
            " `prune-runs` deletes it where it is named"
        )
    for item in to_delete:
        say(item)
    if not to_delete:
        say(f"nothing to delete in {results.root}: every {'other ' * bool(kept)}run is asked for")
        return
    say(f"{len(to_delete)} folders that no study asks for, {sum(item.bytes for item in to_delete) / MB:.1f} MB")
    if not consent(f"delete them from {results.root}?"):
        return
    deleted = 0
    for item in to_delete:
        if not Lease(item.folder).attempt():  # somebody has begun to work on it meanwhile
            continue
        (item.folder / "outcome.json").unlink(missing_ok=True)  # first: half a folder must not look like a finished run
        shutil.rmtree(item.folder)
        deleted += 1
    say(f"{deleted} folders deleted; the tracking store keeps what it has of them")


def unasked(results: Results, named: Collection[str] = ()) -> Iterator[Unasked]:
    """Runs and warm starts that nobody asks for, without those that a process works on. Raises as `prune`.

    A run that stays because it is not `named` keeps its warm start. Where data, a package or a model that a study names
    is not here, the signatures that it asks for are not known: warm starts stay, and an unasked run with a key of that
    kind raises.
    """
    cells = [(name, cell) for name in available() for plan in plans(name) for cell in plan.cells]
    unknown = defaultdict[str, set[str]](set)  # key -> studies
    for name, cell in cells:
        for key in absent(cell.settings.content()):
            unknown[key].add(name)
    runs, warm_starts = {cell.signature for _, cell in cells}, {cell.warm_start for _, cell in cells}
    for name in results.planned():
        try:
            plan = read_plan(results.plan(name)) or {"cells": []}  # deleted meanwhile
        except Damaged as damage:
            raise RequestError(f"{damage}: without it nobody knows what it asks for") from damage
        runs |= {cell["signature"] for cell in plan["cells"]}
    any_warm_start = False  # may be that of a run whose provenance cannot be read
    for folder in _folders(results.runs):
        try:
            provenance, is_asked = read_provenance(folder), folder.name in runs or is_taken(folder)
            settings, outcome = ({}, None) if is_asked else (read_settings(folder), read_outcome(folder))
        except Damaged as damage:
            any_warm_start = True
            if folder.name not in runs and not is_taken(folder):
                yield Unasked("run", folder, f"damaged ({damage})", "" if folder.name in named else "files")
            continue
        warm_start = (provenance.get("warm_start") or {}).get("signature", "")
        content = provenance.get("content") or {}
        if "framework" in provenance and folder.name not in named:  # TRL trained it: no command here makes it again
            continue
        if is_asked:
            warm_starts.add(warm_start)
            continue
        if doubt := [key for key in keys_with_content(settings) if key in unknown]:
            raise RequestError(
                f"experiments/{name}.yaml: what its {key} names cannot be read: without it nobody knows whether it asks"
                f" for run {folder.name}"
                for key in doubt
                for name in sorted(unknown[key])
            )
        lacking = unrecorded(settings, content) if outcome else ""
        if lacking and folder.name not in named:
            warm_starts.add(warm_start)
        words = [(outcome or {}).get("outcome", "unfinished")]
        words += [settings["task"]["name"], f"seed {settings['seed']}"] if "task" in settings else []
        yield Unasked("run", folder, ", ".join(filter(None, [*words, in_words(content)])), lacking)
    for folder in _folders(results.warm_starts):
        if not (unknown or any_warm_start) and folder.name not in warm_starts and not is_taken(folder):
            yield Unasked("warm start", folder, "of no run that stays")


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("[!.]*") if path.is_dir())


# `grpolab runs import`: copying run folders by hand does the same without the checks, for the folders are the ledger.


class Refused(Exception):
    """A folder that is not taken over, and why."""


def take_over(source: Path, ours: Results) -> bool:
    """Copy what is finished in `source` and not here; what lies here stays as it is. True where nothing was refused.

    Raises RequestError where `source` is no results folder of this format.
    """
    written_as = (read_json(source / "format.json") or {}).get("format")
    if written_as is None:
        raise RequestError(f"FOLDER={source} is no results folder: it has no format.json")
    if written_as != FOLDER_FORMAT:
        raise RequestError(f"FOLDER={source} has format {written_as}, this program reads format {FOLDER_FORMAT}")
    if source.resolve() == ours.root.resolve():
        raise RequestError(f"FOLDER={source} is the results folder itself: name another one")
    theirs = Results(source)
    counts: Counter[str] = Counter()
    for folder in _folders(theirs.runs):
        try:
            counts[_take_run(folder.name, theirs, ours)] += 1
        except (Refused, Damaged, KeyError) as refusal:
            counts[REFUSED] += 1
            what = f"its files lack the key {refusal}" if isinstance(refusal, KeyError) else refusal
            say(f"refused: run {folder.name}: {what}")
        except OSError as error:
            if is_refusal(error, ours.root):
                raise
            counts[REFUSED] += 1
            say(f"refused: run {folder.name}: it cannot be read: {error}")
    for file in sorted(theirs.studies.glob("*/plan.json")):
        study = file.parent.name
        try:
            _refuse_links(file, theirs)
            plan, here = read_plan(file) or {}, read_plan(ours.plan(study))
            if plan.get("study") != study:
                raise Refused(f"its plan there is that of {plan.get('study')}")
            ours.refuse_outside(ours.plan(study))
        except (Refused, Damaged) as refusal:
            counts[REFUSED] += 1
            say(f"refused: study {study}: {refusal}")
            continue
        if here is None:
            write_json_atomic(ours.plan(study), plan)
        elif {**plan, "created": None, "commit": None} != {**here, "created": None, "commit": None}:
            stays, named = "the plan here stays", here.get("file", study)
            say(f"study {study} is planned otherwise here: {stays}, `grpolab sweep {named}` writes it anew")
    summary = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    say(f"{source}: {summary or 'no run'}")
    return not counts[REFUSED]


def _take_run(name: str, theirs: Results, ours: Results) -> str:
    """What was done about a run. Raises Refused."""
    folder, target = theirs.run(name), ours.run(name)
    _files(folder, theirs)
    outcome = read_outcome(folder) or {}
    if outcome.get("outcome") not in RESULTS or is_taken(folder):
        return UNFINISHED
    ours.refuse_outside(target)
    if is_begun(target) or is_taken(target):
        here = read_outcome(target)
        if here is None:
            raise Refused("it is begun here and has no outcome yet")
        keys = ("outcome", "journal_sha256", "policy_sha256")
        if different := [key for key in keys if outcome.get(key) != here.get(key)]:
            raise Refused(f"the run of this signature that is here has another {' and '.join(different)}; it stays")
        return PRESENT
    provenance = read_provenance(folder)
    _check_identity(folder, provenance)
    _take_warm_start(provenance.get("warm_start") or {}, theirs, ours)
    _copy(theirs, folder, target, lambda part: _check_content(part, outcome))
    return TAKEN


def _take_warm_start(made: Record, theirs: Results, ours: Results) -> None:
    """The warm start that a run began from comes with it: runs that are compared must have begun from the same."""
    name = made.get("signature", "")
    folder, target = theirs.warm_start(name), ours.warm_start(name)
    _files(folder, theirs)
    ours.refuse_outside(target)
    here, there = read_warm_start(target), read_warm_start(folder)
    if there is None or there["sha256"] != made["sha256"]:
        raise Refused(f"its warm start {name} is not the one in {folder}")

    def check(part: Path) -> None:
        if read_warm_start(part) != there:
            raise Refused(f"its warm start {name} has changed meanwhile")

    if here is None:
        _copy(theirs, folder, target, check)
    elif here["sha256"] != there["sha256"]:
        raise Refused(f"its warm start {name} differs from the one here: they could not be compared in pairs")


def _check_identity(folder: Path, provenance: Record) -> None:
    """Raises Refused where the settings are not those of the signature."""
    version = provenance.get("results_version")
    if version != RESULTS_VERSION:
        raise Refused(f"its results_version is {version}, this program's is {RESULTS_VERSION}: it would not be found")
    try:
        settings = read_settings(folder)
        content = provenance.get("content") or {}
        lacking = unrecorded(settings, content)
        name = signature(identified(_set_keys({**settings, "machine": None}), content))
    except (Damaged, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refused(f"its settings.yaml cannot be read: {str(error).splitlines()[0]}") from error
    if lacking:
        raise Refused(f"the content of its {lacking} was not recorded: it would not be found")
    if name != folder.name:
        raise Refused(f"its settings.yaml is that of run {name}")


def _set_keys(settings: Record) -> Record:
    """`RunSettings.identity` of written settings, also of those from before a key that is now empty existed."""
    present = {key: value for key, value in settings.items() if value is not None}
    return {key: _set_keys(value) if isinstance(value, dict) else value for key, value in present.items()}


def _check_content(folder: Path, outcome: Record) -> None:
    """Raises Refused where journal or weights are not those that the outcome was written for."""
    journal = folder / JOURNAL
    hashes = {
        JOURNAL: ("journal_sha256", file_sha256(journal) if journal.exists() else None),
        WEIGHTS: ("policy_sha256", weights_sha256(folder / WEIGHTS)),
    }
    for file, (key, sha256) in hashes.items():
        if outcome[key] != sha256:
            raise Refused(f"its {file} is not the one that outcome.json was written for ({key})")


def _files(folder: Path, theirs: Results) -> list[Path]:
    """The files of a folder that are taken over, as places in it. What a process was doing there is left out, and so is
    a journal's cache, for it is believed. Raises Refused where something is no file, or lies elsewhere.
    """
    _refuse_links(folder, theirs)
    found = list[Path]()
    for inner, folders, files in os.walk(folder):
        place = Path(inner).relative_to(folder)
        if len(place.parts) > DEEPEST:
            raise Refused(f"{place} is deeper than any folder of a run")
        for name in [*folders, *files]:
            kind = os.lstat(os.path.join(inner, name)).st_mode
            if any(map(partial(fnmatchcase, name), NOT_TAKEN)):
                continue
            if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
                raise Refused(f"{place / name} is a link, a pipe or a device: only files are taken over")
            if stat.S_ISREG(kind):
                found.append(place / name)
    return found


def _refuse_links(path: Path, theirs: Results) -> None:
    for above in (path, *path.parents):
        if above == theirs.root:
            return
        if above.is_symlink():
            raise Refused(f"{above} is a link: what lies elsewhere is not taken over")


def _copy_file(source: Path, target: Path) -> None:
    """Through no link, with its times and no rights, down to the disk: after a power cut no whole name may stand on
    half a file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened, target.open("xb") as copy:
        shutil.copyfileobj(opened, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
        times = os.fstat(opened.fileno())
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def _copy(theirs: Results, folder: Path, target: Path, check: Callable[[Path], None]) -> None:
    """Copy a folder, check the copy, and only then put it into its place, the outcome last. Raises Refused.

    Copying takes long. Who begins meanwhile has the folder; who comes while we have it waits, and finds the outcome.
    """
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        files = _files(folder, theirs)
        size, free = sum((folder / file).stat().st_size for file in files), shutil.disk_usage(target.parents[1]).free
        if size > free:
            raise Refused(f"{folder.name} has {size / MB:.0f} MB, and here {free / MB:.0f} MB are free")
        for file in files:
            _copy_file(folder / file, part / file)
        check(part)
        begun_here = Refused(f"{target.name} is begun here: try again later")
        lease = Lease(target)
        if not lease.attempt():
            raise begun_here
        try:
            if is_begun(target):
                raise begun_here
            for entry in sorted(part.iterdir(), key=lambda path: path.name == "outcome.json"):
                entry.rename(target / entry.name)
        finally:
            lease.release()
    finally:
        shutil.rmtree(part, ignore_errors=True)
