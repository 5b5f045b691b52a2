"""The state of a study's runs and their results so far, read from the run folders alone.

No slow import: a thousand runs are read in a second.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from grpolab.errors import Damaged
from grpolab.paths import Results, read_json
from grpolab.records import outcome_or_damage
from grpolab.run.lease import is_taken
from grpolab.run.watch import Tail
from grpolab.run_files import Record, parse_object
from grpolab.vocabulary import MISSING, RESULTS

Facts = dict[str, float]

RUNNING = "running"
LAST_BYTES = 4096  # at the end of a timing journal: more than one row
# Metric -> name of the facts `<name>_start` and `<name>_end`, its first and last value.
_COURSES = {
    "eval/accuracy_expected": "accuracy",
    "reward/mean": "reward",
    "entropy/behaviour": "entropy",
    "accuracy": "accuracy",  # in the journal of a warm start, on training prompts
}
COURSE = "{:.3f} -> {:.3f}"


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


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


def cell_state(signature: str, results: Results, committed: Mapping[str, Record], has_folder: bool = True) -> CellState:
    """Return the state of a cell: from its run folder, else from its outcome in `committed`."""
    folder = results.run(signature)
    if has_folder and (outcome := outcome_or_damage(folder)):
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


class JournalReader:
    """Reads a run's journal as it grows, each line once."""

    def __init__(self, folder: Path) -> None:
        self._journal = Tail(folder / "journal.jsonl")
        self._forget()

    def _forget(self) -> None:
        self._restarts = self._journal.restarts
        self.clip_now: float | None = None  # clip/active of the last optimiser step
        self._facts: Facts = {}
        self._rewards = set[float]()  # two at most: enough to know that they differ
        self._clipped: dict[bool, list[Facts]] = {False: [], True: []}  # True: after the first update of a batch

    def read(self) -> JournalReader:
        """Read the lines added since the last call; all of them if the journal was cut back to a checkpoint."""
        records = []
        with suppress(Damaged):  # this is for display; a reader of the whole journal reports the damage
            records = self._journal.read()
        if self._journal.restarts != self._restarts:
            self._forget()
        for record in records:
            self._take(record)
        return self

    def _take(self, record: Record) -> None:
        for metric, name in _COURSES.items():
            if metric in record:
                self._facts.setdefault(f"{name}_start", float(record[metric]))
                self._facts[f"{name}_end"] = float(record[metric])
        if {"reward/mean", "reward/std"} <= record.keys() and len(self._rewards) < 2:
            mean, spread = float(record["reward/mean"]), float(record["reward/std"])
            self._rewards |= {round(mean, 6), round(mean + spread, 6)}
        if record.get("kind") != "update":
            return
        for end, extreme in (("min", min), ("max", max)):
            if not math.isnan(value := float(record.get(f"ratio/token_{end}", math.nan))):
                self._facts[f"ratio_{end}"] = extreme(self._facts.get(f"ratio_{end}", value), value)
        if "clip/active" in record:
            self.clip_now = float(record["clip/active"])
            is_later = record["iteration"] > 0 or record["minibatch"] > 0
            shares = {f"clip_{side}": float(record[f"clip/active_{side}"]) for side in ("low", "high")}
            self._clipped[is_later].append(shares)

    @property
    def accuracy_now(self) -> float | None:
        return self._facts.get("accuracy_end")

    def facts(self) -> Facts:
        """Return the first and last values of _COURSES, clip fractions and ratios, as far as the journal has them.

        Clip fractions leave out the first optimiser step on each batch, where every ratio is 1, if there are others.
        """
        clipped = self._clipped[True] or self._clipped[False]
        return self._facts | ({name: fmean(step[name] for step in clipped) for name in clipped[0]} if clipped else {})

    @property
    def constant_reward(self) -> float | None:
        """The reward of every completion so far; None if they differ, or there is none."""
        return next(iter(self._rewards)) if len(self._rewards) == 1 else None

    def summarize(self) -> str:
        """Return `accuracy 0.306 -> 0.415, clip 3.1%` for a running run, as far as it is known."""
        ends = [self._facts[f"accuracy_{end}"] for end in ("start", "end") if f"accuracy_{end}" in self._facts]
        parts = [f"accuracy {COURSE.format(*ends)}"] if ends else []
        parts += [f"clip {self.clip_now:.1%}"] if self.clip_now is not None else []
        return ", ".join(parts)
