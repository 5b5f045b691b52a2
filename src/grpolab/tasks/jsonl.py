"""A user's own prompts and answers: one JSON object a line."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpolab.errors import RequestError
from grpolab.tasks.base import Example

MARKED = re.compile(r"####\s*(.+)")  # GSM8K's final answer
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")  # braces inside, one level deep
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
LEADING_NUMBER = re.compile(rf"({NUMBER.pattern})(?!\w)")


def final_answer(text: str) -> str:
    """The answer that a text ends in: after `####`, in the last boxed{}, else its last number, else the text itself.

    Numbers lose thousands separators and a trailing `.0`, so that `1,234.0` equals `1234`.
    """
    if found := MARKED.findall(text):
        marked = found[-1].strip().lstrip("$")
        number = LEADING_NUMBER.match(marked)  # `42.` and `1,000 in all` are numbers, `2x` is not
        return _normal(number.group(1) if number else marked)
    for pattern in (BOXED, NUMBER):
        if found := pattern.findall(text):
            return _normal(found[-1])
    return _normal(text)


def _normal(answer: str) -> str:
    answer = answer.strip().strip("$").strip()
    if NUMBER.fullmatch(answer):
        answer = re.sub(r"\.0+$", "", answer.replace(",", ""))
    return answer


def problems_of_file(key: str, path: str, prompt_key: str, answer_key: str) -> list[str]:
    """One sentence per malformed line (the first five), or one if the file is absent or empty."""
    file = Path(path).expanduser()
    if not file.is_file():
        return [f"{key}={path}: no such file"]
    problems = []
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return [f"{key}={path}: not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}): convert it"]
    if not text:
        return [f"{key}={path}: the file is empty"]
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            problems.append(f"{path}, line {number}: not JSON ({error})")
            continue
        for name in (prompt_key, answer_key):
            if not isinstance(row, dict) or not isinstance(row.get(name), str | int | float):
                problems.append(f"{path}, line {number}: no text under the key {name!r}")
    return problems[:5]


class Jsonl:
    """Prompts and answers from files, loaded with `datasets.load_dataset`."""

    alphabet = string.printable[:95] + "\n"
    unique_answer = False

    def __init__(
        self, train_file: str, evaluation_file: str, prompt_key: str, answer_key: str, template: str, chat: bool
    ) -> None:
        self.files = {"train": train_file, "evaluation": evaluation_file}
        self.prompt_key, self.answer_key = prompt_key, answer_key
        self.template = template
        self.chat = chat

    def problems(self) -> list[str]:
        """All that is wrong with the files and the template, a sentence each."""
        problems = [
            problem
            for split, path in self.files.items()
            for problem in problems_of_file(f"task.{split}_file", path, self.prompt_key, self.answer_key)
        ]
        if "{prompt}" not in self.template:
            problems.append(f"task.template={self.template!r}: it must contain {{prompt}}")
        if not problems:
            shared = {e.prompt for e in self.examples("train", 0)} & {
                e.prompt for e in self.examples("evaluation", 10**9)
            }
            if shared:
                path = self.files["evaluation"]
                problems.append(f"task.evaluation_file={path}: {len(shared)} prompts stand in the training file too")
        return problems

    def examples(self, split: str, items: int) -> list[Example]:
        """Rows of the split's file.

        Raises RequestError where the file is absent or malformed (file and line).
        """
        path = self.files[split]
        problems = problems_of_file(f"task.{split}_file", path, self.prompt_key, self.answer_key)
        if problems:
            raise RequestError(problems)
        from datasets import load_dataset

        # As text, parsed here: the json loader would make dates of strings that look like dates. Streamed: the cache of
        # `datasets` knows a file by its time, and would give the old content of one whose time was set back (rsync).
        lines = load_dataset("text", data_files=str(Path(path).expanduser()), split="train", streaming=True)
        rows = [json.loads(line["text"]) for line in lines]
        examples = [
            Example(self.template.replace("{prompt}", str(row[self.prompt_key])), str(row[self.answer_key]))
            for row in rows
        ]
        return examples[:items] if split == "evaluation" else examples

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        """The answer as it stands in the file."""
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """`correct`: the completion ends in the right answer; `format`: it holds an answer that can be told."""
        given = final_answer(completion)
        return {"correct": float(given == final_answer(example.answer)), "format": float(given != "")}
