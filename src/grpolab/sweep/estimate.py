"""How long is left, from what has been done: of the runs and of their warm starts, each by its own speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grpolab.sweep.result import Diary
from grpolab.sweep.schedule import Job
from grpolab.sweep.wording import duration

RUN, WARM_START = "run", "warm_start"


class Speed:
    """Seconds for a unit of cost: of whole jobs where one is done, else of steps, else nothing is known."""

    def __init__(self) -> None:
        self._whole, self._steps = [0.0, 0.0], [0.0, 0.0]  # seconds, cost

    def learn(self, cost: float, seconds: float, whole: bool) -> None:
        """So much of a job, or a whole one with what it does besides its steps, took so long."""
        sums = self._whole if whole else self._steps
        sums[0] += seconds
        sums[1] += cost

    @property
    def known(self) -> bool:
        """Whether there is a basis."""
        return self._whole[1] + self._steps[1] > 0

    @property
    def from_whole(self) -> bool:
        """Whether a whole job is the basis: a warm start ends early, which its steps do not foretell."""
        return self._whole[1] > 0

    def seconds(self, cost: float) -> float:
        """For so much cost, where there is a basis."""
        seconds, of = self._whole if self.from_whole else self._steps
        return seconds / of * cost


class Estimate:
    """How long is left, by the speed of each kind of job."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.speed = {RUN: Speed(), WARM_START: Speed()}

    def seconds_left(self, costs: Mapping[str, float]) -> float | None:
        """For so much cost of each kind; None where nothing is known yet of one of them."""
        asked = {kind: cost for kind, cost in costs.items() if cost > 0}
        if not all(self.speed[kind].known for kind in asked):
            return None
        return sum(self.speed[kind].seconds(cost) for kind, cost in asked.items()) / self.workers

    def left(self, costs: Mapping[str, float]) -> str:
        """`about 12 min left`, `no estimate yet`, or what is known of the warm starts; empty where nothing is left."""
        if not any(cost > 0 for cost in costs.values()):
            return ""
        warm, speed = costs.get(WARM_START, 0.0), self.speed[WARM_START]
        most = warm > 0 and speed.known and not speed.from_whole
        about = "at most" if most else "about"
        seconds = self.seconds_left(costs)
        if seconds is not None:
            return f"{about} {duration(seconds)} left"
        if warm > 0 and speed.known:
            return f"warm starts: {about} {duration(speed.seconds(warm) / self.workers)} left, runs: no estimate yet"
        return "no estimate yet"


@dataclass
class Active:
    """A job that a worker has."""

    job: Job
    slot: int
    since: float  # when its last step ended
    diary: Diary
    step: int = 0
    stepped: bool = False  # in this sitting
    seconds_per_step: float | None = None  # of the last step; None before its second, for the first has more to do

    def at_step(self) -> str:
        """`step 3/50`; a warm start may end before its last."""
        most = " at most" if self.job.kind == WARM_START else ""
        return f"step {self.step}/{self.job.steps}{most}"

    @property
    def cost_left(self) -> float:
        """What is still to be done of the job's cost."""
        return self.job.cost * (1 - self.step / max(1, self.job.steps))

    def advance(self, step: int, now: float) -> tuple[float, float] | None:
        """The job is at `step` now; cost and seconds since the last time, None the first time.

        Then the model was made and evaluated, and the steps before may be another sitting's.
        """
        before, since, steps = self.cost_left, self.since, step - self.step
        self.step, self.since, first, self.stepped = step, now, not self.stepped, True
        if first:
            return None
        self.seconds_per_step = (now - since) / max(1, steps)
        return before - self.cost_left, now - since
