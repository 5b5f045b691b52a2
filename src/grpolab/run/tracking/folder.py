"""What a run folder says, as it grows: the points for MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from grpolab import vocabulary
from grpolab.frameworks.names import FRAMEWORK_METRICS
from grpolab.paths import Results, read_json
from grpolab.run.folder import is_alive
from grpolab.vocabulary import FAILED

Record = dict[str, Any]
MIRRORED = {kind: set(vocabulary.mirrored(kind)) for kind in get_args(vocabulary.Kind)}
PEERS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)


class Point(NamedTuple):
    """One value on a chart."""

    name: str
    value: float
    milliseconds: int  # since 1970
    step: int  # rollout step


def plans_of(results: Results, studies: Iterable[str]) -> list[Record]:
    """Plans of these studies and of those that they include, as far as they are written, each once."""
    found: dict[str, Record] = {}
    for study in studies:
        if study not in found and (plan := read_json(results.plan(study))):
            found[study] = plan
            found |= {part["study"]: part for part in plans_of(results, plan["includes"])}
    return list(found.values())


def is_begun(folder: Path) -> bool:
    """Whether a run folder says anything yet; one that fails before it starts has an outcome alone."""
    return (folder / "settings.yaml").exists() or (folder / "outcome.json").exists()


def is_final(outcome: Record | None) -> bool:
    """Whether nothing more can come; a failed run may be tried again, from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


def status(folder: Path, outcome: Record | None, now: float) -> str:
    """MLflow's word for how far a run is at `now` (unix seconds); a run that diverged has finished: it is a result."""
    if outcome is not None:
        return "FINISHED" if is_final(outcome) else "FAILED"
    beat = read_json(folder / "running.json")
    return "RUNNING" if beat and is_alive(beat, now) else "KILLED"


class Tail:
    """The complete lines of a growing JSON-lines file, each given once.

    A file that was cut back, or whose lines no longer begin where they did, is read again from its start: the reader
    must not mind a record twice.
    """

    def __init__(self, path: Path, beginning: bytes = b"") -> None:
        """`beginning`: leave out, unparsed, the lines that begin otherwise."""
        self._path, self._beginning = path, beginning
        self._offset = 0

    def read(self) -> list[Record]:
        """Records since the last call."""
        try:
            if self._path.stat().st_size < self._offset:
                self._offset = 0
            return self._read()
        except FileNotFoundError:
            return []
        except json.JSONDecodeError:
            if not self._offset:
                raise
            self._offset = 0
            return self._read()

    def _read(self) -> list[Record]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]  # the last line may still be on its way
        records = [json.loads(line) for line in lines.splitlines() if line.startswith(self._beginning)]
        self._offset += len(lines)
        return records


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
        records = [*self._untimed, *self._new_records()]
        if is_final(outcome) and self._last_update:  # it diverged in the middle of a rollout step
            records.append(self._last_update)
        self._untimed = []
        points: list[Point] = []
        for record in records:
            time = self._clock.get(_timed_by(record), self.end if outcome else None)
            if time is None:
                self._untimed.append(record)
            else:
                points += _points(record, time)
        return points

    @property
    def start(self) -> int:
        """Milliseconds at the start of the run."""
        return self._clock.get(-1) or _modified(self._folder)

    @property
    def end(self) -> int:
        """Milliseconds at the end of the last rollout step."""
        return max(self._clock.values(), default=0) or _modified(self._folder)

    def _new_records(self) -> list[Record]:
        """Records that make points: rollouts (with their last update), evaluations, timings."""
        return [*self._journal_records(), *self._timing_records()]

    def _journal_records(self) -> Iterator[Record]:
        for record in self._journal.read():
            if record["kind"] == "update":
                self._last_update = record
            elif record["kind"] == "rollout":
                yield from filter(None, (self._last_update, record))
                self._last_update = {}
            elif record["kind"] == "evaluation":
                yield record

    def _timing_records(self) -> Iterator[Record]:
        for record in self._timing.read():
            step, end = record["rollout_step"], record["time_ms"]
            self._clock[step] = end
            if step == 0:
                self._clock[-1] = end - round(1000 * record["seconds/elapsed"])
            yield {**record, "kind": "timing"}


def _modified(path: Path) -> int:
    return round(1000 * path.stat().st_mtime)


def _timed_by(record: Record) -> int:
    """The rollout step at whose end the record was made; an evaluation at n closes rollout step n - 1."""
    return record["rollout_step"] - (record["kind"] == "evaluation")


def _points(record: Record, milliseconds: int) -> list[Point]:
    mirrored = MIRRORED[record["kind"]]
    return [
        Point(_allowed(name), value, milliseconds, record["rollout_step"])
        for name, value in record.items()
        if (name in mirrored or name.startswith(PEERS)) and isinstance(value, int | float)  # not finite: a string
    ]


def _allowed(name: str) -> str:
    """ROLL's `actor/clipfrac@sum` as `actor/clipfrac:sum`: MLflow takes no @ in a metric's name."""
    return name.replace("@", ":")
