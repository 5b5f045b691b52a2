"""Trials, which score suggested values, and the schedule that gives their runs to the engine.

A trial runs the arm with its values for each tuning seed, one after the other; its score is the mean. It depends only
on its run folders and on Optuna's storage: whether a run is in progress, was done long ago, or was left half done, the
same evaluations are judged in the same order.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from optuna.trial import TrialState

from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results, plain
from grpolab.records import outcome_or_damage
from grpolab.run.watch import Tail
from grpolab.run_files import Record
from grpolab.sweep.jobs import RUN, Job, Schedule, run_job, warm_start_jobs
from grpolab.sweep.ledger import first_line
from grpolab.sweep.plan import Cell
from grpolab.sweep.tuning.arms import RECORD, ArmTrials
from grpolab.vocabulary import COMPLETE, DAMAGED, DIVERGED, FAILED, PRUNED

WATCHED = "eval/accuracy_expected"  # the pruner's metric: every task has it, most of them without sampling noise
EVALUATIONS = b'{"kind":"evaluation"'
STATES = {COMPLETE: TrialState.COMPLETE, DIVERGED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}

Score = Callable[[Results, Cell], Mapping[str, float]]  # computes the stability quantities of a finished run


class RunningTrial:
    """A trial that has not ended. It reads its run folders, whichever process fills them."""

    def __init__(self, arm: ArmTrials, results: Results, compute_score: Score) -> None:
        """Ask Optuna for the arm's next values."""
        self.arm, self.tuning, self._trial = arm, arm.tuning, arm.ask()
        self.label = f"{arm.arm} trial {self._trial.number}"
        self._results, self._compute_score = results, compute_score
        self.record: Record = {}  # its entry in trials.json, but for its number and values; empty until it ends
        self._optimizer_steps = 0  # up to the decision
        self._scores: dict[int, float] = {}  # by seed
        self._cells: list[Cell] = []
        self._begun: list[Cell] = []
        self._worst = -math.inf if self.tuning.goal.direction == "maximize" else math.inf  # of a diverged run
        self._runs = self._judge_runs()

    def advance(self) -> Cell | None:
        """Read the runs that have ended; return the run that the trial waits for, None if the trial has ended."""
        return next(self._runs, None)

    def _judge_runs(self) -> Iterator[Cell]:
        """Judge one run after the other, yield each that needs more training, and at last end the trial."""
        arm = self.arm
        try:
            self._cells = arm.tuned.cells(arm.arm, self._trial.number, arm.point_of(self._trial))
        except RequestError as error:  # values that do not fit together
            return self._end(FAILED, "; ".join(error.problems))
        for index, cell in enumerate(self._cells):
            self._begun.append(cell)
            seed, folder, outcome = cell.settings.seed, self._results.run(cell.signature), None
            journal, evaluations = Tail(folder / "journal.jsonl", EVALUATIONS), dict[int, float]()
            while outcome is None:
                outcome = outcome_or_damage(folder)  # before the journal, which an outcome completes
                with suppress(Damaged):  # the outcome says so, or the run is judged later
                    for record in journal.read():
                        step = record["rollout_step"]
                        if step in evaluations:  # the journal was cut back, and grew again
                            continue
                        evaluations[step] = record[WATCHED]
                        if self._prunes_at(step, list(evaluations.values()), index):
                            return None
                if outcome is None:
                    yield cell
            self._optimizer_steps += outcome.get("optimizer_steps") or 0
            if outcome["outcome"] == DIVERGED:
                self._scores[seed] = self._worst
            if outcome["outcome"] in (FAILED, DAMAGED, DIVERGED):
                state = DIVERGED if outcome["outcome"] == DIVERGED else FAILED
                return self._end(state, f"seed {seed}: {first_line(outcome)}")
            metric = self.tuning.goal.metric
            score = float(self._compute_score(self._results, cell)[metric])
            if math.isnan(score):
                return self._end(FAILED, f"seed {seed}: nothing to compute {metric} from")
            self._scores[seed] = score
        return self._end(COMPLETE)

    def _prunes_at(self, step: int, evaluations: list[float], index: int) -> bool:
        """Report the mean of a run's last evaluations to Optuna; end the trial and return True if it is pruned."""
        pruner, settings = self.tuning.pruner, self._cells[index].settings
        value = statistics.fmean(evaluations[-pruner.window :])
        if pruner.name == "none" or step == 0:
            return False
        at = index * settings.planned_steps + step
        is_last = at == len(self._cells) * settings.planned_steps
        self._trial.report(value, at)
        if step < pruner.after or is_last or not self.arm.is_behind(value, at):
            return False
        self._optimizer_steps += step * settings.updates_per_batch
        self._end(PRUNED, f"{pruner.name}: accuracy {value:.3f} at rollout step {step} of seed {settings.seed}")
        return True

    def _end(self, state: str, reason: str | None = None) -> None:
        """Tell Optuna how the trial ended."""
        mean = statistics.fmean(self._scores.values()) if state == COMPLETE else None
        mean = self._worst if state == DIVERGED else mean
        self.record = plain(
            {
                "state": state,
                "reason": reason,
                "scores": {self.tuning.goal.metric: {"mean": mean, "seeds": self._scores}},
                "signatures": {cell.settings.seed: cell.signature for cell in self._begun},
                "optimizer_steps": {
                    "full": sum(cell.settings.optimizer_steps for cell in self._cells),
                    "decided": self._optimizer_steps,
                },
            }
        )
        self._trial.set_user_attr(RECORD, self.record)
        self.arm.study.tell(self._trial.number, mean, STATES.get(state, TrialState.FAIL))


class Tuner(Schedule):
    """Trials as a schedule: an idle worker gets the next run of a trial, or the first one of a new trial.

    A new trial is for the arm that has the fewest; at most `places` trials run at a time.
    """

    def __init__(self, arms: Sequence[ArmTrials], results: Results, compute_score: Score, places: int) -> None:
        super().__init__(warm_start_jobs(arms[0].tuned.base_cells(), results))
        self.failed: Counter[str] = Counter()  # trials, by arm, in this command
        self._arms, self._results, self._compute_score = arms, results, compute_score
        self._places, self._over = places, False
        self._running = 0  # trials
        self._waiting_for: dict[str, list[RunningTrial]] = {}  # by the signature of the run that they wait for
        self._left: set[str] = set()  # signatures of runs that nobody needs any more
        # Set by the command: leave a run, and hear of a trial that began (no record) or ended.
        self.leave: Callable[[str], None] = lambda signature: None
        self.changed: Callable[[str, Record | None], None] = lambda label, record: None

    def __bool__(self) -> bool:
        return super().__bool__() or not self._over

    @property
    def waiting(self) -> int:
        """Number of jobs that no worker has, those of future trials included."""
        return super().waiting + (0 if self._over else self._places)

    def open_trials(self) -> int:
        return sum(max(0, arm.tuning.trials - arm.ended()) for arm in self._arms)

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
            for trial in self._waiting_for.pop(job.signature, []):
                cell = trial.advance()
                if cell and cell.signature == job.signature and not was_left:
                    self._over = True  # the disk took no outcome: the trial stays open for the next command
                else:
                    self._go_on(trial, cell)
        elif not succeeded:
            self._over = True
        return lost

    def drop_waiting(self) -> int:
        """Drop the jobs that no worker has, and begin no new trial."""
        self._over = True
        return super().drop_waiting()

    def look(self, signature: str) -> None:
        """Judge a run after a new step, and leave it if no trial needs the rest."""
        cells = [trial.advance() for trial in self._waiting_for.get(signature, [])]
        if cells and not any(cells):
            self._left.add(signature)
            self.leave(signature)

    def _begin(self) -> bool:
        """Begin a trial of the arm that has begun the fewest; return False if all places or the budget are used."""
        if self._over or self._running >= self._places:
            return False
        # `begun` leaves failed trials out. They are added, so that only a later command makes up for them.
        begun = {arm.arm: len(arm.begun()) + self.failed[arm.arm] for arm in self._arms}
        arm = min(self._arms, key=lambda arm: begun[arm.arm])
        if begun[arm.arm] >= arm.tuning.trials:
            self._over = True
            return False
        trial = RunningTrial(arm, self._results, self._compute_score)
        self._running += 1
        self.changed(trial.label, None)
        self._go_on(trial, trial.advance())
        return True

    def _go_on(self, trial: RunningTrial, cell: Cell | None) -> None:
        """Have the trial's next run done; end the trial if there is none."""
        if cell is None:
            self._running -= 1
            self.failed[trial.arm.arm] += trial.record["state"] == FAILED
            self.changed(trial.label, trial.record)
            return
        self._waiting_for.setdefault(cell.signature, []).append(trial)
        label = f"{trial.label}, seed {cell.settings.seed}"
        self.add([*warm_start_jobs([cell], self._results), run_job(cell, label)])
