"""TRL 1.16.0: the fields of `GRPOConfig` (trl/trainer/grpo_config.py), and their values where a file leaves some out.

Fields that are carried stand here with their defaults, beside those that change no result; `trl_versions.py` has what
other versions do.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from grpolab.errors import RequestError
from grpolab.frameworks.trl_options import LOSS, LOSS_TYPES
from grpolab.readers import trl_versions as versions
from grpolab.readers.given import Given, Options, refuse_wrong_counts, refuse_wrong_types

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
# Where and how, data and logging; ScriptArguments and ModelConfig too.
PASSED_OVER = {
    "model_init_kwargs", "trust_remote_code", "cast_lm_head_to_fp32", "num_generations_eval",
    "ds3_gather_for_generation", "shuffle_dataset", "pad_to_multiple_of", "generation_kwargs",
    "chat_template_kwargs", "cache_implementation", "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode",
    "vllm_structured_outputs_regex", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
    "vllm_server_timeout", "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length",
    "vllm_tensor_parallel_size", "ref_model_mixup_alpha", "ref_model_sync_steps", "max_tool_calling_iterations",
    "log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts",
    "log_completions_hub_repo", "use_transformers_continuous_batching", "transformers_continuous_batching_config",
    "use_transformers_paged", "model_revision", "dtype", "attn_implementation", "lora_r", "lora_alpha",
    "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save", "lora_task_type",
    "use_rslora", "use_dora", "load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant",
    "bnb_4bit_quant_storage", "dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split",
    "dataset_streaming", "ignore_bias_buffers", "reward_model_name_or_path", "reward_funcs", "datasets",
}
# fmt: on

COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations")
CHOICES: dict[str, Collection[Any]] = {
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": ("token", "sequence"),
    "scale_rewards": (True, False, "group", "batch", "none"),
}
LEAST_GROUP = 2


def options(given: Given) -> Options:
    """All options that matter, with the defaults of the file's version, and `steps_per_generation` as TRL resolves it.

    `num_processes` stays None where it is not known. Raises RequestError for what no version of TRL takes.
    """
    version = version_of(given)
    options = {name: default(name, given) for name in CARRIED} | taken(given) | {"version": version}
    if options["vllm_importance_sampling_cap"] is not None:  # its name until 1.9
        options["vllm_importance_sampling_clip_max"] = options["vllm_importance_sampling_cap"]
    if options["top_k"] == -1:  # vLLM's word for all
        options["top_k"] = 0
    refuse_wrong_types("TRL", options, CARRIED)
    refuse_wrong_counts("TRL", options, COUNTS)
    options["num_generations"] = max(options["num_generations"], LEAST_GROUP)
    told = given.processes or options["num_processes"]
    options["num_processes"] = told if type(told) is int and told > 0 else None
    micro, whole, steps = micro_batch(options), options["generation_batch_size"], options["steps_per_generation"]
    if whole is not None:
        if steps is not None:
            raise RequestError("TRL: generation_batch_size and steps_per_generation say the same thing: set one")
        refuse_wrong_counts("TRL", options, ["generation_batch_size"])
        if whole % micro:
            raise RequestError(f"TRL: per_device_train_batch_size={micro} must divide generation_batch_size={whole}")
        if whole % options["num_generations"]:
            raise RequestError(
                f"TRL: num_generations={options['num_generations']} must divide generation_batch_size={whole}"
            )
        steps = max(whole // (micro * (options["num_processes"] or 1)), 1)
    elif steps is None:
        steps = options["gradient_accumulation_steps"]
    if given.fork == "unsloth" and micro * steps * (options["num_processes"] or 1) % options["num_generations"]:
        options["per_device_train_batch_size"] = options["num_generations"]  # its own repair
    options["steps_per_generation"] = steps  # micro-batches of a generation batch, of one process
    refuse_wrong_counts("TRL", options, ["steps_per_generation"])
    return options


def version_of(given: Given) -> str:
    """The version whose defaults count: the one that is told, else the newest that has the file's fields."""
    if given.version:
        return versions.VERSIONS[versions.order(given.version)]
    first, last, _ = versions.fitting(given.options, given.fork)
    return versions.VERSIONS[max(first, last)]


def default(name: str, given: Given) -> Any:
    """What a field is where the file says nothing: by its version, or by the trainer that builds on TRL's."""
    own = versions.FORKS.get(given.fork or "", {})
    if name in own:
        return own[name]
    if given.fork == "ms-swift" and name == "gradient_accumulation_steps":  # until 16 sequences are in a step
        micro = taken(given).get("per_device_train_batch_size", 1)
        return max(1, math.ceil(16 / (micro * (given.processes or 1))))
    return versions.default(name, versions.order(version_of(given)), CARRIED[name])


def taken(given: Given) -> Options:
    """The values that are carried, as their fields' types; a null where TRL has none is its default."""
    typed = {name: _typed(value, CARRIED[name]) for name, value in given.options.items() if name in CARRIED}
    lost = choices_of_fork(given)
    return {
        name: value
        for name, value in typed.items()
        if name not in lost and (value is not None or CARRIED[name] is None)
    }


def choices_of_fork(given: Given) -> Options:
    """The choices that a trainer built on TRL's adds, which TRL does not have."""
    asked = {name: given.options[name] for name in CHOICES if given.fork and name in given.options}
    return {name: value for name, value in asked.items() if value not in CHOICES[name]}


def _typed(value: Any, default: Any) -> Any:
    """A text that a field's type makes a number or a truth value, as TRL's parser does."""
    if isinstance(value, float) and value.is_integer() and type(default) is int:
        return int(value)
    if not isinstance(value, str) or isinstance(default, str):
        return value
    words = {"true": True, "false": False} if isinstance(default, bool) else {}
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return words.get(value.lower(), None if value.lower() in ("none", "null") else value)


def micro_batch(options: Options) -> int:
    """Sequences of a micro-batch of one process; TRL 0.14 counts prompts."""
    prompts = options["version"] == "0.14"
    return int(options["per_device_train_batch_size"] * (options["num_generations"] if prompts else 1))


def least_processes(options: Options) -> int:
    """The least number of processes whose generation batch holds whole groups."""
    each = micro_batch(options) * options["steps_per_generation"]
    return int(options["num_generations"] // math.gcd(each, options["num_generations"]))


def processes(options: Options) -> int:
    """The number of processes, or the least that TRL runs with where it is not known."""
    told, least = options["num_processes"], least_processes(options)
    return told if told and told % least == 0 else least
