"""Any dataset of reasoning-gym (Apache-2.0, about a hundred generators with verifiers), scored by its own scorer.

The package is optional and imported only where this task is named. It draws from generators of its own, seeded by
(`seed`, number of the question), so the questions depend on the settings alone.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpolab.errors import RequestError, near_matches
from grpolab.tasks.base import EVALUATION_PROMPTS, TRAINING_PROMPTS, Example

VERSION = "0.1.25"  # the one whose scorers were read
# Their scorers give the completion to eval() or sympy's parser, which runs it; codeio runs programs from its data.
RUN_TEXT = {
    "binary_matrix",
    "codeio",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
OURS = ("seed", "size")  # of a dataset's own configuration: keys of the task here
OPEN, CLOSE = "<answer>", "</answer>"
INSTRUCTION = f"Give the final answer between {OPEN} and {CLOSE}."


class ReasoningGym:
    """Questions of one dataset, each once; a sixth of them is held out.

    Raises RequestError where the package, the dataset or a key of its configuration is not there.
    """

    unique_answer = False  # the scorer decides, and may accept several

    def __init__(
        self, dataset: str, config: Mapping[str, Any], seed: int, items: int, answer_tags: bool, chat: bool
    ) -> None:
        self.answer_tags, self.chat = answer_tags, chat
        self._dataset, self._entries = generated(dataset, json.dumps(config, sort_keys=True), seed, items)

    @property
    def alphabet(self) -> str:
        """Every character of the questions and answers."""
        characters = set().union(*(example.prompt + self._given(example.answer) for example in self._examples()))
        return "".join(sorted(characters))

    def examples(self, split: str, items: int) -> list[Example]:
        """Questions of the split with the dataset's own answers; where the answer goes is said behind them."""
        every = self._examples()
        held_out = len(every) * EVALUATION_PROMPTS // (TRAINING_PROMPTS + EVALUATION_PROMPTS)
        return every[:held_out][:items] if split == "evaluation" else every[held_out:]

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """The answer, in tags where they are asked for."""
        return self._given(example.answer)

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """`correct`: full marks of the dataset's scorer; `partial`: its marks; `format`: there is an answer."""
        answer = completion.strip()
        if self.answer_tags:
            before, _, _ = completion.rpartition(CLOSE)
            _, tag, inside = before.rpartition(OPEN)
            answer = inside.strip() if tag else ""
        try:
            marks = float(self._dataset.score_answer(answer, self._entries[self._question(example.prompt)]))
        except Exception:  # scorers read text that nobody foresaw
            marks = 0.0
        partial = marks if 0 <= marks <= 1 else float(marks > 1)  # not-a-number is no mark
        return {"correct": float(marks >= 1), "partial": partial, "format": float(answer != "")}

    def _examples(self) -> list[Example]:
        behind = f"\n{INSTRUCTION}" if self.answer_tags else ""
        return [Example(question + behind, entry["answer"]) for question, entry in self._entries.items()]

    def _question(self, prompt: str) -> str:
        return prompt.removesuffix(f"\n{INSTRUCTION}") if self.answer_tags else prompt

    def _given(self, answer: str) -> str:
        return f"{OPEN}{answer}{CLOSE}" if self.answer_tags else answer


@lru_cache(maxsize=8)
def generated(name: str, config: str, seed: int, items: int) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The dataset, and its first `items` entries by question, those that come again left out; `config` is JSON.

    Raises RequestError as `ReasoningGym`.
    """
    library, values = _library(), json.loads(config)
    known = sorted(library.factory.DATASETS.keys() - RUN_TEXT - {"composite"})
    if name in RUN_TEXT:
        raise RequestError(f"task.dataset={name}: its scorer runs text as code, which is never done here")
    if name not in known:
        listed = "" if (near := near_matches(name, known)) else f": there are {', '.join(known)}"
        raise RequestError(f"task.dataset={name} is not a dataset of reasoning-gym{near}{listed}")
    _, config_class = library.factory.DATASETS[name]
    keys = [field.name for field in dataclasses.fields(config_class) if field.name not in OURS]
    if unknown := [key for key in values if key not in keys]:
        near = near_matches(unknown[0], keys)
        raise RequestError(f"task.config.{unknown[0]} is unknown{near}; {name} has {', '.join(keys)}")
    try:
        dataset = library.create_dataset(name, seed=seed, size=items, **values)
        entries = {entry["question"]: entry for entry in (dataset[index] for index in range(items))}
    except Exception as error:  # each generator checks in its own way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(f"task.config={values} is not possible with {name}: {reason}") from error
    if not all(isinstance(entry["answer"], str) for entry in entries.values()):
        raise RequestError(f"task.dataset={name} has questions without a written answer: a warm start needs one")
    if len(entries) < (least := (TRAINING_PROMPTS + EVALUATION_PROMPTS) // EVALUATION_PROMPTS):
        raise RequestError(
            f"task.items={items} gives {len(entries)} different questions of {name}, and none is held out: at least"
            f" {least} are needed"
        )
    return dataset, entries


def _library() -> Any:
    """The package; raises RequestError where it, or the version that is known here, is not installed."""
    try:
        found = importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise RequestError(
            f"task=reasoning_gym needs reasoning-gym {VERSION}, installed is {found}:"
            " `make extras WHAT=reasoning-gym` installs it"
        )
    return importlib.import_module("reasoning_gym")  # by name: it is no dependency of the package
