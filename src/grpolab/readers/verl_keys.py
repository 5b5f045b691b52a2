"""verl's keys that matter here: their names, their defaults by version, and the words of all others, of `verl.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpolab.bounded import read_mapping
from grpolab.frameworks.verl_options import LOSS

ACTOR, ALGORITHM, CORRECTION = "actor_rollout_ref.actor.", "algorithm.", "algorithm.rollout_correction."
ROLLOUT = "actor_rollout_ref.rollout."
PROMPTS, GROUP = "data.train_batch_size", f"{ROLLOUT}n"
MINI, EPOCHS, MODE = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs", f"{ACTOR}policy_loss.loss_mode"
KL_TYPE, AVERAGE = f"{ACTOR}kl_loss_type", f"{ACTOR}loss_agg_mode"
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
SCHEDULE, WARMUP = f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.lr_warmup_steps"
STALENESS, SYNC, BATCHES = (
    f"async_training.{name}" for name in ("staleness_threshold", "trigger_parameter_sync_step", "require_batches")
)
FILTER, GENERATED, MANAGER = f"{ALGORITHM}filter_groups.", "data.gen_batch_size", "reward.reward_manager.name"
OVERLONG, LONGEST = (f"reward.reward_kwargs.{name}" for name in ("overlong_buffer_cfg.", "max_resp_len"))
RULES, BOUNDS = f"{CORRECTION}rollout_rs", f"{CORRECTION}rollout_rs_threshold"
LOG_PROBS = f"{ROLLOUT}calculate_log_probs"
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
ADAPTERS = [f"actor_rollout_ref.model.{name}" for name in ("lora_rank", "lora_alpha", "target_modules")]
RANK, ALPHA, TARGETS = ADAPTERS
KL_LOSS, KL_REWARD, KL_COEF = f"{ACTOR}use_kl_loss", f"{ALGORITHM}use_kl_in_reward", f"{ALGORITHM}kl_ctrl.kl_coef"
ONE_STEP = "one_step_off_policy"  # in the name of a program that samples a batch while it learns from the one before

TABLE = read_mapping(str(Path(__file__).with_name("verl.yaml")))
_OF_THE_LOSS = {
    **{ACTOR + name: value for name, value in LOSS.items() if not isinstance(value, dict)},
    **{f"{ACTOR}policy_loss.{name}": value for name, value in LOSS["policy_loss"].items()},
    **{CORRECTION + name: value for name, value in LOSS["rollout_correction"].items()},
}
CARRIED: dict[str, Any] = {
    name: _OF_THE_LOSS.get(name) if value is None else value for name, value in TABLE["carried"].items()
}
WORDS = {section: set(words.split()) for section, words in TABLE["words"].items()}
WORDS |= {section: {"*"} for section in TABLE["known_sections"].split()}
# adv_estimator -> baseline, scale (None: the group's std if norm_adv_by_std_in_grpo), whitening.
ESTIMATORS: dict[str, tuple[str, str | None, str | None]] = TABLE["estimators"]
NOT_CARRIED: dict[str, str] = TABLE["not_carried"]
NOT_READ: dict[str, tuple[list[Any], str]] = TABLE["not_read"]
FORKS_GROUP: dict[str, str] = TABLE["forks_group"]
RENAMED: dict[str, str] = TABLE["renamed"]
# Nobody writes all of these keys by hand, so a file with them is a config that Hydra has written.
WRITTEN_OUT = {
    f"{ACTOR}{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "ppo_epochs", "loss_agg_mode")
}

# Versions. No default that is carried has changed since 0.4 (May 2025); before, three were different.
NEWEST, FIRST_OF_TODAY = 9, 4  # 0.9 and 0.4
WHOLE_MEANS = 7  # since 0.7 token means are over the whole minibatch instead of each micro-batch
FILTER_IN_PPO = 9  # since 0.9 main_ppo filters groups, too, without a limit of batches
GSPO_BY_KEY = 9  # since 0.9 loss_agg_mode averages the loss of gspo; before, it was by sequences
EARLY = {f"{ACTOR}entropy_coeff": 0.001}
ONLY_EARLY: list[str] = TABLE["only_early"].split()  # keys that 0.4 has no longer
SINCE_TODAY = (AVERAGE, KL_REWARD, BY_STD, *(f"{ACTOR}clip_ratio_{part}" for part in ("low", "high", "c")))
