"""Sort digits: `3141592653>` -> `1123345569`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grpolab.tasks.base import Example, digits_of_split


class Sorting:
    """Random digit strings, none of them in both splits."""

    alphabet = "0123456789>"
    unique_answer = True

    def __init__(self, length: int) -> None:
        self.length = length

    def examples(self, split: str, items: int) -> list[Example]:
        """Return strings of the split."""
        strings = digits_of_split(split, self.length)
        chosen = strings[:items] if split == "evaluation" else strings
        return [Example(f"{digits}>", "".join(sorted(digits))) for digits in chosen]

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return the sorted digits."""
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct`: the sorted digits; `format`: as many digits as in the prompt."""
        return {
            "correct": float(completion == example.answer),
            "format": float(completion.isdecimal() and len(completion) == self.length),
        }
