"""How long a run lasts: limits in several units, the first of which counts, and a rule for hopeless runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, FiniteFloat

from grpolab.settings.base import Count, Natural, Settings
from grpolab.vocabulary import METRICS

if TYPE_CHECKING:
    EvaluationMetric: TypeAlias = str
else:  # the checker cannot know the vocabulary's names
    EvaluationMetric = Literal[tuple(metric.name for metric in METRICS.values() if metric.kind == "evaluation")]


class EarlyStopSettings(Settings):
    """Ends a run whose evaluations stay at or below a bound; that is its outcome, and the rule is its reason."""

    metric: EvaluationMetric = Field(description="Evaluation metric that is watched.")
    at_most: FiniteFloat = Field(description="An evaluation at or below this is a bad one.")
    after: Natural = Field(description="Evaluations before so many rollout steps do not count.")
    evaluations: Count = Field(description="So many bad evaluations in a row end the run.")


@dataclass(frozen=True)
class Budget:
    """The limits that were set, each None or >= 1, and what one rollout step takes of them."""

    rollout_steps: int | None
    max_completions: int | None
    max_optimizer_steps: int | None
    completions_per_step: int
    updates_per_step: int

    @property
    def planned_steps(self) -> int:
        """Whole rollout steps that fit into every limit."""
        limits = [
            self.rollout_steps,
            None if self.max_completions is None else self.max_completions // self.completions_per_step,
            None if self.max_optimizer_steps is None else self.max_optimizer_steps // self.updates_per_step,
        ]
        return min(limit for limit in limits if limit is not None)

    def problems(self) -> list[str]:
        """A sentence where nothing limits the run, and for each limit that is shorter than a rollout step."""
        if not (self.rollout_steps or self.max_completions or self.max_optimizer_steps):
            return ["rollout_steps=null needs another limit: set rollout_steps, max_completions or max_optimizer_steps"]
        problems = []
        if self.max_completions is not None and self.max_completions < self.completions_per_step:
            problems.append(
                f"max_completions={self.max_completions} is less than one rollout step: it must be at least"
                f" prompts_per_step * num_generations = {self.completions_per_step}"
            )
        if self.max_optimizer_steps is not None and self.max_optimizer_steps < self.updates_per_step:
            problems.append(
                f"max_optimizer_steps={self.max_optimizer_steps} is less than one rollout step: it must be at least"
                f" num_iterations * num_minibatches = {self.updates_per_step}"
            )
        return problems
