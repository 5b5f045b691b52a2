"""Read the runs of any MLflow store, and compare ours with the run folders (`grpolab track verify`)."""

from __future__ import annotations

import hashlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from grpolab.errors import Damaged, RequestError
from grpolab.meanings import METRICS
from grpolab.paths import Results
from grpolab.records import read_result
from grpolab.run.database import reason_of
from grpolab.run.folder import is_begun
from grpolab.run.tracking import mirror, sqlite_file
from grpolab.run.tracking.store import MOST_RUNS, UNUSABLE, Store, describe_failure, find_problem
from grpolab.run.watch import exclusive
from grpolab.run_files import JOURNAL, Record

SHOWN = 5  # differences of a study that are printed
TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}  # a resumed run has new ones


def read_runs(uri: str, run_id: str | None = None) -> Iterator[tuple[Run, list[dict[str, float]]]]:
    """Yield one or every run of any MLflow store, with its metrics as one row a step. Raises RequestError."""
    file = sqlite_file(uri)
    if file and not file.is_file():  # MLflow would create one
        raise RequestError(f"the tracking store {file} is not there")
    try:
        client = MlflowClient(uri)
        if run_id:
            runs = [client.get_run(run_id)]
        else:
            ids = [experiment.experiment_id for experiment in client.search_experiments()]
            runs = client.search_runs(ids, max_results=MOST_RUNS, order_by=["attributes.start_time"]) if ids else []
        for run in runs:
            rows: dict[int, dict[str, float]] = defaultdict(dict)
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    rows[metric.step] |= {"step": metric.step, name: metric.value}
            yield run, [rows[step] for step in sorted(rows)]
    except UNUSABLE as error:
        failure = f"run {run_id} cannot be read from {uri}" if run_id else f"{uri} is no store that MLflow opens"
        raise RequestError(f"{failure}: {reason_of(error)}") from error


@dataclass
class Comparison:
    """A study in the store and in the run folders."""

    study: str
    runs: int = 0
    running: int = 0  # of them; these are not compared
    differences: list[str] = field(default_factory=list)


def compare_store(results: Results, uri: str, studies: Sequence[str]) -> tuple[list[Comparison], str]:
    """Compare each study; return also why the store cannot be read, else ''. Raises RequestError of such a server."""
    file = sqlite_file(uri)
    if not file and (problem := find_problem(uri)):
        raise RequestError(f"the tracking store {uri} cannot be used: {problem}")
    if file and not file.exists():
        return [], f"there is no tracking store at {file}: `grpolab track sync` makes it"
    try:
        with exclusive(mirror.lock_path(results, uri)):
            return verify(results, Store(uri, results), studies), ""
    except UNUSABLE as error:
        return [], describe_failure(error)


def describe(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines for a reader."""
    for comparison in comparisons:
        count = len(comparison.differences)
        running = f", {comparison.running} of them running" if comparison.running else ""
        verdict = f"{count} difference{'s' * (count > 1)}" if count else "equal to the run folders"
        yield f"{comparison.study}: {comparison.runs} runs{running}: {verdict}"
        for difference in comparison.differences[:SHOWN]:
            yield f"  {difference}"
        if count > SHOWN:
            yield f"  and {count - SHOWN} more (--json has them all)"
    if any(comparison.differences for comparison in comparisons):
        yield "`grpolab track sync` adds what is missing, with --rebuild it makes the store anew"


def verify(results: Results, store: Store, studies: Sequence[str]) -> list[Comparison]:
    """Compare each study, and each that it includes."""
    plans = [plan for plan in mirror.read_plans(results, studies) if plan["cells"]]
    comparisons = [_compare_study(results, store, plan) for plan in plans]
    if comparisons and (place := store.find_misplaced()):
        comparisons[0].differences.append(f"artefacts lie in {place}, which is not in this results folder")
    return comparisons


def _compare_study(results: Results, store: Store, plan: Record) -> Comparison:
    experiment = store.client.get_experiment_by_name(plan["study"])
    runs: list[Run] = []
    if experiment and experiment.lifecycle_stage == "active":
        runs = store.client.search_runs([experiment.experiment_id], max_results=MOST_RUNS)
    comparison, assessment = Comparison(plan["study"]), mirror.read_assessment(results, plan["study"])
    for cell in plan["cells"]:
        folder, who = results.run(cell["signature"]), (cell["variant"], str(cell["seed"]))
        if not is_begun(folder):
            continue
        comparison.runs += 1
        try:
            read_result(folder)  # checks the journal against its hash
            cell_run = mirror.read_cell(results, plan, cell, assessment)
            if cell_run.status == "RUNNING":
                comparison.running += 1
                continue
            stored = [run for run in runs if (run.data.tags.get("variant"), run.data.tags.get("seed")) == who]
            texts = [f"the store has {len(stored)} runs of it"]
            if len(stored) == 1:
                texts = list(_compare_run(store, stored[0], cell_run))
        except Damaged as damage:
            texts = [f"it is damaged: {damage}"]
        comparison.differences += [f"{mirror.run_name(cell)}: {text}" for text in texts]
    return comparison


def _compare_run(store: Store, run: Run, cell_run: mirror.CellRun) -> Iterator[str]:
    """Compare status, tags, last values, the number of rollout steps and the journal of a run with its folder."""
    folder, outcome, client = cell_run.folder, cell_run.outcome, store.client
    tags = cell_run.tags | ({"outcome": outcome["outcome"]} if outcome else {})
    points = [point for step in mirror.read_course(folder, outcome).points.values() for point in step]
    values = {point.key: point.value for point in sorted(points, key=lambda point: point.step)}
    values |= cell_run.metrics
    steps = client.get_metric_history(run.info.run_id, mirror.STEP_MARK)
    pairs: dict[str, tuple[object, object]] = {"the status": (run.info.status, cell_run.status)}
    pairs |= {f"the tag {name}": (run.data.tags.get(name), value) for name, value in tags.items()}
    for name in sorted({*values, *run.data.metrics} - TIMED):
        pairs[f"the last {name}"] = run.data.metrics.get(name), values.get(name)
    pairs["the number of rollout steps"] = len(steps), sum(point.key == mirror.STEP_MARK for point in points)
    if outcome:
        with tempfile.TemporaryDirectory() as place:
            try:
                stored = Path(client.download_artifacts(run.info.run_id, JOURNAL, place))
            except (MlflowException, OSError):
                stored = Path(place, JOURNAL)
            pairs[f"the hash of the artefact {JOURNAL}"] = _hash(stored), _hash(folder / JOURNAL)
    for what, (in_store, expected) in pairs.items():
        if in_store != expected:
            yield f"{what} is {in_store}, the run folder says {expected}"


def _hash(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
