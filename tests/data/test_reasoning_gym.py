"""Datasets of reasoning-gym as tasks. `make extras WHAT=reasoning-gym` installs the package and runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import tiny_settings

from grpolab.content import content_of
from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.run import preflight
from grpolab.settings.task import ReasoningGymTask
from grpolab.tasks import make_task

pytestmark = pytest.mark.optional
ITEMS = 300


def gym(dataset: str, config: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    values = {"seed": 0, "items": ITEMS, "answer_tags": False, "chat": True}
    return {"name": "reasoning_gym", "dataset": dataset, "config": config or {}} | values | changes


def task_of(*args: Any, **changes: Any) -> Any:
    return make_task(ReasoningGymTask.model_validate(gym(*args, **changes)))


@pytest.fixture(scope="module", autouse=True)
def _needs_the_package() -> None:
    pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize(
    ("dataset", "config"),
    [("letter_counting", {}), ("spell_backward", {"min_word_len": 3, "max_word_len": 4}), ("coin_flip", {})],
)
def test_splits_share_no_question_and_answers_have_full_marks(dataset: str, config: dict[str, Any]) -> None:
    """Generators repeat themselves: coin_flip within a few hundred questions."""
    task = task_of(dataset, config)
    train, evaluation = task.examples("train", 0), task.examples("evaluation", 10**9)
    prompts = [example.prompt for example in (*train, *evaluation)]
    assert len(set(prompts)) == len(prompts)
    assert 0 < len(evaluation) <= len(train) // 4
    assert len(prompts) <= ITEMS
    assert dataset != "coin_flip" or len(prompts) < ITEMS
    for example in train:
        assert task.score(example, task.demonstration(example, np.zeros(32)))["correct"] == 1
        assert set(example.prompt + example.answer) <= set(task.alphabet)


def test_the_scorer_gives_marks_in_part() -> None:
    """What its own scorer says of an answer with words around it."""
    task = task_of("chain_sum")
    example = task.examples("train", 0)[0]
    wordy = task.score(example, f"It is {example.answer}")
    assert wordy["correct"] == 0
    assert 0 < wordy["partial"] < 1
    assert task.score(example, example.answer) == {"correct": 1.0, "partial": 1.0, "format": 1.0}
    assert task.score(example, " ") == {"correct": 0.0, "partial": 0.0, "format": 0.0}


@pytest.mark.parametrize(
    "completion", ["", "\0", "[" * 3000, "1/0", "<answer>", "é" * 50, "{}", "nan", "(((", "9" * 5000]
)
@pytest.mark.parametrize(
    "dataset", ["fraction_simplification", "number_sorting", "complex_arithmetic", "group_anagrams"]
)
def test_no_completion_ends_a_run(dataset: str, completion: str) -> None:
    task = task_of(dataset, items=12)
    parts = task.score(task.examples("train", 0)[0], completion)
    assert all(0 <= value <= 1 for value in parts.values())


@pytest.mark.parametrize(
    ("dataset", "config", "says"),
    [
        ("letter_countin", {}, "is not a dataset of reasoning-gym (did you mean letter_counting"),
        ("countdown", {}, "runs text as code"),
        ("graph_color", {}, "without a written answer"),
        ("chain_sum", {"max_digit": 3}, "task.config.max_digit is unknown (did you mean max_digits"),
        ("chain_sum", {"min_digits": -3}, "is not possible with chain_sum"),
        ("chain_sum", {"seed": 3}, "task.config.seed is unknown"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    dataset: str, config: dict[str, Any], says: str, results: Results
) -> None:
    (problem,) = preflight.check(tiny_settings(task=gym(dataset, config)), results)
    assert says in problem


def test_another_version_is_another_run_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = content_of({"task": gym("chain_sum")})
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.0")
    assert content_of({"task": gym("chain_sum")}) != before
    with pytest.raises(
        RequestError, match=r"needs reasoning-gym 0.1.25, installed is 0.1.0: `make extras WHAT=reasoning-gym`"
    ):
        task_of("chain_sum", seed=5)  # not one that is known already
