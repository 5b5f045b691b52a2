"""How long is left, from the speed of the steps so far."""

from __future__ import annotations

from dataclasses import dataclass

from grpolab.sweep.schedule import Job
from grpolab.sweep.wording import duration


class Estimate:
    """How long is left, from the seconds that a unit of cost has taken so far."""

    def __init__(self, seconds_per_cost: float | None, workers: int) -> None:
        self._prior, self._workers = seconds_per_cost, workers
        self._seconds = self._cost = 0.0

    def learn(self, cost: float, seconds: float) -> None:
        """So much of a run took so long."""
        self._seconds += seconds
        self._cost += cost

    def seconds_left(self, cost: float) -> float | None:
        """For so much cost; None where nothing is known yet."""
        rate = self._seconds / self._cost if self._cost else self._prior
        return None if rate is None else rate * cost / self._workers

    def left(self, cost: float) -> str:
        """`about 12 min`, or that nothing is known yet."""
        seconds = self.seconds_left(cost)
        return "no estimate yet" if seconds is None else f"about {duration(seconds)}"


@dataclass
class Active:
    """A job that a worker has."""

    job: Job
    slot: int
    since: float  # when its last step ended
    step: int = 0
    seconds_per_step: float | None = None  # of the last step

    @property
    def cost_left(self) -> float:
        """What is still to be done of the job's cost."""
        return self.job.cost * (1 - self.step / max(1, self.job.steps))

    def advance(self, step: int, now: float) -> tuple[float, float]:
        """The job is at `step` now; cost and seconds of what it has done since the last time."""
        if self.seconds_per_step is None:  # a resumed run's first word: the steps before were another sitting's
            self.step = step - 1
        before, since, steps = self.cost_left, self.since, step - self.step
        self.step, self.since, self.seconds_per_step = step, now, (now - since) / max(1, steps)
        return before - self.cost_left, now - since
