"""The keys of verl's config that matter here: their defaults, their values on our axes, and what is passed over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpolab.settings.objective import Objective, SamplerCorrection, kl_axes

# The options of the loss: `actor_rollout_ref.actor` with `policy_loss` in it, and `algorithm.rollout_correction`.
LOSS: dict[str, Any] = {
    "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0,
    "tau_pos": 1.0, "tau_neg": 1.05, "loss_agg_mode": "token-mean", "entropy_coeff": 0.0,
    "use_kl_loss": False, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl",
    "policy_loss": {
        "loss_mode": "vanilla", "clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1, "dro_beta": None,
    },
    "rollout_correction": {"rollout_is": None, "rollout_is_threshold": 2.0, "loss_type": "ppo_clip"},
}  # fmt: skip

# loss_mode -> kernel; bypass_mode's `loss_type` -> the mode that it is.
KERNEL = {
    "vanilla": "clipped",
    "gspo": "clipped",
    "sapo": "sapo",
    "cispo": "cispo",
    "geo_mean": "gmpo",
    "gpg": "policy_gradient",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "dro": "dro",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}
BYPASS = {"ppo_clip": "vanilla", "reinforce": "gpg"}
# Kernel -> our name of its options -> theirs.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "tau_pos", "temperature_negative": "tau_neg"},
    "clip_cov": {
        "share": "policy_loss.clip_cov_ratio",
        "lower": "policy_loss.clip_cov_lb",
        "upper": "policy_loss.clip_cov_ub",
    },
    "kl_cov": {"share": "policy_loss.kl_cov_ratio", "coefficient": "policy_loss.ppo_kl_coef"},
    "dro": {"coefficient": "policy_loss.dro_beta"},
    "dppo_tv": {"cap": "clip_ratio_c"},
    "dppo_kl": {"cap": "clip_ratio_c"},
}
# Sequences are counted as in training: all of the minibatch, empty ones too (`global_batch_size`).
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "token_sum_constant",
}
# Estimators; the first name of each is the one that is written.
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}

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
MINI, EPOCHS = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs"
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
KL_TYPE, AVERAGE = f"{ACTOR}kl_loss_type", f"{ACTOR}loss_agg_mode"
KL_TYPES = [name + straight for name in KL for straight in ("", "+")]
MODE, CORRECTION = f"{ACTOR}policy_loss.loss_mode", f"{ALGORITHM}rollout_correction."
NEVER = 1e9  # above e^20, the largest ratio that verl knows
BETAS, SCHEDULE = f"{ACTOR}optim.betas", f"{ACTOR}optim.lr_scheduler_type"
SCHEDULES = ("constant", "cosine")
RATE, FLOOR, FLOOR_RATE = (f"{ACTOR}optim.{name}" for name in ("lr", "min_lr_ratio", "min_lr"))  # megatron: the last
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
COUNTS = (PROMPTS, GROUP, MINI, EPOCHS)
LOW, HIGH, CLIP_GRAD = f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high", f"{ACTOR}optim.clip_grad"
WARMUP, WARMUP_SHARE = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_steps_ratio"
KL_LOSS, KL_REWARD, KL_COEF = f"{ACTOR}use_kl_loss", f"{ALGORITHM}use_kl_in_reward", f"{ALGORITHM}kl_ctrl.kl_coef"

WRITTEN_OUT = {LOW, HIGH, f"{ACTOR}clip_ratio", EPOCHS, f"{ACTOR}loss_agg_mode"}  # nobody writes all of these by hand

# Versions. Nothing that is carried has changed its default since 0.4 (May 2025); before, three things were others.
NEWEST, FIRST_OF_TODAY = 9, 4  # 0.9 and 0.4
WHOLE_MEANS = 7  # since 0.7 a mean over tokens is that of the minibatch, however it is cut
EARLY = {f"{ACTOR}entropy_coeff": 0.001}
ONLY_EARLY = (  # keys that 0.4 has no longer
    f"{ACTOR}fsdp_config.grad_offload", "critic.model.fsdp_config.grad_offload", "actor_rollout_ref.ref.param_offload",
    "trainer.val_generations_to_log_to_wandb",
)  # fmt: skip
SINCE_TODAY = (LOW, HIGH, f"{ACTOR}clip_ratio_c", f"{ACTOR}loss_agg_mode", KL_REWARD, BY_STD)
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
NOT_CARRIED = {
    f"{CORRECTION}rollout_rs": "nothing is rejected here",
    f"{CORRECTION}rollout_is_batch_normalize": "sampler weights are not normalised here",
    f"{ALGORITHM}filter_groups.enable": "groups are not sampled again here",
    f"{ALGORITHM}use_pf_ppo": "there is no preference feedback here",
    f"{ALGORITHM}kl_ctrl.type": "the weight of the KL is fixed here",
    "actor_rollout_ref.rollout.top_p": "sampling is never truncated here",
    "actor_rollout_ref.rollout.top_k": "sampling is never truncated here",
}
# Other keys that change what is learnt: what they may be where they do not, and why they are not carried.
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

CLAMPED = {"vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"}  # modes whose log ratio is bounded
BOUND = 20.0  # of log ratios, and of the logarithm of a sampler weight


def objective(options: Mapping[str, Any]) -> Objective:
    """The point on our axes of verl's actor options. Raises ValueError for what verl does not have."""
    o = LOSS | dict(options)
    policy, rollout = ({**LOSS[name], **(o[name] or {})} for name in ("policy_loss", "rollout_correction"))
    mode, weighted = policy["loss_mode"], True
    numbers = o | {f"policy_loss.{name}": value for name, value in policy.items()}
    try:
        if mode == "bypass_mode":  # its ratio to the sampler takes the place of the weight
            mode, weighted = BYPASS[rollout["loss_type"]], rollout["loss_type"] == "reinforce"
        estimator = KL[o["kl_loss_type"].removesuffix("+")]
        gradient = "straight_through" if o["kl_loss_type"].endswith("+") else "plain"  # that of k2
        clamps = (20.0, 10.0) if estimator == "k3" else (None, None)
        if mode == "dro" and not (policy["dro_beta"] or 0) > 0:
            raise ValueError(f"policy_loss.dro_beta={policy['dro_beta']} must be more than 0 for loss_mode=dro")
        return Objective.of(
            importance_sampling_level="sequence_token" if mode == "gspo" else "token",
            log_ratio_clamp=BOUND if mode in CLAMPED else None,
            kernel=KERNEL[mode],
            kernel_options={ours: numbers[theirs] for ours, theirs in KERNEL_OPTIONS.get(KERNEL[mode], {}).items()},
            epsilon=o["clip_ratio"] if o["clip_ratio_low"] is None else o["clip_ratio_low"],
            epsilon_high=o["clip_ratio"] if o["clip_ratio_high"] is None else o["clip_ratio_high"],
            delta=None,
            dual_clip=o["clip_ratio_c"] if mode == "vanilla" else None,
            loss_form="max_negative",
            aggregation=AGGREGATION[o["loss_agg_mode"]],
            **kl_axes(o["kl_loss_coef"] if o["use_kl_loss"] else 0.0, estimator, gradient, *clamps),
            entropy_coef=o["entropy_coeff"],
            sampler_correction=sampler_rule(rollout) if weighted else None,
        )
    except KeyError as unknown:
        raise ValueError(f"verl has no {unknown}") from unknown


def sampler_rule(options: Mapping[str, Any]) -> SamplerCorrection | None:
    """What `algorithm.rollout_correction` means: `2.0` truncates the weight (TIS), `0.5_2.0` makes it 0 outside."""
    o = LOSS["rollout_correction"] | dict(options)
    if not o["rollout_is"]:
        return None
    low, _, high = str(o["rollout_is_threshold"]).rpartition("_")
    if low:
        return SamplerCorrection.of(o["rollout_is"], "mask", float(low), float(high))
    return SamplerCorrection.of(o["rollout_is"], "truncate", math.exp(-BOUND), float(high))
