"""What a run's journal says for the screen, while it grows and afterwards: first and last values, clipping, ratios."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from grpolab.errors import Damaged
from grpolab.run.watch import Tail
from grpolab.run_files import Record

Facts = dict[str, float]

# Metric -> name of the facts `<name>_start` and `<name>_end`, its first and last value.
_COURSES = {
    "eval/accuracy_expected": "accuracy",
    "reward/mean": "reward",
    "entropy/behaviour": "entropy",
    "accuracy": "accuracy",  # in the journal of a warm start, on training prompts
}
COURSE = "{:.3f} -> {:.3f}"
_CLIP = "share of tokens, after a batch's first optimiser step"
# Column of a table of results -> its two facts, their format, their meaning.
COLUMNS = {
    "accuracy": ("accuracy_start", "accuracy_end", COURSE, "held out: of one sampled answer, before -> after"),
    "reward": ("reward_start", "reward_end", COURSE, "mean of a batch, first -> last"),
    "clip low, high": ("clip_low", "clip_high", "{:.1%}, {:.1%}", _CLIP),
    "entropy": ("entropy_start", "entropy_end", COURSE, "nat a token, first -> last batch"),
    "token ratio": ("ratio_min", "ratio_max", "{:.3g} to {:.3g}", "smallest to largest"),
}
TITLES = ("variant", "runs", *COLUMNS, "a run")


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `1 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


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
        """Return the facts that COLUMNS names, as far as the journal has them.

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
        accuracy = format_facts(self._facts)["accuracy"]
        parts = [f"accuracy {accuracy}"] if accuracy else []
        parts += [f"clip {self.clip_now:.1%}"] if self.clip_now is not None else []
        return ", ".join(parts)


def read_facts(folder: Path) -> tuple[Facts, float | None]:
    """Return the facts of a run's whole journal, and its `constant_reward`."""
    journal = JournalReader(folder).read()
    return journal.facts(), journal.constant_reward


def format_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as texts by column, '' if one is not known."""
    return {
        name: form.format(facts[first], facts[last]) if {first, last} <= facts.keys() else ""
        for name, (first, last, form, _) in COLUMNS.items()
    }


def result_lines(outcome: Record, facts: Facts) -> list[str]:
    """Return the outcome of one run, and a line for each fact."""
    seconds = f" in {duration(outcome['seconds'])}" if outcome.get("seconds") else ""
    steps = {"rollout_steps": "rollout steps", "optimizer_steps": "optimiser steps"}
    done = ", ".join(f"{outcome[key]} {words}" for key, words in steps.items() if outcome.get(key))
    reason = f": {outcome['reason']}" if outcome.get("reason") else ""
    lines = [f"  {name:<15} {text:<18} {COLUMNS[name][-1]}" for name, text in format_facts(facts).items() if text]
    return [f"{outcome['outcome']}{seconds}{': ' + done if done else ''}{reason}", *lines]


def average_runs(runs: Sequence[tuple[Record, Facts]]) -> Record:
    """Return the number of a variant's runs by outcome, and each fact's mean over them (for ratios, the extreme)."""
    row: Record = {"runs": dict(Counter(outcome["outcome"] for outcome, _ in runs))}
    for name in dict.fromkeys(name for _, facts in runs for name in facts):
        values = [facts[name] for _, facts in runs if name in facts]
        row[name] = {"ratio_min": min, "ratio_max": max}.get(name, fmean)(values)
    seconds = [outcome["seconds"] for outcome, _ in runs if outcome.get("seconds")]
    return row | ({"seconds": fmean(seconds)} if seconds else {})


def format_row(variant: str, row: Record) -> list[str]:
    """Return a variant's averages as the texts below TITLES."""
    runs = ", ".join(f"{count} {outcome}" for outcome, count in row["runs"].items())
    return [variant, runs, *format_facts(row).values(), duration(row["seconds"]) if "seconds" in row else ""]
