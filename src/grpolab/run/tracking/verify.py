"""`grpolab track verify`: compare the tracking store with the run folders. Nothing is written to it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results
from grpolab.records import JOURNAL, read_result
from grpolab.run.folder import exclusive, is_begun
from grpolab.run.tracking import sqlite_file
from grpolab.run.tracking.logged import (
    STEP_MARK,
    Record,
    is_final,
    labels_of,
    read_assessment,
    read_course,
    read_plans,
    status_of,
)
from grpolab.run.tracking.mirror import lock_path, run_name
from grpolab.run.tracking.store import MOST_RUNS, UNUSABLE, Store, describe_failure, find_problem
from grpolab.terminal import say
from grpolab.vocabulary import METRICS

SHOWN = 5  # differences of a study that are printed
TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}  # a resumed run has new ones


@dataclass
class Comparison:
    """A study in the store and in the run folders."""

    study: str
    runs: int = 0
    running: int = 0  # of them; these are not compared
    values: int = 0  # last values of metrics that were compared
    differences: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # runs without a folder: pruned, or another machine's


def print_verification(results: Results, uri: str, studies: Sequence[str], as_json: bool) -> bool:
    """Print what differs; return True if the store is equal. Raises RequestError if a server cannot be used."""
    file = sqlite_file(uri)
    if not file and (problem := find_problem(uri)):
        raise RequestError(f"the tracking store {uri} cannot be used: {problem}")
    if file and not file.exists():
        say(f"there is no tracking store at {file}: `grpolab track sync` makes it", error=True)
        return False
    try:
        with exclusive(lock_path(results, uri)):
            comparisons = verify(results, Store(uri, results), studies)
    except UNUSABLE as error:
        say(describe_failure(error), error=True)
        return False
    texts = [_describe(comparison) for comparison in comparisons]
    is_equal = not any(comparison.differences for comparison in comparisons)
    if not is_equal:
        texts.append("`grpolab track sync` adds what is missing, with --rebuild it makes the store anew")
    say(json.dumps([asdict(comparison) for comparison in comparisons], indent=1) if as_json else "\n".join(texts))
    return is_equal


def verify(results: Results, store: Store, studies: Sequence[str]) -> list[Comparison]:
    """Compare each study, and each that it includes."""
    comparisons = [_compare_study(results, store, plan) for plan in read_plans(results, studies) if plan["cells"]]
    if comparisons and (place := store.find_misplaced()):
        comparisons[0].differences.append(f"artefacts lie in {place}, which is not in this results folder")
    return comparisons


def _compare_study(results: Results, store: Store, plan: Record) -> Comparison:
    experiment = store.client.get_experiment_by_name(plan["study"])
    runs: list[Run] = []
    if experiment and experiment.lifecycle_stage == "active":
        runs = store.client.search_runs([experiment.experiment_id], max_results=MOST_RUNS)
    comparison, assessment = Comparison(plan["study"]), read_assessment(results, plan["study"])
    for cell in plan["cells"]:
        folder = results.run(cell["signature"])
        if not is_begun(folder):
            continue
        who = cell["variant"], str(cell["seed"])
        mine = [run for run in runs if (run.data.tags.get("variant"), run.data.tags.get("seed")) == who]
        try:
            found = _compare_cell(store.client, plan, cell, folder, assessment, mine, comparison)
        except Damaged as damage:
            found = [f"it is damaged: {damage}"]
        comparison.differences += [f"{run_name(cell)} ({cell['signature']}): {text}" for text in found]
    for run in runs:
        signature = run.data.tags.get("signature", "")
        try:
            if signature and not is_begun(results.run(signature)):
                comparison.unknown.append(f"{run.info.run_name} ({signature}, {run.info.run_id})")
        except Damaged as damage:
            comparison.differences.append(f"{run.info.run_name}: {damage}")
    return comparison


def _compare_cell(
    client: MlflowClient,
    plan: Record,
    cell: Record,
    folder: Path,
    assessment: Record,
    runs: list[Run],
    comparison: Comparison,
) -> list[str]:
    """Compare a cell's run, which must be one, with its folder: status, tags, last values, number of steps, journal."""
    outcome = read_result(folder)
    status = status_of(folder, outcome)
    comparison.runs += 1
    comparison.running += status == "RUNNING"
    if len(runs) > 1:
        return [f"the store has {len(runs)} runs of it: {', '.join(run.info.run_id for run in runs)}"]
    if status == "RUNNING":
        return []
    if not runs:
        return ["the store does not have it"]
    (run,) = runs
    said = assessment.get(cell["signature"]) if is_final(outcome) else None
    tags = labels_of(plan, cell) | (said["tags"] if said else {}) | ({"outcome": outcome["outcome"]} if outcome else {})
    values = {}
    points = [point for step in read_course(folder, outcome).points.values() for point in step.values()]
    for point in sorted(points, key=lambda point: point.step):
        values[point.key] = point.value
    steps = [point.step for point in points if point.key == STEP_MARK]
    values |= said["metrics"] if said else {}
    comparison.values += len(values)
    logged = [point.step for point in client.get_metric_history(run.info.run_id, STEP_MARK)]
    expected = {
        "the status": (run.info.status, status),
        **{f"the tag {name}": (run.data.tags.get(name), value) for name, value in tags.items()},
        **{
            f"the last {name}": (run.data.metrics.get(name), values.get(name))
            for name in sorted({*values, *run.data.metrics} - TIMED)
        },
        "the number of rollout steps": (len(logged), len(steps)),
    }
    if outcome:
        expected[f"the hash of the artefact {JOURNAL}"] = (_read_logged_journal(client, run), _hash(folder / JOURNAL))
    return [
        f"{what} is {found}, the run folder says {value}" for what, (found, value) in expected.items() if found != value
    ]


def _hash(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def _read_logged_journal(client: MlflowClient, run: Run) -> str | None:
    """Return the hash of the journal among a run's artefacts; None if it is not there."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _hash(Path(client.download_artifacts(run.info.run_id, JOURNAL, folder)))
        except (MlflowException, OSError):
            return None


def _describe(comparison: Comparison) -> str:
    count = len(comparison.differences)
    running = f", {comparison.running} of them running" if comparison.running else ""
    verdict = f"{count} difference{'s' * (count > 1)}" if count else "equal to the run folders"
    lines = [f"{comparison.study}: {comparison.runs} runs{running}, {comparison.values:,} last values: {verdict}"]
    lines += [f"  {text}" for text in comparison.differences[:SHOWN]]
    if count > SHOWN:
        lines.append(f"  and {count - SHOWN} more (--json has them all)")
    if comparison.unknown:
        lines.append(f"  no folder here, pruned or another machine's: {', '.join(comparison.unknown)}")
    return "\n".join(lines)
