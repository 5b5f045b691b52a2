"""What one command asks for: plans that were checked, their different cells, and what is left to do of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from grpolab.errors import RequestError
from grpolab.identity import plain
from grpolab.paths import Results, project_root, read_json, write_json_atomic
from grpolab.run import preflight, tracking
from grpolab.sweep.jobs import Job
from grpolab.sweep.ledger import CellState, cell_state, set_failure_aside
from grpolab.sweep.plan import Cell, Plan
from grpolab.vocabulary import FAILED


class Request:
    """Checked plans; nothing is written before `write_plans`."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Raises RequestError with all that can be known to be wrong before anything starts."""
        self.plans = plans
        self.name = plans[-1].study.name  # a collection stands last
        # Studies share cells: the first study that asks for a cell gives it its label.
        cells = [(cell, f"{plan.study.name} {cell.label}") for plan in reversed(plans) for cell in plan.cells]
        self.cells = {cell.signature: cell for cell, _ in cells}
        self.labels = {cell.signature: label for cell, label in cells}
        self.results, self.tracking_uri = _check(list(self.cells.values()))

    def write_plans(self) -> None:
        """plan.json of every study; one that says what it said before keeps its date."""
        created, head = datetime.now(UTC).isoformat(timespec="seconds"), commit()
        for plan in self.plans:
            file = self.results.plan(plan.study.name)
            document = plain(plan.document(created, head))
            if {**(read_json(file) or {}), "created": created, "commit": head} != document:
                write_json_atomic(file, document)

    def states(self) -> dict[str, CellState]:
        """How far each cell is, by signature."""
        now = time.time()
        return {name: cell_state({"signature": name}, self.results, now) for name in self.cells}

    def set_failures_aside(self) -> None:
        """Let failed cells run again."""
        for name, state in self.states().items():
            if state.state == FAILED:
                set_failure_aside(self.results.run(name))

    def jobs(self) -> list[Job]:
        """The cells without an outcome, and the warm starts that they wait for and that are not there yet."""
        todo = [self.cells[name] for name, state in self.states().items() if state.outcome is None]
        return warm_start_jobs(todo, self.results) + [run_job(cell, self.labels[cell.signature]) for cell in todo]

    def warm_starts_made(self) -> Iterator[tuple[Job, float]]:
        """The warm starts of the cells that are there, with the seconds that they took."""
        for name, cell in {cell.warm_start: cell for cell in self.cells.values()}.items():
            made = read_json(self.results.warm_start(name) / "outcome.json")
            if made and made.get("steps"):
                yield _warm_start_job(cell), made["seconds"]


def run_job(cell: Cell, label: str) -> Job:
    """A cell as a worker is asked for it."""
    return Job(
        kind="run",
        signature=cell.signature,
        label=label,
        settings=cell.settings.model_dump(),
        cost=cell.cost,
        steps=cell.settings.planned_steps,
        warm_start=cell.warm_start,
    )


def warm_start_jobs(cells: Sequence[Cell], results: Results) -> list[Job]:
    """The warm starts that cells wait for and that are not there yet."""
    folders = {cell.warm_start: results.warm_start(cell.warm_start) for cell in cells}
    missing = {cell.warm_start: cell for cell in cells if not (folders[cell.warm_start] / "outcome.json").exists()}
    return [_warm_start_job(cell) for cell in missing.values()]


def _warm_start_job(cell: Cell) -> Job:
    settings = cell.settings.resolved()
    return Job(
        kind="warm_start",
        signature=cell.warm_start,
        label=f"warm start {settings.task.name}, seed {settings.warm_start.seed}",
        settings=cell.settings.model_dump(),
        cost=settings.warm_start.max_steps * settings.warm_start.batch_size * settings.max_completion_length,
        steps=settings.warm_start.max_steps,
    )


def _check(cells: list[Cell]) -> tuple[Results, str | None]:
    """The results folder and the tracking URI that all cells share, after every check that needs no run."""
    machines = {(cell.settings.machine.results, cell.settings.machine.tracking_uri) for cell in cells}
    if len(machines) > 1:
        raise RequestError("machine.results and machine.tracking_uri must be the same for all cells of a command")
    ((root, setting),) = machines
    results = Results.open(root)
    # The checks read a task's files: once for cells that differ in nothing that they look at.
    every = [cell.settings for cell in cells]
    different = {str((one.task, one.reward, one.model, one.early_stop, one.device)): one for one in every}
    problems = [problem for settings in different.values() for problem in preflight.check(settings, results)]
    uri = tracking.store_uri(setting, results)
    try:
        if uri:
            tracking.check_store(uri)
    except RequestError as error:
        problems += error.problems
    if problems:
        raise RequestError(dict.fromkeys(problems))
    return results, uri


def commit() -> str | None:
    """The project's commit; None where it is no git checkout."""
    command = ["git", "-C", str(project_root()), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
