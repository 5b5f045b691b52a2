"""From text to reward parts. torch is imported late, because `run/preflight.py` tries out a reward without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpolab import seeds
from grpolab.errors import RequestError
from grpolab.registry import IN_SANDBOX, LOAD_OBJECT, resolve
from grpolab.settings.task import RewardSettings, VerifierSettings
from grpolab.tasks.base import Example, Task

if TYPE_CHECKING:
    from torch import Tensor

Score = Callable[[Example, str], dict[str, float]]
# A part that every task has: 0 or 1 for each completion, drawn at random. It is the control of 'Spurious rewards'
# (2506.10947): a policy that learns from it alone learns from no signal.
RANDOM = "random"


def make_score(settings: RewardSettings, task: Task) -> Score:
    """Return the task's score, or the user's own. Raises RequestError if the user's function cannot be called."""
    if settings.function is None:
        in_sandbox: Score = resolve(IN_SANDBOX)(settings, task) if settings.sandbox else task.score
        return in_sandbox
    function = resolve(LOAD_OBJECT)("reward.function", settings.function)
    if not callable(function):
        raise RequestError(f"reward.function={settings.function} is not a function")

    def score(example: Example, completion: str) -> dict[str, float]:
        result = function(example.prompt, example.answer, completion)
        return dict(result) if isinstance(result, dict) else {"correct": float(result)}

    return score


def check_parts(weights: Iterable[str], parts: Iterable[str]) -> None:
    """Raise RequestError if a weight belongs to no reward part."""
    known = sorted(parts)
    unknown = [name for name in weights if name not in known]
    if unknown:
        raise RequestError(f"reward.weights: no part called {', '.join(unknown)}; there are {', '.join(known)}")


def reward_parts(score: Score, examples_B: Sequence[Example], completions_B: Sequence[str]) -> dict[str, Tensor]:
    """Return each reward part, (B,), float32, by name."""
    import torch

    rows = [score(example, completion) for example, completion in zip(examples_B, completions_B, strict=True)]
    return {name: torch.tensor([float(row[name]) for row in rows]) for name in rows[0]}


def random_rewards(seed: int, step: int, count: int, first: int = 0) -> Tensor:
    """Return the random reward part of a rollout step, 0 or 1 for each completion from `first` on; (B,), float32."""
    import torch

    return torch.from_numpy(
        (seeds.uniforms(seed, "random reward", step, first + np.arange(count)) < 0.5).astype(np.float32)
    )


def noisy_verdicts(right_B: Tensor, verifier: VerifierSettings, seed: int, step: int, first: int = 0) -> Tensor:
    """Return the part `correct` of each completion, (B,), as a verifier that errs by chance reports it; NaN stays.

    A right answer (above .5) is one minus itself with probability `false_wrong`, a wrong one with `false_right`. In the
    mean over completions a reward of 0 or 1 then keeps 1 - false_right - false_wrong of each difference.
    """
    import torch

    noise_B = torch.from_numpy(seeds.uniforms(seed, "verifier", step, first + np.arange(len(right_B))))
    errs_B = noise_B < torch.where(right_B > 0.5, verifier.false_wrong, verifier.false_right)
    return torch.where(errs_B, 1 - right_B, right_B)
