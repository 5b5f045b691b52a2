"""Trials as a schedule of the pool: whoever has an idle worker is given the next run of a trial, or of a new one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.run.locks import exclusive
from grpolab.sweep.request import run_job, warm_start_jobs
from grpolab.sweep.schedule import Job, Schedule
from grpolab.sweep.tuning.arms import Arms
from grpolab.sweep.tuning.book import Book
from grpolab.sweep.tuning.running import RunningTrial, Score
from grpolab.sweep.tuning.storage import Owner
from grpolab.sweep.tuning.trials import FAILED, OWNER, ArmTrial, ArmTrials, Record

Ended = Callable[[str, Record], None]  # a trial's label and record


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
        self.ended: Ended = lambda label, record: None

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
            if job.kind == "run":
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
            advanced = [one.advance() for one in self._wanted.get(signature, [])]
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
                running = self._run(trial)
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

    def _run(self, trial: ArmTrial) -> RunningTrial:
        try:
            cells = self._arms.cells(trial.arm.arm, trial.number, trial.point)
        except RequestError as error:  # values that do not fit together
            running = RunningTrial(trial, [], self._results, self._score)
            running.fail("; ".join(error.problems))
            return running
        return RunningTrial(trial, cells, self._results, self._score)

    def _go_on(self, running: RunningTrial) -> None:
        """End a trial, or have its next run done."""
        if running.advance():
            self._end(running)
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

    def _end(self, running: RunningTrial) -> None:
        arm = running.trial.arm.arm
        with exclusive(self._lock):
            record = running.tell()
            self.book.write()
        del self._running[arm, running.trial.number]
        self.failed[arm] += record["state"] == FAILED
        self.ended(running.label, record)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
