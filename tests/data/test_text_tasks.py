"""Prompts and answers in files and data sets: what is read, what is refused and where, and how an answer is scored."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny import pretrained, tiny_settings

from grpolab import hub
from grpolab.data.answers import final_answer
from grpolab.data.text_tasks import Jsonl
from grpolab.errors import RequestError
from grpolab.sweep.compose import compose
from grpolab.tasks import make_task
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


def test_score_compares_final_answers(tmp_path: Path) -> None:
    task, example = jsonl(tmp_path), Example("?", "6 * 7 = 42\n#### 42")
    for text, correct, well_formed in (("I think it is 42.0", 1, 1), ("42 or 43", 0, 1), ("", 0, 0)):
        assert task.score(example, text) == {"correct": correct, "format": well_formed}
    assert [task.final_answer(text) for text in ("so 0.50", "\\boxed{\\frac12}", "")] == ["1/2", "1/2", ""]


@pytest.mark.parametrize(
    ("form", "well_formed", "not_"),
    [
        ("boxed", "so \\boxed{4}", "so \\boxed{ }"),
        ("hashes", "#### 4", "####"),
        (r"<think>.*</think>\s*<answer>", "<think>\na\n</think>\n<answer>4", "<answer>4"),
    ],
)
def test_the_format_is_a_choice(form: str, well_formed: str, not_: str, tmp_path: Path) -> None:
    task = jsonl(tmp_path, format=form)
    assert [task.score(Example("?", "4"), text)["format"] for text in (well_formed, not_)] == [1, 0]


# --- Data sets --------------------------------------------------------------------------------------------------------

TRAIN = [{"question": "a", "answer": "1"}, {"question": "z", "answer": "26"}, {"question": "c", "answer": "x #### 3"}]
TEST = [{"question": "z", "answer": "26"}, {"question": "y", "answer": "25"}]
OF_FOLDER: dict[str, Any] = {
    **{"name": "dataset", "config": None, "revision": None, "train_split": "train", "evaluation_split": "test"},
    **{"prompt_key": "question", "answer_key": "answer", "template": "Q: {prompt}", "chat": False},
    **dict.fromkeys(("system", "stop", "format", "verifier")),
}


@pytest.fixture(params=["parquet", "jsonl"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a file for each split, as `datasets` finds them by their names."""
    (made := tmp_path / "mine").mkdir()
    for name, rows in (("train", TRAIN), ("test", TEST)):
        if request.param == "parquet":
            pd.DataFrame(rows).to_parquet(made / f"{name}.parquet")
        else:
            (made / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_a_folder_of_datasets_is_read_and_what_is_evaluated_is_not_trained(folder: Path) -> None:
    task = make_task(tiny_settings(task=OF_FOLDER | {"dataset": str(folder)}).task)
    assert task.problems() == []
    assert task.examples("evaluation", 1) == [Example("Q: z", "26")]
    assert task.examples("train", 0) == [Example("Q: a", "1"), Example("Q: c", "x #### 3")]


def test_a_folder_is_its_content_and_a_name_of_the_hub_its_commit(folder: Path, monkeypatch) -> None:
    def signature(path: Path | str, **changes: Any) -> str:
        return tiny_settings(task=OF_FOLDER | {"dataset": str(path)} | changes).signature

    before = signature(folder)
    assert signature(shutil.copytree(folder, folder.parent / "copy")) == before
    assert signature(folder, evaluation_split="train") != before
    for file in folder.glob("test.*"):
        file.write_bytes(file.read_bytes() + b"\n")
    assert signature(folder) != before
    monkeypatch.setattr("grpolab.hub.hub_commit", lambda name, revision, *_: ("1" * 40, ""))
    pinned = tiny_settings(task=OF_FOLDER | {"dataset": "openai/gsm8k"})
    assert pinned.task.revision == "1" * 40
    assert pinned.content() == {}
    monkeypatch.setattr("grpolab.hub.hub_commit", lambda name, revision, *_: ("2" * 40, ""))
    assert signature("openai/gsm8k") != pinned.signature


def test_what_a_data_set_lacks_is_said_with_the_key(folder: Path) -> None:
    def problem(**changes: Any) -> str:
        (only,) = make_task(tiny_settings(task=OF_FOLDER | {"dataset": str(folder)} | changes).task).problems()
        return only

    assert f"task.dataset={folder} task.evaluation_split=validation cannot be loaded" in problem(
        evaluation_split="validation"
    )
    assert "row 1: no text under the key 'solution'; its columns are question, answer" in problem(answer_key="solution")
    assert "task.train_split=test has no prompt of its own" in problem(train_split="test")
    assert "task.template='x'" in problem(template="x")
    with pytest.raises(ValueError, match=r"task.system is a message of the chat template: it needs"):
        tiny_settings(task=OF_FOLDER | {"dataset": str(folder), "system": "Be brief."})
    with pytest.raises(ValueError, match=r"task.format=.* must be boxed, hashes or a regular expression"):
        tiny_settings(task=OF_FOLDER | {"dataset": str(folder), "format": "(a"})


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_a_preset_knows_columns_prompt_and_answer(name: str, tmp_path: Path) -> None:
    rows = {
        "gsm8k": {"question": "6 * 7?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"},
        "math": {"problem": "6 * 7?", "solution": "It is $6 \\cdot 7 = \\boxed{42}$."},
    }
    for split, more in (("train", "a"), ("test", "b")):
        row = {key: value if key in ("answer", "solution") else value + more for key, value in rows[name].items()}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    task = make_task(compose([f"task={name}", f"task.dataset={tmp_path}", "task.config=null"]).task)
    (example,) = task.examples("train", 0)
    assert example.prompt.startswith("6 * 7?a Let's think step by step")
    asked = {"gsm8k": "so\n#### 42.0", "math": "so \\boxed{42.0}"}
    assert [task.score(example, asked[of]) for of in (name, *asked.keys() - {name})] == [
        {"correct": 1.0, "format": 1.0},
        {"correct": 1.0, "format": 0.0},
    ]


def test_a_folder_may_be_in_the_users_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is the one that names the whole path; a model's folder is found alike."""
    monkeypatch.setenv("HOME", str(folder.parent))
    task = compose(["task=dataset", "task.dataset=~/mine", "task.prompt_key=question", "task.chat=false"]).task
    assert task.dataset == "~/mine"
    whole, short = (tiny_settings(task=OF_FOLDER | {"dataset": name}) for name in (str(folder), "~/mine"))
    assert make_task(short.task).problems() == []
    assert short == whole
    assert short.signature == whole.signature
    (folder / "config.json").write_text("{}")
    whole, short = (tiny_settings(model=pretrained(path)) for path in (folder, "~/mine"))
    assert (short, short.signature) == (whole, whole.signature)
    assert short.model.config_file() == folder / "config.json"


# --- The hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], list[int]]]:
    """A hub here that says this and hangs up, and how often it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def start(says: bytes) -> list[int]:
            asked: list[int] = []

            def answer() -> None:
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:  # closed: the test is over
                        return
                    with connection:
                        asked.append(len(connection.recv(4096)))
                        connection.sendall(says)

            threading.Thread(target=answer, daemon=True).start()
            return asked

        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", here)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", here + "/{repo_id}/resolve/{revision}/{filename}"
        )
        for place in ("huggingface_hub.constants", "datasets.config"):
            monkeypatch.setattr(f"{place}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", here)
        for cached in (hub.hub_commit, hub.hub_answers):
            cached.cache_clear()
        yield start
        server.shutdown(socket.SHUT_RDWR)
        for cached in (hub.hub_commit, hub.hub_answers):
            cached.cache_clear()


def test_a_hub_that_does_not_answer_is_asked_once(hub_at: Any, tmp_path: Path) -> None:
    """Its own client asks six times, half a minute, and `datasets` as often again."""
    asked = hub_at(b"")
    (problem,) = make_task(tiny_settings(task=OF_FOLDER | {"dataset": "some/set"}).task).problems()
    assert (
        "task.dataset=some/set is neither a folder nor a data set of the hub that is known: the local cache" in problem
    )
    assert "no such dataset, and http://127.0.0.1:" in problem
    known = OF_FOLDER | {"dataset": "some/set", "revision": "1" * 40}
    (problem,) = make_task(tiny_settings(task=known).task).problems()
    assert "task.train_split=train" in problem or "task.evaluation_split=test" in problem
    assert len(asked) == 1


def test_any_answer_is_an_answer(hub_at: Any) -> None:
    hub_at(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    assert hub.hub_answers()


def test_what_the_cache_has_is_read_without_the_hub_and_no_other_commit(hub_at: Any, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetInfo
    from datasets.arrow_writer import ArrowWriter
    from datasets.splits import SplitDict, SplitInfo

    place, splits = tmp_path / "cache" / "some___set" / "default" / "0.0.0" / ("1" * 40), SplitDict()
    place.mkdir(parents=True)
    for name, rows in (("train", TRAIN), ("test", TEST)):
        features = Dataset.from_list(rows).features
        with ArrowWriter(path=str(place / f"set-{name}.arrow"), features=features) as writer:
            for row in rows:
                writer.write(row)
            writer.finalize()
        splits.add(SplitInfo(name, num_examples=len(rows), dataset_name="set"))
    info = {"features": features, "builder_name": "parquet", "dataset_name": "set", "config_name": "default"}
    DatasetInfo(**info, splits=splits, version="0.0.0").write_to_directory(str(place))
    asked = hub_at(b"")
    known = OF_FOLDER | {"dataset": "some/set", "revision": "1" * 40}
    task = make_task(tiny_settings(task=known).task)
    assert task.problems() == []
    assert [example.answer for example in task.examples("train", 0)] == ["1", "x #### 3"]
    assert len(asked) == 1
    (problem,) = make_task(tiny_settings(task=known | {"revision": "2" * 40}).task).problems()
    assert f"the local cache has commit 11111111, not {'2' * 40}: give task.revision={'1' * 40}" in problem
