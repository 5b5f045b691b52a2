"""Keys of verl's config that matter here, with their defaults, and those that are ignored."""

from __future__ import annotations

from typing import Any

from grpolab.frameworks.verl_options import LOSS

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
    **{ACTOR + name: value for name, value in LOSS.items() if not isinstance(value, dict)},
    **{f"{ACTOR}policy_loss.{name}": value for name, value in LOSS["policy_loss"].items()},
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.weight_decay": 0.01,
    f"{ACTOR}optim.clip_grad": 1.0,
    f"{ACTOR}optim.betas": [0.9, 0.999],
    f"{ACTOR}optim.lr_scheduler_type": "constant",
    f"{ACTOR}optim.min_lr_ratio": 0.0,
    f"{ACTOR}optim.min_lr": 0.0,
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
    **{f"{ALGORITHM}rollout_correction.{name}": value for name, value in LOSS["rollout_correction"].items()},
    f"{ALGORITHM}rollout_correction.rollout_is_threshold": "2.0",  # text there: it may be a range
    f"{ALGORITHM}rollout_correction.rollout_is_batch_normalize": False,
    f"{ALGORITHM}rollout_correction.rollout_rs": None,
    f"{ALGORITHM}rollout_correction.bypass_mode": False,
}
# Keys of actor and algorithm, or sections of them, that change no result here.
# fmt: off
_OF_ACTOR = [
    "_target_", "rollout_n", "strategy", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz",
    "ppo_infer_micro_batch_size_per_gpu", "ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu",
    "freeze_vision_tower", "calculate_entropy", "calculate_sum_pi_squared", "use_prefix_grouper",
    "use_torch_compile", "shuffle", "data_loader_seed", "checkpoint", "use_fused_kernels", "profiler",
    "router_replay", "qat", "fsdp_config", "megatron", "veomni", "torchtitan", "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking", "use_remove_padding", "entropy_from_logits_chunk_size",
    "entropy_checkpointing", "pad_to_length", "load_weight", "use_rollout_log_probs", "policy_loss._target_",
    "optim._target_", "optim.optimizer", "optim.optimizer_impl", "optim.lr_min",
    "optim.lr_start", "optim.lr_decay_ratio", "optim.num_cycles", "optim.warmup_style", "optim.zero_indexed_step",
    "optim.override_optimizer_config", "optim.total_training_steps", "grad_clip",
    "optim.lr_warmup_init", "optim.lr_decay_steps", "optim.lr_decay_style", "optim.lr_warmup_style",
    "optim.weight_decay_incr_style", "optim.lr_wsd_decay_style", "optim.lr_wsd_decay_steps",
    "optim.use_checkpoint_opt_param_scheduler", "model_engine", "engine", "mtp", "profile", "turbo_config",
]
_OF_ALGORITHM = [
    "_target_", "gamma", "lam", "kl_ctrl.horizon", "kl_ctrl.target_kl", "kl_ctrl._target_", "filter_groups",
    "pf_ppo", "rollout_correction.rollout_rs_threshold", "rollout_correction._target_",
]
# fmt: on
PASSED_OVER = [*(ACTOR + name for name in _OF_ACTOR), *(ALGORITHM + name for name in _OF_ALGORITHM)]

PROMPTS, GROUP = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINI, EPOCHS, MODE = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs", f"{ACTOR}policy_loss.loss_mode"
KL_TYPE, AVERAGE, CORRECTION = f"{ACTOR}kl_loss_type", f"{ACTOR}loss_agg_mode", f"{ALGORITHM}rollout_correction."
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
SCHEDULE, WARMUP = f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_warmup_steps"
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
KL_LOSS, KL_REWARD, KL_COEF = f"{ACTOR}use_kl_loss", f"{ALGORITHM}use_kl_in_reward", f"{ALGORITHM}kl_ctrl.kl_coef"

# Nobody writes all of these keys by hand, so a file with them is a config that Hydra has written.
WRITTEN_OUT = {
    f"{ACTOR}{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "ppo_epochs", "loss_agg_mode")
}

# Versions. No default that is carried has changed since 0.4 (May 2025); before, three were different.
NEWEST, FIRST_OF_TODAY = 9, 4  # 0.9 and 0.4
WHOLE_MEANS = 7  # since 0.7 token means are over the whole minibatch instead of each micro-batch
EARLY = {f"{ACTOR}entropy_coeff": 0.001}
ONLY_EARLY = (  # keys that 0.4 has no longer
    f"{ACTOR}fsdp_config.grad_offload", "critic.model.fsdp_config.grad_offload", "actor_rollout_ref.ref.param_offload",
    "trainer.val_generations_to_log_to_wandb",
)  # fmt: skip
SINCE_TODAY = (
    *(ACTOR + name for name in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c")),
    AVERAGE,
    KL_REWARD,
    BY_STD,
)
# adv_estimator -> baseline, scale (None: the group's std if norm_adv_by_std_in_grpo), whitening.
ESTIMATORS: dict[str, tuple[str, str | None, str | None]] = {
    "grpo": ("group_mean", None, None),
    "grpo_passk": ("second_best", None, None),
    "rloo": ("leave_one_out", "none", None),
    "opo": ("length_weighted", "none", None),
    "gpg": ("group_mean", "nonzero_share", None),
    "remax": ("given", "none", None),
    "reinforce_plus_plus": ("none", "none", "bessel"),
    "reinforce_plus_plus_baseline": ("group_mean", "none", "bessel"),
}
# Keys that are read and do nothing here -> why; only a value other than the default is told.
NOT_CARRIED = {
    f"{CORRECTION}rollout_rs": "nothing is rejected here",
    f"{CORRECTION}rollout_is_batch_normalize": "sampler weights are not normalised here",
    f"{ALGORITHM}filter_groups.enable": "groups are not sampled again here",
    f"{ALGORITHM}use_pf_ppo": "there is no preference feedback here",
    f"{ALGORITHM}kl_ctrl.type": "the weight of the KL is fixed here",
    "actor_rollout_ref.rollout.top_p": "sampling is never truncated here",
    "actor_rollout_ref.rollout.top_k": "sampling is never truncated here",
}
# Other keys that change what is learnt -> the values that do not, and why the others are not carried.
NOT_READ: dict[str, tuple[tuple[Any, ...], str]] = {
    "reward.reward_kwargs.overlong_buffer_cfg.enable": ((False,), "a long answer loses no reward here"),
    "actor_rollout_ref.model.lora_rank": ((0,), "all weights are trained here"),
    "actor_rollout_ref.rollout.multi_turn.enable": ((False,), "an answer is one turn here"),
    "trainer.critic_warmup": ((0,), "there is no critic here"),
    f"{ALGORITHM}gamma": ((1,), "returns are not discounted here"),
    f"{ACTOR}optim.optimizer": (("AdamW", "adam", "adamw"), "the optimiser is AdamW here"),
    f"{ACTOR}optim.num_cycles": ((0.5,), "a cosine here is half a wave"),
}
SECTIONS = {
    "actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward", "reward_model", "custom_reward_function",
    "reward_manager", "sandbox_fusion", "distillation", "transfer_queue", "global_profiler", "skip", "ray_kwargs",
    "ray_init", "hydra", "defaults", "model_engine", "global_batch_info", "async_training", "rollout",
}  # fmt: skip
