"""What the run folders say: they are the ledger, and nothing else is kept that could disagree.

How far each cell of a study is (`grpolab status`), what came out of a run while it goes and at its end, and both in
words. Nothing heavy is imported: a thousand runs are read in a second.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.errors import Damaged
from grpolab.paths import Results, read_json
from grpolab.records import outcome_or_damage, read_plan
from grpolab.run.folder import Tail
from grpolab.run.lease import is_taken
from grpolab.run_files import parse_object
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED, FAILED, MISSING, RESULTS

Record = dict[str, Any]
Facts = dict[str, float]

RUNNING = "running"
LAST_BYTES = 4096  # of a timing journal: more than one row
# Metric -> what its first and last value are called here.
_COURSES = {
    "eval/accuracy_expected": "accuracy",
    "reward/mean": "reward",
    "entropy/behaviour": "entropy",
    "accuracy": "accuracy",  # of a warm start, on training prompts
}
_CLIPPED = {"clip/active_low": "clip_low", "clip/active_high": "clip_high"}
TITLES = ("variant", "runs", "accuracy", "reward", "clip low, high", "entropy", "token ratio", "a run")
_MEANINGS = {
    "accuracy": "held out: of one sampled answer, before -> after",
    "reward": "mean of a batch, first -> last",
    "clip fraction": "of tokens, below and above the range, after a batch's first optimiser step",
    "entropy": "nat a token, first -> last batch",
    "token ratio": "smallest to largest",
}


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def first_line(outcome: Record | None) -> str:
    """The first line of an outcome's reason; empty where there is none."""
    return str((outcome or {}).get("reason") or "").partition("\n")[0]


@dataclass(frozen=True)
class CellState:
    """A planned cell and how far it is."""

    cell: Record  # its entry in plan.json
    state: str  # an outcome of the vocabulary, or `running`
    outcome: Record | None = None
    running: Record | None = None  # how far it was at its last heartbeat; none before its model is there
    committed: bool = False  # its outcome stands in the committed reference, and there is no run folder


def cell_state(cell: Record, results: Results, committed: Mapping[str, Record], is_begun: bool = True) -> CellState:
    """State of one planned cell; a run folder goes before what is `committed`. Not `is_begun`: there is no folder."""
    folder = results.run(cell["signature"])
    if is_begun and (outcome := outcome_or_damage(folder)):
        return CellState(cell, outcome["outcome"], outcome=outcome)
    if is_begun and is_taken(folder):
        return CellState(cell, RUNNING, running=read_json(folder / "running.json"))
    if kept := committed.get(cell["signature"]):
        return CellState(cell, kept["outcome"], outcome=kept, committed=True)
    return CellState(cell, MISSING)


def committed_outcomes(results: Results) -> dict[str, Record]:
    """The outcomes that are committed in compact form, by signature: a run that is there need not be trained again.

    They are results; a run that failed is tried again where its folder is gone.
    """
    file = results.reference / "outcomes.parquet"
    if not file.is_file():
        return {}
    import pyarrow.parquet as pq  # here: most results folders have none

    rows = pq.read_table(file, columns=["signature", "outcome", "reason", "journal_sha256"]).to_pylist()
    return {row.pop("signature"): row for row in rows if row["outcome"] in RESULTS}


def study_states(results: Results, study: str) -> dict[str, list[CellState]]:
    """States of a study's cells by study; a collection gives those of the studies that it includes.

    Raises RequestError where the study has not been planned, or its plan cannot be read.
    """
    plan = read_plan(results.plan(study))
    if plan is None:
        raise results.not_planned(study)
    if plan["includes"]:
        return {name: cells for part in plan["includes"] for name, cells in study_states(results, part).items()}
    committed = committed_outcomes(results)
    return {study: [cell_state(cell, results, committed) for cell in plan["cells"]]}


def no_outcome(error: OSError, folder: Path) -> Record:
    """What is said, and written nowhere, where the disk refused a run: the cell is still missing."""
    reason = f"{error.filename or folder}: {error.strerror}"
    return {"outcome": MISSING, "reason": reason, "disk_full": error.errno in (errno.ENOSPC, errno.EDQUOT)}


def set_failure_aside(folder: Path, damaged: bool = False) -> None:
    """Let a failed run be tried again; its outcome is kept beside. A damaged one begins anew, from no checkpoint."""
    if damaged:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    kept = len(list(folder.glob("outcome.failed-*.json")))
    with suppress(FileNotFoundError):  # another command was faster
        os.replace(folder / "outcome.json", folder / f"outcome.failed-{kept + 1}.json")


def last_row(timing: Path) -> Record | None:
    """The last whole row of a timing journal, read without the rest of the file."""
    try:
        with timing.open("rb") as file:
            file.seek(-min(LAST_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            rows = [row for row in file.read().splitlines(keepends=True) if row.endswith(b"\n")]
        return parse_object(rows[-1], str(timing)) if rows else None
    except (OSError, Damaged):
        return None


def print_status(results: Results, study: str | None, as_json: bool) -> None:
    """`grpolab status`: how far the cells of a study are, for people or as JSON."""
    summaries = status(results, study, time.time())
    if as_json:
        say(json.dumps(summaries, indent=1))
    elif not summaries:
        say("no study is planned yet: run `grpolab sweep STUDY`")
    else:
        for name, summary in summaries.items():
            counts = ", ".join(f"{count} {state}" for state, count in sorted(summary["states"].items()))
            kept = f" ({summary['committed']} of them committed)" if summary["committed"] else ""
            say(f"{name}: {summary['planned']} planned: {counts}{kept}")
            for row in summary["cells"]:
                if details := _details(row):
                    say(f"  {row['state']}: {row['variant']}, seed {row['seed']} ({row['signature']}): {details}")
            if DAMAGED in summary["states"]:
                say(f"  damaged runs are left out: `grpolab sweep {name} --retry-failed` trains them anew")


def status(results: Results, study: str | None, now: float) -> Record:
    """All that `grpolab status --json` prints. Raises RequestError where the study has not been planned."""
    names = [study] if study else results.planned()
    states = {name: cells for part in names for name, cells in study_states(results, part).items()}
    return {
        name: {
            "planned": len(cells),
            "states": dict(Counter(cell.state for cell in cells)),
            "committed": sum(cell.committed for cell in cells),  # whose outcome is in results/reference/ alone
            "cells": [_status_row(cell, results, now) for cell in cells],
        }
        for name, cells in states.items()
    }


def _status_row(cell: CellState, results: Results, now: float) -> Record:
    """One cell. Seconds: `heartbeat_seconds_ago`, `seconds_left` (null before the first step), `seconds` (it took)."""
    row = {key: cell.cell[key] for key in ("variant", "seed", "signature")} | {"state": cell.state}
    if cell.outcome:
        return row | {key: cell.outcome.get(key) for key in ("reason", "seconds")}
    timed = last_row(results.run(cell.cell["signature"]) / "timing.jsonl")
    steps = timed["rollout_step"] + 1 if timed else 0
    if beat := cell.running:
        age, left = max(0.0, now - beat["time"]), None  # a clock may have been set back
        if timed:  # by the mean of the steps so far, those of earlier sessions included
            left = round(max(0.0, timed["seconds/elapsed"] / steps * (beat["rollout_steps"] - steps) - age), 1)
        row |= {key: beat[key] for key in ("rollout_step", "rollout_steps", "host", "pid")}
        return row | {"heartbeat_seconds_ago": round(age, 1), "seconds_left": left}
    return row | ({"interrupted_at_step": steps} if timed and cell.state != RUNNING else {})


def _details(row: Record) -> str:
    """What there is to say about a cell besides its state; empty for most."""
    if row["state"] == RUNNING and "rollout_step" not in row:
        return "begins: its warm start or its model is being made"
    if row["state"] == RUNNING:
        left = "no estimate yet" if row["seconds_left"] is None else f"about {duration(row['seconds_left'])} left"
        where = f"step {row['rollout_step']} of {row['rollout_steps']} on {row['host']} (pid {row['pid']})"
        return f"{where}, heartbeat {duration(row['heartbeat_seconds_ago'])} ago, {left}"
    if row["state"] in (FAILED, DAMAGED):
        return first_line(row) or "no reason given"
    return f"interrupted at step {row['interrupted_at_step']}, will go on" if "interrupted_at_step" in row else ""


class JournalReader:
    """A run's journal, read as it grows; what has been read once is not read again."""

    def __init__(self, folder: Path) -> None:
        self._journal = Tail(folder / "journal.jsonl")
        self._forget()

    def _forget(self) -> None:
        self._restarts = self._journal.restarts
        self.clip_now: float | None = None  # clip/active of the last optimiser step
        self._courses: Facts = {}
        self._rewards = set[float]()  # two at most: whether there is more than one is what is asked
        self._ratios: list[float] = []
        self._clipped: dict[bool, list[Facts]] = {False: [], True: []}  # by: after the first update of a batch

    def read(self) -> JournalReader:
        """Read the whole lines that were added since the last time; all where it was cut back to a checkpoint."""
        records = []
        with suppress(Damaged):  # it is for looking only; who reads the whole journal says what is wrong with it
            records = self._journal.read()
        if self._journal.restarts != self._restarts:
            self._forget()
        for record in records:
            self._take(record)
        return self

    def _take(self, record: Record) -> None:
        for metric, name in _COURSES.items():
            if metric in record:
                self._courses.setdefault(f"{name}_start", float(record[metric]))
                self._courses[f"{name}_end"] = float(record[metric])
        if {"reward/mean", "reward/std"} <= record.keys() and len(self._rewards) < 2:
            mean, spread = float(record["reward/mean"]), float(record["reward/std"])
            self._rewards |= {round(mean, 6), round(mean + spread, 6)}
        if record.get("kind") != "update":
            return
        ratios = [float(record[name]) for name in ("ratio/token_min", "ratio/token_max") if name in record]
        extremes = [value for value in [*self._ratios, *ratios] if not math.isnan(value)]
        self._ratios = [min(extremes), max(extremes)] if extremes else []
        if "clip/active" in record:
            self.clip_now = float(record["clip/active"])
            later = record["iteration"] > 0 or record["minibatch"] > 0
            self._clipped[later].append({name: float(record[metric]) for metric, name in _CLIPPED.items()})

    def facts(self) -> Facts:
        """`accuracy_start`, `accuracy_end`, the same of `reward` and `entropy`, `clip_low`, `clip_high`, `ratio_min`,
        `ratio_max`; what the journal does not have is left out.

        The clip fractions are means over the optimiser steps after the first on each batch, before which every ratio is
        1; over all where there are no others.
        """
        clipped = self._clipped[True] or self._clipped[False]
        means = {name: sum(step[name] for step in clipped) / len(clipped) for name in clipped[0]} if clipped else {}
        return {**self._courses, **means, **dict(zip(("ratio_min", "ratio_max"), self._ratios, strict=False))}

    @property
    def only_reward(self) -> float | None:
        """The reward of every completion so far; None where they differ, or there is none."""
        return next(iter(self._rewards)) if len(self._rewards) == 1 else None

    def in_short(self) -> str:
        """`accuracy 0.306 -> 0.415, clip 3.1%`, of a run that goes on; what is not known yet is left out."""
        accuracy = _in_words(self._courses)["accuracy"]
        parts = [f"accuracy {accuracy}"] if accuracy else []
        parts += [f"clip {self.clip_now:.1%}"] if self.clip_now is not None else []
        return ", ".join(parts)


def _in_words(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as texts, by the keys of _MEANINGS and in their order; empty where a fact is not there."""

    def pair(first: str, last: str, form: str) -> str:
        return form.format(facts[first], facts[last]) if first in facts else ""

    courses = {name: pair(f"{name}_start", f"{name}_end", "{:.3f} -> {:.3f}") for name in set(_COURSES.values())}
    clip = pair("clip_low", "clip_high", "{:.1%}, {:.1%}")
    texts = {**courses, "clip fraction": clip, "token ratio": pair("ratio_min", "ratio_max", "{:.3g} to {:.3g}")}
    return {name: texts[name] for name in _MEANINGS}


def result_lines(outcome: Record, facts: Facts) -> list[str]:
    """What came out of one run, a line for each fact."""
    seconds = f" in {duration(outcome['seconds'])}" if outcome.get("seconds") else ""
    steps = {"rollout_steps": "rollout steps", "optimizer_steps": "optimiser steps"}
    done = ", ".join(f"{outcome[key]} {words}" for key, words in steps.items() if outcome.get(key))
    why = f": {outcome['reason']}" if outcome.get("reason") else ""
    told = [f"  {name:<14} {text:<18} {_MEANINGS[name]}" for name, text in _in_words(facts).items() if text]
    return [f"{outcome['outcome']}{seconds}{': ' + done if done else ''}{why}", *told]


def variant_row(runs: Sequence[tuple[Record, Facts]]) -> Record:
    """The runs of one variant: how many of each outcome, and each fact's mean over them, of a ratio its extreme."""
    row: Record = {"runs": dict(Counter(outcome["outcome"] for outcome, _ in runs))}
    for name in dict.fromkeys(name for _, facts in runs for name in facts):
        values = [facts[name] for _, facts in runs if name in facts]
        how = {"ratio_min": min, "ratio_max": max}.get(name, lambda values: sum(values) / len(values))
        row[name] = how(values)
    seconds = [outcome["seconds"] for outcome, _ in runs if outcome.get("seconds")]
    return row | ({"seconds": sum(seconds) / len(seconds)} if seconds else {})


def cells_of_row(variant: str, row: Record) -> list[str]:
    """A variant's row under TITLES."""
    runs = ", ".join(f"{count} {outcome}" for outcome, count in row["runs"].items())
    return [variant, runs, *_in_words(row).values(), duration(row["seconds"]) if "seconds" in row else ""]
