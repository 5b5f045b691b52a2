r"""Count a letter in a word: `How many n are there in word n-i-n-e?` -> `n = n`, `i != n`, ..., `\boxed{2}`.

After verl's recipe `char_count` (Apache-2.0): its prompt, its reward, and its supervised start with steps. Length and
count are uniform, as there. The steps are those of its README, without the sentence that its script adds.
"""

from __future__ import annotations

import string
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from grpolab import seeds
from grpolab.tasks.base import EVALUATION_PROMPTS, TRAINING_PROMPTS, Example

BOX = "\\boxed"


class CharCount:
    """Random words, no prompt in both splits."""

    alphabet = string.ascii_lowercase + string.digits + "H -?=!\\{}\n"
    unique_answer = False  # the count alone is judged, and the steps may be others

    def __init__(self, min_length: int, max_length: int, chat: bool) -> None:
        self.min_length, self.max_length = min_length, max_length
        self.chat = chat

    def examples(self, split: str, items: int) -> list[Example]:
        """Return prompts of the split, each with its count."""
        every = questions(TRAINING_PROMPTS + EVALUATION_PROMPTS, self.min_length, self.max_length)
        return list(every[:EVALUATION_PROMPTS][:items] if split == "evaluation" else every[EVALUATION_PROMPTS:])

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Compare every letter with the counted one, then give the count."""
        _, _, letter, *_, word = example.prompt.removesuffix("?").split()
        steps = [f"{other} {'=' if other == letter else '!='} {letter}" for other in word.split("-")]
        return "\n".join([*steps, f"{BOX}{{{example.answer}}}"])

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct`: the last box holds the count; `format`: it holds a number."""
        _, box, rest = completion.rpartition(BOX)
        inside, closed, _ = rest.removeprefix("{").partition("}")
        given = inside if box and rest.startswith("{") and closed else ""
        return {"correct": float(given == example.answer), "format": float(given.isdecimal())}


@lru_cache(maxsize=4)
def questions(count: int, min_length: int, max_length: int) -> tuple[Example, ...]:
    """Return `count` different questions, always the same ones: data does not depend on the run's seed."""
    count_of: dict[str, str] = {}
    attempt, draws = 0, 3 + 2 * max_length
    while len(count_of) < count:
        purpose = f"char_count/{min_length}-{max_length}"
        for u in seeds.uniforms(0, purpose, attempt, np.arange(count)[:, None], np.arange(draws)):
            length = min_length + int(u[0] * (max_length - min_length + 1))
            times = 1 + int(u[1] * length)
            letter = string.ascii_lowercase[int(u[2] * 26)]
            others = string.ascii_lowercase.replace(letter, "")
            letters = [letter] * times + [others[int(draw * 25)] for draw in u[3 : 3 + length - times]]
            word = "-".join(letters[place] for place in np.argsort(u[-length:]))
            count_of[f"How many {letter} are there in word {word}?"] = str(times)
        attempt += 1
    return tuple(Example(prompt, answer) for prompt, answer in count_of.items())[:count]
