"""Any dataset of reasoning-gym (Apache-2.0, about a hundred generators with verifiers), scored by its own scorer.

The package is optional and imported only if this task is used. It has its own random generators, seeded by (`seed`,
number of the question), so the questions depend on the settings alone.
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

VERSION = "0.1.25"  # the version whose scorers we have read
# Datasets whose scorers run the completion as code, by eval() or sympy's parser; codeio runs programs from its data.
RUN_TEXT = {
    *("binary_matrix", "codeio", "countdown", "intermediate_integration", "n_queens"),
    *("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
}
OURS = ("seed", "size")  # of a dataset's own configuration: keys of the task here
OPEN, CLOSE = "<answer>", "</answer>"
INSTRUCTION = f"\nGive the final answer between {OPEN} and {CLOSE}."


class ReasoningGym:
    """The distinct questions of one dataset; a sixth of them is held out.

    Raises RequestError if the package, the dataset or a key of its configuration does not exist.
    """

    unique_answer = False  # the scorer decides, and may accept several

    def __init__(
        self, dataset: str, config: Mapping[str, Any], seed: int, items: int, answer_tags: bool, chat: bool
    ) -> None:
        self.answer_tags, self.chat = answer_tags, chat
        self._dataset, self._entries = generate(dataset, json.dumps(config, sort_keys=True), seed, items)

    @property
    def alphabet(self) -> str:
        """Every character of the questions and answers."""
        characters = set().union(*(example.prompt + self._tagged(example.answer) for example in self._examples()))
        return "".join(sorted(characters))

    def examples(self, split: str, items: int) -> list[Example]:
        """Return the split's questions, each followed by the instruction, with the dataset's own answers."""
        examples = self._examples()
        held_out = len(examples) * EVALUATION_PROMPTS // (TRAINING_PROMPTS + EVALUATION_PROMPTS)
        return examples[:held_out][:items] if split == "evaluation" else examples[held_out:]

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """Return the answer, in tags if the settings ask for them."""
        return self._tagged(example.answer)

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `partial` by the dataset's scorer, `correct` if that gives full marks, `format` for any answer."""
        answer, question = completion.strip(), example.prompt
        if self.answer_tags:
            before, _, _ = completion.rpartition(CLOSE)
            _, tag, inside = before.rpartition(OPEN)
            answer, question = inside.strip() if tag else "", question.removesuffix(INSTRUCTION)
        try:
            marks = float(self._dataset.score_answer(answer, self._entries[question]))
        except Exception:  # a scorer may fail on any text that it does not expect
            marks = 0.0
        partial = marks if 0 <= marks <= 1 else float(marks > 1)  # NaN is 0
        return {"correct": float(marks >= 1), "partial": partial, "format": float(answer != "")}

    def _examples(self) -> list[Example]:
        instruction = INSTRUCTION if self.answer_tags else ""
        return [Example(question + instruction, entry["answer"]) for question, entry in self._entries.items()]

    def _tagged(self, answer: str) -> str:
        return f"{OPEN}{answer}{CLOSE}" if self.answer_tags else answer


@lru_cache(maxsize=8)
def generate(name: str, config: str, seed: int, items: int) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the dataset, and its first `items` entries by question, each question once; `config` is JSON.

    Raises RequestError as `ReasoningGym`.
    """
    library, values = _load_library(), json.loads(config)
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


def _load_library() -> Any:
    """Import the package. Raises RequestError if the version that is known here is not installed."""
    try:
        installed = importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != VERSION:
        raise RequestError(
            f"task=reasoning_gym needs reasoning-gym {VERSION}, installed is {installed}: "
            " `make extras WHAT=reasoning-gym` installs it"
        )
    return importlib.import_module("reasoning_gym")  # by name: it is no dependency of the package
