"""`grpolab tune STUDY`: do the missing trials, write trials.json and conf/tuned/STUDY.yaml, draw the report."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import optuna
import yaml
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.paths import Results, commit, plain, project_root, read_json, write_json_atomic, write_text_atomic
from grpolab.run.database import reason_of
from grpolab.run.tracking import SQLITE
from grpolab.run.watch import exclusive, is_held
from grpolab.run_files import Record
from grpolab.studies.facts import JournalReader, duration
from grpolab.studies.progress import Estimate, Progress, outcome_line, print_table, send
from grpolab.studies.session import interruptible, mirrored
from grpolab.sweep.engine import WORKER_COMMAND, WorkerStartError, make_engine
from grpolab.sweep.jobs import RUN, Job, Request
from grpolab.sweep.plan import Cell, Plan
from grpolab.sweep.tuning.arms import TRIAL, ArmTrials, TunedStudy, open_storage, override
from grpolab.sweep.tuning.search import WATCHED, Score, Tuner
from grpolab.terminal import say
from grpolab.vocabulary import COMPLETE, FAILED

TRIALS_FORMAT = 1
HEAD = "# Written by `grpolab tune {called}`: each arm's best values. A study names them in a level: `tuned={study}`.\n"


def compute_quantities(results: Results, cell: Cell) -> Mapping[str, float]:
    """Return the stability quantities of a finished run, as the report of a study with this one cell has them."""
    from grpolab.report.load import read_runs, study_of
    from grpolab.report.measures import stability_table

    plan = {"study": "", "compare": next(iter(cell.levels)), "primary_metric": "eval/accuracy_expected"}
    study = study_of(results, {**plan, "cells": [cell.document()]}, read_runs(results, [cell.signature]))
    return cast(dict[str, float], stability_table(study).iloc[0].to_dict())


def draw_report(results: Results, study: str) -> None:
    """Write the report of a tuning, and print where it is."""
    from grpolab.report import tuning

    say(tuning.write(results, study, say))


def tune(
    tuned: TunedStudy,
    jobs: int | None = None,
    storage: str | None = None,
    *,
    compute_score: Score = compute_quantities,
    draw: Callable[[Results, str], None] = draw_report,
    command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Do what is left of a study's tuning with `jobs` workers, and draw its report.

    The best values go into conf/tuned/ when every arm has its trials: the exit code is then 0, else 1.

    Raises RequestError before anything starts, KeyboardInterrupt (also on SIGTERM) after the workers have ended.
    """
    study = tuned.study.model_copy(update={"name": tuned.plan_name})
    request = Request([Plan(study, tuned.tuning.seeds, tuned.base_cells())], count_committed=False)
    results, name = request.results, tuned.study.name
    folder = results.trials(name).parent
    uri = storage or f"{SQLITE}{folder / 'trials.db'}"
    if is_held(folder / "lock"):
        raise RequestError(f"study={name}: another command tunes it: wait for it, or give it more workers (--jobs)")
    engine = make_engine(request, jobs, command)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    quiet = warnings.catch_warnings(action="ignore", category=ExperimentalWarning)
    folder.mkdir(parents=True, exist_ok=True)
    # The engine first, so that nothing is written to the storage if the cluster cannot be used.
    with quiet, interruptible(), engine, _said_if_lost(uri), exclusive(folder / "lock"):
        opened = open_storage(uri, name)
        arms = [ArmTrials(opened, tuned, arm, parallel=engine.places > 1) for arm in tuned.arms]
        tuner = Tuner(arms, results, compute_score, engine.places)
        engine.places = min(engine.places, tuner.open_trials())
        _say_plan(arms, uri, engine.places)
        files = TuningFiles(arms, results)
        files.write()
        with mirrored(results, request.tracking_uri, tuned.plan_name):
            if engine.places:
                tuner.leave = engine.leave
                progress = TuningProgress(tuner, files, results)
                try:
                    engine.run(tuner, progress)
                except WorkerStartError as error:
                    say(error)
                progress.note(f"{progress.ended} trials in {duration(progress.seconds())}")
            if is_done := not tuner.open_trials():
                # Where the results lie is this machine's.
                file = project_root() / "conf" / "tuned" / f"{name}.yaml"
                file.parent.mkdir(parents=True, exist_ok=True)
                is_written = files.write_tuned(file, uri.replace(f"{results.root}/", ""))
                say(f"tuned values: {file}" if is_written else "no tuned values: an arm has no complete trial")
            draw(results, name)
        for arm, entry in files.best_entries():
            values = " ".join(override(key, value) for key, value in entry["values"].items())
            score = entry["scores"][tuned.tuning.goal.metric]["mean"]
            facts = {"trial": entry["number"], "values": entry["values"], "scores": entry["scores"]}
            if not send("best", arm=arm.arm, **facts):
                say(f"best of {arm.arm}: trial {entry['number']}: {values}: {tuned.tuning.goal.metric} {score:.4g}")
        for arm_name, failed in tuner.failed.items():
            if failed:
                say(f"{arm_name}: {failed} trials failed; the same command makes up for them")
        code = 0 if is_done else 1
        send("end", counts=dict(Counter(entry["state"] for arm in arms for entry in arm.entries())), exit_code=code)
        return code


@contextmanager
def _said_if_lost(uri: str) -> Iterator[None]:
    """If the storage fails meanwhile, say so in one sentence and end the command with code 1."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        lost = f"--storage {uri} was lost ({reason_of(error)}); what has an outcome stays, the same command goes on"
        say(f"grpolab: {lost}", error=True)
        raise SystemExit(1) from error


def _say_plan(arms: Sequence[ArmTrials], uri: str, workers: int) -> None:
    rows = [[arm.arm, ", ".join(arm.space), str(arm.tuning.trials), str(arm.ended())] for arm in arms]
    print_table(("arm", "keys", "trials", "done"), rows)
    tuning = arms[0].tuning
    how = f"sampler {tuning.sampler}, pruner {tuning.pruner.name}, seeds {', '.join(map(str, tuning.seeds))}"
    say(f"{how}; storage {uri}; workers: {workers}" if workers else "0 trials to do: every arm has its own")


class TuningFiles:
    """The files of a tuning, all made from its storage: plan.json of its runs, trials.json, the tuned values."""

    def __init__(self, arms: Sequence[ArmTrials], results: Results) -> None:
        self._arms, self._tuned = arms, arms[0].tuned
        self._trials_file, self._plan_file = results.trials(self._tuned.study.name), results.plan(self._tuned.plan_name)
        before = read_json(self._plan_file) or {}
        self._created = before.get("created") or datetime.now(UTC).isoformat(timespec="seconds")
        self._commit = commit(project_root())

    def write(self) -> None:
        """Write plan.json, an ordinary plan by which the runs are seen and kept, and trials.json."""
        study, cells, numbers = self._tuned.study, [], set[int]()
        for arm in self._arms:
            for entry in arm.entries():
                numbers.add(entry["number"])
                with suppress(RequestError):  # values that do not fit together have no run
                    cells += self._tuned.cells(arm.arm, entry["number"], entry["values"])
        changed: dict[str, Any] = {
            "name": self._tuned.plan_name,
            "factors": {
                study.compare: study.factors[study.compare],
                TRIAL: {str(number): [] for number in sorted(numbers)},
            },
            **{key: [] for key in ("hypotheses", "placebo", "figures")},
        }
        plan = Plan(study.model_copy(update=changed), self._tuned.tuning.seeds, cells)
        write_json_atomic(self._plan_file, plan.document(self._created, self._commit or ""), durable=False)
        write_json_atomic(self._trials_file, self._document(), durable=False)

    def best_entries(self) -> Iterator[tuple[ArmTrials, Record]]:
        """Yield the best trial of every arm that has one."""
        for arm in self._arms:
            entries = {entry["number"]: entry for entry in arm.entries()}
            yield from ((arm, entries[number]) for number in arm.best())

    def write_tuned(self, file: Path, storage: str) -> bool:
        """Write the best values of each arm and their origin; return False if an arm has no complete trial."""
        if not all(arm.best() for arm in self._arms):
            return False
        document = self._document()
        tuned = {key: value for key, value in document.items() if key not in ("format", "arms", "best", "trials")}
        tuned |= {"storage": storage, "arms": {}}
        for arm, entry in self.best_entries():
            tuned["arms"][arm.arm] = {
                "overrides": [override(key, value) for key, value in entry["values"].items()],
                "trial": entry["number"],
                "storage_study": arm.name,
                "scores": entry["scores"],
                "optimizer_steps": entry["optimizer_steps"]["decided"],
            }
        text = yaml.safe_dump(plain(tuned), sort_keys=False, width=120)
        write_text_atomic(file, HEAD.format(called=self._tuned.study.argument, study=document["study"]) + text)
        return True

    def _document(self) -> Record:
        tuned, tuning, study = self._tuned, self._tuned.tuning, self._tuned.study
        levels = tuned.levels(tuned.arms[0])
        return {
            "format": TRIALS_FORMAT,
            "study": study.name,
            "commit": self._commit,
            "results_version": RESULTS_VERSION,
            "levels": {name: level for name, level in levels.items() if name != study.compare},
            "sampler": {"name": tuning.sampler, "seed": tuning.sampler_seed},
            "pruner": {**tuning.pruner.model_dump(), "metric": WATCHED},
            "objectives": [goal.model_dump() for goal in tuning.objectives],
            "trials_per_arm": tuning.trials,
            "seeds": tuning.seeds,
            "arms": {arm: {"space": tuned.space(arm), "common": tuned.common_values(arm)} for arm in tuned.arms},
            "best": {arm.arm: arm.best() for arm in self._arms},
            "trials": [entry for arm in self._arms for entry in arm.entries()],
        }


class TuningProgress(Progress):
    """The progress of a tuning's runs; it also tells the tuner of each step."""

    def __init__(self, tuner: Tuner, files: TuningFiles, results: Results) -> None:
        super().__init__([], Estimate(1), results)
        self._tuner, self._files, self._trials, self.ended = tuner, files, tuner.open_trials(), 0
        tuner.changed = self.trial_changed

    def trial_changed(self, label: str, record: Record | None) -> None:
        """Write the files of a trial that has begun (`record` None) or ended, and say how it ended."""
        self._files.write()
        if record is None:
            return
        self.ended += 1
        means = {metric: score["mean"] for metric, score in record["scores"].items()}
        ended = {"state": record["state"], "scores": means, "reason": record.get("reason")}
        if send("trial", label=label, left=self._trials - self.ended, **ended):
            return
        about = [f"{metric} {mean:.4g}" for metric, mean in means.items() if isinstance(mean, float)]
        about += [record["reason"]] if record["state"] != COMPLETE else []
        self.note(f"{self.count()} {label} {record['state']}: {', '.join(about)} ({self.left()})")

    def stepped(self, job: Job, step: int) -> None:
        super().stepped(job, step)
        self._tuner.look(job.signature)

    def print_finished(self, job: Job, outcome: dict[str, Any], journal: JournalReader | None) -> None:
        if outcome["outcome"] == FAILED or outcome.get("disk_full"):
            self.note(outcome_line(job, outcome))

    def count(self, kind: str = RUN) -> str:
        return f"[{self.ended}/{self._trials}]"

    def left(self) -> str:
        """Return `about 12 min left`, from the trials that have ended in this command."""
        if not self.ended:
            return "no estimate yet"
        return f"about {duration(self.seconds() / self.ended * (self._trials - self.ended))} left"
