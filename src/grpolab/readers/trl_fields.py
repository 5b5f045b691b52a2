"""TRL's `GRPOConfig` from 0.14, its first, to 1.16: its fields, with the defaults of each version.

Taken from the class of every minor release (trl/trainer/grpo_config.py). A config's version shows in fields that only
some versions have. If several fit, the newest counts, and the user is told what the others would make of the file.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpolab.bounded import read_mapping
from grpolab.errors import RequestError
from grpolab.frameworks.trl_options import LOSS, LOSS_TYPES

# fmt: off
CARRIED: dict[str, Any] = LOSS | {
    "num_generations": 8, "max_completion_length": 512, "temperature": 1.0,
    "learning_rate": 1e-6, "warmup_steps": 0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
    "weight_decay": 0.0, "seed": 42, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "bf16": True, "fp16": False,
    "optim": "adamw_torch_fused", "max_steps": -1, "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": None,
    "generation_batch_size": None, "num_iterations": 1,
    "scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize", "reward_weights": None,
    "mask_truncated_completions": False, "sync_ref_model": False,
    "use_adaptive_entropy": False, "entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005,
    "entropy_target": 0.2,
    "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
    "router_aux_loss_coef": None, "disable_dropout": False, "vllm_importance_sampling_cap": None,
    "max_prompt_length": None, "warmup_ratio": 0.0, "lr_scheduler_kwargs": None,
    "num_processes": None,  # of the launcher, not of a GRPOConfig
    # of trl's ModelConfig, which stands in the same file for `trl grpo --config`
    "model_name_or_path": None, "use_peft": False,
}
# Fields of every version, of ScriptArguments and of ModelConfig that change no result: where and how, data and logging.
PASSED_OVER = {
    "model_init_kwargs", "trust_remote_code", "vllm_gpu_memory_utilization", "ref_model_mixup_alpha",
    "ref_model_sync_steps", "model_revision", "attn_implementation", "lora_r", "lora_alpha", "lora_dropout",
    "lora_target_modules", "lora_modules_to_save", "lora_task_type", "use_rslora", "load_in_8bit", "load_in_4bit",
    "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage", "dataset_name", "dataset_config",
    "dataset_train_split", "dataset_test_split", "dataset_streaming", "ignore_bias_buffers",
    "reward_model_name_or_path", "reward_funcs", "datasets", "bnb_4bit_compute_dtype", "config", "env",
}
# fmt: on
CHOICES: dict[str, Collection[Any]] = {
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": (True, False, "group", "batch", "none"),
}
# Fields that are read and do nothing here -> why; only a value other than the default is told.
NOT_CARRIED = {
    "use_vllm": "there is no vLLM here; the weight for its log-probs is kept",
    "mask_truncated_completions": "truncated completions count here",
    "reward_weights": "give reward.weights, by the names of the reward's parts",
    "sync_ref_model": "the reference of the KL is the warm start, always",
    **dict.fromkeys(("top_p", "top_k", "min_p"), "sampling is never truncated here"),
    "repetition_penalty": "sampling is never penalised here",
    "router_aux_loss_coef": "there is no auxiliary loss of experts here",
    "use_peft": "all weights are trained here",
    "fp16": "half precision here is bfloat16",
    "optim": "the optimiser is AdamW here",
    "max_prompt_length": "prompts are never cut here",
}

VERSIONS = (*(f"0.{minor}" for minor in range(14, 30)), *(f"1.{minor}" for minor in range(17)))

# Key -> the version since which it is what stands there if nothing else is given. Where no version has a field yet,
# what the trainer did: 0.14 and 0.15 average over sequences, 0.16 over the tokens of a micro-batch.
DEFAULTS: dict[str, dict[str, Any]] = {
    "loss_type": {"0.14": "grpo", "0.16": "bnpo", "0.22": "dapo"},
    "beta": {"0.14": 0.04, "0.19": 0.0},
    "use_bias_correction_kl": {"0.14": False, "1.10": True},
    "temperature": {"0.14": 0.9, "0.18": 1.0},
    "top_k": {"0.14": 50, "0.18": 0},  # until 0.15 that of transformers' generation
    "max_completion_length": {"0.14": 256, "1.10": 512},
    "per_device_train_batch_size": {"0.14": 1, "0.15": 8},
    "gradient_accumulation_steps": {"0.14": 8, "0.15": 1},
    "bf16": {"0.14": False, "0.19": True},
    "vllm_importance_sampling_correction": {"0.14": False, "0.23": True},
    "vllm_importance_sampling_mode": {"0.14": "token_truncate", "0.26": "sequence_mask"},
    "vllm_importance_sampling_clip_max": {"0.14": 2.0, "0.26": 3.0},
    "router_aux_loss_coef": {"0.14": None, "1.7": 0.001, "1.14": None},
}
# fmt: off
ADDED = {
    "0.15": "reward_weights sync_ref_model log_completions ds3_gather_for_generation vllm_max_model_len vllm_dtype",
    "0.16": "num_iterations epsilon epsilon_high scale_rewards top_p top_k min_p repetition_penalty"
            " cache_implementation vllm_enable_prefix_caching vllm_guided_decoding_regex vllm_server_host"
            " vllm_server_port vllm_server_timeout use_dora",
    "0.17": "loss_type mask_truncated_completions disable_dropout shuffle_dataset use_liger_loss"
            " num_completions_to_print wandb_log_unique_prompts",
    "0.18": "delta steps_per_generation generation_batch_size vllm_mode vllm_server_base_url"
            " vllm_tensor_parallel_size",
    "0.19": "generation_kwargs",
    "0.20": "importance_sampling_level top_entropy_quantile use_transformers_paged",
    "0.21": "vllm_model_impl lora_target_parameters",
    "0.23": "vllm_importance_sampling_correction vllm_importance_sampling_cap vllm_enable_sleep_mode dtype",
    "0.25": "cast_lm_head_to_fp32 chat_template_kwargs",
    "0.26": "use_bias_correction_kl sapo_temperature_pos sapo_temperature_neg vllm_importance_sampling_mode"
            " vllm_max_model_length num_generations_eval log_unique_prompts",
    "0.27": "off_policy_mask_threshold multi_objective_aggregation max_tool_calling_iterations vllm_group_port"
            " vllm_structured_outputs_regex",
    "0.28": "log_completions_hub_repo",
    "1.0": "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg pad_to_multiple_of",
    "1.6": "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min",
    "1.7": "router_aux_loss_coef use_transformers_continuous_batching transformers_continuous_batching_config",
    "1.8": "entropy_coef entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target use_adaptive_entropy",
    "1.9": "log_multimodal",
}
LAST = {
    "0.17": "vllm_device vllm_dtype vllm_enable_prefix_caching vllm_max_model_len",
    "0.26": "wandb_log_unique_prompts torch_dtype gradient_checkpointing_use_reentrant",
    "0.27": "max_prompt_length use_liger_loss vllm_guided_decoding_regex",
}
FIRST_WITH_VALUE = {
    ("loss_type", "dapo"): "0.22", ("loss_type", "cispo"): "0.26", ("loss_type", "sapo"): "0.26",
    ("loss_type", "luspo"): "0.28", ("loss_type", "vespo"): "1.0",
    ("scale_rewards", "group"): "0.22", ("scale_rewards", "batch"): "0.22", ("scale_rewards", "none"): "0.22",
}
# fmt: on
MOST_BY_HAND = 55  # fields of TrainingArguments
SINCE = {name: version for version, names in ADDED.items() for name in names.split()}
UNTIL = {name: version for version, names in LAST.items() for name in names.split()}
PIN = re.compile(r"\btrl(?:\[[\w, -]*\])?\s*(?:==|~=|@\s*git\S*@v?)\s*v?(\d+\.\d+)")


@dataclass(frozen=True)
class Fork:
    """A trainer that builds on TRL's: a section of `trl_forks.yaml`, which explains the parts."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    not_carried: Mapping[str, tuple[list[Any], str]] = field(default_factory=dict)
    no_effect: str = ""


@functools.cache
def find_fork(name: str | None) -> Fork:
    """Return a trainer that builds on TRL's; None is TRL itself, with what all have."""
    tables = read_mapping(str(Path(__file__).with_name("trl_forks.yaml")))
    table: dict[str, Any] = {}
    if name == "megatron-swift":  # as ms-swift, with keys of its own
        table = {part: tables["ms-swift"].get(part, {}) | own for part, own in tables[name].items()}
        table = tables["ms-swift"] | table
    return Fork(**(table or tables[name or "trl"]))


@functools.cache
def list_known(fork: str | None) -> frozenset[str]:
    """Return the fields that some version of TRL, or a trainer that builds on it, has."""
    parts = [find_fork(None), find_fork(fork)]
    others = [name for part in parts for name in (*part.no_effect.split(), *part.not_carried)]
    return frozenset((*others, *CARRIED, *PASSED_OVER, *SINCE, *UNTIL))


def is_resolved(options: Collection[str]) -> bool:
    """Return True for what a run wrote itself, with all fields: no hand writes so many of TrainingArguments."""
    return len({*find_fork(None).no_effect.split()}.intersection(options)) > MOST_BY_HAND


def find_change(name: str, value: Any, fork: str | None) -> str:
    """Return why an option that changes what is learnt, and that only some have, is not carried; '' if it does not."""
    unchanged, why = {**find_fork(None).not_carried, **find_fork(fork).not_carried}.get(name, ([value], ""))
    return "" if value in unchanged or value == "None" else why


def find_version(version: str) -> int:
    """Return the index of a version in VERSIONS; a patch release counts as its minor version. Raises RequestError."""
    minor = ".".join(version.split(".")[:2])
    if minor not in VERSIONS:
        raise RequestError(f"TRL: version={version} is not known: it is one of {VERSIONS[0]} to {VERSIONS[-1]}")
    return VERSIONS.index(minor)


def find_pin(text: str) -> str | None:
    """Return the known version that a text installs (`pip install trl==0.15.2`), or None."""
    found = {match for match in PIN.findall(text) if match in VERSIONS}
    return found.pop() if len(found) == 1 else None


def find_fitting(options: Mapping[str, Any], fork: str | None = None) -> tuple[int, int, list[str]]:
    """Return the first and the last version whose `GRPOConfig` has these options, and the fields that show it.

    If no version has all of them (a fork may), the first is above the last.
    """
    if fork in ("ms-swift", "megatron-swift"):  # which have fields of its own by these names
        return 0, len(VERSIONS) - 1, []
    since = {name: find_version(SINCE[name]) for name in options if name in SINCE}
    since |= {name: find_version(v) for (name, value), v in FIRST_WITH_VALUE.items() if options.get(name, ...) == value}
    until = {name: find_version(UNTIL[name]) for name in options if name in UNTIL}
    absent = CARRIED.keys() - options.keys() if is_resolved(options) else ()  # what that version does not have
    since |= {f"the lack of {name}": find_version(UNTIL[name]) + 1 for name in absent if name in UNTIL}
    until |= {f"the lack of {name}": max(find_version(SINCE[name]) - 1, 0) for name in absent if name in SINCE}
    first, last = max(since.values(), default=0), min(until.values(), default=len(VERSIONS) - 1)
    why = [name for name, version in since.items() if version == first]
    return first, last, [*why, *(name for name, version in until.items() if version == last)]


def get_default(name: str, version: int, newest: Any) -> Any:
    """Return a field's default in a version; `newest` is its default in the newest one."""
    values = [value for since, value in DEFAULTS.get(name, {}).items() if find_version(since) <= version]
    return values[-1] if values else newest


def list_changes(name: str, first: int, last: int) -> Iterator[str]:
    """Yield `0.04 until 0.18` for each other default of a field between two versions."""
    steps = [(find_version(since), value) for since, value in DEFAULTS.get(name, {}).items()]
    for (_, value), (until, _) in itertools.pairwise(steps):
        if first < until <= last:
            yield f"{value} until {VERSIONS[until - 1]}"


def explain_missing(name: str, version: int) -> str | None:
    """Say since or until which version a field exists, if `version` lacks it; None if it has it, or no version does."""
    if name in SINCE and version < find_version(SINCE[name]):
        return f"TRL has it since {SINCE[name]}"
    return f"TRL has it until {UNTIL[name]}" if name in UNTIL and version > find_version(UNTIL[name]) else None
