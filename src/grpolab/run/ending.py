"""When a run ends: after its last rollout step, when its time is up, or when its early stop finds it hopeless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpolab.settings import RunSettings
from grpolab.vocabulary import COMPLETED, STOPPED


@dataclass
class Ending:
    """What is known about it. It goes into the checkpoint, so that a resumed run ends where the straight one does.

    As long as there is no reason, the run goes on to its last planned rollout step.
    """

    settings: RunSettings
    outcome: str = COMPLETED
    reason: str | None = None
    bad_evaluations: int = 0  # in a row, by the early stop

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps: the keyword arguments that make it again."""
        return {"outcome": self.outcome, "reason": self.reason, "bad_evaluations": self.bad_evaluations}

    def reached(self, finished: int) -> bool:
        """Whether the run is over after so many rollout steps."""
        return self.reason is not None or finished >= self.settings.planned_steps

    def see_time(self, finished: int, seconds: float) -> None:
        """The run has taken so many seconds, for so many rollout steps."""
        limit, planned = self.settings.max_seconds, self.settings.planned_steps
        if limit is not None and seconds >= limit and finished < planned:
            self.reason = f"max_seconds={limit:g} ended it after {finished} of {planned} rollout steps"

    def see_evaluation(self, finished: int, metrics: dict[str, float]) -> None:
        """It was evaluated after so many rollout steps; after the last one nothing is left to be stopped."""
        rule = self.settings.early_stop
        if rule is None or finished < rule.after or self.reached(finished):
            return
        self.bad_evaluations = self.bad_evaluations + 1 if metrics[rule.metric] <= rule.at_most else 0
        if self.bad_evaluations == rule.evaluations:
            self.outcome = STOPPED
            self.reason = (
                f"early_stop: {rule.metric} <= {rule.at_most:g} at {rule.evaluations} evaluations in a row,"
                f" the first {rule.after} rollout steps aside, after {finished} of {self.settings.planned_steps}"
            )
