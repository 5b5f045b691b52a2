"""What frameworks' options are called here, and the defaults of those that determine their loss.

Read by the adapters, the exchange, and whoever has to say that a key is unknown. A leaf, because none of the last two
may import torch.
"""

from __future__ import annotations

from typing import Any

# TRL 1.16.0: the fields of `GRPOConfig`.
TRL: dict[str, Any] = {
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
# verl 1dda039b: `actor_rollout_ref.actor` with `policy_loss` in it, and `algorithm.rollout_correction`.
VERL: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "loss_agg_mode": "token-mean",
    "entropy_coeff": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.001,
    "kl_loss_type": "low_var_kl",
    "policy_loss": {
        "loss_mode": "vanilla",
        "clip_cov_ratio": 0.0002,
        "clip_cov_lb": 1.0,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.0002,
        "ppo_kl_coef": 0.1,
        "dro_beta": None,
    },
    "rollout_correction": {"rollout_is": None, "rollout_is_threshold": 2.0, "loss_type": "ppo_clip"},
}

# Theirs -> ours, where the value is the same number: what the exchange carries.
TRL_NAMES = {
    "num_generations": "num_generations",
    "max_completion_length": "max_completion_length",
    "temperature": "temperature",
    "learning_rate": "learning_rate",
    "warmup_steps": "warmup_steps",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "adam_epsilon": "adam_epsilon",
    "weight_decay": "weight_decay",
    "seed": "seed",
}
VERL_NAMES = {
    "actor_rollout_ref.rollout.n": "num_generations",
    "data.train_batch_size": "prompts_per_step",
    "actor_rollout_ref.actor.ppo_epochs": "num_iterations",
    "data.max_response_length": "max_completion_length",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.actor.optim.lr": "learning_rate",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor_rollout_ref.actor.grad_clip": "max_grad_norm",
}
# Theirs -> where to look here, by the last part of their name; the value may have to be converted.
_COUNT = "num_minibatches, how many and not how large"
LOOK_HERE: dict[str, dict[str, str]] = {
    "TRL": {
        "per_device_train_batch_size": "micro_batch_size",
        "steps_per_generation": _COUNT,
        "gradient_accumulation_steps": _COUNT,
        "generation_batch_size": "prompts_per_step, of num_generations completions each",
        "max_steps": "max_optimizer_steps",
        "num_train_epochs": "rollout_steps",
        "warmup_ratio": "warmup_steps",
        "bf16": "dtype",
        "model_name_or_path": "model.path, with model=pretrained",
        "reward_funcs": "reward.function",
        "reward_weights": "reward.weights",
        "dataset_name": "task.train_file, with task=jsonl",
        "output_dir": "machine.results",
        "report_to": "machine.tracking_uri",
        "vllm_importance_sampling_correction": "sampler_correction",
        "ref_model_sync_steps": "beta, whose reference is always the warm start",
    },
    "verl": {
        "clip_ratio": "epsilon",
        "clip_ratio_low": "epsilon",
        "clip_ratio_high": "epsilon_high",
        "clip_ratio_c": "dual_clip",
        "cliprange": "epsilon",
        "cliprange_low": "epsilon",
        "cliprange_high": "epsilon_high",
        "kl_coef": "beta",
        "kl_loss_coef": "beta",
        "use_kl_loss": "beta, 0 for none",
        "use_kl_in_reward": "kl_placement",
        "kl_loss_type": "kl_estimator",
        "entropy_coeff": "entropy_coef",
        "loss_agg_mode": "aggregation",
        "loss_mode": "loss_type",
        "adv_estimator": "advantage_estimator",
        "norm_adv_by_std_in_grpo": "scale_rewards",
        "ppo_mini_batch_size": _COUNT,
        "ppo_micro_batch_size_per_gpu": "micro_batch_size",
        "total_training_steps": "rollout_steps",
        "total_epochs": "rollout_steps",
        "rollout_is": "sampler_correction",
        "train_files": "task.train_file, with task=jsonl",
        "val_files": "task.evaluation_file, with task=jsonl",
        "test_freq": "evaluation.every",
    },
    "ROLL": {
        "pg_clip": "epsilon",
        "pg_clip_low": "epsilon",
        "pg_clip_high": "epsilon_high",
        "dual_clip_loss": "dual_clip",
        "init_kl_coef": "beta",
        "kl_loss_coef": "beta",
        "entropy_loss_coef": "entropy_coef",
        "ppo_epochs": "num_iterations",
        "num_return_sequences_in_group": "num_generations",
        "rollout_batch_size": "prompts_per_step",
        "response_length": "max_completion_length",
        "importance_sampling": "importance_sampling_level",
    },
    "OpenRLHF": {
        "eps_clip": "epsilon",
        "clip_eps_low": "epsilon",
        "clip_eps_high": "epsilon_high",
        "init_kl_coef": "beta",
        "kl_init_coef": "beta",
        "n_samples_per_prompt": "num_generations",
        "rollout_batch_size": "prompts_per_step",
        "train_batch_size": _COUNT,
        "micro_train_batch_size": "micro_batch_size",
        "max_epochs": "num_iterations",
        "generate_max_len": "max_completion_length",
        "actor_learning_rate": "learning_rate",
        "policy_loss_type": "loss_type",
        "token_level_loss": "aggregation",
        "pretrain": "model.path, with model=pretrained",
    },
    "slime, AReaL": {"eps_clip": "epsilon", "eps_clip_high": "epsilon_high", "eps_clip_c": "dual_clip"},
    "SkyRL": {"eps_clip_low": "epsilon", "eps_clip_high": "epsilon_high"},
    "NeMo-RL": {
        "ratio_clip_min": "epsilon",
        "ratio_clip_max": "epsilon_high",
        "ratio_clip_c": "dual_clip",
        "reference_policy_kl_penalty": "beta",
    },
    "open-instruct": {"clip_lower": "epsilon", "clip_higher": "epsilon_high"},
    "DeepSpeed-Chat": {"kl_ctl": "beta"},
    "torchtune": {"kl_coeff": "beta"},
    "papers": {
        "mu": "num_iterations",
        "group_size": "num_generations",
        "eps": "epsilon",
        "clip_range": "epsilon",
        "max_new_tokens": "max_completion_length",
        "batch_size": "prompts_per_step",
    },
}


def our_names(name: str) -> str:
    """`learning_rate (verl)` for `lr`, an option of another framework; empty where none has it.

    `name` may be dotted as there: its last part counts.
    """
    last = name.rpartition(".")[2]
    same = {"TRL": TRL_NAMES, "verl": VERL_NAMES}
    found: dict[str, list[str]] = {}
    for framework, names in LOOK_HERE.items():
        exact = {theirs.rpartition(".")[2]: ours for theirs, ours in same.get(framework, {}).items()}
        if ours := (names | exact).get(last):
            found.setdefault(ours, []).append(framework)
    return " or ".join(f"{ours} ({', '.join(frameworks)})" for ours, frameworks in found.items())
