"""Trainers that build on TRL's, by their own names; configs that a run wrote itself; what becomes of each key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpolab.errors import RequestError
from grpolab.readers import trl, trl_fields
from grpolab.readers.exchange import Converted, convert
from grpolab.readers.given import Given, load_config
from grpolab.sweep.compose import Composer

COMPOSER = Composer()


def given(tmp_path: Path, name: str, text: str, fork: str | None = None) -> Given:
    path = tmp_path / name
    path.write_text(text)
    return trl.read(load_config(str(path)), fork or "trl")


def converted(tmp_path: Path, name: str, text: str, fork: str | None = None) -> Converted:
    return convert("trl", given(tmp_path, name, text, fork), COMPOSER.compose)


AXOLOTL = """
base_model: no/such-model
rl: grpo
adapter: lora
trl: {num_generations: 4, beta: 0.01, temperature: 0.7, async_prefetch: true, num_generation: 3}
vllm: {gpu_memory_utilization: 0.8}
micro_batch_size: 8
learning_rate: 1.0e-5
warmup_steps: 0
cosine_min_lr_ratio: 0.1
max_steps: 50
sequence_len: 2048
"""


def test_axolotl_has_fields_at_the_top_and_below_trl(tmp_path: Path) -> None:
    found = converted(tmp_path, "a.yaml", AXOLOTL, "axolotl")
    run = found.settings
    assert (run.num_generations, run.beta, run.temperature, run.learning_rate) == (4, 0.01, 0.7, 1e-5)
    assert (run.micro_batch_size, run.prompts_per_step, run.max_optimizer_steps) == (8, 2, 50)
    assert (run.lr_scheduler_type, run.min_lr_ratio, run.warmup_steps) == ("cosine", pytest.approx(0.1), 0)
    said = " ".join(found.left_out)
    assert "num_generation=3: no version's GRPOConfig has it (did you mean num_generations" in said
    assert "async_prefetch=True" in said
    assert "lora_target_modules=None: peft then chooses" in said
    assert "sequence_len" not in said


SWIFT = """rlhf_type: grpo
model: m
num_generations: 8
tuner_type: {}
per_device_train_batch_size: 4
overlong_filter: true
"""


def test_ms_swifts_own_names_and_its_rate_by_what_it_trains(tmp_path: Path) -> None:
    full = converted(tmp_path, "a.yaml", SWIFT.format("full"), "ms-swift")
    lora = converted(tmp_path, "a.yaml", SWIFT.format("lora"))
    assert (full.settings.learning_rate, lora.settings.learning_rate) == (1e-5, 1e-4)
    assert (full.settings.beta, full.settings.prompts_per_step) == (0.04, 2)
    assert full.settings.mask_truncated_completions
    assert full.settings.lora is None
    assert lora.settings.lora is not None


MEGATRON = """megatron rlhf --rlhf_type grpo --model m --micro_batch_size 4 --global_batch_size 128 --lr 2e-6 \\
  --steps_per_generation 4 --num_generations 8 --train_iters 100 --min_lr 1e-6 --lr_warmup_fraction 0.1
"""


def test_ms_swift_on_megatron_counts_batches_of_all_processes(tmp_path: Path) -> None:
    run = converted(tmp_path, "a.sh", MEGATRON, "ms-swift").settings
    assert (run.prompts_per_step, run.num_minibatches, run.micro_batch_size) == (64, 4, 4)
    assert (run.learning_rate, run.min_lr_ratio, run.warmup_steps) == (2e-6, pytest.approx(0.5), 10)
    assert run.max_optimizer_steps == 100


def test_a_file_of_another_trainer_is_said_to_be_that_ones(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no config of ms-swift: it is one of axolotl, --from axolotl"):
        given(tmp_path, "a.yaml", AXOLOTL, "ms-swift")
    with pytest.raises(RequestError, match="it is one of TRL, --from trl"):
        given(tmp_path, "a.yaml", "num_generations: 4\nnum_train_epochs: 1", "axolotl")


# As a run writes them: all fields, both names of the batch, and W&B's keys of the model.
WRITTEN: dict[str, Any] = {
    **dict.fromkeys(sorted(trl_fields.list_quiet(None))),
    **{name: value for name, value in trl_fields.CARRIED.items() if name not in ("num_processes", "use_peft")},
    **{"learning_rate": 2e-6, "num_generations": 4, "epsilon_high": 0.3, "scale_rewards": "none", "bf16": True},
    **{"per_device_train_batch_size": 2, "steps_per_generation": 8, "generation_batch_size": 64, "max_steps": 5},
    **{"gradient_accumulation_steps": 8, "top_entropy_quantile": 1.0},
}
OF_MODEL = {"hidden_size": 896, "architectures": ["Qwen2ForCausalLM"], "_name_or_path": "m", "rope_theta": 1e6}
PRINTED = {"lr_scheduler_type": "SchedulerType.LINEAR", "optim": "OptimizerNames.ADAMW_TORCH_FUSED"}
RESOLVED = {
    "training_args.json": json.dumps(WRITTEN),
    "config.yaml": yaml.safe_dump(
        {"_wandb": {"value": {}}, **{key: {"value": value} for key, value in (WRITTEN | OF_MODEL).items()}}
    ),
    "log.txt": "INFO: GRPOConfig(\n" + "".join(f"{key}={item},\n" for key, item in (WRITTEN | PRINTED).items()) + ")\n",
}


@pytest.mark.parametrize("name", RESOLVED)
def test_what_a_run_wrote_itself_is_read_whole(name: str, tmp_path: Path) -> None:
    found = converted(tmp_path, name, RESOLVED[name])
    run = found.settings
    assert (run.learning_rate, run.num_generations, run.epsilon_high, run.scale_rewards) == (2e-6, 4, 0.3, "none")
    assert (run.prompts_per_step, run.num_minibatches, run.max_optimizer_steps) == (16, 1, 5)  # of 4 processes
    assert not any("no version" in sentence or "processes" in sentence for sentence in found.left_out)


def test_a_runs_log_is_told_from_its_config(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"give here what json.dumps\(trainer.args.to_dict"):
        given(tmp_path, "trainer_state.json", '{"log_history": [], "max_steps": 3, "num_train_epochs": 1}')


KINDS = {
    "learning_rate": "carried", "num_generations": "carried", "use_vllm": "not carried", "optim": "no effect",
    "num_train_epochs": "not carried", "output_dir": "no effect", "evaluation_strategy": "no effect",
    "generation_kwargs": "not carried", "beta": "not carried", "learning_rat": "unknown",
    "lr_scheduler_kwargs.x": "carried",
}  # fmt: skip


def test_each_key_is_of_one_kind() -> None:
    values = {"use_vllm": True, "optim": "adamw_torch", "generation_kwargs": {"n": 1}, "lr_scheduler_kwargs": {"x": 1}}
    options = {name: values.get(name.partition(".")[0], 1) for name in KINDS if name != "beta"}
    found = Given(options, open={"beta": "args.beta"})
    assert {name: trl.kind_of(name, found) for name in KINDS} == KINDS
    assert trl.kind_of("hidden_size", Given(WRITTEN | OF_MODEL)) == "no effect"


def test_no_field_of_a_fork_is_listed_twice() -> None:
    for name in ("ms-swift", "axolotl", "unsloth", None):
        renamed, defaults = (trl_fields.of_fork(name, part) for part in ("renamed", "defaults"))
        others = {*renamed, *trl_fields.of_fork(name, "not_carried"), *trl_fields.CARRIED}
        assert not trl_fields.list_quiet(name) & others
        assert {*renamed.values(), *defaults} <= trl_fields.CARRIED.keys()
