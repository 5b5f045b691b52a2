"""What is known to be wrong before anything starts is said then, all at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import tiny_settings

from grpolab.paths import Results
from grpolab.run import preflight


def jsonl(train: Path, evaluation: Path, template: str = "{prompt}") -> dict[str, Any]:
    keys = {"prompt_key": "question", "answer_key": "answer", "template": template, "chat": False}
    return {"name": "jsonl", "train_file": str(train), "evaluation_file": str(evaluation), **keys}


def test_a_sound_run_has_no_problem(results: Results) -> None:
    assert preflight.check(tiny_settings(), results) == []
    assert list(results.root.iterdir()) == [results.root / "format.json"]


def test_everything_that_is_wrong_is_said(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 2**20))
    (tmp_path / "train.jsonl").write_text('{"question": "a", "answer": "1"}\nnot json\n')
    settings = tiny_settings(task=jsonl(tmp_path / "train.jsonl", tmp_path / "absent.jsonl", template="x"))
    disk, line, absent, template = preflight.check(settings, results)
    assert "5 MiB left" in disk
    assert "train.jsonl, line 2: not JSON" in line
    assert absent == f"task.evaluation_file={tmp_path}/absent.jsonl: no such file"
    assert "task.template" in template


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": {"name": "custom", "path": "own_task:Absent", "options": {}}}, "task.path=own_task:Absent cannot"),
        ({"task": {"name": "custom", "path": "own_task:Fragile", "options": {}}}, "do not fit own_task:Fragile"),
        ({"reward": {"function": "own_task:absent", "weights": {"correct": 1.0}}}, "reward.function=own_task:absent"),
    ],
)
def test_what_a_user_wrote_is_looked_at(changes: dict[str, Any], says: str, results: Results) -> None:
    (problem,) = preflight.check(tiny_settings(**changes), results)
    assert says in problem


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ({"function": None, "weights": {"corect": 1.0}}, "reward.weights: no part called corect"),
        ({"function": "own_task:only_parts", "weights": {"short": 1.0}}, "correct"),
        ({"function": "own_task:fails", "weights": {"correct": 1.0}}, "reward.function=own_task:fails raises KeyError"),
    ],
)
def test_a_reward_is_tried_on_one_completion(reward: dict[str, Any], says: str, results: Results) -> None:
    """What would end every run at its first rollout is known without a model."""
    (problem,) = preflight.check(tiny_settings(reward=reward), results)
    assert says in problem
