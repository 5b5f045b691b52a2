"""Trials that judge suggested values, and all trials of a tuning as a schedule of the engine.

A trial is the arm with its values, run with each tuning seed, one after the other; its score is their mean. It is a
function of its run folders and of Optuna's storage: whether a run goes on, was done long ago, or was left half done,
the same evaluations are judged in the same order.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.trial import TrialState

from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results, plain
from grpolab.records import outcome_or_damage
from grpolab.run.watch import Tail
from grpolab.sweep.jobs import RUN, Job, Schedule, run_job, warm_start_jobs
from grpolab.sweep.ledger import Record, first_line, last_row
from grpolab.sweep.plan import Cell
from grpolab.sweep.tuning.arms import RECORD, ArmTrials, TunedStudy
from grpolab.vocabulary import COMPLETE, DAMAGED, DIVERGED, FAILED, PRUNED

WATCHED = "eval/accuracy_expected"  # the pruner's metric: every task has it, most of them without sampling noise
EVALUATIONS = b'{"kind":"evaluation"'
STATES = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}

Score = Callable[[Results, Cell], Mapping[str, float]]  # computes the stability quantities of a finished run


class RunningTrial:
    """A trial on its way: its runs, one seed after the other. It reads run folders, whoever fills them."""

    def __init__(
        self, arm: ArmTrials, trial: optuna.Trial, tuned: TunedStudy, results: Results, compute_score: Score
    ) -> None:
        self.arm, self.number, self.tuning = arm, trial.number, arm.tuning
        self.label = f"{arm.arm} trial {trial.number}"
        self._trial, self._results, self._compute_score = trial, results, compute_score
        self.state: str | None = None  # None until it ends
        self.reason: str | None = None
        self._seeds_done = self._decided = 0  # `_decided`: optimiser steps up to the decision
        self._worst = [-math.inf if goal.direction == "maximize" else math.inf for goal in self.tuning.objectives]
        self._scores: dict[int, list[float]] = {}  # by seed, one for each objective
        self._smoothed: dict[int, list[tuple[int, float]]] = {}  # by seed: what the pruner saw
        self.cells: list[Cell] = []
        try:
            self.cells = tuned.cells(arm.arm, trial.number, arm.point_of(trial))
            self._open_journal()
        except RequestError as error:  # values that do not fit together
            self.state, self.reason = FAILED, "; ".join(error.problems)

    @property
    def cell(self) -> Cell:
        """The run that it waits for."""
        return self.cells[self._seeds_done]

    def advance(self) -> bool:
        """Read what is there; return whether the trial has ended."""
        while self.state is None:
            outcome = outcome_or_damage(self._results.run(self.cell.signature))  # before the journal
            with suppress(Damaged):  # the outcome says so, or the run is judged later
                self._judge()
            if self.state is None and outcome is None:
                return False
            if self.state is None and outcome is not None:
                self._finish_seed(outcome)
        return True

    def tell(self) -> Record:
        """Tell Optuna how the trial ended; return its record."""
        record = plain(self._record())
        self._trial.set_user_attr(RECORD, record)
        state, means = STATES.get(record["state"], TrialState.FAIL), None
        if state == TrialState.COMPLETE:
            means = [float(record["scores"][goal.metric]["mean"]) for goal in self.tuning.objectives]
        self.arm.study.tell(self.number, means, state)
        return record

    def _open_journal(self) -> None:
        self._journal = Tail(self._results.run(self.cell.signature) / "journal.jsonl", EVALUATIONS)
        self._evaluations: dict[int, float] = {}  # by rollout step

    def _judge(self) -> None:
        """Report new evaluations as the mean of the last few; end the trial where the pruner gives it up."""
        settings, pruner = self.cell.settings, self.tuning.pruner
        judges_runs = pruner.name not in ("none", "wilcoxon")
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
            self._trial.report(sign * value, self._seeds_done * planned + step)
            is_last = step == planned and self._seeds_done == len(self.cells) - 1
            if step >= pruner.after and not is_last and self._trial.should_prune():
                self._decided += step * settings.updates_per_batch
                self.state = PRUNED
                self.reason = f"{pruner.name}: accuracy {value:.3f} at rollout step {step} of seed {seed}"
                return

    def _finish_seed(self, outcome: Record) -> None:
        """Take a run's scores; go on with the next seed, unless the trial ends here."""
        seed = self.cell.settings.seed
        self._decided += outcome.get("optimizer_steps") or 0
        if outcome["outcome"] in (FAILED, DAMAGED, DIVERGED):
            self.state = DIVERGED if outcome["outcome"] == DIVERGED else FAILED
            self.reason = f"seed {seed}: {first_line(outcome)}"
            if self.state == DIVERGED:
                self._scores[seed] = self._worst
            return
        quantities = self._compute_score(self._results, self.cell)
        scores = {goal.metric: float(quantities[goal.metric]) for goal in self.tuning.objectives}
        if unknown := [metric for metric, score in scores.items() if math.isnan(score)]:
            self.state, self.reason = FAILED, f"seed {seed}: nothing to compute {', '.join(unknown)} from"
            return
        self._scores[seed] = list(scores.values())
        if self._seeds_done == len(self.cells) - 1:
            self.state = COMPLETE
            return
        if self.tuning.pruner.name == "wilcoxon":  # it compares seeds, not steps
            self._trial.report(self._scores[seed][0], self._seeds_done)
            if self._trial.should_prune():
                self.state, self.reason = (
                    PRUNED,
                    f"wilcoxon: worse than the best trial after {self._seeds_done + 1} seeds",
                )
                return
        self._seeds_done += 1
        self._open_journal()

    def _record(self) -> Record:
        """Return its entry in trials.json, but for its number and values."""
        begun = self.cells[: self._seeds_done + 1]
        means: Sequence[float | None] = [None for _ in self.tuning.objectives]
        if self.state == COMPLETE:
            means = [statistics.fmean(values) for values in zip(*self._scores.values(), strict=True)]
        elif self.state == DIVERGED:
            means = self._worst
        spent = [self._spent(cell) for cell in begun]
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
            "timing": {"seconds": round(sum(s for _, s in spent), 3), "optimizer_steps": sum(n for n, _ in spent)},
        }

    def _spent(self, cell: Cell) -> tuple[int, float]:
        """Return the optimiser steps and seconds that a run has had, whoever did them."""
        folder = self._results.run(cell.signature)
        outcome = outcome_or_damage(folder) or {}
        if outcome.get("optimizer_steps") is not None:
            return outcome["optimizer_steps"], outcome["seconds"]
        row: dict[str, Any] = last_row(folder / "timing.jsonl") or {}
        return (row.get("rollout_step", -1) + 1) * cell.settings.updates_per_batch, row.get("seconds/elapsed", 0.0)


class Tuner(Schedule):
    """Trials as a schedule: an idle worker gets the next run of a trial, or the first one of a new trial.

    A new trial belongs to the arm that has the fewest; at most `places` are on their way at a time.
    """

    def __init__(
        self, tuned: TunedStudy, arms: Sequence[ArmTrials], results: Results, compute_score: Score, places: int
    ) -> None:
        super().__init__(warm_start_jobs(tuned.base_cells(), results))
        self.failed: Counter[str] = Counter()  # trials, by arm, in this command
        self._tuned, self._arms, self._results, self._compute_score = tuned, arms, results, compute_score
        self._places, self._over = places, False
        self._running: list[RunningTrial] = []
        self._waiting_for: dict[str, list[RunningTrial]] = {}  # by the signature of the run that they wait for
        self._left: set[str] = set()  # signatures of runs that nobody needs any more
        # Set by the command: leave a run, and hear of a trial that began (no record) or ended.
        self.leave: Callable[[str], None] = lambda signature: None
        self.changed: Callable[[str, Record | None], None] = lambda label, record: None

    def __bool__(self) -> bool:
        """Return whether anything is left to do."""
        return super().__bool__() or not self._over

    @property
    def waiting(self) -> int:
        """Jobs that no worker has, those of trials to come among them."""
        return super().waiting + (0 if self._over else self._places)

    def open_trials(self) -> int:
        """Return how many trials are still to be finished."""
        return sum(arm.tuning.trials - arm.ended() for arm in self._arms)

    def ready(self) -> Iterator[Job]:
        """Yield the jobs that a worker may have now; a trial begins when there is no other."""
        yield from super().ready()
        while self._begin():
            yield from super().ready()

    def finished(self, job: Job, succeeded: bool) -> list[Job]:
        """Take a job off the list, and go on with the trials that waited for it."""
        lost = super().finished(job, succeeded)
        if job.kind == RUN:
            was_left = job.signature in self._left
            self._left.discard(job.signature)
            for running in self._waiting_for.pop(job.signature, []):
                if not running.advance() and running.cell.signature == job.signature and not was_left:
                    self._over = True  # the disk took no outcome: the trial stays open for the next command
                else:
                    self._go_on(running)
        elif not succeeded:
            self._over = True
        return lost

    def drop_waiting(self) -> int:
        """Give up what no worker has, and begin nothing more."""
        self._over = True
        return super().drop_waiting()

    def look(self, signature: str) -> None:
        """Judge a run that has gone a step further; leave it where no trial needs its rest."""
        advanced = [running.advance() for running in self._waiting_for.get(signature, [])]
        if advanced and all(advanced):
            self._left.add(signature)
            self.leave(signature)

    def _begin(self) -> bool:
        """Begin a trial; return False where there is none to begin, or no place."""
        if self._over or len(self._running) >= self._places:
            return False
        begun = {arm.arm: len(arm.begun()) + self.failed[arm.arm] for arm in self._arms}
        arm = min(self._arms, key=lambda arm: begun[arm.arm])
        if begun[arm.arm] >= arm.tuning.trials:
            self._over = True
            return False
        running = RunningTrial(arm, arm.ask(), self._tuned, self._results, self._compute_score)
        self._running.append(running)
        self.changed(running.label, None)
        self._go_on(running)
        return True

    def _go_on(self, running: RunningTrial) -> None:
        """End a trial, or have its next run done."""
        if running.advance():
            record = running.tell()
            self._running.remove(running)
            self.failed[running.arm.arm] += record["state"] == FAILED
            self.changed(running.label, record)
            return
        cell = running.cell
        self._waiting_for.setdefault(cell.signature, []).append(running)
        label = f"{running.label}, seed {cell.settings.seed}"
        self.add([*warm_start_jobs([cell], self._results), run_job(cell, label)])
