"""`grpolab track verify`: does the tracking store say what the run folders say? Nothing is written to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from mlflow.entities import Run

from grpolab.paths import Results, read_json
from grpolab.run.folder import exclusive, is_begun
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.mirror import lock_of
from grpolab.run.tracking.points import Record, compare, course_of, is_final, labels_of, plans_of, status
from grpolab.run.tracking.store import UNUSABLE, Store, ask, unusable

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
            checks = verify(results, Store(uri, results.artifacts), studies)
    except UNUSABLE as error:
        print(unusable(error), file=sys.stderr)
        return False
    print(json.dumps([asdict(checked) for checked in checks], indent=1) if as_json else "\n".join(_lines(checks)))
    return not any(checked.differences for checked in checks)


def verify(results: Results, store: Store, studies: Sequence[str]) -> list[Checked]:
    """Each study, and each that it includes, as it is in the store."""
    return [_study(results, store, plan) for plan in plans_of(results, studies) if plan["cells"]]


def _study(results: Results, store: Store, plan: Record) -> Checked:
    experiment = ask(store.client.get_experiment_by_name, plan["study"])
    in_use = experiment is not None and experiment.lifecycle_stage == "active"  # else in MLflow's bin
    runs = store.runs(experiment.experiment_id) if in_use else []
    runs_of: dict[tuple[str | None, str | None], list[Run]] = {}  # a chart that is grouped by variant counts these
    for run in runs:
        runs_of.setdefault((run.data.tags.get("variant"), run.data.tags.get("seed")), []).append(run)
    checked = Checked(plan["study"])
    for cell in plan["cells"]:
        if is_begun(results.run(cell["signature"])):
            _cell(results, store, plan, cell, runs_of.get((cell["variant"], str(cell["seed"])), []), checked)
    planned = {cell["signature"] for cell in plan["cells"]}
    for run in runs:
        signature = run.data.tags.get("signature")
        folder = results.run(signature or "")
        if signature and not is_begun(folder):
            checked.unknown.append(f"{run.info.run_name} ({signature}, {run.info.run_id})")
        elif signature and signature not in planned and run.info.status == "RUNNING":
            checked.differences += _wrong_status(run, status(folder, read_json(folder / "outcome.json"), time.time()))
    return checked


def _cell(results: Results, store: Store, plan: Record, cell: Record, runs: list[Run], checked: Checked) -> None:
    """Compare the runs that stand for a cell, which must be one, with its folder."""
    folder = results.run(cell["signature"])
    outcome = read_json(folder / "outcome.json")
    state = status(folder, outcome, time.time())
    alive = state == "RUNNING"
    checked.runs += 1
    checked.running += alive
    differences = [] if runs or alive else ["the store does not have it"]
    if len(runs) > 1:
        differences.append(f"the store has {len(runs)} runs of it: {', '.join(run.info.run_id for run in runs)}")
    labels = labels_of(plan, cell) | ({"outcome": outcome["outcome"]} if outcome else {})
    course = course_of(folder, outcome)
    for run in runs:
        stored, tags = store.history(run), run.data.tags
        checked.points += sum(map(len, stored.values()))
        difference = compare(course.points, stored, is_final(outcome))
        differences += difference.wrong
        if not alive:
            differences += difference.missing
            differences += [
                f"the tag {name} is {tags.get(name)}, the run folder says {value}"
                for name, value in labels.items()
                if tags.get(name) != value
            ]
            differences += _wrong_status(run, state)
    checked.differences += [f"{pages.run_name(cell)} ({cell['signature']}): {text}" for text in differences]


def _wrong_status(run: Run, state: str) -> list[str]:
    if run.info.status == state:
        return []
    return [f"the status of {run.info.run_name} is {run.info.status}, the run folder says {state}"]


def _lines(checks: list[Checked]) -> Iterator[str]:
    for checked in checks:
        running = f", {checked.running} of them running" if checked.running else ""
        count = len(checked.differences)
        verdict = "equal to the run folders" if not count else f"{count} difference{'s' * (count > 1)}"
        yield f"{checked.study}: {checked.runs} runs{running}, {checked.points:,} points: {verdict}"
        yield from (f"  {text}" for text in checked.differences[:SHOWN])
        if count > SHOWN:
            yield f"  and {count - SHOWN} more (--json has them all)"
        if checked.unknown:
            yield f"  no folder here, pruned or another machine's: {', '.join(checked.unknown)}"
    if any(checked.differences for checked in checks):
        yield "`grpolab track sync --repair` makes the store equal to the run folders"
