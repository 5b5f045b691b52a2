"""Generated tasks: right answers, disjoint splits, scores that never raise; and a user's own task."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

from grpolab import seeds
from grpolab.errors import RequestError
from grpolab.settings.task import TaskSettings
from grpolab.tasks import make_task
from grpolab.tasks.base import Example, Task
from grpolab.tasks.generated import WrittenAddition

ADDITION = {"name": "addition", "digits": 2}
SORTING = {"name": "sorting", "length": 10}
FILLER = {
    "name": "filler_sorting",
    "length": 6,
    "max_fillers": 8,
    "corruption_base": 0.1,
    "corruption_per_filler": 0.08,
}
WRITTEN = {"name": "written_addition", "digits": 4}
GENERATED = [ADDITION, SORTING, FILLER, WRITTEN]
ALL = 10**9


def task_of(values: dict[str, Any]) -> Task:
    return make_task(TypeAdapter(TaskSettings).validate_python(values))


def written_steps(first: int, second: int, places: int) -> str:
    """Each place of a sum; the carry into it is what all places on its right come to."""
    steps = ""
    for unit in (10**place for place in range(places)):
        a, b, carry = first // unit % 10, second // unit % 10, (first % unit + second % unit) // unit
        steps += f"{a}+{b}={a + b:02}" + (f"+{carry}={a + b + carry:02};" if unit > 1 else ";")
    return steps


def right_answer(task: Task, example: Example) -> str:
    """The answer, worked out from the prompt alone."""
    if example.prompt.endswith("="):
        first, second = map(int, example.prompt[:-1].split("+"))
        steps = written_steps(first, second, places=4) if isinstance(task, WrittenAddition) else ""
        return f"{steps}{first + second}"
    digits = example.prompt.removesuffix(">")
    return "".join(str(digit) * digits.count(str(digit)) for digit in range(10))


@pytest.fixture(scope="module", params=GENERATED, ids=lambda values: values["name"])
def task(request: pytest.FixtureRequest) -> Task:
    return task_of(request.param)


def test_splits_are_disjoint_and_evaluation_has_its_items(task: Task) -> None:
    train, held_out = task.examples("train", ALL), task.examples("evaluation", 2000)
    assert len(held_out) == 2000
    assert len(train) >= 6000
    prompts = [example.prompt for example in train + task.examples("evaluation", ALL)]
    assert len(set(prompts)) == len(prompts)
    assert task.examples("evaluation", 50) == held_out[:50]


def test_answers_are_right_and_score_in_full(task: Task) -> None:
    for example in task.examples("evaluation", 2000) + task.examples("train", ALL)[:2000]:
        assert example.answer == right_answer(task, example)
        assert task.score(example, example.answer) == {"correct": 1.0, "format": 1.0}


def test_wrong_answers_score_zero(task: Task) -> None:
    for example in task.examples("evaluation", 100):
        for wrong in ("", example.answer + "0", example.answer[:-1], example.answer[::-1] + "x", example.prompt):
            assert task.score(example, wrong)["correct"] == 0


def test_no_text_makes_a_score_raise(task: Task) -> None:
    rng = random.Random(0)
    example = task.examples("evaluation", 1)[0]
    odd = ["", " ", "\0", "٣٤", "²", "1e5", "-7", "+", "\ud800", "9" * 5000, "~" * 100, "\n46", "４６"]
    odd += ["".join(chr(rng.randrange(1, 0x2FFF)) for _ in range(rng.randrange(30))) for _ in range(500)]
    odd += ["".join(rng.choices(task.alphabet, k=rng.randrange(16))) for _ in range(500)]
    for text in odd:
        parts = task.score(example, text)
        assert parts.keys() == {"correct", "format"}
        assert all(0 <= value <= 1 for value in parts.values())


@pytest.mark.parametrize(
    ("values", "answer", "wrong_but_well_formed", "malformed"),
    [
        (ADDITION, "46", ["47", "046"], ["+46"]),
        (SORTING, "1123345569", ["3141592653"], ["112334556"]),
        (FILLER, "113459", ["~~314159"], ["~113~459", "~~~"]),
        # The sum alone is right in the first, and alone is all there is in the last.
        ({**WRITTEN, "digits": 2}, "7+5=12;4+8=12+1=13;132", ["7+5=11;4+8=12+1=13;132"], ["4+8=12+1=13;132", "132"]),
    ],
)
def test_format_is_about_the_shape_alone(values, answer: str, wrong_but_well_formed, malformed) -> None:
    task, example = task_of(values), Example("", answer)
    right = {"correct": 1, "format": 1}
    assert task.score(example, answer) == right
    assert task.score(example, f"~~~{answer}") == (right if values is FILLER else {"correct": 0, "format": 0})
    for text in wrong_but_well_formed:
        assert task.score(example, text) == {"correct": 0, "format": 1}
    for text in malformed:
        assert task.score(example, text) == {"correct": 0, "format": 0}


def test_demonstrations_of_the_free_length_task_are_wrong_more_often_the_longer_they_are() -> None:
    task = task_of(FILLER)
    examples = task.examples("train", ALL)[:4000]
    draws_NU = seeds.uniforms(0, "warm_start/targets", np.arange(4000)[:, None], np.arange(32))
    right: dict[int, list[bool]] = {fillers: [] for fillers in range(9)}
    for example, draws_U in zip(examples, draws_NU, strict=True):
        target = task.demonstration(example, draws_U)
        digits = target.lstrip("~")
        assert sorted(digits) == sorted(example.answer)
        right[len(target) - len(digits)].append(digits == example.answer)
    assert stats.chisquare([len(group) for group in right.values()]).pvalue > 1e-3
    for fillers, group in right.items():
        expected = 1 - (0.1 + 0.08 * fillers)  # a random order is now and then the right one
        assert expected - 0.1 < np.mean(group) < expected + 0.12


# --- a user's own task ------------------------------------------------------------------------------------------------


class Doubling:
    """Twice a number."""

    alphabet = "0123456789*"
    unique_answer = True

    def __init__(self, largest: int) -> None:
        self.largest = largest

    def examples(self, split: str, items: int) -> list[Example]:
        found = [Example(f"2*{n}", str(2 * n)) for n in range(self.largest) if (n % 4 == 0) == (split == "evaluation")]
        return found[:items] if split == "evaluation" else found

    def demonstration(self, example: Example, uniforms_U: Any) -> str:
        return example.answer

    def score(self, example: Example, completion: str) -> dict[str, float]:
        return {"correct": float(completion == example.answer)}


class Incomplete:
    """Lacks most of what a task has."""

    alphabet = "01"

    def score(self, example: Example, completion: str) -> dict[str, float]:
        return {"correct": 0.0}


def custom(name: str, **options: Any) -> dict[str, Any]:
    return {"name": "custom", "path": f"{__name__}:{name}", "options": options}


def test_own_task_by_import_path(tmp_path, monkeypatch) -> None:
    assert task_of(custom("Doubling", largest=8)).examples("evaluation", 1) == [Example("2*0", "0")]
    with pytest.raises(RequestError, match=r"lacks demonstration, examples, unique_answer"):
        task_of(custom("Incomplete"))
    (tmp_path / "half_written.py").write_text("def score(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError, match=r"half_written:Task cannot be imported"):
        task_of({"name": "custom", "path": "half_written:Task", "options": {}})
