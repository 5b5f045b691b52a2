"""How durations and reasons are written, everywhere alike."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.paths import Results, read_json
from grpolab.run.folder import is_alive, is_held
from grpolab.vocabulary import FAILED, MISSING


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def first_line(outcome: dict[str, Any] | None) -> str:
    """The first line of an outcome's reason; empty where there is none."""
    return str((outcome or {}).get("reason") or "").partition("\n")[0]


# ----------------------------------------------------------------------------------------------------------------------
# What the run folders say about a study's cells: they are the ledger, and nothing else is kept that could disagree.
#
# Nothing heavy is imported: a thousand runs are read in a second.


Record = dict[str, Any]

RUNNING = "running"


@dataclass(frozen=True)
class CellState:
    """A planned cell and how far it is."""

    cell: Record  # its entry in plan.json
    state: str  # an outcome of the vocabulary, or `running`
    outcome: Record | None = None
    running: Record | None = None  # last heartbeat; none before its model is there


def cell_state(cell: Record, results: Results, now: float) -> CellState:
    """State of one planned cell at `now` (unix seconds)."""
    folder = results.run(cell["signature"])
    if outcome := read_json(folder / "outcome.json"):
        return CellState(cell, outcome["outcome"], outcome=outcome)
    if (beat := read_json(folder / "running.json")) and is_alive(beat, now):
        return CellState(cell, RUNNING, running=beat)
    return CellState(cell, RUNNING if is_held(folder / ".lock") else MISSING)


def study_states(results: Results, study: str, now: float) -> dict[str, list[CellState]]:
    """States of a study's cells by study; a collection gives those of the studies that it includes.

    Raises RequestError where the study has not been planned.
    """
    plan = read_json(results.plan(study))
    if plan is None:
        planned = planned_studies(results)
        have = f"planned are {', '.join(planned)}" if planned else "none is"
        raise RequestError(f"study {study} is not planned in {results.root}{near_matches(study, planned)}: {have}")
    if plan["includes"]:
        return {name: cells for part in plan["includes"] for name, cells in study_states(results, part, now).items()}
    return {study: [cell_state(cell, results, now) for cell in plan["cells"]]}


def planned_studies(results: Results) -> list[str]:
    """Names of the studies that have a plan."""
    return sorted(file.parent.name for file in results.studies.glob("*/plan.json"))


def no_outcome(error: OSError, folder: Path) -> Record:
    """What is said, and written nowhere, where the disk refused a run: the cell is still missing."""
    reason = f"{error.filename or folder}: {error.strerror}"
    return {"outcome": MISSING, "reason": reason, "disk_full": error.errno in (errno.ENOSPC, errno.EDQUOT)}


def set_failure_aside(folder: Path) -> None:
    """Let a failed run be tried again; its outcome is kept beside."""
    kept = len(list(folder.glob("outcome.failed-*.json")))
    with suppress(FileNotFoundError):  # another command was faster
        os.replace(folder / "outcome.json", folder / f"outcome.failed-{kept + 1}.json")


# ----------------------------------------------------------------------------------------------------------------------
# `grpolab status`: how far the cells of a study are, for people and as JSON.
#
# Nothing heavy is imported: a thousand runs are read in a second.


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
