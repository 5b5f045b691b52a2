"""The keys of verl's `ppo_trainer` config that decide what is learnt, with their defaults, and those that do not.

Source: verl 1dda039b, verl/trainer/config/ (actor, algorithm, data, rollout).
"""

from __future__ import annotations

from typing import Any

from grpolab.peer_defaults import VERL

ACTOR, ALGORITHM = "actor_rollout_ref.actor.", "algorithm."
CARRIED: dict[str, Any] = {
    "data.train_batch_size": 1024,  # prompts
    "data.max_response_length": 512,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.model.path": None,
    "trainer.total_training_steps": None,
    f"{ACTOR}ppo_mini_batch_size": 256,  # prompts, too
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}loss_scale_factor": None,
    f"{ACTOR}grad_clip": 1.0,
    **{ACTOR + name: value for name, value in VERL.items() if not isinstance(value, dict)},
    **{f"{ACTOR}policy_loss.{name}": value for name, value in VERL["policy_loss"].items()},
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.weight_decay": 0.01,
    f"{ACTOR}optim.betas": [0.9, 0.999],
    f"{ACTOR}optim.lr_scheduler_type": "constant",
    f"{ACTOR}optim.lr_warmup_steps": -1,
    f"{ACTOR}optim.lr_warmup_steps_ratio": 0.0,
    f"{ALGORITHM}adv_estimator": "gae",
    f"{ALGORITHM}norm_adv_by_std_in_grpo": True,
    f"{ALGORITHM}use_kl_in_reward": False,
    f"{ALGORITHM}kl_penalty": "kl",
    f"{ALGORITHM}kl_ctrl.type": "fixed",
    f"{ALGORITHM}kl_ctrl.kl_coef": 0.001,
    f"{ALGORITHM}filter_groups.enable": False,
    f"{ALGORITHM}use_pf_ppo": False,
    **{f"{ALGORITHM}rollout_correction.{name}": value for name, value in VERL["rollout_correction"].items()},
    f"{ALGORITHM}rollout_correction.rollout_is_threshold": "2.0",  # text there: it may be a range
    f"{ALGORITHM}rollout_correction.rollout_is_batch_normalize": False,
    f"{ALGORITHM}rollout_correction.rollout_rs": None,
    f"{ALGORITHM}rollout_correction.bypass_mode": False,
}
# Keys of actor and algorithm, or sections of them, that change no result here; and every top-level section.
# fmt: off
_OF_ACTOR = [
    "_target_", "rollout_n", "strategy", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz",
    "ppo_infer_micro_batch_size_per_gpu", "ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu",
    "freeze_vision_tower", "calculate_entropy", "calculate_sum_pi_squared", "use_prefix_grouper",
    "use_torch_compile", "shuffle", "data_loader_seed", "checkpoint", "use_fused_kernels", "profiler",
    "router_replay", "qat", "fsdp_config", "megatron", "veomni", "torchtitan", "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking", "use_remove_padding", "entropy_from_logits_chunk_size",
    "entropy_checkpointing", "pad_to_length", "load_weight", "use_rollout_log_probs", "policy_loss._target_",
    "optim._target_", "optim.optimizer", "optim.optimizer_impl", "optim.min_lr_ratio", "optim.lr_min",
    "optim.lr_start", "optim.lr_decay_ratio", "optim.num_cycles", "optim.warmup_style", "optim.zero_indexed_step",
    "optim.override_optimizer_config", "optim.total_training_steps", "optim.clip_grad", "optim.grad_clip",
    "optim.lr_warmup_init", "optim.lr_decay_steps", "optim.lr_decay_style", "optim.lr_warmup_style",
    "optim.weight_decay_incr_style", "optim.lr_wsd_decay_style", "optim.lr_wsd_decay_steps",
    "optim.use_checkpoint_opt_param_scheduler",
]
_OF_ALGORITHM = [
    "_target_", "gamma", "lam", "kl_ctrl.horizon", "kl_ctrl.target_kl", "kl_ctrl._target_", "filter_groups",
    "pf_ppo", "rollout_correction.rollout_rs_threshold", "rollout_correction._target_",
]
SECTIONS = {
    "actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward", "reward_model",
    "custom_reward_function", "reward_manager", "sandbox_fusion", "distillation", "transfer_queue",
    "global_profiler", "skip", "ray_kwargs", "hydra", "defaults", "model_engine", "global_batch_info",
}
# fmt: on
PASSED_OVER = [*(ACTOR + name for name in _OF_ACTOR), *(ALGORITHM + name for name in _OF_ALGORITHM)]
