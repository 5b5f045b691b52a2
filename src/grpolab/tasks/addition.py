"""Add two numbers: `12+34=` -> `46`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpolab import seeds
from grpolab.tasks.base import Example

EVALUATION_SHARE = 4  # one pair in four is held out


class Addition:
    """Every pair of numbers with `digits` digits once; a fixed shuffle holds a quarter out for evaluation."""

    alphabet = "0123456789+="
    unique_answer = True

    def __init__(self, digits: int) -> None:
        self.digits = digits

    def examples(self, split: str, items: int) -> list[Example]:
        """Return pairs of the split; fewer where fewer exist."""
        low, high = 10 ** (self.digits - 1), 10**self.digits
        span = high - low
        order = seeds.permutation(0, f"addition/{self.digits}", 0, span * span).tolist()
        held_out = len(order) // EVALUATION_SHARE
        chosen = order[:held_out][:items] if split == "evaluation" else order[held_out:]
        pairs = ((low + index // span, low + index % span) for index in chosen)
        return [Example(f"{a}+{b}=", str(a + b)) for a, b in pairs]

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return the sum."""
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct`: the sum without leading zeros; `format`: digits only."""
        return {"correct": float(completion == example.answer), "format": float(completion.isdecimal())}
