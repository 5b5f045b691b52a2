"""What frameworks call things: the metrics that they log, and their options by our names.

Tables for all frameworks that import nothing, because vocabulary, report, doctor and sweep read them and must not wait
for torch. `verl/actor/ppo_kl` in a journal is verl's `actor/ppo_kl`; the framework's own file computes it. In what a
metric says, r is the ratio, lr its logarithm, A the advantage; 'gated' counts tokens only where clipping changed its
loss, 'ratio-only' wherever the ratio is outside the range.
"""

from __future__ import annotations

import re

# ROLL's workers report one thing under several names, in three ways to average.
_ALL = "mean over all positions, padding too"
ROLL_BASE = {  # the base worker's names
    "actor/ppo_ratio_clipfrac": f"Ratio-only, {_ALL}.",
    "actor/ppo_ratio_low_clipfrac": "The part below the range.",
    "actor/ppo_ratio_high_clipfrac": "The part above the range.",
    **{
        f"actor/{name}": f"`actor/{name}@sum` of the other workers."
        for name in ("clipfrac", "approxkl", "policykl", "kl_loss", "pg_loss", "total_loss")
    },
    "actor/ratio_mean": "Mean over sequences of their mean ratio, an empty one counting as 0.",
    "actor/ratio_max": "Largest ratio.",
    "actor/ratio_min": "Least ratio.",
}
ROLL_SAMPLES = {
    "actor/valid_samples@sum": "Sequences with a token.",
    "actor/total_samples@sum": "Sequences.",
    "actor/valid_sample_ratio": "The first over the second.",
    "actor/valid_sample_ratio@sum": "Sequences with a token over those of the minibatch.",
    **{f"actor/sample_weights_{name}": "1: sequences have no weights here." for name in ("mean", "min", "max")},
    **{f"actor/sample_weights_{name}@{name}": "The same." for name in ("mean", "min", "max")},
}
ROLL_PG = {  # the pg worker's, by variant
    "actor/tis_lower_clipfrac": f"Ratio below the bounds of the weight, {_ALL}.",
    "actor/tis_upper_clipfrac": f"Ratio above them, {_ALL}.",
    "actor/tis_total_clipfrac": "Both.",
    "actor/tis_lower_bound": "The lower bound.",
    "actor/tis_upper_bound": "The upper bound.",
    "actor/tis_clipped_ratio_mean@sum": "Mean over sequences of their mean weight.",
    "actor/cispo_cispo_lower_clipfrac": f"Ratio below the bounds of the weight, {_ALL}.",
    "actor/cispo_cispo_upper_clipfrac": f"Ratio above them, {_ALL}.",
    "actor/cispo_cispo_total_clipfrac": "Both.",
    "actor/cispo_cispo_clip_lower": "The lower bound.",
    "actor/cispo_cispo_clip_upper": "The upper bound.",
    "actor/cispo_cispo_epsilon_low": "1 less the lower bound.",
    "actor/cispo_cispo_epsilon_high": "The upper bound less 1.",
    "actor/cispo_clipped_ratio_mean": "Mean over sequences of their mean weight, an empty one counting as 0.",
    "actor/cispo_cispo_use_unified_mask": "1 where the unified mask is on, else 0.",
    "actor/cispo_cispo_masked_positive_tokens": f"A > 0 and masked, {_ALL}.",
    "actor/cispo_cispo_masked_negative_tokens": f"A < 0 and masked, {_ALL}.",
    "actor/cispo_cispo_kept_tokens": f"Not masked, {_ALL}.",
    "actor/topr_positive_samples@sum": "Sequences with a score above 0.",
    "actor/topr_negative_samples@sum": "The others.",
    "actor/topr_positive_ratio": "Share of sequences with a score above 0.",
    "actor/topr_negative_ratio": "Share of the others.",
    "actor/topr_positive_weight": "Weight of the sequences with a score above 0.",
    "actor/topr_negative_weight": "Weight of the others.",
    "actor/topr_positive_loss": "Loss of the sequences with a score above 0.",
    "actor/topr_negative_loss": "Loss of the others.",
    "actor/topr_weighted_positive_loss": "The first times its weight.",
    "actor/topr_weighted_negative_loss": "The second times its weight.",
    "actor/topr_negative_lower_clipfrac": "Ratio below 0 where the score is not above 0: never.",
    "actor/topr_negative_upper_clipfrac": f"Ratio above 1 where the score is not above 0, {_ALL}.",
    "actor/topr_negative_total_clipfrac": "Both.",
    "actor/topr_scores_mean": "Mean score.",
    "actor/topr_scores_std": "Its standard deviation.",
    "actor/kimi15_kimi15_tau": "Weight of the penalty.",
    "actor/kimi15_kimi15_log_ratio_mean": f"Log ratio, {_ALL}.",
    "actor/kimi15_kimi15_log_ratio_std": "Its standard deviation.",
    "actor/kimi15_kimi15_log_ratio_abs_mean": f"|log ratio|, {_ALL}.",
    "actor/kimi15_kimi15_policy_grad_magnitude": f"|A log ratio|, {_ALL}.",
    "actor/kimi15_kimi15_kl_reg_magnitude": f"The penalty, {_ALL}.",
    "actor/kimi15_kimi15_reg_ratio": "The second over the first.",
}

FRAMEWORK_METRICS: dict[str, dict[str, str]] = {
    "deepspeed_chat": {},
    "trl": {
        "clip_ratio/low_mean": "Gated, A < 0 and r below the range; token mean, at sequence level mean over sequences.",
        "clip_ratio/high_mean": "Gated, A > 0 and r, after the cap delta, above the range; same means.",
        "clip_ratio/region_mean": "The sum of low_mean and high_mean.",
        "clip_ratio/low_min": "Least share of a sequence's tokens clipped below: 0 as soon as one has A >= 0.",
        "clip_ratio/high_max": "Largest share of a sequence's tokens clipped above.",
        "cispo_clip_ratio": "r above the absolute cap and A > 0; the cap acts on A < 0 too, which is not counted.",
        "vespo/phi_seq_mean": "Mean over sequences of VESPO's weight.",
        "entropy": "Token mean of the entropy.",
        "entropy_coef": "Weight of the entropy bonus.",
        "policy_loss": "Loss without the entropy bonus; only where there is one.",
        "kl": "Token mean of k3, times the ratio with bias correction.",
        "sampling/sampling_logp_difference/mean": "Mean |old - sampler log-prob|.",
        "sampling/sampling_logp_difference/max": "Largest |old - sampler log-prob|.",
        "sampling/importance_sampling_ratio/min": "Least sampler weight, after truncation or masking.",
        "sampling/importance_sampling_ratio/mean": "Mean sampler weight, after truncation or masking.",
        "sampling/importance_sampling_ratio/max": "Largest sampler weight, after truncation or masking.",
    },
    "verl": {
        "actor/pg_clipfrac": "Gated, before the dual clip, token mean; ratio-only in cispo, dropped tokens in dppo and"
        " clip_cov, outside on the A > 0 side in geo_mean; 0 in sapo.",
        "actor/pg_clipfrac_lower": "A < 0 and beyond clip_ratio_c, over all tokens; another meaning in geo_mean, dppo.",
        "actor/ppo_kl": "Token mean of -lr; mean |lr| in kl_cov.",
        "actor/pg_loss": "Policy loss.",
        "actor/entropy_loss": "Aggregated entropy.",
        "kl_loss": "Aggregated KL to the reference.",
        "kl_coef": "Its weight.",
        "rollout_corr/training_ppl": "Mean over sequences of the trainer's perplexity.",
        "rollout_corr/training_log_ppl": "Mean over sequences of its logarithm.",
        "rollout_corr/rollout_ppl": "Mean over sequences of the sampler's perplexity.",
        "rollout_corr/rollout_log_ppl": "Mean over sequences of its logarithm.",
        "rollout_corr/kl": "Token mean of sampler - old log-prob.",
        "rollout_corr/k3_kl": "Token mean of k3 of the same.",
        "rollout_corr/log_ppl_diff": "Mean over sequences of the trainer's log perplexity less the sampler's.",
        "rollout_corr/log_ppl_abs_diff": "Mean over sequences of its absolute value.",
        "rollout_corr/log_ppl_diff_max": "The largest.",
        "rollout_corr/log_ppl_diff_min": "The least.",
        "rollout_corr/ppl_ratio": "Mean over sequences of the trainer's perplexity over the sampler's.",
        "rollout_corr/chi2_token": "Token mean of the squared sampler weight, less 1.",
        "rollout_corr/chi2_seq": "Mean over sequences of their squared sampler weight (a product), less 1.",
        "rollout_corr/rollout_is_mean": "Token mean of the sampler weight, after its bounds.",
        "rollout_corr/rollout_is_std": "Its standard deviation.",
        "rollout_corr/rollout_is_max": "The largest; per sequence, of the weight before its bounds.",
        "rollout_corr/rollout_is_min": "The least; per sequence, of the weight before its bounds.",
        "rollout_corr/rollout_is_eff_sample_size": "Effective sample size of the weights, share of tokens.",
        "rollout_corr/rollout_is_ratio_fraction_high": "Tokens, or sequences, with a weight above its bound.",
        "rollout_corr/rollout_is_ratio_fraction_low": "Below its bound; without one, below 1 / the upper bound.",
        "rollout_corr/rollout_is_oob_ratio": "Tokens that IcePop's bounds dropped.",
        "rollout_corr/rollout_is_seq_mean": "Mean over sequences of their mean weight.",
        "rollout_corr/rollout_is_seq_std": "Its standard deviation.",
        "rollout_corr/rollout_is_seq_max": "The largest.",
        "rollout_corr/rollout_is_seq_min": "The least.",
        "rollout_corr/rollout_is_seq_max_deviation": "Largest |mean weight - 1| of a sequence.",
        "rollout_corr/rollout_is_seq_fraction_high": "Sequences whose mean weight, unbounded, was above the bound.",
        "rollout_corr/rollout_is_seq_fraction_low": "Below it.",
    },
    "roll": {
        "actor/ppo_ratio_clipfrac@sum": "Ratio-only; unmasked sum over valid tokens, so more than 1 is possible.",
        "actor/ppo_ratio_low_clipfrac@sum": "The part below the range.",
        "actor/ppo_ratio_high_clipfrac@sum": "The part above the range.",
        "actor/clipfrac@sum": "Gated, averaged as the loss is: a sum over tokens in seq-mean-token-sum.",
        "actor/approxkl@sum": "lr^2 / 2, averaged as the loss is.",
        "actor/policykl@sum": "+lr, averaged as the loss is: the sign opposite to verl's ppo_kl.",
        "actor/kl_loss@sum": "k3 to the reference, at most 10, averaged as the loss is.",
        "actor/pg_loss@sum": "Policy loss.",
        "actor/total_loss@sum": "Whole loss.",
        "actor/weighted_pg_loss@sum": "The same with sample weights, which are all 1 here.",
        "actor/ratio_mean@sum": "Mean over sequences of their mean ratio.",
        "actor/ratio_max@max": "Largest ratio.",
        "actor/ratio_min@min": "Least ratio.",
        **ROLL_BASE,
        **ROLL_SAMPLES,
        **ROLL_PG,
    },
    "openrlhf": {
        "ppo_clip_ratio": "Gated, before the dual clip, token mean.",
        "ppo_kl": "Token mean of -lr.",
        "vllm_kl": "Token mean of sampler - old log-prob.",
    },
    "slime": {
        "pg_clipfrac": "Gated (cispo: ratio-only), reduced as the loss is: by default a sum of samples' means, divided"
        " by their number in the engine.",
        "ppo_kl": "old - new log-prob, reduced as the loss is.",
        "pg_loss": "Policy loss.",
        "loss": "Whole loss.",
        "entropy_loss": "Entropy.",
        "kl_loss": "KL to the reference.",
        "train_rollout_logprob_abs_diff": "|old - sampler log-prob|, reduced as the loss is.",
        "opsm_clipfrac": "Share of each sample that the off-policy mask took out, averaged over samples.",
        "ois": "The ratio, reduced as the loss is.",
        "tis": "Sampler weight before its bounds, reduced as the loss is.",
        "tis_clipfrac": "Where its bounds changed it, reduced as the loss is.",
        "tis_abs": "|sampler weight - 1|, reduced as the loss is.",
    },
    "areal": {
        "clip_ratio": "Gated, token mean.",
        "dual_clip_ratio": "Tokens whose loss the dual clip cut, token mean.",
        "approx_kl": "Token mean of +lr.",
        "importance_weight": "Token mean of r.",
        "actor_loss": "Token mean of the loss.",
        "rs_filtered_fraction": "Tokens that rejection dropped, or whose sampler weight its bounds changed.",
    },
    "nemo_rl": {
        "probs_ratio": "Token mean of r.",
        "probs_ratio_clamped": "Token mean of r after the clip.",
        "probs_ratio_min": "Least r.",
        "probs_ratio_max": "Largest r.",
        "probs_ratio_clamped_min": "Least r after the clip.",
        "probs_ratio_clamped_max": "Largest r after the clip.",
        "kl_penalty": "KL to the reference, averaged as the loss is, without its weight.",
        "policy_kl_error": "KL estimate of the sampler from the old policy, token mean.",
        "gen_kl_error": "The same the other way round.",
        "js_divergence_error": "Jensen-Shannon divergence of the two, token mean.",
        "token_mult_prob_error": "Token mean of exp |sampler - old log-prob|.",
        "sampling_importance_ratio": "Token mean of the sampler weight; per sequence its sum.",
        "is_oob_ratio": "Tokens or sequences whose sampler weight was out of bounds.",
        "approx_entropy": "Entropy estimated from sampled tokens, token mean.",
        "num_valid_samples": "Sequences with a token.",
        "positive_nll_loss": "VAPO's extra loss; 0 here.",
        "loss": "Whole loss.",
    },
    "open_instruct": {
        "policy/clipfrac_avg": "Gated (cispo: r above the cap, ratio-only), token mean.",
        "loss/policy_avg": "Policy loss, token mean.",
        "loss/kl_avg": "KL to the reference times its weight.",
        "loss/total_avg": "Whole loss.",
        "objective/kl0_avg": "k1 to the reference, token mean.",
        "objective/kl1_avg": "k2 to the reference, token mean.",
        "objective/kl2_avg": "k3 to the reference, token mean.",
        "objective/kl3_avg": "k1 to the reference times r, token mean.",
        "val/ratio": "Token mean of r.",
        "val/rho_weight": "Token mean of the sampler weight rho, after its bounds.",
        "val/rho_clipfrac": "Tokens whose rho its bounds changed.",
        "val/rho_drop_frac": "Tokens that rho's mask dropped.",
        "val/rho_drop_low_frac": "Those with rho too low.",
        "val/rho_drop_high_frac": "Those with rho too high.",
    },
    "prime_rl": {
        "is_masked": "Tokens whose probability moved too far from the sampler's, whatever A; mean over sequences.",
        "is_masked_low": "Moved down with A <= 0.",
        "is_masked_high": "Moved up with A > 0.",
        "masked_mismatch_kl": "k3 to the sampler over dropped tokens.",
        "unmasked_mismatch_kl": "k3 to the sampler over kept tokens.",
        "masked_advantage_positive": "Dropped tokens with A > 0, share of the dropped.",
        "masked_advantage_negative": "Dropped tokens with A < 0, share of the dropped.",
    },
    "skyrl": {
        "clip_ratio": "Gated (cispo: ratio-only; 0 in sapo and kl_cov), token mean; r in float32.",
        "policy_kl": "KL to the reference, mean over sequences of their means.",
        "importance_ratio": "Token mean of r, where nothing is clipped.",
        "cispo/ratio_mean": "Token mean of r.",
        "cispo/ratio_clamped_mean": "Token mean of r after the cap.",
        "cispo/ratio_max": "Largest r.",
        "cispo/ratio_min": "Least r.",
        "is_ratio_mean": "Token mean of the sampler weight before its bounds.",
        "is_ratio_std": "Its standard deviation over all positions, 0 at padding.",
        "is_ratio_max": "The largest, 0 at padding counted.",
        "is_ratio_min": "The least, 0 at padding counted.",
        "tis_token_clip_high_ratio": "Tokens whose weight was truncated.",
        "tis_seq_clip_high_ratio": "Sequences whose weight was truncated.",
        "geo_sequence_mask_masked_ratio": "Sequences whose geometric mean weight was out of bounds.",
        "geo_sequence_mask_over_high_ratio": "Above them.",
        "geo_sequence_mask_under_low_ratio": "Below them.",
        "product_sequence_mask_masked_ratio": "Sequences whose weight, a product, was out of bounds.",
        "product_sequence_mask_over_high_ratio": "Above them.",
        "product_sequence_mask_under_low_ratio": "Below them.",
        "token_mask_ratio": "Tokens whose weight was out of bounds.",
    },
    "torchtune": {
        "clipfrac": "Gated, token mean.",
        "ratios": "Mean of r over all positions, padding too.",
        "policy_loss": "Policy loss.",
        "kl_loss": "KL to the reference.",
    },
}

# Framework -> a metric in its log -> ours (or LOG_ONLY's), for the doctor: as TRL (and ms-swift), verl and ROLL log
# them, now and in older versions. Where a row has several names of one metric the first one here counts.
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
        "sampling/sampling_logp_difference/max": "gap/sampler_trainer",
        "sampling/sampling_logp_difference/mean": "gap/mean",
        "rollout_correction/kl": "gap/kl",
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
    },
}

# What their logs hold of a batch and our journal does not.
LOG_ONLY = {
    "reward/max": "Largest reward of the batch.",
    "reward/min": "Least reward of the batch.",
    "advantage/max": "Largest advantage of a token.",
    "advantage/min": "Least advantage of a token.",
    "length/max": "Longest completion.",
    "length/min": "Shortest completion.",
    "gap/mean": "Mean |log-prob of the sampler - log-prob of the trainer|, in nat.",
    "gap/kl": "KL of the trainer from the sampler, in nat per token.",
    "gap/probability": "Mean |probability under the sampler - that under the trainer|.",
}
# A column that says what was optimised on a fresh batch: TRL logs it once a batch.
FRESH_BATCH = {"trl": "num_tokens"}

# Theirs -> ours, where the value is the same number: what the exchange carries.
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
# Where to look here -> what a framework calls it, by the last part of its names; the value may have to be converted.
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
    "slime, AReaL": {
        "epsilon": "eps_clip",
        "epsilon_high": "eps_clip_high",
        "dual_clip": "eps_clip_c",
    },
    "SkyRL": {
        "epsilon": "eps_clip_low",
        "epsilon_high": "eps_clip_high",
    },
    "NeMo-RL": {
        "epsilon": "ratio_clip_min",
        "epsilon_high": "ratio_clip_max",
        "dual_clip": "ratio_clip_c",
        "beta": "reference_policy_kl_penalty",
    },
    "open-instruct": {
        "epsilon": "clip_lower",
        "epsilon_high": "clip_higher",
    },
    "DeepSpeed-Chat": {
        "beta": "kl_ctl",
    },
    "torchtune": {
        "beta": "kl_coeff",
    },
    "papers": {
        "num_iterations": "mu",
        "num_generations": "group_size",
        "epsilon": "eps clip_range",
        "max_completion_length": "max_new_tokens",
        "prompts_per_step": "batch_size",
    },
}


def our_names(name: str) -> str:
    """`learning_rate (verl)` for `lr`, an option of another framework; empty where none has it.

    `name` may be dotted as there: its last part counts.
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


def in_their_names(framework: str, text: str) -> str:
    """Advice with our options under the names that a framework has for them; one with its value (`beta=0`) stays."""
    looked = next((names for name, names in LOOK_HERE.items() if name.lower() == framework), {})
    theirs = {ours: called.split()[0] for ours, called in looked.items() if "," not in ours}
    theirs |= {ours: called for called, ours in {"verl": VERL_NAMES}.get(framework, {}).items()}
    return re.sub(r"\b\w+\b(?!=)", lambda word: theirs.get(word[0], word[0]), text)
