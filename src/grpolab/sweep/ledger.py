"""What the run folders say about a study's cells: they are the ledger, and nothing else is kept that could disagree.

Nothing heavy is imported: a thousand runs are read in a second.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.paths import Results, read_json, write_json_atomic
from grpolab.run.heartbeat import is_alive
from grpolab.vocabulary import FAILED, MISSING

Record = dict[str, Any]

RUNNING = "running"


@dataclass(frozen=True)
class CellState:
    """A planned cell and how far it is."""

    cell: Record  # its entry in plan.json
    state: str  # an outcome of the vocabulary, or `running`
    outcome: Record | None = None
    running: Record | None = None


def cell_state(cell: Record, results: Results, now: float) -> CellState:
    """State of one planned cell at `now` (unix seconds)."""
    folder = results.run(cell["signature"])
    if outcome := read_json(folder / "outcome.json"):
        return CellState(cell, outcome["outcome"], outcome=outcome)
    if (beat := read_json(folder / "running.json")) and is_alive(beat, now):
        return CellState(cell, RUNNING, running=beat)
    return CellState(cell, MISSING)


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


def status(results: Results, study: str | None, now: float) -> Record:
    """All that `grpolab status --json` prints. Raises RequestError where the study has not been planned."""
    names = [study] if study else planned_studies(results)
    states = {name: cells for part in names for name, cells in study_states(results, part, now).items()}
    return {name: _summary(cells, now) for name, cells in states.items()}


def _summary(cells: list[CellState], now: float) -> Record:
    return {
        "planned": len(cells),
        "states": dict(Counter(cell.state for cell in cells)),
        "cells": [_row(cell, now) for cell in cells],
    }


def _row(cell: CellState, now: float) -> Record:
    row = {key: cell.cell[key] for key in ("variant", "seed", "signature")} | {"state": cell.state}
    if cell.running:
        row |= {key: cell.running[key] for key in ("rollout_step", "rollout_steps", "host", "pid")}
        row["heartbeat_seconds_ago"] = round(now - cell.running["time"], 1)
    if cell.outcome:
        row |= {key: cell.outcome.get(key) for key in ("reason", "seconds")}
    return row


def record_failure(folder: Path, reason: str, rollout_step: int, error: str | None = None) -> Record:
    """Write down that a run failed, unless it reached an outcome of its own; the outcome that stands."""
    if outcome := read_json(folder / "outcome.json"):
        return outcome
    outcome = {
        "outcome": FAILED,
        "reason": reason,
        "rollout_steps": rollout_step,
        "optimizer_steps": None,
        "completions": None,
        "final": {},
        "policy_sha256": None,
        "journal_sha256": None,
        "seconds": None,
        "error": error,
    }
    write_json_atomic(folder / "outcome.json", outcome)
    (folder / "running.json").unlink(missing_ok=True)
    return outcome


def set_failure_aside(folder: Path) -> None:
    """Let a failed run be tried again; its outcome is kept beside."""
    kept = len(list(folder.glob("outcome.failed-*.json")))
    os.replace(folder / "outcome.json", folder / f"outcome.failed-{kept + 1}.json")


def print_status(results: Results, study: str | None, as_json: bool) -> None:
    """`grpolab status`."""
    found = status(results, study, time.time())
    print(json.dumps(found, indent=1) if as_json else "\n".join(_lines(found)))


def _lines(found: Record) -> list[str]:
    lines = [] if found else ["no study is planned yet: run `grpolab sweep STUDY`"]
    for study, summary in found.items():
        counts = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
        lines.append(f"{study}: {summary['planned']} planned: {counts}")
        for row in summary["cells"]:
            cell = f"  {row['state']}: {row['variant']}, seed {row['seed']} ({row['signature']})"
            if row["state"] == RUNNING:
                lines.append(f"{cell}: step {row['rollout_step']} of {row['rollout_steps']} on {row['host']}")
            elif row["state"] == FAILED:
                lines.append(f"{cell}: {(row['reason'] or '').splitlines()[0] if row['reason'] else 'no reason given'}")
    return lines
