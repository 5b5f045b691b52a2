"""`grpolab status`: how far the cells of a study are, for people and as JSON.

Nothing heavy is imported: a thousand runs are read in a second.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

from grpolab.paths import Results
from grpolab.sweep.ledger import RUNNING, CellState, Record, planned_studies, study_states
from grpolab.sweep.wording import duration, first_line
from grpolab.vocabulary import FAILED

LAST_BYTES = 4096  # of a timing journal: more than one row


def status(results: Results, study: str | None, now: float) -> Record:
    """All that `grpolab status --json` prints. Raises RequestError where the study has not been planned."""
    names = [study] if study else planned_studies(results)
    states = {name: cells for part in names for name, cells in study_states(results, part, now).items()}
    return {name: _summary(cells, results, now) for name, cells in states.items()}


def print_status(results: Results, study: str | None, as_json: bool) -> None:
    """`grpolab status`."""
    found = status(results, study, time.time())
    print(json.dumps(found, indent=1) if as_json else "\n".join(_lines(found)))


def _summary(cells: list[CellState], results: Results, now: float) -> Record:
    return {
        "planned": len(cells),
        "states": dict(Counter(cell.state for cell in cells)),
        "cells": [_row(cell, results, now) for cell in cells],
    }


def _row(cell: CellState, results: Results, now: float) -> Record:
    """One cell. Seconds: `heartbeat_seconds_ago`, `seconds_left` (null before the first step), `seconds` (it took)."""
    row = {key: cell.cell[key] for key in ("variant", "seed", "signature")} | {"state": cell.state}
    if cell.outcome:
        return row | {key: cell.outcome.get(key) for key in ("reason", "seconds")}
    timed = last_row(results.run(cell.cell["signature"]) / "timing.jsonl")
    if cell.running:
        age = max(0.0, now - cell.running["time"])  # a clock may have been set back
        row |= {key: cell.running[key] for key in ("rollout_step", "rollout_steps", "host", "pid")}
        return row | {"heartbeat_seconds_ago": round(age, 1), "seconds_left": _seconds_left(cell.running, timed, age)}
    return row | ({"interrupted_at_step": timed["rollout_step"] + 1} if timed and cell.state != RUNNING else {})


def _seconds_left(beat: Record, timed: Record | None, age: float) -> float | None:
    """By the mean of the steps so far, earlier sittings included; None where no step is on record."""
    if timed is None:
        return None
    done = timed["rollout_step"] + 1
    return round(max(0.0, timed["seconds/elapsed"] / done * (beat["rollout_steps"] - done) - age), 1)


def last_row(timing: Path) -> Record | None:
    """The last whole row of a timing journal, read without the rest of the file."""
    try:
        with timing.open("rb") as file:
            file.seek(-min(LAST_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            rows = [row for row in file.read().splitlines(keepends=True) if row.endswith(b"\n")]
        return dict(json.loads(rows[-1])) if rows else None
    except (OSError, ValueError):
        return None


def _lines(found: Record) -> list[str]:
    lines = [] if found else ["no study is planned yet: run `grpolab sweep STUDY`"]
    for study, summary in found.items():
        counts = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
        lines.append(f"{study}: {summary['planned']} planned: {counts}")
        for row in summary["cells"]:
            if says := _says(row):
                cell = f"{row['variant']}, seed {row['seed']} ({row['signature']})"
                lines.append(f"  {row['state']}: {cell}: {says}")
    return lines


def _says(row: Record) -> str:
    """What there is to say about a cell besides its state; empty for most."""
    if row["state"] == RUNNING and "rollout_step" not in row:
        return "begins: its warm start or its model is being made"
    if row["state"] == RUNNING:
        left = "no estimate yet" if row["seconds_left"] is None else f"about {duration(row['seconds_left'])} left"
        where = f"step {row['rollout_step']} of {row['rollout_steps']} on {row['host']} (pid {row['pid']})"
        return f"{where}, heartbeat {duration(row['heartbeat_seconds_ago'])} ago, {left}"
    if row["state"] == FAILED:
        return first_line(row) or "no reason given"
    if "interrupted_at_step" in row:
        return f"interrupted at step {row['interrupted_at_step']}, will go on"
    return ""
