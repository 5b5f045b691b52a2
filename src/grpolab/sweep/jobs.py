"""The runs and warm starts that a command still has to do, their order, and the checked request behind them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from grpolab.errors import Damaged, RequestError
from grpolab.identity import STEPS
from grpolab.paths import Results, commit, plain, project_root, read_json, write_atomic
from grpolab.registry import KNOWN_RUNS, resolve
from grpolab.run import preflight, tracking
from grpolab.run.lease import is_taken
from grpolab.run_files import read_outcome, read_warm_start
from grpolab.settings.task import task_title
from grpolab.study_names import find_namesake
from grpolab.sweep.ledger import RUNNING, CellState, cell_state, committed_outcomes, set_failure_aside
from grpolab.sweep.plan import Cell, Plan
from grpolab.vocabulary import COMPLETED, DAMAGED, FAILED, MISSING, RESULTS

RUN: Literal["run"] = "run"
WARM_START: Literal["warm_start"] = "warm_start"


@dataclass(frozen=True)
class Job:
    """A run or a warm start that a worker is asked to do."""

    kind: Literal["warm_start", "run"]
    signature: str
    label: str
    settings: dict[str, Any]
    cost: float
    steps: int  # of a warm start at most
    warm_start: str | None = None  # signature of the warm start that must exist before

    def folder(self, results: Results) -> Path:
        return results.run(self.signature) if self.kind == RUN else results.warm_start(self.signature)

    def outcome(self, results: Results) -> dict[str, Any] | None:
        """Return the outcome, whichever process wrote it; None if there is none that can be read."""
        with suppress(Damaged):
            if self.kind == RUN:
                return read_outcome(self.folder(results))
            if made := read_warm_start(self.folder(results)):
                return {"outcome": COMPLETED, "reason": None, **made}
        return None

    def is_taken(self, results: Results) -> bool:
        """Return True if a process does the job now, on this machine or another."""
        return is_taken(self.folder(results))


def run_job(cell: Cell, label: str) -> Job:
    settings = cell.settings
    return Job(RUN, cell.signature, label, settings.model_dump(), cell.cost, settings.planned_steps, cell.warm_start)


def warm_start_jobs(cells: Sequence[Cell], results: Results) -> list[Job]:
    """Return the jobs of the warm starts that cells need and that are missing or damaged."""
    jobs = []
    for name, cell in {cell.warm_start: cell for cell in cells}.items():
        settings, warm = cell.settings, cell.settings.warm_start
        label = f"warm start {task_title(settings.task)}, seed {warm.seed}"
        jobs.append(Job(WARM_START, name, label, settings.model_dump(), cell.warm_start_cost, warm.max_steps))
    return [job for job in jobs if job.outcome(results) is None]


class Request:
    """Checked plans and their cells, each cell once. Nothing is written before `write_plans`."""

    def __init__(self, plans: Sequence[Plan], count_committed: bool = True, single_run: bool = False) -> None:
        """Check the plans. With `count_committed`, runs whose results are in the committed reference count as done.

        `single_run`: the command does one run itself, and several processes may share it. Raises RequestError with
        every problem that can be found before a run starts.
        """
        self.plans = plans
        self.name = plans[-1].study.name  # a collection stands last
        # Studies share cells: the first study that asks for a cell gives it its label.
        cells = [(cell, f"{plan.study.name} {cell.label}") for plan in reversed(plans) for cell in plan.cells]
        self.cells = {cell.signature: cell for cell, _ in cells}
        self.labels = {cell.signature: label for cell, label in cells}
        settings = [cell.settings for cell in self.cells.values()]
        shared = {"results", "tracking_uri", "launcher"}
        if len({str(run.machine.model_dump(include=shared)) for run in settings}) > 1:
            raise RequestError(
                "machine.results, machine.tracking_uri and launcher must be the same for all cells of a command"
            )
        self.launcher, self.results = settings[0].machine.launcher, Results.open(settings[0].machine.results)
        parallel = max(run.data_parallel or 1 for run in settings)
        problems = list[str]()
        if single_run and self.launcher:
            name = self.launcher.name
            problems.append(f"launcher={name} is for several runs: use `grpolab train -m`, or launcher=null")
        elif parallel > 1 and not single_run:
            problems.append(f"data_parallel={parallel} is for a single run: a sweep gives each core or GPU a worker")
        self.tracking_uri = self._check(problems)
        self.committed = committed_outcomes(self.results) if count_committed else {}
        self.known = resolve(KNOWN_RUNS)(self.results)
        self._ended: dict[str, CellState] = {}  # results do not change, so they are read once

    def _check(self, problems: list[str]) -> str | None:
        """Check all that can be checked beforehand; return the URI of the tracking store. Raises as `__init__`."""
        results, settings_of = self.results, {cell.signature: cell.settings for p in self.plans for cell in p.cells}
        studies = {plan.study.name: find_namesake(results, plan.study.name, plan.study.file) for plan in self.plans}
        # The checks read files, so runs that differ only in other keys are checked once.
        checked = {"task", "other_tasks", "reward", "model", "early_stop", "evaluation", "max_completion_length"}
        checked |= {"device", "dtype", "compile", "beta", "gradient_checkpointing", "data_parallel"}
        checked |= {key for key in STEPS if any(":" in str(getattr(run, key)) for run in settings_of.values())}
        different = {str(run.model_dump(include=checked)): run for run in settings_of.values()}
        namesakes = [f"study {name}: {problem}" for name, problem in studies.items() if problem]
        found = [problem for run in different.values() for problem in preflight.check(run, results)]
        problems = [*found, *namesakes, *problems]
        uri = tracking.store_uri(next(iter(settings_of.values())).machine.tracking_uri, results)
        try:
            if uri:
                tracking.check_store(uri)
                if not problems:  # it takes seconds
                    tracking.check_answer(uri)
        except RequestError as error:
            problems += error.problems
        if problems:
            raise RequestError(dict.fromkeys(problems))
        return uri

    def write_plans(self, retry_failed: bool = False) -> None:
        """Write plan.json of each study unless nothing but its date has changed.

        With `retry_failed`, set aside the outcomes of failed and damaged cells.
        """
        for name, state in self.states().items() if retry_failed else ():
            if state.state in (FAILED, DAMAGED):
                set_failure_aside(self.results.run(name), damaged=state.state == DAMAGED)
        created, head = datetime.now(UTC).isoformat(timespec="seconds"), commit(project_root())
        for plan in self.plans:
            file, document = self.results.plan(plan.study.name), plain(plan.document(created, head))
            if {**(read_json(file) or {}), "created": created, "commit": head} != document:
                # Without indents: they take ten times as long.
                write_atomic(file, json.dumps(document, allow_nan=False).encode())

    def states(self) -> dict[str, CellState]:
        """Return the state of each cell, by signature."""
        # One listing of the folder: testing each of 100,000 run folders on a network file system takes minutes.
        begun = set(os.listdir(self.results.runs)) if self.results.runs.is_dir() else set()
        of = self.results, self.committed, self.known.outcome
        states = {name: self._ended.get(name) or cell_state(name, *of, has_folder=name in begun) for name in self.cells}
        self.known.save()
        self._ended = {name: state for name, state in states.items() if state.state in RESULTS and not state.committed}
        return states

    def jobs(self, retry_failed: bool = False) -> list[Job]:
        """Return the jobs of the cells without an outcome, first the warm starts that these lack.

        With `retry_failed`, cells that failed or are damaged are done again.
        """
        open_ = {MISSING, RUNNING, *([FAILED, DAMAGED] if retry_failed else [])}
        todo = [self.cells[name] for name, state in self.states().items() if state.state in open_]
        return warm_start_jobs(todo, self.results) + [run_job(cell, self.labels[cell.signature]) for cell in todo]


class Schedule:
    """Unfinished jobs in their order: warm starts first, then runs, the longest first."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._open: dict[str, Job] = {}  # the next one first
        self._out: set[str] = set()  # with a worker
        self._attempts: Counter[str] = Counter()
        self.add(sorted(jobs, key=lambda job: job.cost, reverse=True))

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def waiting(self) -> int:
        return len(self._open) - len(self._out)

    def ready(self) -> Iterator[Job]:
        """Yield the jobs that can begin now, the next one first; a run waits for its warm start."""
        for name in list(self._open):
            job = self._open.get(name)
            if job and name not in self._out and job.warm_start not in self._open:
                yield job

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs behind those of their kind, each signature once."""
        for job in jobs:
            self._open.setdefault(job.signature, job)
        self._open = dict(sorted(self._open.items(), key=lambda item: item[1].kind != WARM_START))  # stable

    def hand_out(self, job: Job) -> None:
        self._out.add(job.signature)

    def pass_over(self, job: Job) -> None:
        """Move a job that another command does behind all others."""
        self._open[job.signature] = self._open.pop(job.signature)

    def put_back(self, job: Job) -> None:
        self._out.discard(job.signature)

    def finished(self, job: Job, succeeded: bool) -> list[Job]:
        """Remove a job. If it is a warm start that failed, return the runs that need it."""
        del self._open[job.signature]
        self._out.discard(job.signature)
        if succeeded or job.kind == RUN:
            return []
        return [other for other in self._open.values() if other.warm_start == job.signature]

    def retry(self, job: Job, attempts: int) -> bool:
        """Put a job back after its worker's death; return False after `attempts` deaths."""
        self._attempts[job.signature] += 1
        if self._attempts[job.signature] >= attempts:
            return False
        self.put_back(job)
        return True

    def drop_waiting(self) -> int:
        """Drop the jobs that no worker has, and return their number."""
        dropped = self.waiting
        self._open = {name: job for name, job in self._open.items() if name in self._out}
        return dropped
