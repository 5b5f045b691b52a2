"""TRL 1.16.0: `GRPOConfig` (trl/trainer/grpo_config.py), what its fields are here, read and written.

Fields that are carried stand here with their defaults, beside those that change no result. The fields of transformers'
TrainingArguments, which it inherits, are read from transformers itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from grpolab.errors import RequestError
from grpolab.frameworks.exchange import Config, Options, refuse_unknown, refuse_wrong_counts, refuse_wrong_types
from grpolab.frameworks.names import TRL_NAMES
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

# The options of the loss.
LOSS: dict[str, Any] = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "off_policy_mask_threshold": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
}
# loss_type -> kernel and aggregation.
LOSS_TYPES = {
    "grpo": ("clipped", "sequence_mean"),
    "bnpo": ("clipped", "token_mean_microbatch"),
    "dr_grpo": ("clipped", "token_sum_constant"),
    "dapo": ("clipped", "token_mean_rollout"),
    "luspo": ("clipped", "sequence_sum"),
    "cispo": ("cispo", "token_mean_rollout"),
    "sapo": ("sapo", "sequence_mean"),
    "vespo": ("vespo", "token_mean_rollout"),
}
# Kernel -> our name of its options -> theirs.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "sapo_temperature_pos", "temperature_negative": "sapo_temperature_neg"},
    "vespo": {
        "k_positive": "vespo_k_pos",
        "lambda_positive": "vespo_lambda_pos",
        "k_negative": "vespo_k_neg",
        "lambda_negative": "vespo_lambda_neg",
    },
}

CARRIED: dict[str, Any] = LOSS | {
    "num_generations": 8,
    "max_completion_length": 512,
    "temperature": 1.0,
    "learning_rate": 1e-6,
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "seed": 42,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "bf16": True,
    "fp16": False,
    "optim": "adamw_torch_fused",
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
    "reward_weights": None,
    "mask_truncated_completions": False,
    "sync_ref_model": False,
    "use_adaptive_entropy": False,
    "entropy_coef_min": 0.0,
    "entropy_coef_max": 1.0,
    "entropy_coef_delta": 0.005,
    "entropy_target": 0.2,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "router_aux_loss_coef": None,
    "disable_dropout": False,
    "vllm_importance_sampling_cap": None,
    # of trl's ModelConfig, which stands in the same file for `trl grpo --config`
    "model_name_or_path": None,
    "use_peft": False,
}
# Where and how, data and logging; ScriptArguments and ModelConfig too.
# fmt: off
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
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
SCALES = {True: "group", False: "none"}
SCHEDULES = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
ADAPTIVE = {
    "target": "entropy_target",
    "step": "entropy_coef_delta",
    "least": "entropy_coef_min",
    "most": "entropy_coef_max",
}


def options(given: Options) -> Options:
    """All options that matter, defaults filled in, with `steps_per_generation` resolved as TRL does.

    Raises RequestError for a key that TRL does not have, and for batches that do not divide.
    """
    names = [name for name in given if name not in CARRIED and name not in PASSED_OVER]
    if names:
        from transformers import TrainingArguments  # here, because it imports torch

        refuse_unknown("TRL's GRPOConfig", names, {*CARRIED, *PASSED_OVER, *TrainingArguments.__dataclass_fields__})
    options = CARRIED | {name: value for name, value in given.items() if name in CARRIED}
    if options["vllm_importance_sampling_cap"] is not None:  # its name until 1.9
        options["vllm_importance_sampling_clip_max"] = options["vllm_importance_sampling_cap"]
    refuse_wrong_types("TRL", options, CARRIED)
    refuse_wrong_counts("TRL", options, COUNTS)
    micro, group = options["per_device_train_batch_size"], options["num_generations"]
    whole, steps = options["generation_batch_size"], options["steps_per_generation"]
    if whole is not None:
        if steps is not None:
            raise RequestError("TRL: generation_batch_size and steps_per_generation say the same thing: set one")
        refuse_wrong_counts("TRL", options, ["generation_batch_size"])
        if whole % micro:
            raise RequestError(f"TRL: per_device_train_batch_size={micro} must divide generation_batch_size={whole}")
        steps = whole // micro
    elif steps is None:
        steps = options["gradient_accumulation_steps"]
    options["steps_per_generation"] = steps  # micro-batches of a generation batch, of one process
    refuse_wrong_counts("TRL", options, ["steps_per_generation"])
    if micro * steps % group:
        raise RequestError(
            f"TRL: num_generations={group} must divide the generation batch of {micro * steps} sequences"
        )
    return options


def loss(options: Options) -> Options:
    """What `frameworks/trl.py` takes."""
    return {name: options[name] for name in LOSS}


def run(options: Options) -> Options:
    """What is no loss, by our keys.

    How often a batch is learnt from, of one process, is the part of `generate_every` that is optimiser steps.
    """
    mu, slices, window = (options[name] for name in REUSE)
    prompts = options["per_device_train_batch_size"] * slices // options["num_generations"]
    if window % (slices * mu) == 0:  # several generation batches, each counted mu times, in one step
        passes, minibatches, prompts = 1, 1, prompts * (window // (slices * mu))
    elif slices % window == 0:
        passes, minibatches = mu, slices // window
    else:
        passes, minibatches = max(mu * slices // window, 1), 1
    parts = options["multi_objective_aggregation"] == "normalize_then_sum"
    scale = options["scale_rewards"]
    values: Options = {ours: options[theirs] for theirs, ours in TRL_NAMES.items()}
    values |= {
        "scale_rewards": "batch" if parts else SCALES.get(scale, scale),
        "advantage_estimator": "batch_mean" if parts else "group_mean",
        "scale_reward_parts": "group" if parts else None,
        "lr_scheduler_type": SCHEDULES.get(str(options["lr_scheduler_type"]), "linear"),
        "max_grad_norm": options["max_grad_norm"] or math.inf,
        "dtype": "bfloat16" if options["bf16"] else "float32",
        "warm_start.max_steps": 0,
        "prompts_per_step": prompts,
        "num_iterations": passes,
        "num_minibatches": minibatches,
        "micro_batch_size": options["per_device_train_batch_size"],
    }
    if options["use_adaptive_entropy"]:
        values["entropy_coef"] = options["entropy_coef"]  # its start, which may be 0
        values["adaptive_entropy"] = {ours: options[theirs] for ours, theirs in ADAPTIVE.items()}
    if options["max_steps"] > 0:
        values |= {"rollout_steps": None, "max_optimizer_steps": options["max_steps"]}
    if options["model_name_or_path"]:
        values |= {"model": "pretrained", "model.path": options["model_name_or_path"]}
    return values


def left_out(options: Options) -> Iterator[str]:
    """What of a `GRPOConfig` has no counterpart here."""
    mu, slices, window = (options[name] for name in REUSE)
    if window % (slices * mu) and slices % window and (window % slices or (mu * slices) % window):
        yield (
            f"gradient_accumulation_steps={window} cuts {mu} passes of steps_per_generation={slices} unevenly: here"
            " every optimiser step is on one batch"
        )
    for name, says in NOT_CARRIED.items():
        if options[name] != CARRIED[name]:
            yield f"{name}={options[name]}: {says}"
    if options["max_steps"] <= 0:
        yield f"num_train_epochs={options['num_train_epochs']:g}: set rollout_steps, the length of a run here"
    if str(options["lr_scheduler_type"]) not in SCHEDULES:
        yield f"lr_scheduler_type={options['lr_scheduler_type']}: here it is one of constant, linear, cosine"


NOT_CARRIED = {
    "use_vllm": "there is no vLLM here; the weight for its log-probs is kept",
    "mask_truncated_completions": "truncated completions count here",
    "reward_weights": "give reward.weights, by the names of the reward's parts",
    "sync_ref_model": "the reference of the KL is the warm start, always",
    "top_p": "sampling is never truncated here",
    "top_k": "sampling is never truncated here",
    "min_p": "sampling is never truncated here",
    "repetition_penalty": "sampling is never penalised here",
    "router_aux_loss_coef": "there is no auxiliary loss of experts here",
    "use_peft": "all weights are trained here",
    "fp16": "half precision here is bfloat16",
    "optim": "the optimiser is AdamW here",
}


def guesses(settings: RunSettings) -> Iterator[Options]:
    """Options that may say what a run does, one for each loss_type: that of its kernel and average first."""
    ours = (settings.kernel, settings.aggregation)
    for loss_type in sorted(LOSS_TYPES, key=lambda name: (LOSS_TYPES[name] != ours, name != CARRIED["loss_type"])):
        guess = _guess(settings, loss_type)
        yield {name: value for name, value in guess.items() if value != CARRIED[name]}


def _guess(settings: RunSettings, loss_type: str) -> Options:
    run, kernel = settings.resolved(), settings.kernel
    given = (run.kernel_options or {}).get(kernel, {})
    absolute = 1.0 if kernel == "cispo" and run.framework != "trl" else 0.0
    micro = run.micro_batch_size or run.minibatch_size
    guess: Options = {
        "loss_type": loss_type,
        "importance_sampling_level": "token" if run.importance_sampling_level == "token" else "sequence",
        "epsilon": LOSS["epsilon"] if kernel == "cispo" else run.epsilon,
        "epsilon_high": absolute + (run.epsilon_high or 0.0),
        "delta": run.delta or run.dual_clip,
        "beta": run.beta,
        "use_bias_correction_kl": not run.beta or run.kl_gradient == "importance_weighted",
        "top_entropy_quantile": 1.0 if run.top_entropy_quantile is None else run.top_entropy_quantile,
        "entropy_coef": run.entropy_coef or 0.0,
        "off_policy_mask_threshold": run.off_policy_mask_threshold,
        **{theirs: given[ours] for ours, theirs in KERNEL_OPTIONS.get(kernel, {}).items()},
        **{theirs: getattr(run, ours) for theirs, ours in TRL_NAMES.items()},
        "scale_rewards": run.scale_rewards,
        "lr_scheduler_type": run.lr_scheduler_type,
        "max_grad_norm": 0.0 if run.max_grad_norm == math.inf else run.max_grad_norm,
        "bf16": run.dtype == "bfloat16",
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": run.minibatch_size // micro,
        "steps_per_generation": run.batch_size // micro,
        "num_iterations": run.num_iterations,
    }
    if guess["epsilon_high"] == guess["epsilon"]:
        guess["epsilon_high"] = None
    if guess["steps_per_generation"] == guess["gradient_accumulation_steps"]:
        guess["steps_per_generation"] = None
    if run.scale_reward_parts:
        guess |= {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "group"}
    if (rule := run.adaptive_entropy) is not None:
        guess |= {"use_adaptive_entropy": True, **{theirs: getattr(rule, ours) for ours, theirs in ADAPTIVE.items()}}
    if (weight := run.sampler_correction) is not None:
        guess |= {
            "use_vllm": True,
            "vllm_importance_sampling_mode": f"{weight.level}_{weight.mode}",
            "vllm_importance_sampling_clip_min": weight.low or None,
            "vllm_importance_sampling_clip_max": None if weight.high == math.inf else weight.high,
        }
    if isinstance(run.model, PretrainedModel):
        guess["model_name_or_path"] = run.model.path
    return guess


def shown(options: Options) -> str:
    """`GRPOConfig(...)`, a line for each keyword; the model is named beside it."""
    said = {name: value for name, value in options.items() if name != "model_name_or_path"}
    infinite = f"float({str(math.inf)!r})"
    lines = [f"    {name}={infinite if value == math.inf else repr(value)}," for name, value in said.items()]
    return "\n".join(["GRPOConfig(", *lines, ")"])


def own_way(settings: RunSettings) -> Iterator[str]:
    """Where TRL computes something else by the same options."""
    if settings.entropy_coef:
        yield f"entropy_coef={settings.entropy_coef:g}: TRL averages the entropy over the tokens of each micro-batch"
    if settings.kernel == "vespo" and settings.sampler_correction is not None:
        yield "vespo multiplies the sampler's weight into the ratio of the sequence"


CONFIG = Config(options, loss, run, left_out, guesses, own_way, shown)
