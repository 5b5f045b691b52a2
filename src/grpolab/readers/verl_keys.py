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
    "async_training.staleness_threshold": None,  # of its fully asynchronous training alone
    "async_training.trigger_parameter_sync_step": 4,
    "async_training.require_batches": 1,
}
ONE_STEP = "one_step_off_policy"  # in the name of a program that samples a batch while it learns from the one before
# Section -> the words in it that verl has had since 0.1; a word covers all that is below it, * is any.
_WORDS = {
    "actor_rollout_ref": "hybrid_engine nccl_timeout profiler checkpoint_engine teacher",
    "actor_rollout_ref.actor": """
        _target_ calculate_entropy calculate_sum_pi_squared checkpoint clip_ratio clip_ratio_c clip_ratio_high
        clip_ratio_low data_loader_seed dpo_beta engine entropy_checkpointing entropy_coeff
        entropy_from_logits_chunk_size entropy_from_logits_with_chunking freeze_vision_tower fsdp_config grad_clip
        kl_loss_coef kl_loss_type load_weight loss_agg_mode loss_scale_factor max_token_len megatron
        micro_batch_size model_engine mtp nccl_timeout pad_to_length ppo_epochs ppo_infer_max_token_len_per_gpu
        ppo_infer_micro_batch_size_per_gpu ppo_max_token_len_per_gpu ppo_micro_batch_size
        ppo_micro_batch_size_per_gpu ppo_mini_batch_size profile profiler qat rollout_n router_replay shuffle
        sppo_eta strategy sum_pi_squared_checkpointing tau_neg tau_pos torchtitan turbo_config
        ulysses_sequence_parallel_size use_dynamic_bsz use_fused_kernels use_kl_loss use_prefix_grouper
        use_remove_padding use_rollout_log_probs use_torch_compile veomni""",
    "actor_rollout_ref.actor.optim": """
        _target_ betas clip_grad decay_type eps exp_avg_dtype exp_avg_sq_dtype grad_clip init_lr_ratio lr
        lr_decay_ratio lr_decay_steps lr_decay_style lr_min lr_scheduler_type lr_start lr_warmup_init
        lr_warmup_steps lr_warmup_steps_ratio lr_warmup_style lr_wsd_decay_steps lr_wsd_decay_style main_grads_dtype
        master_weight_dtype master_weights min_lr min_lr_factor min_lr_ratio muon_coefficient_type
        muon_extra_scale_factor muon_fp32_matmul_prec muon_match_adamw_update_rms muon_momentum muon_nesterov
        muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode name num_cycles
        optimizer optimizer_impl override_optimizer_config store_param_remainders total_training_steps
        use_checkpoint_opt_param_scheduler use_layer_wise_distributed_optimizer use_layer_wise_param_layout
        use_precision_aware_optimizer warmup_style wd_incr_style weight_decay weight_decay_incr_style
        zero_indexed_step""",
    "actor_rollout_ref.actor.policy_loss": "_target_",
    "actor_rollout_ref.rollout": """
        _target_ agent calculate_log_probs chat_scheduler checkpoint_engine checkpoint_manager_class
        cudagraph_capture_sizes custom data_parallel_size disable_log_stats disaggregation do_sample dtype
        enable_chunked_prefill enable_prefix_caching enable_rollout_routing_replay enable_sleep_mode enforce_eager
        engine_kwargs expert_parallel_size extra_rollout_args free_cache_engine full_determinism
        gpu_memory_utilization ignore_eos layer_name_map layered_summon limit_images load_format
        log_prob_max_token_len_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu
        log_prob_use_dynamic_bsz logprobs_mode max_model_len max_num_batched_tokens max_num_seqs micro_batch_size
        micro_batch_size_per_gpu mode moe_load_balance_metrics_interval moe_tensor_parallel_size mtp
        multi_stage_wake_up multi_turn n n_gpus_per_node name nnodes over_sample_rate pipeline_model_parallel_size
        profiler prometheus prompt_length qat quantization quantization_config_file repetition_penalty
        response_length scheduling_policy seed server sglang_engine_mode skip skip_dump_dir skip_rollout
        skip_tokenizer_init standalone_gpu_memory_utilization temperature tensor_model_parallel_size top_k top_p
        tp_size trace update_weights_bucket_megabytes use_fire_sampling val_kwargs""",
    "actor_rollout_ref.model": """
        _target_ architectures custom_chat_template enable_activation_offload enable_gradient_checkpointing
        exclude_modules external_lib fused_kernel_options gradient_checkpointing_kwargs hf_config_path lora
        lora_adapter_path lora_alpha lora_rank mtp override_config path target_modules target_parameters tiled_mlp
        tokenizer_path trust_remote_code use_fused_kernels use_liger use_remove_padding use_shm""",
    "actor_rollout_ref.ref": """
        _target_ engine entropy_checkpointing entropy_from_logits_chunk_size entropy_from_logits_with_chunking
        fsdp_config load_weight log_prob_max_token_len_per_gpu log_prob_micro_batch_size
        log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz megatron micro_batch_size mindspeed model
        nccl_timeout optim pad_to_length param_offload profile profiler rollout_n router_replay strategy torchtitan
        turbo_config ulysses_sequence_parallel_size use_dynamic_bsz use_torch_compile veomni""",
    "algorithm": """
        _target_ adv_estimator bypass_mode filter_groups gamma gdpo_reward_keys gdpo_reward_weights kl_penalty lam
        loss_type norm_adv_by_std_in_grpo pf_ppo reward_dpo_coef reward_gt_coef rollout_is
        rollout_is_batch_normalize rollout_is_level rollout_is_mode rollout_is_threshold rollout_is_threshold_lower
        rollout_is_veto_threshold rollout_rs rollout_rs_threshold rollout_rs_threshold_lower
        rollout_token_veto_threshold sppo_eta use_kl_in_reward use_pf_ppo use_policy_gradient""",
    "algorithm.kl_ctrl": "_target_ horizon kl_coef target_kl type",
    "algorithm.rollout_correction": """
        bypass_mode loss_type rollout_is rollout_is_batch_normalize rollout_is_threshold rollout_rs
        rollout_rs_threshold rollout_rs_threshold_lower rollout_token_veto_threshold use_policy_gradient""",
    "data": """
        accuracy_lower_bound accuracy_upper_bound apply_chat_template_kwargs audio_key balance_dp_token
        chat_template continuous_token custom_cls data_source_key datagen dataloader_num_workers filter_accuracy
        filter_overlong_prompts filter_overlong_prompts_workers filter_truncate function_tool_path gen_batch_size
        image_key image_patch_size max_prompt_length max_response_length mm_processor_kwargs num_workers
        oversample_factor prompt_key return_full_prompt return_multi_modal_inputs return_raw_chat
        return_raw_input_ids reward_fn_key reward_model_key sampler seed shuffle tokenizer tool_config_path
        train_batch_size train_files train_max_samples truncation trust_remote_code use_shm val_batch_size val_files
        val_max_samples validation_shuffle video_key""",
    "trainer": """
        balance_batch controller_nsight_options critic_warmup default_hdfs_dir default_local_dir
        del_local_ckpt_after_load device esi_redundant_time experiment_name log_val_generations logger
        max_actor_ckpt_to_keep max_critic_ckpt_to_keep n_env_gpus_per_node n_gpus_per_node n_rollout_gpus_per_node
        nnodes npu_profile num_data_controllers num_data_storage_units num_global_batch profile_interval
        profile_steps project_name ray_wait_register_center_timeout ref_update_freq remove_previous_ckpt_in_save
        resume_from_path resume_mode rollout_data_dir rollout_trace save_freq scheduler test_freq total_epochs
        total_training_steps use_legacy_worker_impl use_v0 use_v1 v1 val_before_train
        val_generations_to_log_to_wandb val_only validation_data_dir worker_nsight_options""",
    "rollout": "n n_gpus_per_node nnodes test_freq total_epochs total_rollout_steps",
    "async_training": """
        checkpoint_engine compute_prox_log_prob concurrent_samples_per_replica dynamic_schedule_deactivate_ratio
        dynamic_schedule_enable_rebalance dynamic_schedule_policy partial_rollout require_batches
        staleness_threshold trigger_parameter_sync_step use_dynamic_resource_scheduling use_rollout_log_probs
        use_trainer_do_validate""",
    **dict.fromkeys((
        "critic", "reward", "reward_model", "custom_reward_function", "reward_manager", "sandbox_fusion",
        "distillation", "transfer_queue", "global_profiler", "skip", "ray_kwargs", "ray_init", "hydra", "defaults",
        "model_engine", "global_batch_info", "module", "source", "actor", "ref", "engine", "optim", "extras",
    ), "*"),
}  # fmt: skip
WORDS = {section: set(words.split()) for section, words in _WORDS.items()}

PROMPTS, GROUP = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINI, EPOCHS, MODE = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs", f"{ACTOR}policy_loss.loss_mode"
KL_TYPE, AVERAGE, CORRECTION = f"{ACTOR}kl_loss_type", f"{ACTOR}loss_agg_mode", f"{ALGORITHM}rollout_correction."
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
SCHEDULE, WARMUP = f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_warmup_steps"
STALENESS, SYNC, BATCHES = (
    f"async_training.{name}" for name in ("staleness_threshold", "trigger_parameter_sync_step", "require_batches")
)
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
KL_LOSS, KL_REWARD, KL_COEF = f"{ACTOR}use_kl_loss", f"{ALGORITHM}use_kl_in_reward", f"{ALGORITHM}kl_ctrl.kl_coef"

# Keys of forks for the answers to a prompt, which rollout.n multiplies -> whose they are.
FORKS_GROUP = {
    "actor_rollout_ref.rollout.n_agent": "Search-R1",
    "env.rollout.n": "verl-agent",
    "es_manager.train.group_size": "RAGEN",
    "data.n_samples": "PRIME",
    "agent_grpo.n": "DeepResearcher",
}

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
SINCE_TODAY = (AVERAGE, KL_REWARD, BY_STD, *(f"{ACTOR}clip_ratio_{part}" for part in ("low", "high", "c")))
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
    f"{ACTOR}optim.eps": ((1e-8,), "adam_epsilon is 1e-8 here"),
    f"{ACTOR}tis_imp_ratio_cap": ((-1,), "the weight of verl 0.5 for the sampler; rollout_correction is read here"),
    f"{ALGORITHM}rollout_is": ((False,), "the weight of verl 0.6 for the sampler; rollout_correction is read here"),
    "actor_rollout_ref.model.lora.rank": ((0,), "all weights are trained here"),
    "actor_rollout_ref.rollout.use_fire_sampling": ((False,), "every token has the same temperature here"),
    "data.filter_accuracy": ((False,), "prompts are not filtered by accuracy here"),
    "distillation.enabled": ((False,), "there is no teacher here"),
    "trainer.ref_update_freq": ((-1, 0), "the reference stays as it is here"),
}
