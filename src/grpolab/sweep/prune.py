"""`grpolab prune-runs`: what lies in the results folder and nobody asks for any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from grpolab.errors import RequestError
from grpolab.identity import absent, in_words, unrecorded
from grpolab.paths import Results, read_json
from grpolab.run.folder import is_held
from grpolab.sweep.jobs import is_run_taken
from grpolab.sweep.ledger import Record, planned_studies
from grpolab.sweep.plan import plans
from grpolab.sweep.study import available

MB = 1e6


@dataclass(frozen=True)
class Unasked:
    """A folder that no study asks for."""

    kind: str  # `run` or `warm start`
    folder: Path
    about: str
    bytes: int
    unrecorded: str = ""  # what of a run was not recorded and cannot be known any more


def prune(results: Results, consent: Callable[[str], bool], named: Collection[str] = ()) -> None:
    """List what no study asks for, and delete it where `consent` to the question is given.

    Asked for is what a plan of results/studies/ names (of `grpolab train` the last command of each --name) and what a
    file of experiments/ makes on this machine. A run of data or code whose content was not recorded, as in old
    versions, is no study's any more and yet may be the only one of its kind: it goes only where it is `named`.
    Raises RequestError where one of these cannot be read, or a named run is none of them.
    """
    every = list(unasked(results, named))
    if wrong := sorted(set(named) - {one.folder.name for one in every if one.kind == "run"}):
        raise RequestError(f"RUN={', '.join(wrong)} is no run in {results.runs} that nobody asks for")
    kept = [one for one in every if one.unrecorded and one.folder.name not in named]
    found = [one for one in every if one not in kept]
    for one in kept:
        print(
            f"kept: run {one.folder.name}: {one.about}, {one.bytes / MB:.1f} MB: the content of its {one.unrecorded}"
            " was not recorded, so that no command uses it again; `prune-runs` deletes it where it is named"
        )
    for one in found:
        print(f"{one.kind} {one.folder.name}: {one.about}, {one.bytes / MB:.1f} MB")
    if not found:
        print(f"nothing to delete in {results.root}: every {'other ' * bool(kept)}run is asked for")
        return
    print(f"{len(found)} folders that no study asks for, {sum(one.bytes for one in found) / MB:.1f} MB")
    if consent(f"delete them from {results.root}?"):
        deleted = sum(_delete(one) for one in found)
        print(f"{deleted} folders deleted; the tracking store keeps what it has of them")


def unasked(results: Results, named: Collection[str] = ()) -> Iterator[Unasked]:
    """Runs and warm starts that nobody asks for, without those that a process works on. Raises as `prune`.

    A run that stays because it is not `named` keeps its warm start.
    """
    runs, warm_starts = _asked(results)
    for folder in _folders(results.runs):
        provenance = read_json(folder / "provenance.json") or {}
        asked = folder.name in runs or is_run_taken(folder)
        finished = not asked and (folder / "outcome.json").exists()
        lacking = unrecorded(_settings(folder), provenance.get("content", {})) if finished else ""
        if asked or (lacking and folder.name not in named):
            warm_starts.add(provenance.get("warm_start", {}).get("signature", ""))
        if not asked:
            yield Unasked("run", folder, _about_run(folder, provenance), _size(folder), lacking)
    for folder in _folders(results.warm_starts):
        if folder.name not in warm_starts and not is_held(_lock_of(folder)):
            yield Unasked("warm start", folder, "of no run that stays", _size(folder))


def _asked(results: Results) -> tuple[set[str], set[str]]:
    """Signatures of the runs that studies ask for, and of the warm starts, as far as they are known without the run."""
    asked = {name: plans(name) for name in available()}
    unknown = {
        f"experiments/{name}.yaml: what its {key} names cannot be read: without it nobody knows what it asks for"
        for name, own in asked.items()
        for plan in own
        for cell in plan.cells
        for key in absent(cell.settings.content())
    }
    if unknown:
        raise RequestError(sorted(unknown))
    cells = [cell for own in asked.values() for plan in own for cell in plan.cells]
    runs = {cell.signature for cell in cells}
    for name in planned_studies(results):
        plan = read_json(results.plan(name))
        if plan is None:
            raise RequestError(f"{results.plan(name)} cannot be read: without it nobody knows what it asks for")
        runs |= {cell["signature"] for cell in plan["cells"]}
    return runs, {cell.warm_start for cell in cells}


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("[!.]*") if path.is_dir())


def _about_run(folder: Path, provenance: Record) -> str:
    outcome = (read_json(folder / "outcome.json") or {}).get("outcome", "unfinished")
    settings, content = _settings(folder), in_words(provenance.get("content", {}))
    words = [outcome, *([settings["task"]["name"], f"seed {settings['seed']}"] if settings else []), content]
    return ", ".join(word for word in words if word)


def _settings(folder: Path) -> Record:
    file = folder / "settings.yaml"
    return (yaml.safe_load(file.read_text()) if file.exists() else None) or {}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _lock_of(warm_start: Path) -> Path:
    return warm_start.with_name(f"{warm_start.name}.lock")


def _delete(one: Unasked) -> bool:
    """Delete a folder, unless somebody has begun to work on it meanwhile."""
    if is_run_taken(one.folder) if one.kind == "run" else is_held(_lock_of(one.folder)):
        return False
    (one.folder / "outcome.json").unlink(missing_ok=True)  # first: half of a folder must not look like a finished run
    shutil.rmtree(one.folder)
    if one.kind == "warm start":
        _lock_of(one.folder).unlink(missing_ok=True)
    return True
