"""The steps of GRPO by name, as the training loop calls them; a planted fault (`learn/faults.py`) replaces some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grpolab.learn.batch import Rollout, TrainingBatch
from grpolab.learn.learner import Learner, LearnerState
from grpolab.learn.policy import Policy
from grpolab.learn.update import Step


@dataclass(frozen=True)
class Steps:
    """What the loop calls, in its order."""

    collect: Callable[[Policy, int, list[Rollout]], Rollout]  # prompts -> sample -> score -> advantages
    minibatches: Callable[[Policy, TrainingBatch, int], list[TrainingBatch]]
    update: Callable[[LearnerState, TrainingBatch, int], Step]  # log-probs -> ratio -> kernel -> aggregate -> update
    check: Callable[[Step], float]  # of a fresh batch's first update
    measure: Callable[[Step], dict[str, float]]

    @classmethod
    def of(cls, learner: Learner) -> Steps:
        """The learner's own."""
        return cls(
            collect=learner.collector.next,
            minibatches=learner.minibatches,
            update=learner.update,
            check=learner.check_first_update,
            measure=learner.metrics,
        )
