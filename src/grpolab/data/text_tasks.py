"""Tasks of written prompts and answers: a user's JSON Lines, or a data set of the hub or of a folder."""

from __future__ import annotations

import json
import re
import string
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from grpolab.data.answers import canonical, final_answer, is_changed_number
from grpolab.data.verifiers import code_of, find_problems, math_verifier
from grpolab.errors import RequestError, shorten
from grpolab.hub import hub_answers, hub_commit
from grpolab.identity import COMMIT
from grpolab.tasks.base import Example

FORMATS = {"boxed": r"\\boxed\s*\{[^{}]*[^{}\s]", "hashes": r"####[ \t]*\S"}


class TextTask:
    """Prompts and answers in rows with a key for each; the answers are judged by their texts, or by a verifier.

    Raises RequestError if the verifier's package is not installed.
    """

    alphabet = string.printable[:95] + "\n"
    unique_answer = False

    def __init__(
        self,
        prompt_key: str,
        answer_key: str,
        template: str,
        chat: bool,
        system: str | None = None,
        stop: list[str] | None = None,
        format: str | None = None,
        verifier: str | None = None,
    ) -> None:
        self.prompt_key, self.answer_key, self.template = prompt_key, answer_key, template
        self.chat, self.stop, self.verifier = system or chat, tuple(stop or ()), verifier
        self.format = re.compile(FORMATS.get(format, format), re.DOTALL) if format else None
        self.equal = math_verifier() if verifier == "math_verify" else None

    @abstractmethod
    def problems(self) -> list[str]:
        """Return a sentence for each problem of the data and the template."""

    @abstractmethod
    def examples(self, split: str, items: int) -> list[Example]:
        """Return the evaluation split's first `items` rows, or all training rows. Raises RequestError."""

    def example(self, row: dict[str, Any]) -> Example:
        """Return a row's prompt, in its template, and its answer."""
        return Example(self.template.replace("{prompt}", str(row[self.prompt_key])), str(row[self.answer_key]))

    def lacking(self, row: Any) -> list[str]:
        """Return the keys under which a row has no text."""
        keys = (self.prompt_key, self.answer_key)
        return [key for key in keys if not isinstance(row, dict) or not isinstance(row.get(key), str | int | float)]

    def problems_of_settings(self) -> list[str]:
        """Return a sentence if the template has no place for the prompt, and one if the verifier does not work."""
        fits = "{prompt}" in self.template
        problems = [] if fits else [f"task.template={self.template!r}: it must contain {{prompt}}"]
        return problems + (find_problems(self.equal) if self.equal else [])

    def demonstration(self, example: Example, uniforms_U: NDArray[np.float64]) -> str:
        return example.answer

    def final_answer(self, completion: str) -> str:
        """Return what a vote counts: the answer in one form, empty if there is none; of code the code."""
        return code_of(completion) if self.verifier == "code" else canonical(final_answer(completion))

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Score `correct` if the final answer is right, `format` if the text has the form asked for (any answer)."""
        answer = self.final_answer(completion)
        has_format = bool(self.format.search(completion)) if self.format else answer != ""
        right = answer == self.final_answer(example.answer)
        if self.equal and not right:
            gold, found = final_answer(example.answer), final_answer(completion)
            right = not is_changed_number(found, gold) and self.equal(gold, completion)  # it reads 6 in `6 million`
        return {"correct": float(right), "format": float(has_format)}


class Jsonl(TextTask):
    """Prompts and answers from files, loaded with `datasets.load_dataset`."""

    def __init__(self, train_file: str, evaluation_file: str, **how: Any) -> None:
        super().__init__(**how)
        self.files = {"train": train_file, "evaluation": evaluation_file}

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
            problems += [f"{path}, line {number}: no text under the key {name!r}" for name in self.lacking(row)]
        return problems[:5]

    def problems(self) -> list[str]:
        """Return a sentence for each problem of the files and the template."""
        problems = [problem for split in self.files for problem in self._problems_of(split)]
        problems += self.problems_of_settings()
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
        examples = [self.example(json.loads(line["text"])) for line in lines]
        return examples[:items] if split == "evaluation" else examples


class TextDataset(TextTask):
    """Two splits of a data set that `datasets.load_dataset` reads: of the hub at one commit, or of a folder.

    Its code is never run: `datasets` 5 has no loading scripts. Raises RequestError for a data set, configuration, split
    or column that is not there.
    """

    keys: ClassVar = {"train": "train_split", "evaluation": "evaluation_split"}

    def __init__(
        self,
        dataset: str,
        config: str | None,
        revision: str | None,
        train_split: str,
        evaluation_split: str,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self.dataset, self.config, self.revision = dataset, config, revision
        self.splits = {"train": train_split, "evaluation": evaluation_split}

    def problems(self) -> list[str]:
        """Return a sentence for the first split that cannot be read, and one for the template."""
        of_settings = self.problems_of_settings()
        if not Path(self.dataset).is_dir() and not COMMIT.fullmatch(self.revision or ""):
            reason = hub_commit(self.dataset, self.revision, kind="dataset")[1]
            said = f"task.dataset={self.dataset} is neither a folder nor a data set of the hub that is known: {reason}"
            return [said, *of_settings]
        try:
            if not self.examples("train", 0) and not of_settings:
                return [f"{self._named('train')} has no prompt of its own: all of them are evaluated"]
        except RequestError as error:
            return [*error.problems, *of_settings]
        return of_settings

    def examples(self, split: str, items: int) -> list[Example]:
        """Return the evaluation split's first `items` rows, or all training rows whose prompt is not in it."""
        if split == "evaluation":
            return self._evaluation[:items]
        held_out = {example.prompt for example in self._evaluation}
        return [example for example in self._rows("train") if example.prompt not in held_out]

    @cached_property
    def _evaluation(self) -> list[Example]:
        return self._rows("evaluation")

    def _named(self, split: str) -> str:
        where = f"task.dataset={self.dataset}" + (f" task.config={self.config}" if self.config else "")
        return f"{where} task.{self.keys[split]}={self.splits[split]}"

    def _rows(self, split: str) -> list[Example]:
        from datasets import load_dataset

        # A folder is streamed, because the cache of `datasets` misses a change that keeps the files' times.
        is_folder = Path(self.dataset).is_dir()
        how = {"split": self.splits[split], "revision": self.revision, "streaming": is_folder}
        try:
            with _offline(not is_folder and not hub_answers()):
                loaded = load_dataset(self.dataset, self.config, **how)
            rows = list(loaded)
        except Exception as error:  # the network's, the hub's, the files': all of them end the request alike
            reason = shorten(" ".join(str(error).split()), 300)
            raise RequestError(f"{self._named(split)} cannot be loaded: {reason}") from error
        files = [] if is_folder else [Path(file["filename"]) for file in loaded.cache_files]
        # Where the hub cannot be reached, `datasets` takes what it loaded last of the data set, whatever its commit.
        if files and COMMIT.fullmatch(other := files[0].parent.name) and other != self.revision:
            raise RequestError(
                f"{self._named(split)} cannot be loaded: the hub gives no answer, and the local cache has commit"
                f" {other[:8]}, not {self.revision}: give task.revision={other}, or try again with a network"
            )
        if not rows:
            raise RequestError(f"{self._named(split)}: the split is empty")
        for number, row in enumerate(rows, start=1):
            for key in self.lacking(row):
                raise RequestError(
                    f"{self._named(split)}, row {number}: no text under the key {key!r}; its columns are"
                    f" {', '.join(row)}: name them by task.prompt_key and task.answer_key"
                )
        return [self.example(row) for row in rows]


@contextmanager
def _offline(is_so: bool) -> Iterator[None]:
    """Let `datasets` read its cache inside this context, if it is so, without the hub that it would ask for minutes."""
    from datasets import config

    before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, is_so or config.HF_HUB_OFFLINE
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
