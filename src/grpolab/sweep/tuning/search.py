"""A trial on its way: what its runs' folders say, and how it ends. It is a function of those and of the storage alone.

So it does not matter whether a run is going on, was done long ago, or was left half done: the same evaluations are
judged in the same order.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError
from grpolab.paths import Results, plain, read_json
from grpolab.run.folder import Tail, exclusive
from grpolab.sweep.jobs import RUN, Job, Schedule, run_job, warm_start_jobs
from grpolab.sweep.ledger import Record, first_line, last_row
from grpolab.sweep.plan import Cell
from grpolab.sweep.tuning.arms import WATCHED, Arms
from grpolab.sweep.tuning.storage import COMPLETE, DIVERGED, FAILED, OWNER, PRUNED, ArmTrial, ArmTrials, Book, Owner
from grpolab.vocabulary import DIVERGED as RUN_DIVERGED
from grpolab.vocabulary import FAILED as RUN_FAILED

# The stability quantities of a finished run.
Score = Callable[[Results, Cell], Mapping[str, float]]
EVALUATIONS = b'{"kind":"evaluation"'


class RunningTrial:
    """The runs of a trial, one seed after the other."""

    def __init__(self, trial: ArmTrial, cells: Sequence[Cell], results: Results, score: Score) -> None:
        self.trial, self.cells, self._results, self._score = trial, cells, results, score
        self.tuning = trial.arm.tuning
        self.state: str | None = (trial.record or {}).get("state")  # None until it ends
        self.reason: str | None = None
        self._index = self._begun = self._decided = 0  # seeds that are done, and begun; optimiser steps up to here
        self._worst = [-math.inf if goal.direction == "maximize" else math.inf for goal in self.tuning.objectives]
        self._scores: dict[int, list[float]] = {}  # by seed, one for each objective
        self._smoothed: dict[int, list[tuple[int, float]]] = {}
        if cells:
            self._open()

    @property
    def cell(self) -> Cell:
        """The run that it waits for."""
        return self.cells[self._index]

    @property
    def label(self) -> str:
        """`token trial 3`."""
        return f"{self.trial.arm.arm} trial {self.trial.number}"

    def advance(self) -> bool:
        """Read what is there; whether the trial has ended."""
        while self.state is None:
            outcome = read_json(self._results.run(self.cell.signature) / "outcome.json")  # before the journal
            self._judge()
            if self.state is not None or outcome is None:
                break
            self._finish_seed(outcome)
        return self.state is not None

    def fail(self, reason: str) -> None:
        """End it as failed."""
        self.state, self.reason = FAILED, reason

    def tell(self) -> Record:
        """Tell the storage how it ended; the record."""
        record = self.trial.record or plain(self._record())
        self.trial.tell(record)
        return record

    def _open(self) -> None:
        folder = self._results.run(self.cell.signature)
        self._begun += 1
        self._journal = Tail(folder / "journal.jsonl", EVALUATIONS)
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
            if self.trial.is_pruned(self._index * planned + step, sign * value, step >= pruner.after and not at_end):
                self._decided += step * settings.num_iterations * settings.num_minibatches
                self.state = PRUNED
                self.reason = f"{pruner.name}: accuracy {value:.3f} at rollout step {step} of seed {seed}"
                return

    def _finish_seed(self, outcome: Record) -> None:
        seed = self.cell.settings.seed
        self._decided += outcome["optimizer_steps"] or 0
        if outcome["outcome"] == RUN_FAILED:
            self.fail(f"seed {seed}: {first_line(outcome)}")
        elif outcome["outcome"] == RUN_DIVERGED:
            self._scores[seed] = self._worst
            self.state, self.reason = DIVERGED, f"seed {seed}: {first_line(outcome)}"
        else:
            quantities = self._score(self._results, self.cell)
            scores = {goal.metric: float(quantities[goal.metric]) for goal in self.tuning.objectives}
            if unknown := [metric for metric, score in scores.items() if math.isnan(score)]:
                self.fail(f"seed {seed}: nothing to compute {', '.join(unknown)} from")
            else:
                self._keep_scores(seed, list(scores.values()))

    def _keep_scores(self, seed: int, scores: list[float]) -> None:
        """The next seed is begun, unless this was the last one or the pruner gives the trial up."""
        self._scores[seed] = scores
        self._index += 1
        if self._index == len(self.cells):
            self.state = COMPLETE
        elif self.tuning.pruner.name == "wilcoxon" and self.trial.is_pruned(self._index - 1, scores[0]):
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
        started = self.trial.started  # the storage's times are local, without a zone
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
        folder, settings = self._results.run(cell.signature), cell.settings
        outcome = read_json(folder / "outcome.json") or {}
        if outcome.get("optimizer_steps") is not None:
            return outcome["optimizer_steps"], outcome["seconds"]
        row: dict[str, Any] = last_row(folder / "timing.jsonl") or {}
        steps = (row.get("rollout_step", -1) + 1) * settings.num_iterations * settings.num_minibatches
        return steps, row.get("seconds/elapsed", 0.0)


# ----------------------------------------------------------------------------------------------------------------------
# Trials as a schedule of the pool: whoever has an idle worker is given the next run of a trial, or of a new one.


class Tuner(Schedule):
    """Begins trials, and ends them; at most `places` at a time.

    Several commands may do so on one storage: what reads it and then writes has the tuning's lock. A trial whose
    command is dead goes on in another one, so that none is lost, none is done twice, and the budget is met exactly.
    """

    def __init__(
        self, arms: Arms, trials: Sequence[ArmTrials], results: Results, score: Score, folder: Path, places: int
    ) -> None:
        base = [cell for arm in arms.names for cell in arms.cells(arm, 0, {})]
        super().__init__(warm_start_jobs(base, results))
        self.seconds = 0.0  # that this class took
        self.failed: Counter[str] = Counter()  # trials, by arm, in this command
        self.owner, self.book = Owner(folder), Book(arms, trials, results, folder)
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
        return sum(arm.tuning.trials - arm.taken() + len(arm.running()) for arm in self._trials)

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
                trial = self._take()
                if trial:
                    self.book.write_plan()
            self._over = trial is None
            if trial:
                try:
                    cells, problem = self._arms.cells(trial.arm.arm, trial.number, trial.point), ""
                except RequestError as error:  # values that do not fit together
                    cells, problem = [], "; ".join(error.problems)
                running = RunningTrial(trial, cells, self._results, self._score)
                if not cells:
                    running.fail(problem)
                self._running[trial.arm.arm, trial.number] = running
                self._go_on(running)
        return not self._over

    def _take(self) -> ArmTrial | None:
        """A trial whose command is dead, else a new one of the arm that has the fewest."""
        for arm in self._trials:
            for trial in arm.running():
                ours = (arm.arm, trial.number) in self._running
                if not ours and self.owner.is_dead(trial.user_attrs.get(OWNER)):
                    return arm.adopt(trial, self.owner.name)
        taken = {arm.arm: arm.taken() + self.failed[arm.arm] for arm in self._trials}
        fewest = min(self._trials, key=lambda arm: taken[arm.arm])
        return fewest.ask(self.owner.name) if taken[fewest.arm] < fewest.tuning.trials else None

    def _go_on(self, running: RunningTrial) -> None:
        """End a trial, or have its next run done."""
        if running.advance():
            arm = running.trial.arm.arm
            with exclusive(self._lock):
                record = running.tell()
                self.book.write()
            del self._running[arm, running.trial.number]
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
