"""The points, params, tags and status that MLflow holds of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mlflow.entities import Metric

from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.identity import dotted
from grpolab.meanings import METRICS, TAGS
from grpolab.paths import Results, read_json
from grpolab.records import parse_lines, read_plan, read_settings
from grpolab.registry import SURROGATES
from grpolab.run.lease import is_taken
from grpolab.run_files import JOURNAL, TIMING, parse_object
from grpolab.vocabulary import FAILED

Record = dict[str, Any]
MIRRORED = {metric.name for metric in METRICS.values() if metric.mirrored}
FRAMEWORKS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)
UPDATE = b'{"kind":"update"'  # how a line of the journal begins
# Measured at the end of every rollout step, and sent with all points of that step: its last step says what MLflow has.
STEP_MARK = "system/rss_mib"
MAX_PARAM_LENGTH = 6000  # MLflow's limit


class Course(NamedTuple):
    """The points of a run by the rollout step that they are complete with, and its times in milliseconds since 1970."""

    points: dict[int, dict[tuple[str, int], Metric]]  # rollout step -> (metric, step on the chart) -> point
    start: int
    end: int


def read_course(folder: Path, outcome: Record | None) -> Course:
    """Read one point per metric and rollout step from the journals, as far as rollout steps have ended.

    Of the updates of a rollout step the last one counts: it is the most off-policy. Values that are not finite are
    left out, because MLflow would draw NaN as 0.
    """
    clock: dict[int, int] = {-1: round(1000 * folder.stat().st_mtime)}  # rollout step -> its end; -1: the start
    records: list[Record] = []
    for row in parse_lines(_read_whole_lines(folder / TIMING), folder / TIMING):
        records.append(row)
        clock[row["rollout_step"]] = row["time_ms"]
        if row["rollout_step"] == 0:
            clock[-1] = row["time_ms"] - round(1000 * row["seconds/elapsed"])
    last_update = b""  # most updates are not parsed
    for line in _read_whole_lines(folder / JOURNAL).splitlines():
        if line.startswith(UPDATE):
            last_update = line
            continue
        record = parse_object(line, str(folder / JOURNAL))
        if record["kind"] == "rollout" and last_update:
            records.append(parse_object(last_update, str(folder / JOURNAL)))
            last_update = b""
        records.append(record)
    if last_update and is_final(outcome):  # it diverged in the middle of a rollout step
        records.append(parse_object(last_update, str(folder / JOURNAL)))
    end = clock[max(clock)]
    points: dict[int, dict[tuple[str, int], Metric]] = {}
    for record in records:
        step = record["rollout_step"]
        closes = step - (record.get("kind") == "evaluation")  # an evaluation at n is made after rollout step n - 1
        if max(closes, 0) not in clock and not is_final(outcome):
            continue
        of_step = points.setdefault(max(closes, 0), {})
        for name, value in record.items():
            is_drawn = name in MIRRORED or name.startswith(FRAMEWORKS)
            if is_drawn and isinstance(value, int | float):  # what is not finite is a string
                name = name.replace("@", ":")  # ROLL's names; MLflow takes no @
                of_step[name, step] = Metric(name, value, clock.get(closes, end), step)
    return Course(points, clock[-1], end)


def _read_whole_lines(file: Path) -> bytes:
    """Read a journal without its last line if that is still being written."""
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def is_final(outcome: Record | None) -> bool:
    """Return True if nothing more can come; a failed run may be tried again from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


def status_of(folder: Path, outcome: Record | None) -> str:
    """Return MLflow's word for the state of a run; one that diverged has finished: it is a result."""
    if outcome is not None:
        return "FINISHED" if is_final(outcome) else "FAILED"
    return "RUNNING" if is_taken(folder) else "KILLED"


def read_params(folder: Path) -> dict[str, str]:
    """Return a run's settings as params, `task.name` and so on, without a clip range that the surrogate ignores."""
    settings = read_settings(folder)
    surrogate = SURROGATES.get(settings.get("kernel", ""))
    silent = {"machine", *(("epsilon", "epsilon_high") if surrogate and not surrogate.clips else ())}
    shown = {key: value for key, value in settings.items() if key not in silent}
    return {key: str(value)[:MAX_PARAM_LENGTH] for key, value in dotted(shown)}


def tags_of(plan: Record, cell: Record, outcome: Record | None, said: Record | None) -> dict[str, str]:
    """Return a run's tags: those of the vocabulary, and one for each factor of the study (`factor.task` if taken)."""
    tags = {f"factor.{name}" if name in TAGS else name: level for name, level in cell["levels"].items()}
    tags |= {name: str(cell[name]) for name in ("variant", "seed", "signature")}
    tags["study"] = plan["study"]
    tags["arm"] = str(cell["levels"].get(plan["compare"], cell["variant"]))
    tags["task"] = str(cell.get("task_title") or cell["settings"]["task"])
    tags |= {"outcome": outcome["outcome"]} if outcome else {}
    return tags | (said["tags"] if said else {})


def read_assessment(results: Results, study: str) -> dict[str, Record]:
    """Return what report and doctor wrote about each run of a study: signature -> `metrics` and `tags`."""
    kinds = {"metrics": int | float, "tags": str}
    return {
        signature: said
        for signature, said in (read_json(results.assessment(study)) or {}).items()
        if isinstance(said, dict) and all(isinstance(said.get(part), dict) for part in kinds)
        if all(isinstance(value, kind) for part, kind in kinds.items() for value in said[part].values())
    }


def read_plans(results: Results, studies: Iterable[str]) -> list[Record]:
    """Return the plans of studies and of those that they include, each once, as far as they are written."""
    plans: dict[str, Record] = {}
    for study in studies:
        if study not in plans and (plan := read_plan(results.plan(study))):
            plans[study] = plan
            plans |= {part["study"]: part for part in read_plans(results, plan["includes"])}
    return list(plans.values())
