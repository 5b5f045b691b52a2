"""A user's own files: what is read, what is refused and where, and what counts as the answer of a text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grpolab.data.answers import final_answer
from grpolab.data.text_tasks import Jsonl
from grpolab.errors import RequestError
from grpolab.tasks.base import Example

GOOD = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}, {"question": "c", "answer": "3"}]


@pytest.fixture(autouse=True)
def cache_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` keeps what it read; not in the user's home."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def jsonl(folder: Path, train: Any = GOOD, evaluation: Any = GOOD[:0], **options: Any) -> Jsonl:
    """The task over two files of objects, or of text as it stands."""
    paths = []
    for name, content in (("train", train), ("evaluation", evaluation or [{"question": "z", "answer": "26"}])):
        path = folder / f"{name}.jsonl"
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    values = {"prompt_key": "question", "answer_key": "answer", "template": "{prompt}", "chat": False}
    return Jsonl(*paths, **{**values, **options})


def test_new_content_is_read_whatever_the_files_time_says(tmp_path: Path) -> None:
    """A copying tool may set it back; `datasets` would take what it kept of the old content for the new."""
    for answer in ("1", "2"):
        task = jsonl(tmp_path, [{"question": "a", "answer": answer}])
        os.utime(tmp_path / "train.jsonl", (1e9, 1e9))
        assert task.examples("train", 1) == [Example("a", answer)]


def test_keys_template_and_numbers(tmp_path: Path) -> None:
    rows = [{"q": "1+1", "r": 2, "extra": [1]}, {"q": "7", "r": 7.5, "extra": "x"}]
    task = jsonl(tmp_path, rows, [{"q": "8", "r": "8"}], prompt_key="q", answer_key="r", template="Q: {prompt}\nA:")
    assert task.problems() == []
    found = task.examples("train", 0)
    assert [example.prompt for example in found] == ["Q: 1+1\nA:", "Q: 7\nA:"]
    assert [final_answer(example.answer) for example in found] == ["2", "7.5"]


@pytest.mark.parametrize("text", ["2024-01-01", "12:30", "0012", "1e3", "true", "  spaced  ", "a\u2028b", "é"])
def test_text_is_read_as_it_stands(text: str, tmp_path: Path) -> None:
    """No date, no number is made of it, and only a line feed ends a line."""
    rows = json.dumps({"question": text, "answer": text}, ensure_ascii=False) + "\n"
    task = jsonl(tmp_path, rows)
    assert task.problems() == []
    assert task.examples("train", 0) == [Example(text, text)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"question": "a", "answer": "1"}\n{"question": "b",\n', "train.jsonl, line 2: not JSON"),
        ('{"question": "a", "answer": "1"}\n[1, 2]\n', "train.jsonl, line 2: no text under the key 'question'"),
        ('{"question": "a"}\n', "train.jsonl, line 1: no text under the key 'answer'"),
        ('{"question": "a", "answer": null}\n', "train.jsonl, line 1: no text under the key 'answer'"),
        ("", "task.train_file=.*: the file is empty"),
    ],
)
def test_a_malformed_file_is_refused_with_file_and_line(content: str, says: str, tmp_path: Path) -> None:
    task = jsonl(tmp_path, content)
    (problem, *_) = task.problems()
    with pytest.raises(RequestError, match=says) as caught:
        task.examples("train", 0)
    assert caught.value.problems[0] == problem


def test_files_and_templates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (problem,) = jsonl(tmp_path, evaluation=GOOD[:2]).problems()
    assert problem.startswith("task.evaluation_file=")
    assert "2 prompts stand in the training file too" in problem
    (problem,) = jsonl(tmp_path, template="no place").problems()
    assert "task.template='no place'" in problem
    assert "{prompt}" in problem
    task = jsonl(tmp_path)
    (tmp_path / "train.jsonl").write_bytes('{"question": "é", "answer": "1"}\n'.encode("latin-1"))
    (tmp_path / "evaluation.jsonl").unlink()
    encoding, absent = task.problems()
    assert f"task.train_file={tmp_path}/train.jsonl: not UTF-8 (byte 14 is 0xe9)" in encoding
    assert f"task.evaluation_file={tmp_path}/evaluation.jsonl" in absent
    assert len(jsonl(tmp_path, "x\n" * 100).problems()) == 5


def test_final_answer() -> None:
    answers = {
        "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = 72.\n#### 72": "72",
        **{"#### 1,234": "1234", "####-5": "-5", "#### 3\nno:\n#### 4": "4", "#### 42.": "42"},
        **{"#### $1,000 in all": "1000", "#### north": "north", "so x = \\boxed{42}": "42"},
        **{"\\boxed{1} or rather \\boxed{2}": "2", "\\boxed{\\frac{1}{2}}": "\\frac{1}{2}"},
        **{"the answer is 1,234.0.": "1234", "it costs $12.50 today": "12.50", "-3": "-3", "yes": "yes"},
        **{"  yes ": "yes", "": ""},
    }
    assert {text: final_answer(text) for text in answers} == answers


def test_score_compares_final_answers(tmp_path: Path) -> None:
    task, example = jsonl(tmp_path), Example("?", "6 * 7 = 42\n#### 42")
    for text, correct, well_formed in (("I think it is 42.0", 1, 1), ("42 or 43", 0, 1), ("", 0, 0)):
        assert task.score(example, text) == {"correct": correct, "format": well_formed}
