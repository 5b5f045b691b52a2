"""What came out of a run, from its journal: while it goes, at the end of `train`, and as a table of variants.

Nothing heavy is imported, and what a journal has been read for is not read again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpolab.sweep.ledger import duration

Facts = dict[str, float]

# Metric -> what its first and last value are called here.
_COURSES = {
    "eval/accuracy_expected": "accuracy",
    "reward/mean": "reward",
    "entropy/behaviour": "entropy",
    "accuracy": "accuracy",  # of a warm start, on training prompts
}
_CLIPPED = {"clip/active_low": "clip_low", "clip/active_high": "clip_high"}
TITLES = ("variant", "runs", "accuracy", "reward", "clip low, high", "entropy", "token ratio", "a run")


class Diary:
    """A run's journal, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.jsonl"
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self.clip_now: float | None = None  # clip/active of the last optimiser step
        self._courses: Facts = {}
        self._ratios: list[float] = []
        self._clipped: dict[bool, list[Facts]] = {False: [], True: []}  # by: after the first update of a batch

    def look(self) -> Diary:
        """Read the whole lines that were added since the last look; all where it was cut back to a checkpoint."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._forget()
                file.seek(self._read)
                added = file.read()
        except FileNotFoundError:
            return self
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))
        return self

    def _take(self, record: Mapping[str, Any]) -> None:
        for metric, name in _COURSES.items():
            if metric in record:
                self._courses.setdefault(f"{name}_start", float(record[metric]))
                self._courses[f"{name}_end"] = float(record[metric])
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


def in_short(diary: Diary) -> str:
    """`accuracy 0.306 -> 0.415, clip 3.1%`, of a run that goes on; what is not known yet is left out."""
    facts = diary.facts()
    said = [f"accuracy {_course(facts, 'accuracy')}"] if "accuracy_start" in facts else []
    said += [f"clip {diary.clip_now:.1%}"] if diary.clip_now is not None else []
    return ", ".join(said)


def lines(outcome: Mapping[str, Any], facts: Facts) -> list[str]:
    """What came out of one run, a line for each fact."""
    rows = {
        "accuracy": (_course(facts, "accuracy"), "held out: of one sampled answer, before -> after"),
        "reward": (_course(facts, "reward"), "mean of a batch, first -> last"),
        "clip fraction": (_clip(facts), "of tokens, below and above the range, after a batch's first optimiser step"),
        "entropy": (_course(facts, "entropy"), "nat a token, first -> last batch"),
        "token ratio": (_ratio(facts), "smallest to largest"),
    }
    seconds = f" in {duration(outcome['seconds'])}" if outcome.get("seconds") else ""
    steps = {"rollout_steps": "rollout steps", "optimizer_steps": "optimiser steps"}
    done = ", ".join(f"{outcome[key]} {words}" for key, words in steps.items() if outcome.get(key))
    why = f": {outcome['reason']}" if outcome.get("reason") else ""
    told = [f"  {name:<14} {value:<18} {meaning}" for name, (value, meaning) in rows.items() if value]
    return [f"{outcome['outcome']}{seconds}{': ' + done if done else ''}{why}", *told]


def variant_row(runs: Sequence[tuple[Mapping[str, Any], Facts]]) -> dict[str, Any]:
    """The runs of one variant: how many of each outcome, and each fact's mean over them, of a ratio its extreme."""
    counts: dict[str, int] = {}
    for outcome, _ in runs:
        counts[outcome["outcome"]] = counts.get(outcome["outcome"], 0) + 1
    row: dict[str, Any] = {"runs": counts}
    for name in dict.fromkeys(name for _, facts in runs for name in facts):
        values = [facts[name] for _, facts in runs if name in facts]
        how = {"ratio_min": min, "ratio_max": max}.get(name, lambda values: sum(values) / len(values))
        row[name] = how(values)
    seconds = [outcome["seconds"] for outcome, _ in runs if outcome.get("seconds")]
    return row | ({"seconds": sum(seconds) / len(seconds)} if seconds else {})


def cells_of_row(variant: str, row: Mapping[str, Any]) -> list[str]:
    """A variant's row under TITLES."""
    runs = ", ".join(f"{count} {outcome}" for outcome, count in row["runs"].items())
    courses = [_course(row, name) for name in ("accuracy", "reward")]
    seconds = duration(row["seconds"]) if "seconds" in row else ""
    return [variant, runs, *courses, _clip(row), _course(row, "entropy"), _ratio(row), seconds]


def _course(facts: Mapping[str, Any], name: str) -> str:
    if f"{name}_start" not in facts:
        return ""
    return f"{facts[f'{name}_start']:.3f} -> {facts[f'{name}_end']:.3f}"


def _clip(facts: Mapping[str, Any]) -> str:
    return f"{facts['clip_low']:.1%}, {facts['clip_high']:.1%}" if "clip_low" in facts else ""


def _ratio(facts: Mapping[str, Any]) -> str:
    return f"{facts['ratio_min']:.3g} to {facts['ratio_max']:.3g}" if "ratio_min" in facts else ""
