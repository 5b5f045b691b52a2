"""A user's own task, for the tests: it works until it is told to fail."""

from __future__ import annotations

from typing import Any

from grpolab.tasks.base import Example
from grpolab.tasks.generated import Addition


class Fragile(Addition):
    """Addition that raises at the n-th completion it scores."""

    def __init__(self, digits: int, scores: int) -> None:
        super().__init__(digits)
        self.left = scores

    def score(self, example: Example, completion: str) -> dict[str, float]:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("a bug of the user's")
        return super().score(example, completion)


def only_parts(prompt: str, answer: str, completion: str) -> dict[str, float]:
    """A reward without the part `correct`."""
    return {"short": 1.0 / (1 + len(completion))}


def whole_numbers(prompt: str, answer: str, completion: str) -> dict[str, Any]:
    """A reward whose parts are integers and truth values."""
    return {"correct": completion == answer, "length": len(completion)}


def never_right(prompt: str, answer: str, completion: str) -> float:
    """A reward that is always zero."""
    return 0.0


def fails(prompt: str, answer: str, completion: str) -> float:
    """A reward that raises."""
    raise KeyError(completion)
