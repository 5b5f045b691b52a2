"""Names of other frameworks and ours: metrics in their logs, and options of their configs."""

from __future__ import annotations

import re


def _each_actor(name: str, ours: str) -> dict[str, str]:
    """Return a name of AReaL's actor under both of the actor's names."""
    return {f"ppo_actor/{name}": ours, f"grpo_actor/{name}": ours}


# Framework -> a metric in its log -> ours (or LOG_ONLY's), with names of older versions; TRL's are ms-swift's too.
# Where a row has several names of one metric, the first one here counts.
LOG_NAMES: dict[str, dict[str, str]] = {
    "trl": {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "clip_ratio/region_mean": "clip/active",
        "clip_ratio/low_mean": "clip/active_low",
        "clip_ratio/high_mean": "clip/active_high",
        "clip_ratio": "clip/active",  # before low and high were told apart
        "kl": "kl_ref/k3",
        "entropy": "entropy/behaviour",
        "entropy/mean": "entropy/behaviour",
        "reward": "reward/mean",
        "reward_std": "reward/std",
        "frac_reward_zero_std": "zero_variance/share",
        "completions/mean_length": "length/mean",
        "completion_length": "length/mean",
        "completions/min_length": "length/min",
        "completions/max_length": "length/max",
        "completions/clipped_ratio": "truncation/share",  # not the clip of the ratio
        "response_clip_ratio": "truncation/share",
        "completions/min_terminated_length": "length/terminated_min",
        "sampling/importance_sampling_ratio/min": "gap/weight_min",
        "sampling/sampling_logp_difference/max": "gap/sampler_trainer",
        "sampling/sampling_logp_difference/mean": "gap/mean",
        "rollout_correction/kl": "gap/kl",
        "step_time": "seconds/step",
    },
    "verl": {
        "actor/pg_loss": "loss",
        "actor/grad_norm": "grad_norm",
        "actor/lr": "learning_rate",
        "actor/pg_clipfrac": "clip/active",
        "actor/ppo_kl": "kl_old/k1",
        "actor/kl_loss": "kl_ref/k3",
        "actor/reward_kl_penalty": "kl_ref/k3",
        "critic/kl": "kl_ref/k3",
        "actor/entropy": "entropy/behaviour",
        "actor/entropy_loss": "entropy/behaviour",
        "critic/score/mean": "reward/mean",
        "critic/score/max": "reward/max",
        "critic/score/min": "reward/min",
        "critic/rewards/mean": "reward/mean",
        "critic/advantages/max": "advantage/max",
        "critic/advantages/min": "advantage/min",
        "response_length/mean": "length/mean",
        "response_length/max": "length/max",
        "response_length/min": "length/min",
        "response_length/clip_ratio": "truncation/share",  # not the clip of the ratio
        "rollout_corr/kl": "gap/kl",
        "mismatch/mismatch_kl": "gap/kl",
        "training/rollout_probs_diff_mean": "gap/probability",
        "timing_s/step": "seconds/step",
        "perf/time_per_step": "seconds/step",
    },
    "roll": {
        "actor/pg_loss@sum": "loss",
        "actor_train/grad_norm": "grad_norm",
        "actor/lr": "learning_rate",
        "actor/clipfrac@sum": "clip/active",
        "actor/clipfrac": "clip/active",
        "actor/ratio_mean@sum": "ratio/token_mean",
        "actor/ratio_mean": "ratio/token_mean",
        "actor/ratio_max@max": "ratio/token_max",
        "actor/ratio_max": "ratio/token_max",
        "actor/ratio_min@min": "ratio/token_min",
        "actor/ratio_min": "ratio/token_min",
        "actor/kl_loss@sum": "kl_ref/k3",
        "critic/entropy/mean": "entropy/behaviour",
        "critic/score/mean": "reward/mean",
        "critic/score/max": "reward/max",
        "critic/score/min": "reward/min",
        "tokens/response_length/mean": "length/mean",
        "tokens/response_length/max": "length/max",
        "tokens/response_length/min": "length/min",
        "time/step_total": "seconds/step",
    },
    "openrlhf": {  # openrlhf/trainer/ray/ppo_actor.py, ppo_trainer.py, ppo_utils/experience_maker.py
        "policy_loss": "loss",
        "actor_grad_norm": "grad_norm",
        "actor_lr": "learning_rate",
        "ppo_clip_ratio": "clip/active",
        "ppo_kl": "kl_old/k1",
        "kl": "kl_ref/k3",
        "entropy_loss": "entropy/behaviour",
        "rollout/reward_mean": "reward/mean",
        "reward": "reward/mean",
        "rollout/reward_std": "reward/std",
        "rollout/response_length_mean": "length/mean",
        "response_length": "length/mean",
        "rollout/truncated_rate": "truncation/share",
        "vllm_kl": "gap/kl",
    },
    "slime": {  # slime/backends/megatron_utils/loss.py, model.py; observability/rollout_metrics.py
        "train/loss": "loss",
        "train/pg_loss": "loss",
        "train/grad_norm": "grad_norm",
        "train/lr-pg_0": "learning_rate",
        "train/pg_clipfrac": "clip/active",
        "train/ppo_kl": "kl_old/k1",
        "train/kl_loss": "kl_ref/k3",
        "train/entropy_loss": "entropy/behaviour",
        "rollout/raw_reward": "reward/mean",
        "rollout/response_len/mean": "length/mean",
        "rollout/response_lengths": "length/mean",
        "rollout/response_len/max": "length/max",
        "rollout/response_len/min": "length/min",
        "rollout/truncated_ratio": "truncation/share",
        "rollout/truncated": "truncation/share",
        "train/train_rollout_logprob_abs_diff": "gap/mean",
    },
    "areal": {  # areal/trainer/ppo/actor.py, engine/fsdp_engine.py; examples/tir/README.md has grpo_actor
        **_each_actor("update/actor_loss/avg", "loss"),
        **_each_actor("update/grad_norm", "grad_norm"),
        **_each_actor("update/lr", "learning_rate"),
        **_each_actor("update/clip_ratio/avg", "clip/active"),
        **_each_actor("update/entropy/avg", "entropy/behaviour"),
        **_each_actor("update/importance_weight/avg", "ratio/token_mean"),
        **_each_actor("update/importance_weight/max", "ratio/token_max"),
        **_each_actor("update/importance_weight/min", "ratio/token_min"),
        **_each_actor("task_reward/avg", "reward/mean"),
        **_each_actor("task_reward/max", "reward/max"),
        **_each_actor("task_reward/min", "reward/min"),
        "rollout/reward": "reward/mean",
        **_each_actor("advantages/max", "advantage/max"),
        **_each_actor("advantages/min", "advantage/min"),
        **_each_actor("no_eos_ratios/avg", "truncation/share"),
    },
    "nemo_rl": {  # nemo_rl/algorithms/grpo.py, loss/loss_functions.py, experience/rollouts.py
        "loss": "loss",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "probs_ratio": "ratio/token_mean",
        "probs_ratio_max": "ratio/token_max",
        "probs_ratio_min": "ratio/token_min",
        "kl_penalty": "kl_ref/k3",
        "approx_entropy": "entropy/behaviour",
        "reward": "reward/mean",
        "advantages/max": "advantage/max",
        "advantages/min": "advantage/min",
        "mean_gen_tokens_per_sample": "length/mean",
        "max_gen_tokens_per_sample": "length/max",
        "truncation_rate": "truncation/share",
        "gen_kl_error": "gap/kl",
    },
    "skyrl": {  # skyrl/train/trainer.py, generators/utils.py; backends/skyrl_train/workers/worker.py
        "policy/policy_loss": "loss",
        "policy/grad_norm": "grad_norm",
        "policy/policy_lr": "learning_rate",
        "policy/loss_metrics/clip_ratio": "clip/active",
        "policy/policy_kl": "kl_ref/k3",
        "policy/policy_entropy": "entropy/behaviour",
        "reward/avg_raw_reward": "reward/mean",
        "loss/avg_final_rewards": "reward/mean",
        "generate/avg_num_tokens": "length/mean",
        "generate/max_num_tokens": "length/max",
        "generate/min_num_tokens": "length/min",
        "policy/rollout_train_logprobs_abs_diff_mean": "gap/mean",
        "policy/rollout_train_logprobs_abs_diff_max": "gap/sampler_trainer",
    },
    "open_instruct": {  # open_instruct/grpo_fast.py, grpo_utils.py, data_loader.py: `val/` is of the batch
        "loss/total_avg": "loss",
        "loss/policy_avg": "loss",
        "optim/grad_norm": "grad_norm",
        "lr": "learning_rate",
        "policy/clipfrac_avg": "clip/active",
        "objective/kl2_avg": "kl_ref/k3",
        "policy/entropy_avg": "entropy/behaviour",
        "val/ratio": "ratio/token_mean",
        "scores": "reward/mean",
        "val/advantages_max": "advantage/max",
        "val/advantages_min": "advantage/min",
        "val/sequence_lengths": "length/mean",
        "val/sequence_lengths_max": "length/max",
        "val/sequence_lengths_min": "length/min",
    },
    "prime_rl": {  # src/prime_rl/trainer/rl/train.py, loss.py; docs/training.md, orchestrator/metrics.py
        "loss/mean": "loss",
        "optim/grad_norm": "grad_norm",
        "optim/lr": "learning_rate",
        "is_masked/mean": "clip/active",
        "entropy/all/mean": "entropy/behaviour",
        "reward/all/mean": "reward/mean",
        "seq_len/all/mean": "length/mean",
        "is_truncated/all/mean": "truncation/share",
        "mismatch_kl/all/mean": "gap/kl",
    },
}

# What their logs hold of evaluations, as a pattern -> ours. {} stands for anything: a data set, a reward function.
# A mean of rewards is called accuracy by NeMo-RL and pass1 by OpenRLHF; only verl's `acc` is one.
LOG_EVALUATIONS = {
    "val-core/{}/acc/mean@{}": "eval/accuracy_expected",  # verl/trainer/ppo/ray_trainer.py
    "val-core/{}/acc/best@{}/mean": "eval/pass_at_k",
    "val-core/{}/reward/mean@{}": "eval/reward",
    "val-aux/{}/reward/mean@{}": "eval/reward",
    "val/test_score/{}": "eval/reward",  # verl before 0.3
    "eval_reward": "eval/reward",  # TRL, ms-swift; on W&B `eval/reward`, which is our name too
    "eval_completions/mean_length": "eval/length_mean",
    "eval/completions/mean_length": "eval/length_mean",
    "eval_{}_pass1": "eval/reward",  # openrlhf/trainer/ppo_trainer.py
    "eval-rollout/reward": "eval/reward",  # AReaL, docs/en/best_practices/algo_perf.md
    "validation/accuracy": "eval/reward",  # nemo_rl/algorithms/grpo.py
    "eval/all/avg_score": "eval/reward",  # skyrl/train/evaluate.py
    "eval/scores": "eval/reward",  # open_instruct/grpo_utils.py
    "eval/{}/avg@{}": "eval/reward",  # prime-rl
}

# Metrics of a batch that their logs hold and our journal does not.
LOG_ONLY = {
    "reward/max": "Largest reward of the batch.",
    "reward/min": "Least reward of the batch.",
    "advantage/max": "Largest advantage of a token.",
    "advantage/min": "Least advantage of a token.",
    "length/max": "Longest completion.",
    "length/min": "Shortest completion.",
    "length/terminated_min": "Shortest completion that ended by itself.",
    "gap/weight_min": "Least importance weight of the sampler's correction: a token's, or a whole sequence's.",
    "gap/mean": "Mean |log-prob of the sampler - log-prob of the trainer|, in nat.",
    "gap/kl": "KL of the trainer from the sampler, in nat per token.",
    "gap/probability": "Mean |probability under the sampler - that under the trainer|.",
    "seconds/step": "Wall time of a step, in s; TRL's is that of an optimiser step, sampling included.",
}
# A column that only rows of a fresh batch have.
FRESH_BATCH = {"trl": "num_tokens"}

# Their option -> ours, where the value is the same number.
_TRL_SAMPLING = ("num_generations", "max_completion_length", "temperature")
_TRL_OPTIMISER = ("learning_rate", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "seed")
TRL_NAMES = {name: name for name in (*_TRL_SAMPLING, *_TRL_OPTIMISER)}
VERL_NAMES = {
    "actor_rollout_ref.rollout.n": "num_generations",
    "data.train_batch_size": "prompts_per_step",
    "actor_rollout_ref.actor.ppo_epochs": "num_iterations",
    "data.max_response_length": "max_completion_length",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.actor.optim.lr": "learning_rate",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "lr_scheduler_type",
    "actor_rollout_ref.actor.optim.clip_grad": "max_grad_norm",
}
# Our option -> what a framework calls it, by the last part of its names. The value may have to be converted.
_COUNT = "num_minibatches, how many and not how large"
LOOK_HERE: dict[str, dict[str, str]] = {
    "TRL": {
        "micro_batch_size": "per_device_train_batch_size",
        _COUNT: "steps_per_generation gradient_accumulation_steps",
        "prompts_per_step, of num_generations completions each": "generation_batch_size",
        "max_optimizer_steps": "max_steps",
        "rollout_steps": "num_train_epochs",
        "warmup_steps": "warmup_ratio",
        "dtype": "bf16",
        "model.path, with model=pretrained": "model_name_or_path",
        "reward.function": "reward_funcs",
        "reward.weights": "reward_weights",
        "task.train_file, with task=jsonl": "dataset_name",
        "machine.results": "output_dir",
        "machine.tracking_uri": "report_to",
        "sampler_correction": "vllm_importance_sampling_correction",
        "beta, whose reference is always the warm start": "ref_model_sync_steps",
    },
    "verl": {
        "epsilon": "clip_ratio clip_ratio_low cliprange cliprange_low",
        "epsilon_high": "clip_ratio_high cliprange_high",
        "dual_clip": "clip_ratio_c",
        "beta": "kl_coef kl_loss_coef",
        "beta, 0 for none": "use_kl_loss",
        "kl_placement": "use_kl_in_reward",
        "kl_estimator": "kl_loss_type",
        "entropy_coef": "entropy_coeff",
        "aggregation": "loss_agg_mode",
        "loss_type": "loss_mode",
        "advantage_estimator": "adv_estimator",
        "scale_rewards": "norm_adv_by_std_in_grpo",
        _COUNT: "ppo_mini_batch_size",
        "micro_batch_size": "ppo_micro_batch_size_per_gpu",
        "rollout_steps": "total_training_steps total_epochs",
        "sampler_correction": "rollout_is",
        "task.train_file, with task=jsonl": "train_files",
        "task.evaluation_file, with task=jsonl": "val_files",
        "evaluation.every": "test_freq",
    },
    "ROLL": {
        "epsilon": "pg_clip pg_clip_low",
        "epsilon_high": "pg_clip_high",
        "dual_clip": "dual_clip_loss",
        "beta": "init_kl_coef kl_loss_coef",
        "entropy_coef": "entropy_loss_coef",
        "num_iterations": "ppo_epochs",
        "num_generations": "num_return_sequences_in_group",
        "prompts_per_step": "rollout_batch_size",
        "max_completion_length": "response_length",
        "importance_sampling_level": "importance_sampling",
    },
    "OpenRLHF": {
        "epsilon": "eps_clip clip_eps_low",
        "epsilon_high": "clip_eps_high",
        "beta": "init_kl_coef kl_init_coef",
        "num_generations": "n_samples_per_prompt",
        "prompts_per_step": "rollout_batch_size",
        _COUNT: "train_batch_size",
        "micro_batch_size": "micro_train_batch_size",
        "num_iterations": "max_epochs",
        "max_completion_length": "generate_max_len",
        "learning_rate": "actor_learning_rate",
        "loss_type": "policy_loss_type",
        "aggregation": "token_level_loss",
        "model.path, with model=pretrained": "pretrain",
    },
    "slime, AReaL": {"epsilon": "eps_clip", "epsilon_high": "eps_clip_high", "dual_clip": "eps_clip_c"},
    "SkyRL": {"epsilon": "eps_clip_low", "epsilon_high": "eps_clip_high"},
    "NeMo-RL": {
        "epsilon": "ratio_clip_min",
        "epsilon_high": "ratio_clip_max",
        "dual_clip": "ratio_clip_c",
        "beta": "reference_policy_kl_penalty",
    },
    "open-instruct": {"epsilon": "clip_lower", "epsilon_high": "clip_higher"},
    "DeepSpeed-Chat": {"beta": "kl_ctl"},
    "torchtune": {"beta": "kl_coeff"},
    "papers": {
        "num_iterations": "mu",
        "num_generations": "group_size",
        "epsilon": "eps clip_range",
        "max_completion_length": "max_new_tokens",
        "prompts_per_step": "batch_size",
    },
}


def suggest_our_names(name: str) -> str:
    """Return `learning_rate (verl)` for `lr`, an option of another framework; empty if none has it.

    Of a dotted name the last part counts.
    """
    last = name.rpartition(".")[2]
    same = {"TRL": TRL_NAMES, "verl": VERL_NAMES}
    frameworks_of: dict[str, list[str]] = {}
    for framework, names in LOOK_HERE.items():
        ours_of = {theirs: ours for ours, called in names.items() for theirs in called.split()}
        ours_of |= {theirs.rpartition(".")[2]: ours for theirs, ours in same.get(framework, {}).items()}
        if ours := ours_of.get(last):
            frameworks_of.setdefault(ours, []).append(framework)
    return " or ".join(f"{ours} ({', '.join(frameworks)})" for ours, frameworks in frameworks_of.items())


def translate_advice(framework: str, text: str) -> str:
    """Return advice with our options under a framework's names; one with its value (`beta=0`) stays."""
    looked = next((names for name, names in LOOK_HERE.items() if name.lower() == framework), {})
    theirs = {ours: called.split()[0] for ours, called in looked.items() if "," not in ours}
    theirs |= {ours: called for called, ours in {"verl": VERL_NAMES}.get(framework, {}).items()}
    return re.sub(r"\b\w+\b(?!=)", lambda word: theirs.get(word[0], word[0]), text)
