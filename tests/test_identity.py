"""Same signature, same run: everything that can change a result is in it, and nothing else is."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny import VALUES, tiny_settings

from grpolab import content, hub, identity
from grpolab.content import file_sha256
from grpolab.identity import dotted, signature
from grpolab.paths import plain, project_root
from grpolab.report.plans import read_plan
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import expand
from grpolab.sweep.study import Study, load

# For every setting another value that is allowed.
OTHER: dict[str, Any] = {
    **{"seed": 1, "fault": "aliased_old_policy", "framework": "trl", "task.digits": 2, "warm_start.seed": 5},
    **{"reward.function": "module:reward", "reward.weights.correct": 2.0, "reward.weights.format": 2.0},
    **{"max_completions": 32, "max_optimizer_steps": 6, "max_seconds": 60.0},
    "early_stop": {"metric": "eval/accuracy_expected", "at_most": 0.05, "after": 2, "evaluations": 3},
    **{"importance_sampling_level": "sequence", "kernel": "ratio", "loss_form": "max_negative"},
    **{"epsilon_high": 0.3, "delta": 3.0, "dual_clip": 3.0, "log_ratio_clamp": 20.0},
    **{"kl_estimator": "k2", "kl_gradient": "score_function", "kl_placement": "reward"},
    **{"kl_input_clamp": 20.0, "kl_output_clamp": 10.0, "entropy_coef": 0.01, "top_entropy_quantile": 0.2},
    "adaptive_entropy": {"target": 0.5, "step": 0.1, "least": 0.0, "most": 1.0},
    "sampler_correction": {"level": "token", "mode": "truncate", "low": 0.0, "high": 2.0},
    **{"off_policy_mask_threshold": 0.5, "old_log_probs": "sampler", "sampler_dtype": "bfloat16"},
    **{"sampler_engine": "vllm", "machine.engine": {"url": "http://a:1", "folder": "served", "seconds": 60.0}},
    **{"sampler_noise": 0.1, "sampler_refresh": 2},
    "sampler_rejection": {"policy": "old", "bounds": {"token": [0.5, 2.0]}, "m2_budget": None},
    "filter_groups": {"metric": "correct", "max_batches": 2},
    **{"train_generations": 2, "pass_rate_cap": 0.9, "revisit_equal_groups": 0.5},
    "difficulty_pools": [{"at_most": 0.5, "weight": 0.5}, {"at_most": 1.0, "weight": 1.0}],
    **{"top_k": 5, "top_p": 0.9, "min_p": 0.1, "keep_sampling_mask": True},
    "other_tasks": {"sort": {"name": "sorting", "length": 2}},
    **{"mask_truncated_completions": True, "reward.overlong_buffer": 0.5, "reward.length_penalty": "linear"},
    "reward.sandbox": {"command": "false", "seconds": 1.0},
    "reward.verifier": {"false_right": 0.1, "false_wrong": 0.1},
    **{"aggregation": "token_mean_rollout", "scale_reward_parts": "group", "advantage_estimator": "leave_one_out"},
    **{"advantage_weights": {"positive": 0.1, "negative": 1.0}, "advantage_filter": 3.0, "advantage_history": "smooth"},
    **{"scale_rewards": "none", "whiten_advantages": "bessel", "lr_scheduler_type": "linear", "min_lr_ratio": 0.1},
    **{"micro_batch_size": 8, "num_minibatches": 2, "warm_start.micro_batch_size": 8, "data_parallel": 2},
    **{"shard_weights": True, "machine.processes": 1},
    "lora": {"rank": 4, "alpha": 8, "targets": None},
    **{"device": "cuda", "dtype": "bfloat16", "head_dtype": "float32"},
    **dict.fromkeys(("compile", "sort_by_length", "sort_by_prompt", "whole_groups", "gradient_checkpointing"), True),
    "machine.launcher": {"name": "ray", "address": None, "cpus": 1, "gpus": 0, "retries": 3},
    **{"machine.results": "elsewhere", "machine.tracking_uri": "auto"},
    **dict.fromkeys(("machine.cell_timeout_seconds", "machine.hang_seconds", "machine.memory_mib"), 600),
}


def needed_for(key: str) -> dict[str, Any]:
    """Without these a key has no effect, and is no part of the signature."""
    if key.startswith("kernel_options."):
        return {"kernel": key.split(".")[1]}
    if key.startswith("kl_"):
        return {"beta": 0.1}
    if key == "sampler_engine":
        return {"machine": {**VALUES["machine"], "engine": OTHER["machine.engine"]}}
    if key == "keep_sampling_mask":
        return {"top_k": 5}
    if key == "advantage_filter":
        return {"whiten_advantages": "bessel"}
    if key in ("reward.overlong_buffer", "reward.length_penalty"):
        return {"reward": {**VALUES["reward"], "weights": {"correct": 1.0, "overlong": 1.0, "length": 1.0}}}
    if key == "reward.sandbox":
        runs = {"command": "true", "seconds": 1.0}
        return {"task": JSONL | {"verifier": "code"}, "reward": {**VALUES["reward"], "sandbox": runs}}
    if key == "shard_weights":
        return {"data_parallel": 2}
    if key == "min_lr_ratio":
        return {"lr_scheduler_type": "linear"}
    return {"entropy_coef": 0.02} if key == "adaptive_entropy" else {}


def changed(key: str, value: Any) -> Resolved:
    values = json.loads(json.dumps({**VALUES, **needed_for(key)}))
    *path, last = key.split(".")
    group = values
    for name in path:
        group = group[name]
    group[last] = value
    return resolve_run(RunSettings.model_validate(values))


def other_value(key: str, value: Any) -> Any:
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 or 0.5 if math.isfinite(value) else 2.0
    return value * 2 or 1  # stays divisible by what it was


@pytest.mark.parametrize("key", [key for key, _ in dotted(VALUES) if key not in ("task.name", "model.name")])
def test_every_setting_that_can_change_a_result_is_in_the_signature(key: str) -> None:
    before = tiny_settings(**needed_for(key)).signature
    after = changed(key, other_value(key, dict(dotted(VALUES))[key])).signature
    assert (after == before) == key.startswith("machine.")


def test_two_ways_to_write_one_run_are_one_run() -> None:
    expected = tiny_settings().signature
    for key, value in (
        ("epsilon_high", 0.2),
        ("micro_batch_size", 16),
        ("max_completions", 50),
        ("max_optimizer_steps", 9),
        ("warm_start.seed", 0),
        ("reward", dict(reversed(VALUES["reward"].items()))),
    ):
        assert changed(key, value).signature == expected
    assert tiny_settings(min_lr_ratio=0.1).signature == expected  # a constant schedule has no floor


def test_a_signature_has_16_digits_and_depends_on_results_version_and_not_on_the_order_of_keys(monkeypatch) -> None:
    before = signature({"a": 1, "b": {"c": 2.0, "d": math.inf}})
    assert before == signature({"b": {"d": math.inf, "c": 2.0}, "a": 1})
    assert re.fullmatch("[0-9a-f]{16}", before)
    monkeypatch.setattr(identity, "RESULTS_VERSION", identity.RESULTS_VERSION + 1)
    assert signature({"a": 1, "b": {"c": 2.0, "d": math.inf}}) != before


def test_what_a_warm_start_depends_on_is_its_identity() -> None:
    base = tiny_settings().warm_start_signature
    for change in ({"learning_rate": 0.5}, {"num_iterations": 1}, {"epsilon": 0.1}, {"rollout_steps": 9}):
        assert tiny_settings(**change).warm_start_signature == base
    for change in ({"seed": 1}, {"temperature": 0.5}, {"warm_start": {"max_steps": 1}}, {"max_completion_length": 2}):
        assert tiny_settings(**change).warm_start_signature != base
    heads = [tiny_settings(dtype="bfloat16", head_dtype=head).warm_start_identity() for head in (None, "float32")]
    assert signature(heads[0]) != signature(heads[1])  # the supervised steps go through the head, too


def test_plain_is_strict_json() -> None:
    value = {"a": math.inf, 1: [(-math.inf, math.nan)], "b": None}
    assert plain(value) == {"a": "inf", "1": [["-inf", "nan"]], "b": None}
    json.dumps(plain(value), allow_nan=False)


def test_a_clip_that_cannot_bind_is_known() -> None:
    assert tiny_settings().clip_can_bind
    assert not tiny_settings(num_iterations=1).clip_can_bind
    assert tiny_settings(num_iterations=1, num_minibatches=2).clip_can_bind
    assert not tiny_settings(kernel="ratio").clip_can_bind


# --- What settings name: its content counts, and not its name ---------------------------------------------------------


PLANS = sorted((project_root() / "results" / "reference" / "plans").glob("*.json"))
SMALL = [file for file in PLANS if file.stat().st_size < 20_000]


@pytest.mark.parametrize("files", [SMALL, pytest.param(PLANS, marks=pytest.mark.slow)], ids=["small", "all"])
def test_the_committed_runs_keep_their_signatures(files: list[Path]) -> None:
    """Every study of the committed outcome, made anew from experiments/: not one of its runs has another name.

    A local model's files and reasoning-gym's version are part of a signature: where they are not there
    (`make extras`), there is nothing to compare.
    """
    composer = Composer()
    for plan in map(read_plan, files):
        if plan["cells"]:
            study = load(plan["study"])
            assert isinstance(study, Study)
            cells = expand(study, composer, seeds=plan["seeds"]).cells
            models = {Path(cell.settings.model.path) for cell in cells if cell.settings.model.name == "pretrained"}
            by_package = any(cell.settings.task.name == "reasoning_gym" for cell in cells)
            if all(model.exists() for model in models) and (not by_package or find_spec("reasoning_gym")):
                assert {cell["signature"] for cell in plan["cells"]} <= {cell.signature for cell in cells}, study.name


TASK = """
import json
import {helper} as other
from {package}.inner import deep


class Mine:
    options = other.OPTIONS
"""


MINE = {
    "train.jsonl": '{"question": "a", "answer": "1"}\n',
    "test.jsonl": '{"question": "b", "answer": "2"}\n',
    "words.txt": "one two",
    "my_own_task.py": TASK.format(helper="my_own_helper", package="my_own_package"),
    "my_own_helper.py": "OPTIONS = 1\n",
    "my_own_reward.py": "def score(prompt, answer, completion):\n    return 1.0\n",
    "my_own_package/__init__.py": "raise SystemExit('no module is run to be hashed')\n",
    "my_own_package/inner.py": "from . import deeper\n\n\ndef deep():\n    from .deeper import LATE\n",
    "my_own_package/deeper.py": "LATE = 1\n",
    "my_own_package/not_imported.py": "",
    "model/config.json": "{}",
    "model/model.safetensors": "\0" * 100,
    "model/.cache/download.lock": "12:00",
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data, a model, and a task of one's own that imports what lies beside it."""
    for name, text in MINE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


JSONL = {
    **{"name": "jsonl", "train_file": "train.jsonl", "evaluation_file": "test.jsonl"},
    **{"prompt_key": "question", "answer_key": "answer", "template": "{prompt}", "chat": False},
    **dict.fromkeys(("system", "stop", "format", "verifier")),
}
CUSTOM = {"name": "custom", "path": "my_own_task:Mine", "options": {"words": "words.txt", "many": [1, 2.0]}}
REWARD = {"function": "my_own_reward:score", "weights": {"correct": 1.0}}
MODEL = {"name": "pretrained", "path": "model", "revision": None}
# What a run names, and whether the warm start depends on it too; `None`: neither does.
CODE = (
    "my_own_task.py",
    "my_own_helper.py",
    *(f"my_own_package/{name}.py" for name in ("__init__", "inner", "deeper")),
)
NAMED: list[tuple[str, dict[str, Any], str, bool | None]] = [
    ("train.jsonl", {"task": JSONL}, "task.train_file", True),
    ("test.jsonl", {"task": JSONL}, "task.evaluation_file", False),
    *((name, {"task": CUSTOM}, "task.path", True) for name in CODE),
    ("my_own_package/not_imported.py", {"task": CUSTOM}, "task.path", None),
    ("words.txt", {"task": CUSTOM}, "task.options", True),
    ("my_own_reward.py", {"reward": REWARD}, "reward.function", False),
    ("model/config.json", {"model": MODEL}, "model.path", True),
    ("model/model.safetensors", {"model": MODEL}, "model.path", True),
    ("model/.cache/download.lock", {"model": MODEL}, "model.path", None),
]


def signatures(changes: dict[str, Any]) -> tuple[str, str]:
    """Of a run and of its warm start."""
    settings = tiny_settings(**changes)
    return settings.signature, settings.warm_start_signature


@pytest.mark.parametrize(("file", "changes", "key", "in_warm_start"), NAMED, ids=[case[0] for case in NAMED])
def test_a_run_is_another_one_where_what_it_names_has_changed(
    mine: Path, file: str, changes: dict[str, Any], key: str, in_warm_start: bool | None
) -> None:
    before = signatures(changes)
    assert key in tiny_settings(**changes).content()
    os.utime(mine / file, (1e9, 1e9))
    assert signatures(changes) == before, "a time is no content"
    content = (mine / file).read_bytes()
    (mine / file).write_bytes(content + b" ")
    os.utime(mine / file, (1e9, 1e9))
    run, warm_start = signatures(changes)
    assert (run == before[0], warm_start == before[1]) == (in_warm_start is None, not in_warm_start)
    (mine / file).write_bytes(content)
    assert signatures(changes) == before, "and the old content is the old run"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"task": JSONL}, lambda there: {"task": {**JSONL, "train_file": f"{there}/renamed.jsonl"}}),
        ({"task": CUSTOM}, lambda there: {"task": {**CUSTOM, "path": f"{there}/my_own_task.py:Mine"}}),
        ({"reward": REWARD}, lambda there: {"reward": {**REWARD, "function": f"{there}/my_own_reward.py:score"}}),
        ({"model": MODEL}, lambda there: {"model": {**MODEL, "path": f"{there}/model", "revision": "main"}}),
    ],
)
def test_equal_content_at_another_place_is_the_same_run(
    mine: Path, before: dict[str, Any], after: Callable[[Path], dict[str, Any]]
) -> None:
    there = mine / "copy"
    shutil.copytree(mine, there)
    (there / "train.jsonl").rename(there / "renamed.jsonl")
    assert signatures(after(there)) == signatures(before)
    assert tiny_settings(**after(there)).model_dump() != tiny_settings(**before).model_dump(), "settings keep the name"


def test_what_cannot_be_read_has_the_signature_of_no_run(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty := mine / "empty").mkdir()
    for changes in ({"task": JSONL}, {"task": CUSTOM}, {"reward": REWARD}, {"model": MODEL}):
        settings = tiny_settings(**changes)
        there = signature(settings.identity())
        monkeypatch.chdir(empty)
        gone = signature(settings.identity())
        assert gone not in (there, signature(settings.model_dump(exclude={"machine"}, exclude_none=True)))
        monkeypatch.chdir(mine)


def test_a_file_is_hashed_once_by_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"a" * 10)
    first = file_sha256(file)
    assert str(file) not in content._hashed, "it has just been written, and may be again within one tick of the clock"
    monkeypatch.setattr(content, "SETTLED_SECONDS", -1.0)
    assert file_sha256(file) == first
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)
        assert file_sha256(file) == first
    was = file.stat()
    file.write_bytes(b"b" * 10)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # as a copying tool leaves it
    assert file_sha256(file) != first


def test_a_model_of_the_hub_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the local cache has it; settings, and so the folder of the run, name the commit."""
    commits = {"main": "1" * 40, "branch": "2" * 40}
    for name, commit in commits.items():
        folder = tmp_path / "models--some--model"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / name).write_text(commit)
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    hub.hub_commit.cache_clear()
    named = {"name": "pretrained", "path": "some/model"}
    found = [tiny_settings(model={**named, "revision": revision}) for revision in (None, "main", "1" * 40, "branch")]
    assert [settings.model.revision for settings in found] == [*["1" * 40] * 3, "2" * 40]
    names = [signature(settings.identity()) for settings in found]
    assert len(set(names[:3])) == 1
    assert names[3] != names[0]
    assert tiny_settings(model={**named, "revision": "3" * 40}).content() == {}, "a commit needs no look"
    unknown = tiny_settings(model={**named, "path": "no/model", "revision": None})
    assert unknown.content() == {"model.path": {"absent": "no/model"}}
