"""A tuning on its way: what a trial's runs say, how it ends, which one is next, and the files that are written.

A trial is a function of its runs' folders and of the storage alone. So it does not matter whether a run is going on,
was done long ago, or was left half done: the same evaluations are judged in the same order.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from grpolab import RESULTS_VERSION
from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results, commit, plain, project_root, read_json, write_json_atomic, write_text_atomic
from grpolab.records import outcome_or_damage
from grpolab.run.folder import Tail, exclusive
from grpolab.sweep.jobs import RUN, Job, Schedule, run_job, warm_start_jobs
from grpolab.sweep.ledger import Record, first_line, last_row
from grpolab.sweep.plan import Cell, Plan
from grpolab.sweep.tuning.arms import TRIAL, WATCHED, Arms, override, point_of
from grpolab.sweep.tuning.storage import OWNER, RECORD, ArmTrials, Owner
from grpolab.vocabulary import COMPLETE, DAMAGED, DIVERGED, FAILED, PRUNED, RUNNING

TOLD = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}

TRIALS_FORMAT = 1
HEAD = "# Written by `grpolab tune {called}`: each arm's best values. A study names them in a level: `tuned={study}`.\n"
EVALUATIONS = b'{"kind":"evaluation"'

Score = Callable[[Results, Cell], Mapping[str, float]]  # the stability quantities of a finished run


class RunningTrial:
    """A trial on its way: its runs, one seed after the other."""

    def __init__(self, arm: ArmTrials, trial: optuna.Trial, arms: Arms, results: Results, score: Score) -> None:
        self.arm, self.number, self.tuning = arm, trial.number, arm.tuning
        self.label = f"{arm.arm} trial {trial.number}"
        self._trial, self._results, self._score = trial, results, score
        self._kept: Record | None = trial.user_attrs.get(RECORD)  # of a command that died before it could tell
        self.state: str | None = self._kept and self._kept["state"]  # None until it ends
        self.reason: str | None = None
        told = arm.all()[self.number].intermediate_values  # by a command that died
        self._told, self._last_told = set(told), max(told, default=-1)
        self._index = self._begun = self._decided = 0  # seeds that are done, and begun; optimiser steps up to here
        self._worst = [-math.inf if goal.direction == "maximize" else math.inf for goal in self.tuning.objectives]
        self._scores: dict[int, list[float]] = {}  # by seed, one for each objective
        self._smoothed: dict[int, list[tuple[int, float]]] = {}
        self.cells: list[Cell] = []
        try:
            self.cells = arms.cells(arm.arm, self.number, point_of(trial.params, arm.space))
        except RequestError as error:  # values that do not fit together
            self.state, self.reason = FAILED, "; ".join(error.problems)
        else:
            self._open()

    @property
    def cell(self) -> Cell:
        """The run that it waits for."""
        return self.cells[self._index]

    def advance(self) -> bool:
        """Read what is there; whether the trial has ended."""
        while self.state is None:
            outcome = outcome_or_damage(self._results.run(self.cell.signature))  # before the journal
            with suppress(Damaged):  # the outcome says so, or the run is still there to be judged later
                self._judge()
            if self.state is None and outcome is None:
                return False
            if self.state is None and outcome is not None:
                self._finish_seed(outcome)
        return True

    def tell(self) -> Record:
        """Tell the storage how it ended; the record first, so that a kill in between changes nothing."""
        record = self._kept or plain(self._record())
        self._trial.set_user_attr(RECORD, record)
        state = TOLD.get(record["state"], TrialState.FAIL)
        means = None
        if state == TrialState.COMPLETE:
            means = [float(record["scores"][goal.metric]["mean"]) for goal in self.tuning.objectives]
        self.arm.study.tell(self.number, means, state, skip_if_finished=True)
        return record

    def _open(self) -> None:
        self._begun += 1
        self._journal = Tail(self._results.run(self.cell.signature) / "journal.jsonl", EVALUATIONS)
        self._evaluations: dict[int, float] = {}

    def _judge(self) -> None:
        """Report the evaluations that are new, and give the trial up where the pruner says so."""
        settings, pruner = self.cell.settings, self.tuning.pruner
        judges_runs = pruner.name not in ("none", "wilcoxon") and len(self.tuning.objectives) == 1
        sign = 1 if self.tuning.objectives[0].direction == "maximize" else -1
        for record in self._journal.read():
            step, seed = record["rollout_step"], settings.seed
            if step in self._evaluations:  # the journal was cut back, and grew again
                continue
            self._evaluations[step] = record[WATCHED]
            value = statistics.fmean(list(self._evaluations.values())[-pruner.window :])
            self._smoothed.setdefault(seed, []).append((step, value))
            if not judges_runs or step == 0:
                continue
            planned = settings.planned_steps
            at_end = step == planned and self._index == len(self.cells) - 1
            if self._is_pruned(self._index * planned + step, sign * value, step >= pruner.after and not at_end):
                self._decided += step * settings.updates_per_batch
                self.state = PRUNED
                self.reason = f"{pruner.name}: accuracy {value:.3f} at rollout step {step} of seed {seed}"
                return

    def _is_pruned(self, step: int, value: float, judged: bool = True) -> bool:
        """Report a value, in the direction of the objective; where it is to be `judged`, ask the pruner."""
        if step not in self._told:
            self._trial.report(value, step)
        return judged and step >= self._last_told and self._trial.should_prune()

    def _finish_seed(self, outcome: Record) -> None:
        """Take a run's scores; the next seed is begun, unless this was the last one or the trial ends with it."""
        seed = self.cell.settings.seed
        self._decided += outcome.get("optimizer_steps") or 0
        if outcome["outcome"] in (FAILED, DAMAGED, DIVERGED):
            self.state = DIVERGED if outcome["outcome"] == DIVERGED else FAILED
            self.reason = f"seed {seed}: {first_line(outcome)}"
            if self.state == DIVERGED:
                self._scores[seed] = self._worst
            return
        quantities = self._score(self._results, self.cell)
        scores = {goal.metric: float(quantities[goal.metric]) for goal in self.tuning.objectives}
        if unknown := [metric for metric, score in scores.items() if math.isnan(score)]:
            self.state, self.reason = FAILED, f"seed {seed}: nothing to compute {', '.join(unknown)} from"
            return
        self._scores[seed] = list(scores.values())
        self._index += 1
        if self._index == len(self.cells):
            self.state = COMPLETE
        elif self.tuning.pruner.name == "wilcoxon" and self._is_pruned(self._index - 1, self._scores[seed][0]):
            self.state, self.reason = PRUNED, f"wilcoxon: worse than the best trial after {self._index} seeds"
        else:
            self._open()

    def _record(self) -> Record:
        """Its entry in trials.json, but for what the storage knows itself."""
        begun = self.cells[: self._begun]
        means: Sequence[float | None] = [None for _ in self.tuning.objectives]
        if self.state == COMPLETE:
            means = [statistics.fmean(values) for values in zip(*self._scores.values(), strict=True)]
        elif self.state == DIVERGED:
            means = self._worst
        spent = [self._spent(cell) for cell in begun]
        started = self._trial.datetime_start  # the storage's times are local, without a zone
        return {
            "state": self.state,
            "reason": self.reason,
            "scores": {
                goal.metric: {"mean": mean, "seeds": {seed: scores[at] for seed, scores in self._scores.items()}}
                for at, (goal, mean) in enumerate(zip(self.tuning.objectives, means, strict=True))
            },
            "intermediate": self._smoothed,
            "signatures": {cell.settings.seed: cell.signature for cell in begun},
            "optimizer_steps": {
                "full": sum(cell.settings.optimizer_steps for cell in self.cells),
                "decided": self._decided,
            },
            "timing": {
                "started": started.astimezone(UTC).isoformat(timespec="seconds") if started else None,
                "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(sum(seconds for _, seconds in spent), 3),
                "optimizer_steps": sum(steps for steps, _ in spent),
            },
        }

    def _spent(self, cell: Cell) -> tuple[int, float]:
        """Optimiser steps and seconds that a run has had, whoever did them."""
        folder = self._results.run(cell.signature)
        outcome = outcome_or_damage(folder) or {}
        if outcome.get("optimizer_steps") is not None:
            return outcome["optimizer_steps"], outcome["seconds"]
        row: dict[str, Any] = last_row(folder / "timing.jsonl") or {}
        return (row.get("rollout_step", -1) + 1) * cell.settings.updates_per_batch, row.get("seconds/elapsed", 0.0)


class Book:
    """What a tuning writes, all made from the storage: its runs' plan, trials.json and conf/tuned/<study>.yaml.

    Who writes has the tuning's lock.
    """

    def __init__(self, arms: Arms, trials: Sequence[ArmTrials], results: Results) -> None:
        self._arms, self._trials = arms, trials
        self._file, self._plan_file = results.trials(arms.study.name), results.plan(arms.plan_name)
        before = read_json(self._plan_file) or {}
        self._created = before.get("created") or datetime.now(UTC).isoformat(timespec="seconds")
        self._commit = commit(project_root())
        self._planned = 0

    def write(self) -> None:
        """The plan and trials.json, as the storage is now."""
        self.write_plan()
        write_json_atomic(self._file, self.document(), durable=False)

    def write_plan(self) -> None:
        """plan.json of the trials' runs, where it has grown: an ordinary one, by which they are seen and kept."""
        drawn = [(arm, trial) for arm in self._trials for trial in arm.drawn()]
        if len(drawn) == self._planned:
            return
        self._planned = len(drawn)
        cells = []
        for arm, trial in drawn:
            with suppress(RequestError):  # values that do not fit together have no run
                cells += self._arms.cells(arm.arm, trial.number, point_of(trial.params, arm.space))
        study = self._arms.study
        numbers: dict[str, list[str]] = {str(number): [] for number in sorted({trial.number for _, trial in drawn})}
        changed: dict[str, Any] = {
            "name": self._arms.plan_name,
            "factors": {study.compare: study.factors[study.compare], TRIAL: numbers},
            **{key: [] for key in ("hypotheses", "placebo", "figures")},
        }
        plan = Plan(study.model_copy(update=changed), self._arms.tuning.seeds, cells)
        write_json_atomic(self._plan_file, plan.document(self._created, self._commit or ""), durable=False)

    def document(self) -> Record:
        """trials.json."""
        arms, tuning, study = self._arms, self._arms.tuning, self._arms.study
        entries = [_entry(arm, trial) for arm in self._trials for trial in arm.drawn()]
        ended = [entry for entry in entries if "optimizer_steps" in entry]
        levels = arms.levels(arms.names[0])
        return {
            "format": TRIALS_FORMAT,
            "study": study.name,
            "question": study.question,
            "results_version": RESULTS_VERSION,
            "created": self._created,
            "commit": self._commit,
            "done": self.is_done(),
            "arms": {arm: {"space": arms.space(arm), "common": arms.common(arm)} for arm in arms.names},
            "compare": study.compare,
            "levels": {name: level for name, level in levels.items() if name != study.compare},
            "sampler": {"name": tuning.sampler, "seed": tuning.sampler_seed},
            "pruner": {**tuning.pruner.model_dump(), "metric": WATCHED},
            "objectives": [objective.model_dump() for objective in tuning.objectives],
            "trials_per_arm": tuning.trials,
            "seeds": tuning.seeds,
            "evaluation_seeds": study.seeds,
            "rollout_steps": arms.settings(arms.names[0], {}).planned_steps,
            "optimizer_steps": {
                "full": sum(entry["optimizer_steps"]["full"] for entry in ended),
                "run": sum(entry["timing"]["optimizer_steps"] for entry in ended),
            },
            "best": {arm.arm: _best(arm) for arm in self._trials},
            "trials": entries,
        }

    def is_done(self) -> bool:
        """Whether every arm has had its trials."""
        return all(arm.finished() >= arm.tuning.trials for arm in self._trials)

    def best(self, document: Record) -> Iterator[tuple[ArmTrials, Record]]:
        """The best trials of every arm, the chosen one of an arm first."""
        entries = {(entry["arm"], entry["number"]): entry for entry in document["trials"]}
        for arm in self._trials:
            yield from ((arm, entries[arm.arm, number]) for number in document["best"][arm.arm])

    def write_tuned(self, file: Path, storage: str) -> bool:
        """The best values of each arm and where they are from; False where an arm has no complete trial."""
        document = self.document()
        if not all(document["best"].values()):
            return False
        kept = ("study", "commit", "results_version", "levels", "sampler", "pruner", "objectives")
        tuned: Record = {key: document[key] for key in (*kept, "trials_per_arm", "seeds")}
        tuned |= {"storage": storage, "arms": {}}
        for arm, entry in self.best(document):
            values = {
                "overrides": [override(key, value) for key, value in entry["values"].items()],
                "trial": entry["number"],
                "storage_study": arm.name,
                "scores": entry["scores"],
                "optimizer_steps": entry["optimizer_steps"]["decided"],
            }
            tuned["arms"].setdefault(arm.arm, values)
        text = yaml.safe_dump(plain(tuned), sort_keys=False, width=120)
        write_text_atomic(file, HEAD.format(called=self._arms.study.argument, study=document["study"]) + text)
        return True


def _entry(arm: ArmTrials, trial: FrozenTrial) -> Record:
    """A trial in trials.json."""
    state = RUNNING if trial.state == TrialState.RUNNING else FAILED
    nothing: Record = {"state": state, "reason": None, "scores": {}, "intermediate": {}, "signatures": {}}
    head = {"arm": arm.arm, "number": trial.number, "values": point_of(trial.params, arm.space)}
    return head | trial.user_attrs.get(RECORD, nothing)


def _best(arm: ArmTrials) -> list[int]:
    """Numbers of the complete trials that nothing beats; of one objective the first best, of several the front.

    The front begins with its best by the first objective.
    """
    signs = [1 if goal.direction == "maximize" else -1 for goal in arm.tuning.objectives]
    front = [trial for trial in arm.study.best_trials if trial.user_attrs[RECORD]["state"] == COMPLETE]
    front.sort(key=lambda trial: [-sign * value for sign, value in zip(signs, trial.values, strict=True)])
    numbers = [trial.number for trial in front]
    return numbers[:1] if len(signs) == 1 else numbers


class Tuner(Schedule):
    """Trials as a schedule of the pool: whoever has an idle worker gets the next run of a trial, or of a new one.

    At most `places` trials are on their way at a time. Several commands may work on one storage: what reads it and
    then writes has the tuning's lock. A trial whose command is dead goes on in another one, so that none is lost, none
    is done twice, and the budget is met exactly.
    """

    def __init__(
        self, arms: Arms, trials: Sequence[ArmTrials], results: Results, score: Score, folder: Path, places: int
    ) -> None:
        super().__init__(warm_start_jobs(arms.base_cells(), results))
        self.seconds = 0.0  # that this class took
        self.failed: Counter[str] = Counter()  # trials, by arm, in this command
        self.owner, self.book = Owner(folder), Book(arms, trials, results)
        self._arms, self._trials, self._results, self._score = arms, trials, results, score
        self._lock, self._places, self._over = folder / "lock", places, False
        self._running: dict[tuple[str, int], RunningTrial] = {}
        self._wanted: dict[str, list[RunningTrial]] = {}  # by the signature of the run that they wait for
        self._left: set[str] = set()  # signatures of the runs that were to be left
        self.leave: Callable[[str], None] = lambda signature: None
        self.ended: Callable[[str, Record], None] = lambda label, record: None  # a trial's label and record

    def __bool__(self) -> bool:
        """Whether anything is left to do."""
        return super().__bool__() or not self._over

    @property
    def waiting(self) -> int:
        """Jobs that no worker has, those of trials to come among them."""
        return super().waiting + (0 if self._over else self._places)

    def open_trials(self) -> int:
        """Trials that are still to be finished, by this command or another."""
        return sum(arm.tuning.trials - arm.finished() for arm in self._trials)

    def ready(self) -> Iterator[Job]:
        """Jobs that a worker may have now; a trial is asked for where there is no other."""
        yield from super().ready()
        while self._begin():
            yield from super().ready()

    def finished(self, job: Job, succeeded: bool) -> list[Job]:
        """Take a job off the list, and see what it means for the trials that waited for it."""
        lost = super().finished(job, succeeded)
        with self._timed():
            if job.kind == RUN:
                self._settle(job.signature)
            elif not succeeded:
                self._over = True
        return lost

    def drop_waiting(self) -> int:
        """Give up what no worker has, and begin nothing more."""
        self._over = True
        return super().drop_waiting()

    def look(self, signature: str) -> None:
        """A run has gone a step further: where nobody wants its rest, it is left."""
        with self._timed():
            advanced = [trial.advance() for trial in self._wanted.get(signature, [])]
            if advanced and all(advanced):
                self._left.add(signature)
                self.leave(signature)

    def _begin(self) -> bool:
        """Take up a trial; False where there is none, or no place."""
        if self._over or len(self._running) >= self._places:
            return False
        with self._timed():
            with exclusive(self._lock):
                taken = self._take()
                if taken:
                    self.book.write_plan()
            self._over = taken is None
            if taken:
                arm, trial = taken
                running = RunningTrial(arm, trial, self._arms, self._results, self._score)
                self._running[arm.arm, trial.number] = running
                self._go_on(running)
        return not self._over

    def _take(self) -> tuple[ArmTrials, optuna.Trial] | None:
        """A trial whose command is dead, else a new one of the arm that has the fewest."""
        for arm in self._trials:
            for trial in arm.running():
                ours = (arm.arm, trial.number) in self._running
                if not ours and self.owner.is_dead(trial.user_attrs.get(OWNER)):
                    return arm, arm.adopt(trial, self.owner.name)
        taken = {arm.arm: arm.taken() + self.failed[arm.arm] for arm in self._trials}
        fewest = min(self._trials, key=lambda arm: taken[arm.arm])
        return (fewest, fewest.ask(self.owner.name)) if taken[fewest.arm] < fewest.tuning.trials else None

    def _go_on(self, running: RunningTrial) -> None:
        """End a trial, or have its next run done."""
        if running.advance():
            arm = running.arm.arm
            with exclusive(self._lock):
                record = running.tell()
                self.book.write()
            del self._running[arm, running.number]
            self.failed[arm] += record["state"] == FAILED
            self.ended(running.label, record)
            return
        cell = running.cell
        self._wanted.setdefault(cell.signature, []).append(running)
        label = f"{running.label}, seed {cell.settings.seed}"
        self.add([*warm_start_jobs([cell], self._results), run_job(cell, label)])

    def _settle(self, signature: str) -> None:
        was_left = signature in self._left
        self._left.discard(signature)
        for running in self._wanted.pop(signature, []):
            refused = not running.advance() and running.cell.signature == signature and not was_left
            if refused:  # the disk took no outcome: the trial stays open for the next command
                self._over = True
            else:
                self._go_on(running)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
