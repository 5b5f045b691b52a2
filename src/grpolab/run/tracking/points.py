"""What MLflow must hold of a run, read from its folder as it grows: points, tags, params, status; and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.identity import dotted
from grpolab.paths import Results, read_json
from grpolab.records import parse_lines, read_plan, read_settings
from grpolab.registry import SURROGATES
from grpolab.run.lease import is_taken
from grpolab.run.tracking.colours import LINE, RUN_COLOUR, line_of
from grpolab.run_files import JOURNAL, TIMING, parse_object
from grpolab.vocabulary import FAILED, METRICS, TAGS

Record = dict[str, Any]
MIRRORED = {metric.name for metric in METRICS.values() if metric.mirrored}
FRAMEWORKS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)
TIMED = {metric.name for metric in METRICS.values() if metric.kind == "timing"}
UPDATE = b'{"kind":"update"'  # how a line of the journal begins
MAX_PARAM_LENGTH = 6000  # MLflow cuts longer ones


class Point(NamedTuple):
    """One value on a chart."""

    name: str
    value: float
    milliseconds: int  # since 1970
    step: int  # rollout step


def is_final(outcome: Record | None) -> bool:
    """Whether nothing more can come; a failed run may be tried again, from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


def status(folder: Path, outcome: Record | None) -> str:
    """MLflow's word for how far a run is; a run that diverged has finished: it is a result."""
    if outcome is not None:
        return "FINISHED" if is_final(outcome) else "FAILED"
    return "RUNNING" if is_taken(folder) else "KILLED"


@dataclass(frozen=True)
class Assessment:
    """What report and doctor say of each run of a study, as the command that drew it wrote it down."""

    runs: Record  # signature -> its `metrics` and `tags`

    @classmethod
    def read(cls, results: Results, study: str) -> Assessment:
        """Of no run where nothing was drawn yet, or the file is damaged: `grpolab track sync` writes it anew."""
        said = (read_json(results.assessment(study)) or {}).items()
        return cls({signature: of for signature, of in said if _is_assessment(of)})

    def of(self, cell: Record, outcome: Record | None) -> Record | None:
        """Of one cell's run; None where nothing is said of it, or it has no result any more."""
        return self.runs.get(cell["signature"]) if is_final(outcome) else None

    def points(self, cell: Record, outcome: Record | None, end: int) -> dict[tuple[str, int], Point]:
        """Its numbers as points at the end of the run."""
        if (said := self.of(cell, outcome)) is None:
            return {}
        step = int((outcome or {}).get("rollout_steps") or 0)
        return {(name, step): Point(name, value, end, step) for name, value in said["metrics"].items()}

    def tags(self, cell: Record, outcome: Record | None) -> dict[str, str]:
        """Its words."""
        said = self.of(cell, outcome)
        return dict(said["tags"]) if said else {}


def _is_assessment(said: Any) -> bool:
    parts = [said.get(part) for part in ("metrics", "tags")] if isinstance(said, dict) else []
    kinds = zip(parts, (int | float, str), strict=False)
    return bool(parts) and all(
        isinstance(part, dict) and all(isinstance(value, kind) for value in part.values()) for part, kind in kinds
    )


@dataclass(frozen=True)
class Course:
    """The points of a run by metric and rollout step, and when it began and ended its last rollout step."""

    points: dict[tuple[str, int], Point]
    start: int  # milliseconds since 1970
    end: int


def last_of(points: dict[tuple[str, int], Point]) -> dict[tuple[str, int], Point]:
    """The last point of each metric."""
    steps = dict(sorted(points))
    return {key: point for key, point in points.items() if key[1] == steps[key[0]]}


def course_of(folder: Path, outcome: Record | None) -> Course:
    """What MLflow draws of a run folder: one point per metric and rollout step.

    Of the updates of a rollout step the last one counts: it is the most off-policy, so clipping shows in it if
    anywhere. A point's time is the end of its rollout step (`timing.jsonl`), so reading a folder twice gives equal
    points; a step that has not ended has none, unless the run has an outcome. Values that are not finite are left out
    (MLflow would draw NaN as 0 and inf as 1.8e308); the journal, an artefact of the run, has them.
    """
    records: list[Record] = []
    last_update = b""  # as it stands in the file: most of them are not parsed
    journal, timing = folder / JOURNAL, folder / TIMING
    for line in _whole_lines(journal):
        if line.startswith(UPDATE):
            last_update = line
            continue
        record = parse_object(line, str(journal))
        if record["kind"] == "rollout" and last_update:
            records.append(parse_object(last_update, str(journal)))
            last_update = b""
        records.append(record)
    if last_update and is_final(outcome):  # it diverged in the middle of a rollout step
        records.append(parse_object(last_update, str(journal)))
    clock: dict[int, int] = {}  # rollout step -> milliseconds at its end; -1: the start
    for row in parse_lines(b"\n".join(_whole_lines(timing)), timing):
        records.append({**row, "kind": "timing"})
        clock[row["rollout_step"]] = row["time_ms"]
        if row["rollout_step"] == 0:
            clock[-1] = row["time_ms"] - round(1000 * row["seconds/elapsed"])
    modified = round(1000 * folder.stat().st_mtime)
    end = max(clock.values(), default=modified)
    points = {}
    for record in records:
        step = record["rollout_step"]
        closes = step - (record["kind"] == "evaluation")  # an evaluation at n is made at the end of rollout step n - 1
        time = clock.get(closes, end if outcome else None)
        if time is None:
            continue
        for name, value in record.items():
            is_drawn = name in MIRRORED or name.startswith(FRAMEWORKS)
            if is_drawn and isinstance(value, int | float):  # not finite: a string
                name = name.replace("@", ":")  # MLflow takes no @ in a name, which ROLL's have
                points[name, step] = Point(name, value, time, step)
    return Course(points, clock.get(-1, modified), end)


def _whole_lines(file: Path) -> list[bytes]:
    """The last line may still be on its way."""
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


def params_of(folder: Path) -> dict[str, str]:
    """A run's settings as params, `task.name` and so on; none where it failed before it wrote them.

    A clip range stands in every run's settings; where the surrogate has none it is no param.
    """
    settings = read_settings(folder)
    surrogate = SURROGATES.get(settings.get("kernel", ""))
    silent = {"machine", *(("epsilon", "epsilon_high") if surrogate and not surrogate.clips else ())}
    shown = {key: value for key, value in settings.items() if key not in silent}
    return {key: str(value)[:MAX_PARAM_LENGTH] for key, value in dotted(shown)}


def labels_of(plan: Record, cell: Record, colour: str) -> dict[str, str]:
    """The tags by which a run is found and grouped: those of the vocabulary, and one for each factor of the study.

    A factor that is called as one of the vocabulary's tags (`task`) is `factor.task`. `colour`: of its variant.
    """
    factors = {f"factor.{name}" if name in TAGS else name: level for name, level in cell["levels"].items()}
    return {
        **factors,
        "study": plan["study"],
        "variant": cell["variant"],
        LINE: line_of(cell["variant"], colour),
        RUN_COLOUR: colour,
        "arm": str(cell["levels"].get(plan["compare"], cell["variant"])),
        "task": str(cell.get("task_title") or cell["settings"]["task"]),
        "seed": str(cell["seed"]),
        "signature": cell["signature"],
    }


def plans_of(results: Results, studies: Iterable[str]) -> list[Record]:
    """Plans of these studies and of those that they include, as far as they are written, each once."""
    plans: dict[str, Record] = {}
    for study in studies:
        if study not in plans and (plan := read_plan(results.plan(study))):
            plans[study] = plan
            plans |= {part["study"]: part for part in plans_of(results, plan["includes"])}
    return list(plans.values())


Stored = dict[tuple[str, int], list[float]]  # (metric, rollout step) -> values; more than one: it was written twice


class Difference(NamedTuple):
    """What is not equal, one sentence each."""

    wrong: list[str]  # cannot be put right by adding points
    missing: list[str]


def compare(expected: Mapping[tuple[str, int], Point], stored: Stored, final: bool) -> Difference:
    """Points that a folder makes (`Course.points`) against those that the store has.

    A run that is not `final` may have been set back to its checkpoint: what the store has beyond the last point of the
    folder is then no difference, because the run will take those steps again and come to the same values. The times of
    points and what the clock measured are not compared: a run that was resumed has new ones.
    """
    wrong, missing = [], []
    last = dict(sorted(expected))  # step of each metric's last point
    for (name, step), point in expected.items():
        in_store = stored.get((name, step))
        if in_store is None:
            missing.append(f"{name} at step {step} is missing")
        elif name not in TIMED and any(value != point.value for value in in_store):
            wrong.append(f"{name} at step {step} is {in_store[0]}, the journal says {point.value}")
    for (name, step), in_store in stored.items():
        if len(in_store) > 1:
            wrong.append(f"{name} at step {step} is there {len(in_store)} times")
        if (name, step) not in expected and (final or step <= last.get(name, -1)):
            wrong.append(f"{name} at step {step} is in no journal")
    return Difference(wrong, missing)
