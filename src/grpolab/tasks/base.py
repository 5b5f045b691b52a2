"""The interface of a task."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

TRAINING_PROMPTS, EVALUATION_PROMPTS = 20_000, 4_000


class Example(NamedTuple):
    """One prompt and its right answer, or one of several right answers."""

    prompt: str
    answer: str


class Task(Protocol):
    """A task; any class with these members can be named by `task=custom task.path=module:Class`."""

    alphabet: str  # every character of prompts and completions; the tiny model's vocabulary
    unique_answer: bool  # True: `answer` is the only right completion, so expected accuracy is computed exactly

    def examples(self, split: str, items: int) -> list[Example]:
        """Return the evaluation split's first `items` prompts, or all training prompts; the splits are disjoint."""
        ...

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return a warm-start target, drawn with uniform numbers (at least 32 of them)."""
        ...

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return named reward parts, `correct` among them, each 0 to 1. Never raises, whatever the text is."""
        ...


@lru_cache(maxsize=4)  # a worker's runs share their data; hashing takes half a second, a short run ten
def content_hash(examples: tuple[Example, ...]) -> str:
    """Return the SHA-256 of the examples in order: the identity of a data set."""
    lines = (json.dumps([example.prompt, example.answer]) + "\n" for example in examples)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
