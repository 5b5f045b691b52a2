"""What the run folders say about a study's cells: they are the ledger, and nothing else is kept that could disagree.

Nothing heavy is imported: a thousand runs are read in a second.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.paths import Results, read_json
from grpolab.run.heartbeat import is_alive
from grpolab.run.locks import is_held
from grpolab.vocabulary import MISSING

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
