"""The points that MLflow draws of a run, made from its folder as it grows; and whether a store has the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

from grpolab import vocabulary
from grpolab.frameworks.names import FRAMEWORK_METRICS
from grpolab.paths import read_json
from grpolab.run.folder import Tail, is_alive
from grpolab.vocabulary import FAILED, METRICS

Record = dict[str, Any]
MIRRORED = {kind: set(vocabulary.mirrored(kind)) for kind in get_args(vocabulary.Kind)}
FRAMEWORKS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)
TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}


class Point(NamedTuple):
    """One value on a chart."""

    name: str
    value: float
    milliseconds: int  # since 1970
    step: int  # rollout step


def is_final(outcome: Record | None) -> bool:
    """Whether nothing more can come; a failed run may be tried again, from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


def status(folder: Path, outcome: Record | None, now: float) -> str:
    """MLflow's word for how far a run is at `now` (unix seconds); a run that diverged has finished: it is a result."""
    if outcome is not None:
        return "FINISHED" if is_final(outcome) else "FAILED"
    beat = read_json(folder / "running.json")
    return "RUNNING" if beat and is_alive(beat, now) else "KILLED"


class History:
    """The points of one run: one per metric that MLflow draws and rollout step, in the journal's order.

    Of the updates of a rollout step the last one counts: it is the most off-policy, so clipping shows in it if
    anywhere. A point's time is the end of its rollout step (`timing.jsonl`), so reading a folder twice gives equal
    points. Values that are not finite are left out (MLflow would draw NaN as 0 and inf as 1.8e308); the journal, an
    artefact of the run, has them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = Tail(folder / "journal.jsonl")
        self._timing = Tail(folder / "timing.jsonl")
        self._last_update: Record = {}
        self._untimed: list[Record] = []
        self._clock: dict[int, int] = {}  # rollout step -> milliseconds at its end; -1: the start

    def read(self, outcome: Record | None) -> list[Point]:
        """Points since the last call whose time is known; all of them where the run has an outcome."""
        records = self._untimed
        for record in self._journal.read():
            if record["kind"] == "update":
                self._last_update = record
            elif record["kind"] == "rollout":
                records += filter(None, (self._last_update, record))
                self._last_update = {}
            elif record["kind"] == "evaluation":
                records.append(record)
        for row in self._timing.read():
            self._clock[row["rollout_step"]] = row["time_ms"]
            if row["rollout_step"] == 0:
                self._clock[-1] = row["time_ms"] - round(1000 * row["seconds/elapsed"])
            records.append({**row, "kind": "timing"})
        if is_final(outcome) and self._last_update:  # it diverged in the middle of a rollout step
            records.append(self._last_update)
        self._untimed = []
        points: list[Point] = []
        for record in records:
            kind, step = record["kind"], record["rollout_step"]
            closes = step - (kind == "evaluation")  # an evaluation at n is made at the end of rollout step n - 1
            time = self._clock.get(closes, self.end if outcome else None)
            if time is None:
                self._untimed.append(record)
                continue
            points += [
                Point(name.replace("@", ":"), value, time, step)  # MLflow takes no @ in a name, which ROLL's have
                for name, value in record.items()
                if (name in MIRRORED[kind] or name.startswith(FRAMEWORKS))
                and isinstance(value, int | float)  # not finite: a string
            ]
        return points

    @property
    def start(self) -> int:
        """Milliseconds at the start of the run."""
        return self._clock.get(-1) or self._modified()

    @property
    def end(self) -> int:
        """Milliseconds at the end of the last rollout step."""
        return max(self._clock.values(), default=0) or self._modified()

    def _modified(self) -> int:
        return round(1000 * self._folder.stat().st_mtime)


Stored = dict[tuple[str, int], list[float]]  # (metric, rollout step) -> values; more than one: it was written twice


@dataclass
class Difference:
    """What is not equal, one sentence each."""

    wrong: list[str] = field(default_factory=list)  # cannot be put right by adding points
    missing: list[str] = field(default_factory=list)


def compare(expected: Sequence[Point], stored: Stored, final: bool) -> Difference:
    """Points that a folder makes (`History`) against those that the store has.

    A run that is not `final` may have been set back to its checkpoint: what the store has beyond the last point of the
    folder is then no difference, because the run will take those steps again and come to the same values. The times of
    points and what the clock measured are not compared: a run that was resumed has new ones.
    """
    difference = Difference()
    values = {(point.name, point.step): point.value for point in expected}
    last = dict(sorted(values))  # step of each metric's last point
    for (name, step), value in values.items():
        have = stored.get((name, step))
        if have is None:
            difference.missing.append(f"{name} at step {step} is missing")
        elif name not in TIMED and any(other != value for other in have):
            difference.wrong.append(f"{name} at step {step} is {have[0]}, the journal says {value}")
    for (name, step), have in stored.items():
        if len(have) > 1:
            difference.wrong.append(f"{name} at step {step} is there {len(have)} times")
        if (name, step) not in values and (final or step <= last.get(name, -1)):
            difference.wrong.append(f"{name} at step {step} is in no journal")
    return difference
