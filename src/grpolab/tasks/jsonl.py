"""A user's own prompts and answers: one JSON object a line."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpolab.errors import RequestError
from grpolab.tasks.base import Example

MARKED = re.compile(r"####\s*(.+)")  # GSM8K's final answer
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")  # braces inside, one level deep
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
LEADING_NUMBER = re.compile(rf"({NUMBER.pattern})(?!\w)")


def final_answer(text: str) -> str:
    """Return a text's final answer: after `####`, in the last boxed{}, else its last number, else the text itself.

    Numbers lose thousands separators and a trailing `.0`, so that `1,234.0` equals `1234`.
    """
    if marked := MARKED.findall(text):
        answer = marked[-1].strip().lstrip("$")
        number = LEADING_NUMBER.match(answer)  # `42.` and `1,000 in all` are numbers, `2x` is not
        return _normalise(number.group(1) if number else answer)
    for pattern in (BOXED, NUMBER):
        if answers := pattern.findall(text):
            return _normalise(answers[-1])
    return _normalise(text)


def _normalise(answer: str) -> str:
    answer = answer.strip().strip("$").strip()
    if NUMBER.fullmatch(answer):
        answer = re.sub(r"\.0+$", "", answer.replace(",", ""))
    return answer


class Jsonl:
    """Prompts and answers from files, loaded with `datasets.load_dataset`."""

    alphabet = string.printable[:95] + "\n"
    unique_answer = False

    def __init__(
        self, train_file: str, evaluation_file: str, prompt_key: str, answer_key: str, template: str, chat: bool
    ) -> None:
        self.files = {"train": train_file, "evaluation": evaluation_file}
        self.prompt_key, self.answer_key = prompt_key, answer_key
        self.template, self.chat = template, chat

    def _problems_of(self, split: str) -> list[str]:
        """Return a sentence for each malformed line, at most five; one for a file that is absent, empty or no text."""
        path = self.files[split]
        key, file = f"task.{split}_file={path}", Path(path).expanduser()
        if not file.is_file():
            return [f"{key}: no such file"]
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            return [f"{key}: not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}): convert it"]
        if not text:
            return [f"{key}: the file is empty"]
        problems = []
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            try:
                row: Any = json.loads(line)
            except ValueError as error:
                problems.append(f"{path}, line {number}: not JSON ({error})")
                continue
            for name in (self.prompt_key, self.answer_key):
                if not isinstance(row, dict) or not isinstance(row.get(name), str | int | float):
                    problems.append(f"{path}, line {number}: no text under the key {name!r}")
        return problems[:5]

    def problems(self) -> list[str]:
        """Return a sentence for each problem of the files and the template."""
        problems = [problem for split in self.files for problem in self._problems_of(split)]
        if "{prompt}" not in self.template:
            problems.append(f"task.template={self.template!r}: it must contain {{prompt}}")
        if not problems:
            train, evaluation = ({e.prompt for e in self.examples(split, 10**9)} for split in self.files)
            if shared := train & evaluation:
                path = self.files["evaluation"]
                problems.append(f"task.evaluation_file={path}: {len(shared)} prompts stand in the training file too")
        return problems

    def examples(self, split: str, items: int) -> list[Example]:
        """Return rows of the split's file. Raises RequestError if it is absent or malformed (file and line)."""
        if problems := self._problems_of(split):
            raise RequestError(problems)
        from datasets import load_dataset

        # Loaded as text and parsed here, because the json loader turns strings that look like dates into dates.
        # Streamed, because the cache of `datasets` misses a change of content that keeps the file's time (rsync).
        path = str(Path(self.files[split]).expanduser())
        lines = load_dataset("text", data_files=path, split="train", streaming=True)
        rows = [json.loads(line["text"]) for line in lines]
        examples = [
            Example(self.template.replace("{prompt}", str(row[self.prompt_key])), str(row[self.answer_key]))
            for row in rows
        ]
        return examples[:items] if split == "evaluation" else examples

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct` if the completion's final answer is right, `format` if it has one."""
        answer = final_answer(completion)
        return {"correct": float(answer == final_answer(example.answer)), "format": float(answer != "")}
