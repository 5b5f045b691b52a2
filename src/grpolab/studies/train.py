"""`grpolab train`: one run in this process, from its warm start to its outcome; once more if it failed before."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from grpolab.paths import Results, commit, is_refusal, project_root
from grpolab.run.folder import describe_error, record_failure
from grpolab.studies import drawing
from grpolab.study_names import find_namesake
from grpolab.sweep.engine import TICK_SECONDS
from grpolab.sweep.jobs import RUN, WARM_START, Job, check_runs, run_job, warm_start_jobs, write_plan
from grpolab.sweep.launch import interruptible, mirrored, say_end, say_unmoved
from grpolab.sweep.ledger import (
    CellState,
    JournalReader,
    cell_state,
    no_outcome,
    result_lines,
    set_failure_aside,
    variant_row,
)
from grpolab.sweep.multirun import refuse_taken_name, run_document
from grpolab.sweep.plan import Cell
from grpolab.sweep.progress import Estimate, Events, show_progress
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED, FAILED


def train(cell: Cell, name: str, overrides: Sequence[str], events: Events | None = None) -> int:
    """Do one run, shown as study `name`. Return the exit code: 0 if it has its outcome, 1 if it failed.

    Raises RequestError before anything starts, and KeyboardInterrupt, also on SIGTERM, after writing a checkpoint.
    """
    refuse_taken_name(name)
    settings, results, problems = cell.settings, Results.open(cell.settings.machine.results), list[str]()
    if problem := find_namesake(results, name, ""):
        problems.append(f"study {name}: {problem}")
    if launcher := settings.machine.launcher:
        problems.append(f"launcher={launcher.name} is for several runs: use `grpolab train -m`, or launcher=null")
    uri, folder, label = check_runs([settings], results, problems), results.run(cell.signature), f"{name} {cell.label}"

    def find_state() -> CellState:
        return cell_state({"signature": cell.signature}, results, committed={})

    state = find_state()
    if state.state in (FAILED, DAMAGED):
        set_failure_aside(folder, damaged=state.state == DAMAGED)
        state = find_state()
    todo = [] if state.outcome else [*warm_start_jobs([cell], results), run_job(cell, label)]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    write_plan(results.plan(name), run_document(name, cell, overrides, created, commit(project_root())))
    if events:
        study = {"study": name, "cells": 1, "seeds": [settings.seed], "done": int(not todo)}
        counts = {"runs": 1, "done": int(not todo), "committed": 0, "to_train": int(bool(todo))}
        events.send("plan", studies=[study], **counts, warm_starts=max(0, len(todo) - 1))
    with interruptible(), mirrored(results, uri, name):
        if todo:
            _do(cell, todo, results, events)
            if uri:
                drawing.assess_runs(results, name)
        else:
            say("0 cells to train: the run has its outcome")
    state = find_state()
    if state.outcome and state.state != DAMAGED:
        journal = JournalReader(folder).read()
        if events:
            row = variant_row([(state.outcome, journal.facts())])
            events.send("results", study=name, variants={cell.variant: row})
        else:
            say("\n".join(result_lines(state.outcome, journal.facts())))
        say_unmoved({folder.name: journal}, {folder.name: label}, results)
    if not events:
        say(f"run folder: {folder}")
    return say_end({folder.name: state}, {folder.name: label}, results, name if uri else None, events)


def _do(cell: Cell, todo: list[Job], results: Results, events: Events | None) -> None:
    """Do the run, after the warm start that it needs. If the warm start fails, the run fails with the same error."""
    from grpolab.run import train, warm_start  # here, because they import torch

    if todo[-1].is_taken(results):
        say("another command runs it: waiting for its outcome")
    while todo[-1].is_taken(results):  # `train.run` would wait too, but Ctrl-C then ends at a step
        time.sleep(TICK_SECONDS)
    requests: list[int] = []

    def ask_to_stop(number: int, _frame: FrameType | None) -> None:
        if requests:  # a second time: stop at once
            raise KeyboardInterrupt
        requests.append(number)  # stop at the next rollout boundary

    showing = show_progress(todo, Estimate(workers=1), results, events)
    with showing as progress, interruptible(ask_to_stop, signal.SIGINT, signal.SIGTERM):
        for job in todo:

            def on_step(step: int, job: Job = job) -> None:
                progress.stepped(job, step)
                if job.kind == WARM_START and requests:  # it has no checkpoint
                    raise KeyboardInterrupt

            progress.started(job, 0)
            outcome: dict[str, Any]
            try:
                if job.kind == WARM_START:
                    made = warm_start.ensure(cell.settings, results, on_step)
                    outcome = made.as_outcome(cell.settings.warm_start.target_accuracy)
                else:
                    outcome = train.run(cell.settings, results, on_step=on_step, stop=lambda: bool(requests))
            except train.Interrupted:
                raise KeyboardInterrupt from None
            except Exception as error:
                if is_refusal(error, results.root):
                    outcome = no_outcome(error, results.root)
                elif job.kind == RUN:
                    outcome = record_failure(job.folder(results), describe_error(error), 0)
                else:
                    outcome = {"outcome": FAILED, "reason": describe_error(error)}
            progress.finished(job, outcome)
