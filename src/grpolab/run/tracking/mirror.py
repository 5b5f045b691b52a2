"""Each cell of a study as one run of MLflow, brought up to date with its folder in one pass after another."""

from __future__ import annotations

import getpass
import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import entities
from mlflow.entities import LoggedModelStatus, Metric, Param, Run, RunTag

from grpolab.errors import Damaged
from grpolab.identity import SIGNATURE_LENGTH
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results
from grpolab.records import check_policy, read_provenance, read_result
from grpolab.run.folder import exclusive, is_begun
from grpolab.run.tracking import pages, sqlite_file
from grpolab.run.tracking.bound import alone, bound
from grpolab.run.tracking.colours import LINE, colours
from grpolab.run.tracking.points import (
    Assessment,
    Point,
    Record,
    compare,
    course_of,
    is_final,
    labels_of,
    params_of,
    plans_of,
    status,
)
from grpolab.run.tracking.store import JOURNAL, UNUSABLE, Store, ask, unusable
from grpolab.run_files import read_outcome

MAX_PARAMS, MAX_POINTS = 100, 1000  # MLflow's limits for one batch
MAX_PROBLEM = 300  # characters
EARLIER = " (earlier settings)"
JOURNALS = (JOURNAL, "timing.jsonl")
ARTIFACTS = ("settings.yaml", "provenance.json", *JOURNALS, "evaluation_items.json", "outcome.json", "samples")
Key = tuple[str, str, int, str]  # study, variant, seed, signature


class StudyMirror:
    """The studies of one command in MLflow: what a run folder says and the store does not is written to it.

    What it remembers spares looking again at folders that have not changed; after a failure all are looked at.
    """

    def __init__(self, results: Results, uri: str, studies: list[str], repair: bool = False) -> None:
        """`repair`: look at every point of every run, and make those again that differ from their folder."""
        self._results, self._uri, self._studies, self._repair = results, uri, studies, repair
        self._store: Store | None = None
        self._experiments: dict[str, str] = {}  # study -> id
        self._copied: dict[Key, list[Any]] = {}  # how a run folder was when it was copied

    def attempt(self, last: bool = False) -> str | None:
        """Synchronise, the `last` time with summaries; returns one sentence about what stood in the way."""
        try:
            with exclusive(lock_of(self._results, self._uri)):
                if self._store is None or not self._store.is_there():
                    self._experiments, self._copied = {}, {}  # its file is another one now
                    self._store = Store(self._uri, self._results.artifacts)
                if problem := self._store.bring_home(self._repair):
                    return problem
                problems = self._synchronise(self._store, last)
        except Damaged as damage:  # of a plan
            problems = [str(damage)[:MAX_PROBLEM]]
        except UNUSABLE as error:
            self._store = None  # it may be another one when it is back
            problems = [unusable(error)]
        return problems[0] if problems else None

    def _synchronise(self, store: Store, last: bool) -> list[str]:
        problems = []
        for plan in plans_of(self._results, self._studies):
            experiment_id = self._experiment(store, plan)
            drawn_in, said = colours(plan), Assessment.read(self._results, plan["study"])
            for cell in plan["cells"]:
                key = plan["study"], cell["variant"], cell["seed"], cell["signature"]
                folder = self._results.run(cell["signature"])
                if not is_begun(folder):
                    continue
                try:
                    outcome = read_outcome(folder)  # before the journals: they are whole where it stands
                    state = status(folder, outcome)
                    stamps = [file.stat().st_mtime_ns for name in JOURNALS if (file := folder / name).exists()]
                    is_now = [state, outcome, stamps, said.of(cell, outcome)]
                    if self._copied.get(key) == is_now:
                        continue
                    outcome = read_result(folder)
                    labels = labels_of(plan, cell, drawn_in[cell["variant"]])
                    self._copy(store, experiment_id, plan, cell, labels, outcome, state, said)
                    self._copied[key] = is_now
                except Damaged as damage:
                    problems.append(f"run {folder.name} is damaged and not copied: {damage}"[:MAX_PROBLEM])
                except (ValueError, KeyError, OSError) as error:  # one damaged folder does not keep the others waiting
                    problems.append(f"run folder {folder} cannot be copied: {error!r}"[:MAX_PROBLEM])
            if last:
                self._end_abandoned(store, experiment_id, plan)
                self._summarise(store, experiment_id, plan)
        if last:
            store.settle()
        return problems

    def _experiment(self, store: Store, plan: Record) -> str:
        """Id of the study's experiment, with its description and views as of this plan."""
        study = plan["study"]
        if study not in self._experiments:
            self._experiments[study] = experiment_id = store.experiment(study)
            tags = {pages.NOTE: pages.experiment_note(plan, experiment_id), pages.KIND: pages.MODEL_TRAINING}
            if not plan["includes"]:
                tags |= pages.view_tags(plan, pages.milliseconds(plan["created"]))
            for name, value in tags.items():
                store.client.set_experiment_tag(experiment_id, name, value)
        return self._experiments[study]

    def _end_abandoned(self, store: Store, experiment_id: str, plan: Record) -> None:
        """Runs that the study no longer asks for, and whose process is dead, do not stay RUNNING.

        A run whose folder is not here is left alone: it may be another machine's.
        """
        planned = {cell["signature"] for cell in plan["cells"]}
        for run in store.runs(experiment_id, "attributes.status = 'RUNNING'"):
            signature = run.data.tags.get("signature", "")
            if not signature or signature in planned:
                continue
            with suppress(Damaged):  # the tag is no signature, or nobody knows how the run ended
                folder = self._results.run(signature)
                if folder.exists() and (state := status(folder, read_outcome(folder))) != "RUNNING":
                    store.client.set_terminated(run.info.run_id, state, course_of(folder, None).end)

    def _summarise(self, store: Store, experiment_id: str, plan: Record) -> None:
        """The run that holds what the report made of the study."""
        study, start, name = plan["study"], pages.milliseconds(plan["created"]), pages.SUMMARY_NAME
        tags = {"study": study, pages.NOTE: pages.summary_note(plan), "mlflow.source.name": "grpolab report"}
        run = next(iter(store.runs(experiment_id, f"attributes.run_name = '{name}'")), None)
        if run is None:
            run = store.client.create_run(experiment_id, start, tags, name)
        else:
            _log_tags(store, run.info.run_id, tags)
        run_id, output = run.info.run_id, self._results.output(study)
        note = pages.experiment_note(plan, experiment_id, run_id)
        store.client.set_experiment_tag(experiment_id, pages.NOTE, note)
        for file in (self._results.plan(study), output / "report.md"):
            if file.exists():
                store.client.log_artifact(run_id, str(file))
        if (report := output / pages.REPORT).exists():
            store.client.log_text(run_id, bound(report), pages.REPORT)
        for page in sorted((output / "pages").glob("*.html")):
            store.client.log_text(run_id, alone(page), f"pages/{page.name}")
        # A study is drawn by itself, or as a part of a collection: the newest counts.
        collections = [other for other in (REFERENCE_STUDY, SWEEP_STUDY) if other != study]
        for kind in ("figures", "tables"):
            places = [output / kind, *(self._results.output(other) / kind / study for other in collections)]
            if drawn := [folder for folder in places if folder.exists()]:
                newest = max(drawn, key=lambda folder: folder.stat().st_mtime)
                store.client.log_artifacts(run_id, str(newest), kind)
        store.client.set_terminated(run_id, "FINISHED", start)

    def _copy(
        self,
        store: Store,
        experiment_id: str,
        plan: Record,
        cell: Record,
        labels: dict[str, str],
        outcome: Record | None,
        state: str,
        said: Assessment,
    ) -> None:
        """Make the run of a cell equal to its folder and to what is said of it; with an outcome, artefacts too."""
        folder, client = self._results.run(cell["signature"]), store.client
        run = _find_run(store, experiment_id, plan, labels)
        ending = {"outcome": outcome["outcome"]} if outcome else {}
        name = pages.run_name(cell)
        tags = {
            **labels,
            # MLflow's own, for its columns Source and User.
            "mlflow.source.name": f"grpolab, study {plan['study']}",
            "mlflow.source.type": "LOCAL",
            "mlflow.user": getpass.getuser(),
        }
        words = said.tags(cell, outcome)
        shown = {**tags, **words, pages.NOTE: pages.run_note(cell, outcome, words), "mlflow.runName": name}
        # Whole: its points and artefacts are there. Never said of a failed run: it may have been tried again.
        is_whole = run is not None and run.info.status == "FINISHED" and ending.items() <= run.data.tags.items()
        if run and outcome and is_whole and not self._repair:
            numbers = said.points(cell, outcome, run.info.end_time)
            client.log_batch(
                run.info.run_id,
                metrics=[Metric(*point) for point in numbers.values() if point.name not in run.data.metrics],
                tags=[RunTag(*item) for item in shown.items() - run.data.tags.items()],
            )
            return
        course = course_of(folder, outcome)
        points = course.points | said.points(cell, outcome, course.end)
        stored = store.history(run) if run else {}
        if run and self._repair:
            difference = compare(points, stored, is_final(outcome))
            if difference.wrong:  # into MLflow's bin, to be made again: MLflow takes no point back
                client.delete_run(run.info.run_id)
                run, stored = None, {}
            elif (
                is_whole
                and (labels | words).items() <= run.data.tags.items()
                and not difference.missing
                and store.journal_sha256(run.info.artifact_uri) == journal_sha256(folder)
            ):
                return
        run = run or client.create_run(experiment_id, course.start, shown, name)
        run_id = run.info.run_id
        if "outcome" in run.data.tags:
            client.delete_tag(run_id, "outcome")
        _log_tags(store, run_id, dict(shown.items() - run.data.tags.items()))
        if outcome or not run.data.params:
            params = sorted(params_of(folder).items() - run.data.params.items())
            for at in range(0, len(params), MAX_PARAMS):
                client.log_batch(run_id, params=[Param(*item) for item in params[at : at + MAX_PARAMS]])
        metrics = [Metric(*point) for key, point in points.items() if key not in stored]
        for at in range(0, len(metrics), MAX_POINTS):
            client.log_batch(run_id, metrics=metrics[at : at + MAX_POINTS])
        if outcome:
            check_policy(folder, outcome)
            commit = _log_files(store, run_id, folder, list(course.points.values()), labels["task"])
            _log_model(store, experiment_id, run_id, folder / "policy.safetensors", pages.model_name(cell), tags)
            _log_tags(store, run_id, commit | ending)  # the outcome's tag comes last
        if state != run.info.status and state == "RUNNING":
            client.update_run(run_id, state)
        elif state != run.info.status:
            client.set_terminated(run_id, state, course.end)


def _find_run(store: Store, experiment_id: str, plan: Record, labels: dict[str, str]) -> Run | None:
    """A cell's run. Others with its variant, of other settings or made twice, lose it: a mean counts them.

    A run whose variant is none of the study's any more, because an arm was renamed, becomes that of its signature.
    """
    variant, signature, seed = (labels[name] for name in ("variant", "signature", "seed"))
    runs = store.runs(experiment_id, f"{pages.variant_filter(f'{variant}%')} and tags.seed = '{seed}'")
    named = [run for run in runs if run.data.tags["variant"] == variant]
    earlier = [run for run in runs if run.data.tags["variant"] == variant + EARLIER]
    mine = next((run for run in named + earlier if run.data.tags.get("signature") == signature), None)
    for run in named:
        if run is not mine:
            _log_tags(store, run.info.run_id, dict.fromkeys(("variant", LINE), variant + EARLIER))
    if mine:
        return mine
    variants = {cell["variant"] for cell in plan["cells"]}
    same = store.runs(experiment_id, f"tags.signature = '{signature}'")
    return next((run for run in same if run.data.tags.get("variant", "") not in variants), None)


def _log_tags(store: Store, run_id: str, tags: dict[str, str]) -> None:
    store.client.log_batch(run_id, tags=[RunTag(*item) for item in tags.items()])


def _log_files(store: Store, run_id: str, folder: Path, points: list[Point], task: str) -> dict[str, str]:
    """What else is in the folder of a run that has ended: data sets, artefacts, picture and table. Returns tags."""
    client, tags = store.client, {}
    provenance = read_provenance(folder)
    hashes = provenance.get("dataset") or {}
    for split, context in (("train", "training"), ("evaluation", "evaluation")):
        if digest := hashes.get(f"{split}_sha256"):
            dataset = entities.Dataset(
                name=task,
                digest=digest[:SIGNATURE_LENGTH],  # whole in provenance.json; MLflow has room for 36
                source_type="code",  # it is generated
                source=json.dumps({"tags": {"mlflow.source.name": "grpolab.tasks"}}),
                profile=json.dumps({"num_rows": hashes[f"{split}_items"]}),
            )
            is_for = entities.InputTag("mlflow.data.context", context)
            client.log_inputs(run_id, [entities.DatasetInput(dataset, [is_for])])
    for name in ARTIFACTS:
        if (folder / name).exists():
            client.log_artifact(run_id, str(folder / name))
    if picture := pages.picture(points):
        client.log_figure(run_id, picture, pages.PICTURE, save_kwargs=pages.SAVED)
    if table := pages.table(folder / "samples"):
        # MLflow's own `log_table` adds its rows to those that are there: written twice, they would be there twice.
        client.log_text(run_id, table, pages.TABLE)
        tags["mlflow.loggedArtifacts"] = json.dumps([{"path": pages.TABLE, "type": "table"}])
    if provenance.get("commit"):
        tags["mlflow.source.git.commit"] = provenance["commit"]
    return tags


def _log_model(store: Store, experiment_id: str, run_id: str, weights: Path, name: str, tags: dict[str, str]) -> None:
    """Make the weights a LoggedModel of the run, unless it has one."""
    models = ask(store.client.search_logged_models, [experiment_id], f"source_run_id = '{run_id}'")
    if not weights.exists() or (models and models[0].status == LoggedModelStatus.READY):
        return
    if models:  # begun by a process that was killed
        model = models[0]
    else:
        model = store.client.create_logged_model(experiment_id, name, run_id, tags)
        store.client.log_outputs(run_id, [entities.LoggedModelOutput(model.model_id, step=0)])
    store.client.log_model_artifact(model.model_id, str(weights))
    store.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def journal_sha256(folder: Path) -> str | None:
    """Of a run folder's journal; None where a run failed before it had one."""
    file = folder / JOURNAL
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def lock_of(results: Results, uri: str) -> Path:
    """The file whose lock orders those who write to a store."""
    return Path(f"{sqlite_file(uri) or results.store}.lock")
