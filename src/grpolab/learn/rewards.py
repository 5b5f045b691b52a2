"""From text to reward parts to one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.learn.imports import load_object
from grpolab.learn.tasks.base import Example, Task
from grpolab.settings import RewardSettings

Score = Callable[[Example, str], dict[str, float]]


def make_score(settings: RewardSettings, task: Task) -> Score:
    """The task's own score, or a user's `function(prompt, answer, completion)` that returns a number or named parts.

    Raises RequestError where the function cannot be imported or is not callable.
    """
    if settings.function is None:
        return task.score
    function = load_object("reward.function", settings.function)
    if not callable(function):
        raise RequestError(f"reward.function={settings.function} is not a function")

    def score(example: Example, completion: str) -> dict[str, float]:
        result = function(example.prompt, example.answer, completion)
        return dict(result) if isinstance(result, dict) else {"correct": float(result)}

    return score


def reward_parts(score: Score, examples_B: Sequence[Example], completions_B: Sequence[str]) -> dict[str, Tensor]:
    """Each part's value for each completion, shape (B,), float32."""
    rows = [score(example, completion) for example, completion in zip(examples_B, completions_B, strict=True)]
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def total_reward(parts: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Weighted sum of the parts, shape (B,).

    Raises RequestError where a weight names a part that the task does not have.
    """
    unknown = sorted(set(weights) - set(parts))
    if unknown:
        raise RequestError(f"reward.weights: no part called {', '.join(unknown)}; there are {', '.join(sorted(parts))}")
    return torch.stack([weights[name] * parts[name] for name in weights]).sum(0)
