"""`grpolab status`: how far the cells of a study are, from its plan and the run folders alone. No slow import."""

from __future__ import annotations

from collections import Counter

from grpolab.known_runs import KnownRuns
from grpolab.paths import Results
from grpolab.records import read_plan
from grpolab.run_files import Record
from grpolab.studies.facts import duration
from grpolab.study_names import not_planned
from grpolab.sweep.ledger import RUNNING, CellState, cell_state, committed_outcomes, first_line, last_row
from grpolab.vocabulary import DAMAGED, FAILED


def planned_cells(results: Results, study: str) -> dict[str, list[Record]]:
    """Return the cells in a study's plan by study; for a collection those of each study that it includes.

    Raises RequestError if the study has no plan, or one that cannot be read.
    """
    plan = read_plan(results.plan(study))
    if plan is None:
        raise not_planned(results, study)
    if plan["includes"]:
        return {name: cells for part in plan["includes"] for name, cells in planned_cells(results, part).items()}
    return {study: plan["cells"]}


def status(results: Results, study: str | None, now: float) -> Record:
    """Return what `grpolab status --json` prints. Raises RequestError if the study has no plan."""
    names, committed, summaries = [study] if study else results.planned(), committed_outcomes(results), {}
    known = KnownRuns(results)
    planned = {name: cells for part in names for name, cells in planned_cells(results, part).items()}
    for name, cells in planned.items():
        states = [cell_state(cell["signature"], results, committed, known.outcome) for cell in cells]
        rows = [_status_row(cell, state, results, now) for cell, state in zip(cells, states, strict=True)]
        counts = dict(Counter(state.state for state in states))
        kept = sum(state.committed for state in states)
        summaries[name] = {"planned": len(cells), "states": counts, "committed": kept, "cells": rows}
    known.save()
    return summaries


def _status_row(cell: Record, state: CellState, results: Results, now: float) -> Record:
    """Return the state of a cell; `seconds_left` is null before the first step."""
    row = {key: cell[key] for key in ("variant", "seed", "signature")} | {"state": state.state}
    if state.outcome:
        return row | {key: state.outcome.get(key) for key in ("reason", "seconds")}
    timed = last_row(results.run(cell["signature"]) / "timing.jsonl")
    steps = timed["rollout_step"] + 1 if timed else 0
    if beat := state.heartbeat:
        age, left = max(0.0, now - beat["time"]), None  # a clock may have been set back
        if timed:  # by the mean of the steps so far, those of earlier sessions included
            left = round(max(0.0, timed["seconds/elapsed"] / steps * (beat["rollout_steps"] - steps) - age), 1)
        row |= {key: beat[key] for key in ("rollout_step", "rollout_steps", "host", "pid")}
        return row | {"heartbeat_seconds_ago": round(age, 1), "seconds_left": left}
    return row | ({"interrupted_at_step": steps} if timed and state.state != RUNNING else {})


def describe_status(row: Record) -> str:
    """Return a remark on a cell besides its state; '' for most cells."""
    if row["state"] == RUNNING and "rollout_step" not in row:
        return "begins: its warm start or its model is being made"
    if row["state"] == RUNNING:
        left = "no estimate yet" if row["seconds_left"] is None else f"about {duration(row['seconds_left'])} left"
        place = f"step {row['rollout_step']} of {row['rollout_steps']} on {row['host']} (pid {row['pid']})"
        return f"{place}, heartbeat {duration(row['heartbeat_seconds_ago'])} ago, {left}"
    if row["state"] in (FAILED, DAMAGED):
        return first_line(row) or "no reason given"
    return f"interrupted at step {row['interrupted_at_step']}, will go on" if "interrupted_at_step" in row else ""
