"""`grpolab track verify`: does the tracking store say what the run folders say? Nothing is written to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from mlflow.entities import Run

from grpolab.paths import Results, read_json
from grpolab.run.folder import exclusive
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.folder import History, Record, is_begun, is_final, plans_of, status
from grpolab.run.tracking.mirror import UNUSABLE, labels_of, lock_of, unusable
from grpolab.run.tracking.store import MAX_RUNS, Store, Stored, batches, compare

SHOWN = 5  # differences of a study that are printed


@dataclass
class Checked:
    """What was compared of one study."""

    study: str
    runs: int = 0
    running: int = 0  # of them; what is new in these may still be on its way
    points: int = 0
    differences: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # runs whose folder is not here: pruned, or another machine's


def print_verification(results: Results, uri: str, studies: Sequence[str], as_json: bool) -> bool:
    """Say what was compared and what differs, or in one sentence why nothing could be; True where all is equal."""
    file = sqlite_file(uri)
    try:
        if file and not file.exists():
            raise FileNotFoundError(f"there is none at {file}: `grpolab track sync` makes it")
        with exclusive(lock_of(results, uri)):  # no mirror is in the middle of its work
            found = verify(results, Store(uri, results.artifacts), studies)
    except UNUSABLE as error:
        print(unusable(error), file=sys.stderr)
        return False
    print(json.dumps([asdict(one) for one in found], indent=1) if as_json else "\n".join(_lines(found)))
    return not any(one.differences for one in found)


def verify(results: Results, store: Store, studies: Sequence[str]) -> list[Checked]:
    """Each study, and each that it includes, as it is in the store."""
    return [_study(results, store, plan) for plan in plans_of(results, studies) if plan["cells"]]


def _study(results: Results, store: Store, plan: Record) -> Checked:
    experiment_id = store.find_experiment(plan["study"])
    runs = list(store.runs(experiment_id)) if experiment_id else []
    checked = Checked(plan["study"])
    begun = [cell for cell in plan["cells"] if is_begun(results.run(cell["signature"]))]
    for cells in batches(begun, MAX_RUNS):  # the points of so many runs fit into memory
        mine = {pages.run_name(cell): [run for run in runs if _is_of(run, cell)] for cell in cells}
        histories = store.histories([run for found in mine.values() for run in found])
        for cell in cells:
            _cell(
                results, plan, cell, [(run, histories[run.info.run_id]) for run in mine[pages.run_name(cell)]], checked
            )
    names = {cell["signature"] for cell in plan["cells"]}
    for run in runs:
        signature = run.data.tags.get("signature")
        folder = results.run(signature or "")
        if signature and not is_begun(folder):
            checked.unknown.append(f"{run.info.run_name} ({signature}, {run.info.run_id})")
        elif signature and signature not in names and run.info.status == "RUNNING":
            checked.differences += _wrong_status(run, status(folder, read_json(folder / "outcome.json"), time.time()))
    return checked


def _is_of(run: Run, cell: Record) -> bool:
    """Whether a chart that is grouped by variant counts the run as this cell."""
    tags = run.data.tags
    return (tags.get("variant"), tags.get("seed")) == (cell["variant"], str(cell["seed"]))


def _cell(results: Results, plan: Record, cell: Record, found: list[tuple[Run, Stored]], checked: Checked) -> None:
    """Compare the runs that stand for a cell, which must be one, with its folder."""
    folder = results.run(cell["signature"])
    outcome = read_json(folder / "outcome.json")
    true = status(folder, outcome, time.time())
    alive = true == "RUNNING"
    checked.runs += 1
    checked.running += alive
    differences = [] if found or alive else ["the store does not have it"]
    if len(found) > 1:
        differences.append(f"the store has {len(found)} runs of it: {', '.join(run.info.run_id for run, _ in found)}")
    for run, stored in found:
        checked.points += sum(map(len, stored.values()))
        difference = compare(History(folder).read(outcome), stored, is_final(outcome))
        differences += difference.wrong
        if not alive:
            differences += [*difference.missing, *_wrong_tags(run, labels_of(plan, cell), outcome)]
            differences += _wrong_status(run, true)
    checked.differences += [f"{pages.run_name(cell)} ({cell['signature']}): {text}" for text in differences]


def _wrong_tags(run: Run, labels: dict[str, str], outcome: Record | None) -> Iterator[str]:
    for name, value in ({**labels, "outcome": outcome["outcome"]} if outcome else labels).items():
        if run.data.tags.get(name) != value:
            yield f"the tag {name} is {run.data.tags.get(name)}, the run folder says {value}"


def _wrong_status(run: Run, true: str) -> Iterator[str]:
    if run.info.status != true:
        yield f"the status of {run.info.run_name} is {run.info.status}, the run folder says {true}"


def _lines(found: list[Checked]) -> Iterator[str]:
    for one in found:
        running = f", {one.running} of them running" if one.running else ""
        count = len(one.differences)
        verdict = "equal to the run folders" if not count else f"{count} difference{'s' * (count > 1)}"
        yield f"{one.study}: {one.runs} runs{running}, {one.points:,} points: {verdict}"
        yield from (f"  {text}" for text in one.differences[:SHOWN])
        if count > SHOWN:
            yield f"  and {count - SHOWN} more (--json has them all)"
        if one.unknown:
            yield f"  no folder here, pruned or another machine's: {', '.join(one.unknown)}"
    if any(one.differences for one in found):
        yield "`grpolab track sync --repair` makes the store equal to the run folders"
