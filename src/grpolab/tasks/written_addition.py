"""Add two numbers on paper: `47+85=` -> `7+5=12;4+8=12+1=13;132`. Every place from the right, then the sum."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from grpolab.tasks.base import Example, digits_of_split


class WrittenAddition:
    """Random pairs of numbers with `digits` digits, none of them in both splits.

    A step is a place: the sum of its two digits, then the sum with the carry, each in two digits; the first digit is
    the next carry. The whole text is judged. If only the sum were, a text with wrong steps could be right too, and
    expected accuracy could only be estimated.
    """

    alphabet = "0123456789+=;"
    unique_answer = True

    def __init__(self, digits: int) -> None:
        self.digits = digits
        place = "[0-9][+][0-9]=[0-9]{2}"
        self.shape = re.compile(f"{place};(?:{place}[+][0-9]=[0-9]{{2}};){{{digits - 1}}}[0-9]+")

    def examples(self, split: str, items: int) -> list[Example]:
        """Return pairs of the split, without leading zeros."""
        cut = self.digits
        pairs = [
            (text[:cut], text[cut:]) for text in digits_of_split(split, 2 * cut) if "0" not in (text[0], text[cut])
        ]
        chosen = pairs[:items] if split == "evaluation" else pairs
        return [Example(f"{first}+{second}=", written_sum(first, second)) for first, second in chosen]

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return the steps and the sum."""
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct`: every step and the sum; `format`: as many steps as places, then digits."""
        return {
            "correct": float(completion == example.answer),
            "format": float(self.shape.fullmatch(completion) is not None),
        }


def written_sum(first: str, second: str) -> str:
    """Return the steps of adding two numbers of equally many digits, and their sum."""
    steps, carry = "", 0
    for place, (a, b) in enumerate(zip(reversed(first), reversed(second), strict=True)):
        total = int(a) + int(b)
        carried = f"+{carry}={total + carry:02}" if place else ""  # nothing is carried into the last place
        steps += f"{a}+{b}={total:02}{carried};"
        carry = (total + carry) // 10
    return f"{steps}{int(first) + int(second)}"
