"""The state of a study's runs, read from the run folders alone.

No slow import: a thousand runs are read in a second.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpolab.errors import Damaged
from grpolab.paths import Results, read_json
from grpolab.run.lease import is_taken
from grpolab.run_files import Record, parse_object
from grpolab.vocabulary import MISSING, RESULTS

RUNNING = "running"
LAST_BYTES = 4096  # at the end of a timing journal: more than one row


def first_line(outcome: Record | None) -> str:
    """Return the first line of an outcome's reason, or ''."""
    return str((outcome or {}).get("reason") or "").partition("\n")[0]


@dataclass(frozen=True)
class CellState:
    """State of a planned cell."""

    state: str  # an outcome of the vocabulary, or `running`
    outcome: Record | None = None
    heartbeat: Record | None = None  # the last one of a running cell; None before its model is loaded
    committed: bool = False  # True: the outcome is from the reference results in git, and there is no run folder


def cell_state(
    signature: str,
    results: Results,
    committed: Mapping[str, Record],
    read: Callable[[str], Record | None],
    has_folder: bool = True,
) -> CellState:
    """Return the state of a cell: from its run folder, which `read` reads, else from its outcome in `committed`."""
    folder = results.run(signature)
    if has_folder and (outcome := read(signature)):
        return CellState(outcome["outcome"], outcome)
    if has_folder and is_taken(folder):
        return CellState(RUNNING, heartbeat=read_json(folder / "running.json"))
    outcome = committed.get(signature)
    return CellState(outcome["outcome"], outcome, committed=True) if outcome else CellState(MISSING)


def committed_outcomes(results: Results) -> dict[str, Record]:
    """Return the outcomes in the reference results, by signature, without failures, which are tried again."""
    file = results.reference / "outcomes.parquet"
    if not file.is_file():
        return {}
    import pyarrow.parquet as pq  # here: most results folders have no such file

    rows = pq.read_table(file, columns=["signature", "outcome", "reason", "journal_sha256"]).to_pylist()
    return {row.pop("signature"): row for row in rows if row["outcome"] in RESULTS}


def no_outcome(error: OSError, folder: Path) -> Record:
    """Return the outcome `missing` for a run that the disk refused; nothing is written."""
    reason = f"{error.filename or folder}: {error.strerror}"
    return {"outcome": MISSING, "reason": reason, "disk_full": error.errno in (errno.ENOSPC, errno.EDQUOT)}


def set_failure_aside(folder: Path, damaged: bool = False) -> None:
    """Rename the outcome of a failed run so that it is tried again; a damaged one begins anew, without a checkpoint."""
    if damaged:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    earlier = len(list(folder.glob("outcome.failed-*.json")))
    with suppress(FileNotFoundError):  # another command has done it
        os.replace(folder / "outcome.json", folder / f"outcome.failed-{earlier + 1}.json")


def last_row(timing: Path) -> Record | None:
    """Return the last whole row of a timing journal, without reading the whole file."""
    try:
        with timing.open("rb") as file:
            file.seek(-min(LAST_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            rows = [row for row in file.read().splitlines(keepends=True) if row.endswith(b"\n")]
        return parse_object(rows[-1], str(timing)) if rows else None
    except (OSError, Damaged):
        return None
