"""TRL's defaults by version, and its windows and slices as our passes and minibatches; what is not carried is said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from grpolab.frameworks.trl_options import LOSS
from grpolab.readers import trl_fields
from grpolab.readers.exchange import Converted, convert
from grpolab.readers.given import Given
from grpolab.sweep.compose import Composer

COMPOSER = Composer()


def converted(options: dict[str, Any], **known: Any) -> Converted:
    return convert("trl", Given(options, **known), COMPOSER.compose)


# Fields -> the version that they say, and our settings by its defaults.
INFERRED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({}, "1.16", {"beta": 0.0, "aggregation": "token_mean_rollout", "max_completion_length": 512}),
    (
        {"vllm_device": "auto"},
        "0.17",
        {"beta": 0.04, "aggregation": "token_mean_microbatch", "temperature": 0.9, "max_completion_length": 256},
    ),
    ({"max_prompt_length": 64}, "0.27", {"max_completion_length": 256}),
    ({"vllm_device": "auto", "entropy_coef": 0.1}, "1.8", {"beta": 0.0}),  # no version has both
]


@pytest.mark.parametrize(("options", "version", "ours"), INFERRED)
def test_fields_say_the_version_whose_defaults_count(
    options: dict[str, Any], version: str, ours: dict[str, Any]
) -> None:
    found = converted(options)
    assert found.options["version"] == version
    assert found.settings.model_dump().items() >= ours.items()
    assert found.defaults[0].startswith(f"those of TRL {version}")


def test_a_default_that_another_fitting_version_has_otherwise_is_said() -> None:
    said = " ".join(converted({"max_prompt_length": 64}).defaults)
    assert "loss_type=dapo (grpo until 0.15, bnpo until 0.21)" in said
    assert "beta=0.0 (0.04 until 0.18)" in said
    told = " ".join(converted({"max_prompt_length": 64}, version="0.15.2").defaults)
    assert "those of TRL 0.15, as it was told" in told
    assert "beta=0.04" in told
    assert "until" not in told


def test_versions_differ_in_what_they_count_and_train_on() -> None:
    first = converted({"num_generations": 4, "per_device_train_batch_size": 2, "max_steps": 1}, version="0.14")
    assert (first.settings.micro_batch_size, first.settings.prompts_per_step) == (8, 16)  # it counts prompts
    assert any("trains on log-probs without it" in sentence for sentence in first.left_out)
    vllm = converted({"use_vllm": True}, version="0.24").settings.sampler_correction
    assert vllm is not None
    assert (vllm.level, vllm.mode, vllm.high) == ("token", "truncate", 2.0)
    assert converted({"use_vllm": True}, version="0.20").settings.sampler_correction is None


def test_the_newest_defaults_are_those_of_the_installed_trl() -> None:
    trl = pytest.importorskip("trl")
    if not trl.__version__.startswith(f"{trl_fields.VERSIONS[-1]}."):
        pytest.skip("another TRL is installed")
    fields = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    for name, newest in LOSS.items():
        assert trl_fields.get_default(name, len(trl_fields.VERSIONS) - 1, newest) == newest == fields[name]
    assert not trl_fields.UNTIL.keys() & fields.keys()


LEFT_OUT = [
    ({"epsilom": 0.3}, "epsilom=0.3: no version's GRPOConfig has it (did you mean epsilon"),
    ({"system_prompt": "hi"}, "system_prompt: no fields of a GRPOConfig"),
    ({"warmup_ratio": 0.1}, "warmup_ratio=0.1: it is a share of a length that is not known"),
    ({"num_generations": 1}, "TRL refuses a group of one since 0.15"),
    ({"num_generations": 3}, "prompts_per_step is that of 3, the least that fits"),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_kwargs=None: it needs min_lr_rate, a share, or min_lr"),
    ({"lr_scheduler_type": "polynomial"}, "linear stands for it"),
    ({"optim": "adamw_8bit"}, "optim=adamw_8bit"),
    ({"use_vllm": True}, "use_vllm=True"),
    ({"reward_weights": [1.0, 0.5]}, "reward.weights"),
    ({}, "num_train_epochs=3"),
    ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "unevenly"),
]


@pytest.mark.parametrize(("options", "says"), LEFT_OUT)
def test_what_is_not_carried_is_a_sentence_and_no_refusal(options: dict[str, Any], says: str) -> None:
    assert any(says in sentence for sentence in converted(options).left_out)


@pytest.mark.parametrize("given", [{"min_lr_rate": 0.1}, {"min_lr": "2e-6"}, '{"min_lr_rate": 0.1}'])
def test_a_floor_of_the_schedule_is_carried_as_a_share_of_the_peak(given: Any) -> None:
    schedule = {"lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 2e-5}
    found = converted({**schedule, "lr_scheduler_kwargs": given})
    assert (found.settings.lr_scheduler_type, found.settings.min_lr_ratio) == ("cosine", pytest.approx(0.1))
    assert not any("lr_scheduler" in sentence for sentence in found.left_out)


def test_an_open_value_names_what_stands_for_it() -> None:
    sentences = converted({}, open={"beta": "args.beta", "output_dir": "args.out"}).left_out
    assert "beta (args.beta): the file alone does not say its value; the default 0.0 stands for it" in sentences
    assert not any("output_dir" in sentence for sentence in sentences)


# Options and processes -> prompts_per_step, num_minibatches, micro_batch_size.
BATCHES: list[tuple[dict[str, Any], int | None, tuple[int, int, int]]] = [
    ({"num_generations": 7, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}, 7, (64, 1, 16)),
    ({"num_generations": 7, "per_device_train_batch_size": 16}, None, (16, 1, 16)),  # 7 processes at least
    ({"num_generations": 7, "per_device_train_batch_size": 16}, 8, (16, 1, 16)),  # which TRL refuses
    ({"generation_batch_size": 64, "gradient_accumulation_steps": 2}, 2, (8, 2, 8)),
]


@pytest.mark.parametrize(("options", "processes", "ours"), BATCHES)
def test_the_batch_is_that_of_all_processes(
    options: dict[str, Any], processes: int | None, ours: tuple[int, int, int]
) -> None:
    run = converted(options, processes=processes).settings
    assert (run.prompts_per_step, run.num_minibatches, run.micro_batch_size) == ours


# mu, steps_per_generation, gradient_accumulation_steps -> prompts_per_step, num_iterations, num_minibatches
WINDOWS = [
    ((1, 4, 4), (4, 1, 1)),
    ((1, 8, 4), (8, 1, 2)),
    ((2, 4, 4), (4, 2, 1)),
    ((4, 4, 4), (4, 4, 1)),
    ((2, 1, 2), (1, 1, 1)),  # both passes in one window: counted twice in one step
    ((1, 2, 4), (4, 1, 1)),  # two generation batches in one step
    ((4, 2, 4), (2, 2, 1)),  # two passes in each step
]


@pytest.mark.parametrize(("theirs", "ours"), WINDOWS)
def test_optimiser_steps_per_batch_are_those_of_trl(theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    found = converted({**dict(zip(names, theirs, strict=True)), "num_generations": 8}, processes=1)
    run = found.settings
    assert (run.prompts_per_step, run.num_iterations, run.num_minibatches) == ours
    assert not any("unevenly" in sentence for sentence in found.left_out)


def test_nothing_is_said_of_what_is_carried() -> None:
    found = converted({"max_steps": 10}, processes=1)
    assert (found.left_out, found.settings.max_optimizer_steps) == ([], 10)


def test_a_warm_up_is_in_steps() -> None:
    for share in ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}):  # a share, since transformers 5
        assert converted({**share, "max_steps": 25}).settings.warmup_steps == 3
    assert converted({"warmup_ratio": 0.1, "warmup_steps": 7, "max_steps": 25}).settings.warmup_steps == 7
