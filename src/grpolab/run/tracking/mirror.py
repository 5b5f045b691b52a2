"""Each cell of a study as one run of MLflow, brought up to date from its folder in one pass after another."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from mlflow import MlflowClient, entities
from mlflow.entities import LoggedModelStatus, Metric, Param, Run, RunTag

from grpolab.errors import Damaged, RequestError
from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.identity import SIGNATURE_LENGTH, dotted
from grpolab.meanings import METRICS, TAGS
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results, read_json
from grpolab.records import check_policy, parse_lines, read_plan, read_provenance, read_result, read_settings
from grpolab.registry import SURROGATES
from grpolab.run.folder import is_begun
from grpolab.run.lease import is_taken
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.pages import Record
from grpolab.run.tracking.store import UNUSABLE, Store, describe_failure
from grpolab.run.watch import exclusive
from grpolab.run_files import JOURNAL, TIMING, WEIGHTS, parse_object, read_outcome
from grpolab.terminal import say
from grpolab.vocabulary import FAILED

MAX_PARAMS, MAX_POINTS, MAX_PARAM_LENGTH = 100, 1000, 6000  # MLflow's limits: for one batch, and characters
MAX_PROBLEM = 300  # characters
EARLIER = " (earlier settings)"
ARTIFACTS = ("settings.yaml", "provenance.json", JOURNAL, TIMING, "evaluation_items.json", "outcome.json", "samples")
MIRRORED = {metric.name for metric in METRICS.values() if metric.mirrored}
FRAMEWORKS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)
UPDATE = b'{"kind":"update"'  # how a line of the journal begins
# Measured at the end of every rollout step, and sent with all points of that step: its last step says what MLflow has.
STEP_MARK = "system/rss_mib"


# --- what MLflow must hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellRun:
    """A cell's run in its folder, and what report and doctor wrote about it: metrics and tags."""

    plan: Record
    cell: Record
    folder: Path
    outcome: Record | None
    status: str  # MLflow's word
    assessed: Record | None

    def tags(self) -> dict[str, str]:
        """Return those of the vocabulary but the outcome, and one for each factor (`factor.task` if that is taken)."""
        cell, levels = self.cell, self.cell["levels"]
        tags = {f"factor.{name}" if name in TAGS else name: level for name, level in levels.items()}
        tags |= {name: str(cell[name]) for name in ("variant", "seed", "signature")}
        tags["study"] = self.plan["study"]
        tags["arm"] = str(levels.get(self.plan["compare"], cell["variant"]))
        tags["task"] = str(cell.get("task_title") or cell["settings"]["task"])
        return tags | (self.assessed["tags"] if self.assessed else {})

    def params(self) -> dict[str, str]:
        """Return the settings, `task.name` and so on, without a clip range that the surrogate ignores."""
        settings = read_settings(self.folder)
        surrogate = SURROGATES.get(settings.get("kernel", ""))
        silent = {"machine", *(("epsilon", "epsilon_high") if surrogate and not surrogate.clips else ())}
        shown = {key: value for key, value in settings.items() if key not in silent}
        return {key: str(value)[:MAX_PARAM_LENGTH] for key, value in dotted(shown)}


def read_cell(results: Results, plan: Record, cell: Record, assessment: dict[str, Record]) -> CellRun:
    """Read how a cell's run stands. Raises Damaged."""
    folder = results.run(cell["signature"])
    outcome = read_outcome(folder)
    status = "RUNNING" if outcome is None and is_taken(folder) else "KILLED"
    if outcome:
        status = "FINISHED" if is_final(outcome) else "FAILED"  # one that diverged has finished: it is a result
    assessed = assessment.get(cell["signature"]) if is_final(outcome) else None
    return CellRun(plan, cell, folder, outcome, status, assessed)


def run_name(cell: Record) -> str:
    """Return MLflow's name of a cell's run: `symmetric/addition/healthy, seed 0`."""
    return f"{cell['variant']}, seed {cell['seed']}"


def is_final(outcome: Record | None) -> bool:
    """Return True if nothing more can come; a failed run may be tried again from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


class Course(NamedTuple):
    """The points of a run by the rollout step that they are complete with, and its times in milliseconds since 1970."""

    points: dict[int, list[Metric]]
    start: int
    end: int


def read_course(folder: Path, outcome: Record | None) -> Course:
    """Read one point per metric and rollout step from the journals, as far as rollout steps have ended.

    Of the updates of a rollout step the last one counts: it is the most off-policy. Values that are not finite are
    left out, because MLflow would draw NaN as 0.
    """
    clock: dict[int, int] = {-1: round(1000 * folder.stat().st_mtime)}  # rollout step -> its end; -1: the start
    records = list(parse_lines(_read_whole_lines(folder / TIMING), folder / TIMING))
    for row in records:
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
    points: dict[int, list[Metric]] = {}
    for record in records:
        step = record["rollout_step"]
        closes = step - (record.get("kind") == "evaluation")  # an evaluation at n is made after rollout step n - 1
        if max(closes, 0) not in clock and not is_final(outcome):
            continue
        points.setdefault(max(closes, 0), []).extend(
            Metric(name.replace("@", ":"), value, clock.get(closes, end), step)  # ROLL has an @, which MLflow refuses
            for name, value in record.items()
            if name in MIRRORED or name.startswith(FRAMEWORKS)
            if isinstance(value, int | float)  # what is not finite is a string
        )
    return Course(points, clock[-1], end)


def _read_whole_lines(file: Path) -> bytes:
    """Read a journal without its last line if that is still being written."""
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def read_assessment(results: Results, study: str) -> dict[str, Record]:
    """Return what report and doctor wrote about each run of a study: signature -> `metrics` and `tags`."""
    kinds = {"metrics": int | float, "tags": str}
    return {
        signature: assessed
        for signature, assessed in (read_json(results.assessment(study)) or {}).items()
        if isinstance(assessed, dict) and all(isinstance(assessed.get(part), dict) for part in kinds)
        if all(isinstance(value, kind) for part, kind in kinds.items() for value in assessed[part].values())
    }


def read_plans(results: Results, studies: Iterable[str]) -> list[Record]:
    """Return the plans of studies and of those that they include, each once, as far as they are written."""
    plans: dict[str, Record] = {}
    for study in studies:
        if study not in plans and (plan := read_plan(results.plan(study))):
            plans[study] = plan
            plans |= {part["study"]: part for part in read_plans(results, plan["includes"])}
    return list(plans.values())


# --- writing it -------------------------------------------------------------------------------------------------------


class StudyMirror:
    """The studies of one command in MLflow. Folders that have not changed since the last pass are not read again."""

    def __init__(self, results: Results, uri: str, studies: list[str], rebuild: bool = False) -> None:
        self._results, self._uri, self._studies, self._rebuild = results, uri, studies, rebuild
        self._store: Store | None = None
        self._experiments: dict[str, str] = {}  # study -> id
        self._copied: dict[tuple[str, str, str], Any] = {}  # study, variant, signature -> state of the folder then

    def attempt(self, last: bool = False) -> str | None:
        """Make one pass, the `last` one with the summary runs; return one sentence about what stood in the way."""
        try:
            with exclusive(lock_path(self._results, self._uri)):
                store = self._open()
                plans = read_plans(self._results, self._studies)
                problems = [problem for plan in plans for problem in self._mirror_study(store, plan, last)]
                if last:
                    store.settle()
        except RequestError as error:
            return str(error)[:MAX_PROBLEM]
        except UNUSABLE as error:
            self._store = None
            return describe_failure(error)
        return problems[0] if problems else None

    def _open(self) -> Store:
        if self._store and self._store.is_there():
            return self._store
        self._experiments, self._copied = {}, {}
        store = Store(self._uri, self._results)
        place = store.find_misplaced()
        is_ours = store.file is not None and store.file.resolve().parent == self._results.root.resolve()
        if place and not is_ours and not self._rebuild:  # it may be the store of several results folders
            how = f"`grpolab track sync --rebuild --uri {self._uri}`"
            raise RequestError(f"nothing is written until {how} makes the store anew: its artefacts lie in {place}")
        if place or self._rebuild:
            self._studies = self._results.planned() if is_ours else self._studies
            say(store.set_aside([plan["study"] for plan in read_plans(self._results, self._studies)]), flush=True)
            self._rebuild = False
            store = Store(self._uri, self._results)
        self._store = store
        return store

    def _mirror_study(self, store: Store, plan: Record, last: bool) -> list[str]:
        """Bring a study's runs up to date; return a sentence for each folder that cannot be copied."""
        experiment_id = self._open_experiment(store, plan)
        assessment, lines, problems = read_assessment(self._results, plan["study"]), pages.lines_of(plan), []
        for cell in plan["cells"]:
            folder = self._results.run(cell["signature"])
            if not is_begun(folder):
                continue
            key = plan["study"], cell["variant"], cell["signature"]
            try:
                run = read_cell(self._results, plan, cell, assessment)  # before the journals: they are complete then
                times = [file.stat().st_mtime_ns for name in (JOURNAL, TIMING) if (file := folder / name).exists()]
                state = [run.status, run.outcome, times, run.assessed]
                if self._copied.get(key) == state:
                    continue
                read_result(folder)  # checks the journal against its hash
                _mirror_run(store.client, experiment_id, run, lines[cell["variant"]])
                self._copied[key] = state
            except Damaged as damage:
                problems.append(f"run {folder.name} is damaged and not copied: {damage}"[:MAX_PROBLEM])
            except (ValueError, KeyError, OSError) as error:  # one damaged folder does not stop the others
                problems.append(f"run folder {folder} cannot be copied: {error!r}"[:MAX_PROBLEM])
        if last:
            self._summarise(store.client, experiment_id, plan)
        return problems

    def _open_experiment(self, store: Store, plan: Record) -> str:
        if plan["study"] not in self._experiments:
            experiment_id = store.open_experiment(plan["study"])
            for name, value in pages.experiment_tags(plan, _milliseconds(plan["created"])).items():
                store.client.set_experiment_tag(experiment_id, name, value)
            self._experiments[plan["study"]] = experiment_id
        return self._experiments[plan["study"]]

    def _summarise(self, client: MlflowClient, experiment_id: str, plan: Record) -> None:
        """Write the run that holds plan, report, figures and tables; without a variant, no mean counts it."""
        study, start, output = plan["study"], _milliseconds(plan["created"]), self._results.output(plan["study"])
        tags = {"study": study, "mlflow.source.name": "grpolab report"}
        made = client.search_runs([experiment_id], f"attributes.run_name = '{pages.SUMMARY}'")
        run_id = (made[0] if made else client.create_run(experiment_id, start, tags, pages.SUMMARY)).info.run_id
        client.set_experiment_tag(experiment_id, pages.NOTE, pages.describe_study(plan, experiment_id, run_id))
        for file in (self._results.plan(study), output / "report.md"):
            if file.exists():
                client.log_artifact(run_id, str(file))
        for page in [output / pages.REPORT, *sorted((output / "pages").glob("*.html"))]:
            if page.exists():
                client.log_text(run_id, pages.without_links(page), page.relative_to(output).as_posix())
        # A study is drawn by itself or as part of a collection: the newest drawing counts.
        collections = [other for other in (REFERENCE_STUDY, SWEEP_STUDY) if other != study]
        for kind in ("figures", "tables"):
            places = [output / kind, *(self._results.output(other) / kind / study for other in collections)]
            if drawn := [folder for folder in places if folder.exists()]:
                newest = max(drawn, key=lambda folder: folder.stat().st_mtime)
                client.log_artifacts(run_id, str(newest), kind)
        client.set_terminated(run_id, "FINISHED", start)


def _mirror_run(client: MlflowClient, experiment_id: str, cell_run: CellRun, line: str) -> None:
    """Make a cell's run in MLflow equal to its folder, and to what report and doctor said about it."""
    folder, outcome, status = cell_run.folder, cell_run.outcome, cell_run.status
    name, ending = run_name(cell_run.cell), (outcome or {}).get("outcome")
    tags = cell_run.tags() | {
        pages.NOTE: pages.describe_run(cell_run.cell, outcome, cell_run.assessed),
        pages.LINE: line,
        "mlflow.runName": name,
        "mlflow.source.name": f"grpolab, study {cell_run.plan['study']}",
        "mlflow.user": getpass.getuser(),
    }
    run, course = _find_run(client, experiment_id, cell_run), None
    if run is None or run.info.status != "FINISHED" or run.data.tags.get("outcome") != ending:
        course = read_course(folder, outcome)  # else it is complete, its artefacts too
        run = run or client.create_run(experiment_id, course.start, tags, name)
    run_id = run.info.run_id
    metrics: list[Metric] = []
    if cell_run.assessed:
        step, now = int((outcome or {}).get("rollout_steps") or 0), round(1000 * time.time())
        numbers = cell_run.assessed["metrics"].items()
        metrics = [Metric(key, value, now, step) for key, value in numbers if run.data.metrics.get(key) != value]
    if course:
        if "outcome" in run.data.tags:  # it failed, and is tried again
            client.delete_tag(run_id, "outcome")
        params = [Param(*item) for item in sorted(cell_run.params().items() - run.data.params.items())]
        for at in range(0, len(params), MAX_PARAMS):
            client.log_batch(run_id, params=params[at : at + MAX_PARAMS])
        sent = max((point.step for point in client.get_metric_history(run_id, STEP_MARK)), default=-1)
        for step, points in sorted(course.points.items()):  # those of one rollout step are in one batch
            if step > sent:
                if metrics and len(metrics) + len(points) > MAX_POINTS:
                    client.log_batch(run_id, metrics)
                    metrics = []
                metrics += points
    client.log_batch(run_id, metrics, tags=[RunTag(*item) for item in tags.items() - run.data.tags.items()])
    if course and outcome:
        check_policy(folder, outcome)
        _log_files(client, run_id, folder, tags["task"])
        _log_model(client, experiment_id, run_id, folder / WEIGHTS, name)
        client.set_tag(run_id, "outcome", ending)  # last: the run is complete
    if course and status == "RUNNING" != run.info.status:
        client.update_run(run_id, status)
    elif course and status != run.info.status:
        client.set_terminated(run_id, status, course.end)


def _find_run(client: MlflowClient, experiment_id: str, cell_run: CellRun) -> Run | None:
    """Find a cell's run by its signature, also under the name of an arm that was renamed since.

    Other runs of its variant and seed, of earlier settings or created twice, lose the variant: a mean would count them.
    """
    cell, variants = cell_run.cell, {cell["variant"] for cell in cell_run.plan["cells"]}
    variant = cell["variant"]
    same = client.search_runs([experiment_id], f"tags.signature = '{cell['signature']}'")
    mine = next((run for run in same if run.data.tags.get("variant") == variant), None)
    mine = mine or next((run for run in same if run.data.tags.get("variant") not in variants), None)
    quote = '"' if "'" in variant else "'"
    named = f"tags.variant = {quote}{variant}{quote} and tags.seed = '{cell['seed']}'"
    for run in client.search_runs([experiment_id], named):
        if mine is None or run.info.run_id != mine.info.run_id:
            client.log_batch(run.info.run_id, tags=[RunTag(tag, variant + EARLIER) for tag in ("variant", pages.LINE)])
    return mine


def _log_files(client: MlflowClient, run_id: str, folder: Path, task: str) -> None:
    """Log the data sets and artefacts of a run that has ended."""
    provenance = read_provenance(folder)
    hashes = provenance.get("dataset") or {}
    for split, context in (("train", "training"), ("evaluation", "evaluation")):
        if digest := hashes.get(f"{split}_sha256"):
            source = json.dumps({"tags": {"mlflow.source.name": "grpolab.tasks"}})
            profile = json.dumps({"num_rows": hashes[f"{split}_items"]})
            # The digest is complete in provenance.json; MLflow has room for 36 characters.
            dataset = entities.Dataset(task, digest[:SIGNATURE_LENGTH], "code", source, profile=profile)
            is_for = entities.InputTag("mlflow.data.context", context)
            client.log_inputs(run_id, [entities.DatasetInput(dataset, [is_for])])
    for name in ARTIFACTS:
        if (folder / name).exists():
            client.log_artifact(run_id, str(folder / name))
    if provenance.get("commit"):
        client.set_tag(run_id, "mlflow.source.git.commit", provenance["commit"])


def _log_model(client: MlflowClient, experiment_id: str, run_id: str, weights: Path, name: str) -> None:
    """Log the weights as a LoggedModel, unless the run has it."""
    models = list(client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"))
    if not weights.exists() or (models and models[0].status == LoggedModelStatus.READY):
        return
    if not models:  # else it was begun by a process that was killed
        allowed = "".join(char if char.isalnum() or char in "-_" else "-" for char in name)
        models = [client.create_logged_model(experiment_id, allowed, run_id)]
        client.log_outputs(run_id, [entities.LoggedModelOutput(models[0].model_id, step=0)])
    client.log_model_artifact(models[0].model_id, str(weights))
    client.finalize_logged_model(models[0].model_id, LoggedModelStatus.READY)


def lock_path(results: Results, uri: str) -> Path:
    """Return the file beside the store whose lock lets one process write at a time."""
    return Path(f"{sqlite_file(uri) or results.store}.lock")


def _milliseconds(iso_time: str) -> int:
    return round(1000 * datetime.fromisoformat(iso_time).timestamp())
