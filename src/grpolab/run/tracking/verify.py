"""`grpolab track verify`: does the tracking store say what the run folders say? Nothing is written to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results
from grpolab.records import read_result
from grpolab.run.folder import exclusive, is_begun
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.check import problem_of
from grpolab.run.tracking.colours import colours
from grpolab.run.tracking.mirror import journal_sha256, lock_of
from grpolab.run.tracking.places import misplaced
from grpolab.run.tracking.points import (
    Assessment,
    Record,
    Stored,
    compare,
    course_of,
    is_final,
    labels_of,
    last_of,
    plans_of,
    status,
)
from grpolab.run.tracking.store import JOURNAL, UNUSABLE, Store, StoredRun, ask, unusable
from grpolab.run_files import read_outcome
from grpolab.terminal import say

SHOWN = 5  # differences of a study that are printed


@dataclass
class Checked:
    """What was compared of one study."""

    study: str
    runs: int = 0
    running: int = 0  # of them; what is new in these may still be on its way
    points: int = 0
    every_point: bool = True  # False: the last one of each metric, which is what a server tells in time
    differences: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # runs whose folder is not here: pruned, or another machine's


def print_verification(results: Results, uri: str, studies: Sequence[str], as_json: bool) -> bool:
    """Say what was compared and what differs, or in one sentence why nothing could be; True where all is equal.

    Raises RequestError where a server or a database cannot be used.
    """
    file = sqlite_file(uri)
    if not file and (problem := problem_of(uri)):
        raise RequestError(f"the tracking store {uri} cannot be used: {problem}")
    try:
        if file and not file.exists():
            raise FileNotFoundError(f"there is none at {file}: `grpolab track sync` makes it")
        with exclusive(lock_of(results, uri)):  # no mirror is in the middle of its work
            checks = verify(results, Store(uri, results.artifacts), studies)
            for checked in checks:
                if location := misplaced(uri, results.artifacts.resolve()).get(checked.study):
                    checked.differences.append(f"artefacts lie in {location}, which is not in this results folder")
    except UNUSABLE as error:
        say(unusable(error), error=True)
        return False
    say(json.dumps([asdict(checked) for checked in checks], indent=1) if as_json else "\n".join(_lines(checks)))
    return not any(checked.differences for checked in checks)


def verify(results: Results, store: Store, studies: Sequence[str]) -> list[Checked]:
    """Each study, and each that it includes, as it is in the store."""
    return [_study(results, store, plan) for plan in plans_of(results, studies) if plan["cells"]]


def _study(results: Results, store: Store, plan: Record) -> Checked:
    experiment = ask(store.client.get_experiment_by_name, plan["study"])
    in_use = experiment is not None and experiment.lifecycle_stage == "active"  # else in MLflow's bin
    runs = store.stored_runs(experiment.experiment_id) if in_use else []
    runs_of: dict[tuple[str | None, str | None], list[StoredRun]] = {}  # a chart grouped by variant counts these
    for run in runs:
        runs_of.setdefault((run.tags.get("variant"), run.tags.get("seed")), []).append(run)
    checked = Checked(plan["study"], every_point=not store.is_server)
    begun = [cell for cell in plan["cells"] if is_begun(results.run(cell["signature"]))]
    found = [runs_of.get((cell["variant"], str(cell["seed"])), []) for cell in begun]
    contents = store.contents([run for runs_of_cell in found for run in runs_of_cell])
    drawn_in, said = colours(plan), Assessment.read(results, plan["study"])
    for cell, runs_of_cell in zip(begun, found, strict=True):
        labels = labels_of(plan, cell, drawn_in[cell["variant"]])
        stored = [(run, *next(contents)) for run in runs_of_cell]
        try:
            _cell(results, cell, labels, said, stored, checked)
        except Damaged as damage:
            checked.differences.append(f"{pages.run_name(cell)} ({cell['signature']}) is damaged: {damage}")
    planned = {cell["signature"] for cell in plan["cells"]}
    for run in runs:
        signature = run.tags.get("signature")
        if not signature:
            continue
        try:
            folder = results.run(signature)
            outcome = read_outcome(folder)
        except Damaged as damage:
            checked.differences.append(f"{run.name} ({signature}): {damage}")
            continue
        if not is_begun(folder):
            checked.unknown.append(f"{run.name} ({signature}, {run.id})")
        elif signature not in planned and run.status == "RUNNING":
            checked.differences += _wrong_status(run, status(folder, outcome))
    return checked


def _cell(
    results: Results,
    cell: Record,
    labels: dict[str, str],
    said: Assessment,
    runs: list[tuple[StoredRun, Stored, str | None]],
    checked: Checked,
) -> None:
    """Compare the runs that stand for a cell, which must be one, with its folder."""
    folder = results.run(cell["signature"])
    outcome = read_result(folder)
    state = status(folder, outcome)
    alive = state == "RUNNING"
    checked.runs += 1
    checked.running += alive
    differences = [] if runs or alive else ["the store does not have it"]
    if len(runs) > 1:
        differences.append(f"the store has {len(runs)} runs of it: {', '.join(run.id for run, *_ in runs)}")
    labels |= said.tags(cell, outcome) | ({"outcome": outcome["outcome"]} if outcome else {})
    course = course_of(folder, outcome)
    points = course.points | said.points(cell, outcome, course.end)
    expected = points if checked.every_point else last_of(points)
    for run, stored, journal in runs:
        checked.points += sum(map(len, stored.values()))
        difference = compare(expected, stored, is_final(outcome))
        differences += difference.wrong
        if not alive:
            differences += difference.missing
            differences += [
                f"the tag {name} is {run.tags.get(name)}, the run folder says {value}"
                for name, value in labels.items()
                if run.tags.get(name) != value
            ]
            differences += _wrong_status(run, state)
        if outcome and journal != journal_sha256(folder):
            differences.append(f"the artefact {JOURNAL} is {'another one' if journal else 'missing'}")
    checked.differences += [f"{pages.run_name(cell)} ({cell['signature']}): {text}" for text in differences]


def _wrong_status(run: StoredRun, state: str) -> list[str]:
    return [] if run.status == state else [f"the status of {run.name} is {run.status}, the run folder says {state}"]


def _lines(checks: list[Checked]) -> Iterator[str]:
    for checked in checks:
        running = f", {checked.running} of them running" if checked.running else ""
        count = len(checked.differences)
        compared = "points" if checked.every_point else "last points, and the journals"
        verdict = "equal to the run folders" if not count else f"{count} difference{'s' * (count > 1)}"
        yield f"{checked.study}: {checked.runs} runs{running}, {checked.points:,} {compared}: {verdict}"
        yield from (f"  {text}" for text in checked.differences[:SHOWN])
        if count > SHOWN:
            yield f"  and {count - SHOWN} more (--json has them all)"
        if checked.unknown:
            yield f"  no folder here, pruned or another machine's: {', '.join(checked.unknown)}"
    if any(checked.differences for checked in checks):
        yield "`grpolab track sync --repair` makes the store equal to the run folders"
