"""The fields of TRL 1.16.0's `GRPOConfig`: those that are carried with their defaults, and those that change no result.

The fields of transformers' TrainingArguments, which it inherits, are read from transformers itself.
"""

from __future__ import annotations

from typing import Any

from grpolab.peer_defaults import TRL

CARRIED: dict[str, Any] = TRL | {
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
