"""Copy each cell (one run of a study) from its folder into a run of MLflow, again and again while it trains."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient, entities
from mlflow.entities import LoggedModelStatus, Metric, Param, Run, RunTag

from grpolab.errors import Damaged, RequestError
from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.identity import SIGNATURE_LENGTH, dotted
from grpolab.known_runs import Copied, KeptFile, mark_of
from grpolab.meanings import METRICS, TAGS
from grpolab.paths import Results, write_json_atomic
from grpolab.records import check_policy, read_plan, read_provenance, read_result, read_settings
from grpolab.run.folder import is_begun
from grpolab.run.lease import is_taken
from grpolab.run.tracking import HOST, PORT, is_server, sqlite_file
from grpolab.run.tracking.store import MOST_RUNS, UNUSABLE, Store, describe_failure
from grpolab.run.watch import exclusive
from grpolab.run_files import (
    EACH,
    JOURNAL,
    TIMING,
    WEIGHTS,
    Record,
    check_shape,
    parse_object,
    read_object,
    read_outcome,
)
from grpolab.terminal import say
from grpolab.vocabulary import FAILED

MAX_PARAMS, MAX_POINTS, MAX_TEXT = 100, 1000, 6000  # MLflow's limits: for one batch, and characters
MAX_PROBLEM = 300  # characters
NOTE = "mlflow.note.content"  # the tag that MLflow shows as description
SUMMARY = "summary"
MOST_ASKED = 50  # runs for which the store is asked one by one; it is asked for all at once if more have changed
ARTIFACTS = ("settings.yaml", "provenance.json", JOURNAL, TIMING, "evaluation_items.json", "outcome.json", "samples")
MIRRORED = {metric.name for metric in METRICS.values() if metric.mirrored}
FRAMEWORKS = tuple(f"{framework}/" for framework in FRAMEWORK_METRICS)
UPDATE = b'{"kind":"update"'  # how a line of the journal begins
# Recorded at the end of every rollout step and sent with all its points, so its last step in MLflow is the last copied.
STEP_MARK = "system/rss_mib"
NO_ASSESSMENT: Record = {"metrics": {}, "tags": {}}


# --- what MLflow must hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellRun:
    """A cell's run as MLflow must show it, without the curves of its metrics (`Course`)."""

    name: str
    folder: Path
    outcome: Record | None
    status: str  # MLflow's word
    tags: dict[str, str]
    metrics: dict[str, float]  # numbers of report and doctor


def read_cell(results: Results, plan: Record, cell: Record, assessment: dict[str, Record]) -> CellRun:
    """Read the present state of a cell's run. Raises Damaged.

    Its tags are those of the vocabulary except the outcome, and one for each factor (`factor.task` if `task` is taken).
    """
    folder, levels = results.run(cell["signature"]), cell["levels"]
    outcome = read_outcome(folder)
    status = "RUNNING" if outcome is None and is_taken(folder) else "KILLED"
    if outcome:
        status = "FINISHED" if is_final(outcome) else "FAILED"  # one that diverged has finished: it is a result
    assessed = assessment.get(cell["signature"], NO_ASSESSMENT) if is_final(outcome) else NO_ASSESSMENT
    tags = {f"factor.{name}" if name in TAGS else name: level for name, level in levels.items()}
    tags |= {name: str(cell[name]) for name in ("variant", "seed", "signature")}
    tags |= {"study": plan["study"], "arm": str(levels.get(plan["compare"], cell["variant"]))}
    tags |= {"task": str(cell.get("task_title") or cell["settings"]["task"]), **assessed["tags"]}
    return CellRun(run_name(cell), folder, outcome, status, tags, assessed["metrics"])


def run_name(cell: Record) -> str:
    """Return MLflow's name of a cell's run: `symmetric/addition/healthy, seed 0`."""
    return f"{cell['variant']}, seed {cell['seed']}"


def is_final(outcome: Record | None) -> bool:
    """Return True if the run is over for good; a failed run may be tried again from its last checkpoint."""
    return outcome is not None and outcome["outcome"] != FAILED


class Course(NamedTuple):
    """A run's metric points, grouped by the rollout step that completes them, and its times in Unix milliseconds."""

    points: dict[int, list[Metric]]
    start: int
    end: int


def read_course(folder: Path, outcome: Record | None) -> Course:
    """Read one point per metric and rollout step from the journals, as far as rollout steps have ended.

    Values that are not finite are left out, because MLflow would draw NaN as 0.
    """
    timing = _read_records(folder / TIMING)
    clock = {row["rollout_step"]: row["time_ms"] for row in timing}  # rollout step -> its end
    start = round(1000 * folder.stat().st_mtime)
    if timing and timing[0]["rollout_step"] == 0:
        start = timing[0]["time_ms"] - round(1000 * timing[0]["seconds/elapsed"])
    clock[-1] = start
    end = clock[max(clock)]
    points: dict[int, list[Metric]] = {}
    for record in [*timing, *_read_records(folder / JOURNAL)]:
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
    return Course(points, start, end)


def _read_records(file: Path) -> list[Record]:
    """Read a journal, without a last line that is still being written.

    Of consecutive updates only the last is kept: MLflow gets one point per rollout step, and this one is the most
    off-policy.
    """
    content = file.read_bytes() if file.exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    pairs = pairwise([*lines, b""])
    kept = [line for line, after in pairs if not (line.startswith(UPDATE) and after.startswith(UPDATE))]
    return [parse_object(line, str(file)) for line in kept]


def read_assessment(results: Results, study: str) -> dict[str, Record]:
    """Return what report and doctor wrote about each run of a study, by the run's signature. Raises Damaged."""
    file = results.assessment(study)
    return check_shape(read_object(file) or {}, {EACH: {"metrics": {EACH: (int, float)}, "tags": {EACH: str}}}, file)


def read_plans(results: Results, studies: Sequence[str]) -> list[Record]:
    """Return the plans of studies and of the studies that they include, each once, if they have a plan.json."""
    plans: dict[str, Record] = {}
    for study in studies:
        if study not in plans and (plan := read_plan(results.plan(study))):
            plans[study] = plan
            plans |= {part["study"]: part for part in read_plans(results, plan["includes"])}
    return list(plans.values())


# --- writing it -------------------------------------------------------------------------------------------------------


def chart_tags(plan: Record) -> dict[str, str]:
    """Return the tags of an experiment by which MLflow's pages group its runs by variant, the best one first.

    They are internal to the pages of MLflow 3.17; another version opens the page without groups.
    """
    group = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "variant"}]}
    closed = {f"tag.variant.{cell['variant']}": False for cell in plan["cells"]}
    view = {"groupBy": group, "groupsExpanded": closed, "runsHiddenMode": "SHOW_ALL"}
    view |= {"orderByKey": f"metrics.`{plan.get('primary_metric')}`", "orderByAsc": False}
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.sharedViewState.by_variant": json.dumps(view),
    }


class StudyMirror:
    """Copies the runs of some studies to MLflow, pass by pass."""

    def __init__(self, results: Results, uri: str, studies: Sequence[str], rebuild: bool = False) -> None:
        self._results, self._uri, self._studies, self._rebuild = results, uri, studies, rebuild

    def attempt(self, last: bool = False) -> str | None:
        """Make one pass, the `last` one with the summary runs; return a sentence if something could not be copied."""
        try:
            with exclusive(lock_path(self._results, self._uri)):
                store, problems = self._open(), list[str]()
                state, copied = store.state(), list[Copied]()
                for plan in read_plans(self._results, self._studies):
                    file = self._results.mlflow_runs(plan["study"]).with_name("copied.json")
                    copied.append(Copied(KeptFile(file, store.uri), state))
                    problems += _mirror_study(self._results, store, plan, last, copied[-1])
                for of_study in () if problems else copied:  # what was half copied is asked for again
                    of_study.keep(store.state())
        except RequestError as error:
            return str(error)[:MAX_PROBLEM]
        except UNUSABLE as error:
            return describe_failure(error)
        return problems[0] if problems else None

    def _open(self) -> Store:
        """Open the store, anew at each pass because its file may have been replaced; rebuild it if it was moved."""
        store = Store(self._uri, self._results)
        place = store.find_misplaced()
        if not (place or self._rebuild):
            return store
        is_ours = store.file is not None and store.file.resolve().parent == self._results.root.resolve()
        if not (is_ours or self._rebuild):  # it may be the store of several results folders
            how = f"`grpolab track sync --rebuild --uri {self._uri}`"
            raise RequestError(f"nothing is written until {how} makes the store anew: its artefacts lie in {place}")
        self._studies = self._results.planned() if is_ours else self._studies
        say(store.set_aside([plan["study"] for plan in read_plans(self._results, self._studies)]), flush=True)
        self._rebuild = False
        return Store(self._uri, self._results)


def _mirror_study(results: Results, store: Store, plan: Record, last: bool, copied: Copied) -> list[str]:
    """Bring a study's runs up to date; return a sentence for each folder that cannot be copied."""
    client, study, problems = store.client, plan["study"], list[str]()
    experiment_id = store.open_experiment(study, {NOTE: plan["question"]} | chart_tags(plan))
    assessment = read_assessment(results, study)
    current = {(cell["variant"], str(cell["seed"])): cell["signature"] for cell in plan["cells"]}
    variants, ids = {variant for variant, _ in current}, dict[str, str]()
    runs, renamed, found = dict[tuple[str, str], str](), dict[str, str](), dict[str, Run]()
    of = study, plan.get("compare"), getpass.getuser()
    assessed = (assessment.get(cell["signature"]) for cell in plan["cells"])
    marks = [mark_of(results.run(c["signature"]), c, a, *of) for c, a in zip(plan["cells"], assessed, strict=True)]
    if not copied.state or len({*copied.complete.values()}.difference(marks)) > MOST_ASKED:
        found = {run.info.run_id: run for run in client.search_runs([experiment_id], max_results=MOST_RUNS)}
        names = ("variant", "seed", "signature")
        copied.who = {run_id: [run.data.tags.get(name, "") for name in names] for run_id, run in found.items()}
    for run_id, (variant, seed, signature) in copied.who.items():
        runs[variant, signature] = run_id
        if variant not in variants:  # the arm was renamed since
            renamed[signature] = run_id
        elif current.get((variant, seed), signature) != signature:  # outdated: a mean over seeds must not count it
            copied.who[run_id][0] = f"{variant} (earlier settings)"
            client.set_tag(run_id, "variant", copied.who[run_id][0])
            copied.complete.pop(run_id, None)
    for cell, mark in zip(plan["cells"], marks, strict=True):
        variant, signature = cell["variant"], cell["signature"]
        mirrored = runs.get((variant, signature)) or renamed.get(signature)
        if mirrored and copied.complete.get(mirrored) == mark:
            ids[signature] = mirrored
            continue
        if not is_begun(results.run(signature)):
            continue
        try:
            cell_run = read_cell(results, plan, cell, assessment)
            run = (found.get(mirrored) or client.get_run(mirrored)) if mirrored else None
            run_id = ids[signature] = _mirror_run(client, experiment_id, cell_run, run)
            copied.who[run_id] = [variant, str(cell["seed"]), signature]
            if cell_run.status == "FINISHED":
                copied.complete[run_id], copied.is_new = mark, True
        except (Damaged, ValueError, KeyError, OSError) as error:  # one damaged folder does not stop the others
            problems.append(f"run {cell['signature']} cannot be copied: {error}"[:MAX_PROBLEM])
    root = store.uri.rstrip("/") if is_server(store.uri) else f"http://{HOST}:{PORT}"
    places = {"pages": f"{root}/#/experiments/{experiment_id}/runs", "runs": ids}
    if read_object(file := results.mlflow_runs(study)) != places:
        write_json_atomic(file, places, durable=False)
    if last:
        _summarise(client, experiment_id, plan, results)
    return problems


def _summarise(client: MlflowClient, experiment_id: str, plan: Record, results: Results) -> None:
    """Write the run that holds plan, report, figures and tables; it has no variant, so no mean counts it."""
    output, start = results.output(plan["study"]), round(1000 * datetime.fromisoformat(plan["created"]).timestamp())
    tags = {"study": plan["study"], "mlflow.source.name": "grpolab report"}
    made = client.search_runs([experiment_id], f"attributes.run_name = '{SUMMARY}'")
    run_id = (made[0] if made else client.create_run(experiment_id, start, tags, SUMMARY)).info.run_id
    for file in (results.plan(plan["study"]), output / "report.md", output / "report.html"):
        if file.exists():
            client.log_artifact(run_id, str(file))
    for kind in ("figures", "tables"):
        if (output / kind).exists():
            client.log_artifacts(run_id, str(output / kind), kind)
    client.set_terminated(run_id, "FINISHED", start)


def _mirror_run(client: MlflowClient, experiment_id: str, cell_run: CellRun, run: Run | None) -> str:
    """Make a cell's run in MLflow equal to its folder and its assessment by report and doctor; return its id."""
    name, folder, outcome, status = cell_run.name, cell_run.folder, cell_run.outcome, cell_run.status
    ending = outcome["outcome"] if outcome else None
    tags = cell_run.tags | {"mlflow.runName": name, "mlflow.user": getpass.getuser(), NOTE: _describe(outcome)}
    tags["mlflow.source.name"] = f"grpolab, study {tags['study']}"
    is_same = run is not None and (run.info.status, run.data.tags.get("outcome")) == (status, ending)
    course, sent = Course({}, 0, 0), -1
    if not is_same or status != "FINISHED":  # else it is complete, its artefacts too
        read_result(folder)  # checks the journal against its hash
        course = read_course(folder, outcome)
        run = run or client.create_run(experiment_id, course.start, tags, name)
        sent = max((point.step for point in client.get_metric_history(run.info.run_id, STEP_MARK)), default=-1)
    assert run
    run_id, step, now = run.info.run_id, int((outcome or {}).get("rollout_steps") or 0), round(1000 * time.time())
    new_numbers = cell_run.metrics.items() - run.data.metrics.items()
    metrics = [Metric(key, value, now, step) for key, value in new_numbers]
    for step, points in sorted(course.points.items()):  # those of one rollout step are in one batch
        if step > sent:
            if metrics and len(metrics) + len(points) > MAX_POINTS:
                client.log_batch(run_id, metrics)
                metrics = []
            metrics += points
    new_tags = [RunTag(*item) for item in tags.items() - run.data.tags.items()]
    if metrics or new_tags:
        client.log_batch(run_id, metrics, tags=new_tags)
    if is_same and (status == "FINISHED" or not (metrics or new_tags)):
        return run_id
    if "outcome" in run.data.tags:  # it failed, and is tried again
        client.delete_tag(run_id, "outcome")
    settings = {key: value for key, value in read_settings(folder).items() if key != "machine"}
    params = [Param(key, str(value)[:MAX_TEXT]) for key, value in dotted(settings) if key not in run.data.params]
    for at in range(0, len(params), MAX_PARAMS):
        client.log_batch(run_id, params=params[at : at + MAX_PARAMS])
    if outcome:
        check_policy(folder, outcome)
        _log_files(client, run_id, folder, tags["task"])
        _log_model(client, experiment_id, run_id, folder / WEIGHTS, name)
        client.set_tag(run_id, "outcome", ending)  # last: the run is complete
    if status == "RUNNING" != run.info.status:
        client.update_run(run_id, status)
    elif status != run.info.status:
        client.set_terminated(run_id, status, course.end)
    return run_id


def _describe(outcome: Record | None) -> str:
    """Say how a run ended, in Markdown."""
    if outcome is None:
        return "not finished"
    error = f"```\n{outcome['error'][-MAX_TEXT:]}\n```" if outcome.get("error") else None
    return "\n\n".join(filter(None, [outcome["outcome"], outcome.get("reason"), error]))


def _log_files(client: MlflowClient, run_id: str, folder: Path, task: str) -> None:
    """Log the data sets and artefacts of a run that has ended."""
    provenance = read_provenance(folder)
    hashes, source = provenance.get("dataset") or {}, json.dumps({"tags": {"mlflow.source.name": "grpolab.tasks"}})
    for split, context in (("train", "training"), ("evaluation", "evaluation")):
        if digest := hashes.get(f"{split}_sha256"):
            # The digest is complete in provenance.json; MLflow has room for 36 characters.
            dataset = entities.Dataset(task, digest[:SIGNATURE_LENGTH], "code", source)
            is_for = entities.InputTag("mlflow.data.context", context)
            client.log_inputs(run_id, [entities.DatasetInput(dataset, [is_for])])
    for name in ARTIFACTS:
        if (folder / name).exists():
            client.log_artifact(run_id, str(folder / name))
    if provenance.get("commit"):
        client.set_tag(run_id, "mlflow.source.git.commit", provenance["commit"])


def _log_model(client: MlflowClient, experiment_id: str, run_id: str, weights: Path, name: str) -> None:
    """Log the weights as a LoggedModel; go on with one that a killed process began."""
    if not weights.exists():
        return
    models = list(client.search_logged_models([experiment_id], f"source_run_id = '{run_id}'"))
    if not models:
        allowed = "".join(char if char.isalnum() or char in "-_" else "-" for char in name)
        models = [client.create_logged_model(experiment_id, allowed, run_id)]
        client.log_outputs(run_id, [entities.LoggedModelOutput(models[0].model_id, step=0)])
    client.log_model_artifact(models[0].model_id, str(weights))
    client.finalize_logged_model(models[0].model_id, LoggedModelStatus.READY)


def lock_path(results: Results, uri: str) -> Path:
    """Return the file beside the store whose lock lets one process write at a time."""
    return Path(f"{sqlite_file(uri) or results.store}.lock")
