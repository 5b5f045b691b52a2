"""Configs of OpenRLHF, slime, AReaL, SkyRL and DeepSpeed-Chat in the style of their users, by their tables of keys."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from grpolab.readers.exchange import Converted, convert, read
from grpolab.sweep.compose import Composer


@functools.cache
def composer() -> Composer:
    return Composer()


def read_file(tmp_path: Path, framework: str, name: str, text: str) -> Converted:
    path = tmp_path / name
    path.write_text(text)
    given = read(None, str(path))
    assert given.framework == framework
    return convert(framework, given, composer().compose)


def check(found: Converted, **wanted: Any) -> None:
    assert {key: getattr(found.settings, key) for key in wanted} == wanted


def said(found: Converted, part: str) -> bool:
    return any(part in sentence for sentence in found.left_out)


OPENRLHF = """
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
   --rollout.batch_size 48 --rollout.n_samples_per_prompt 4 --train.batch_size 64 --train.max_epochs 2 \\
   --rollout.max_new_tokens 300 --rollout.temperature 0.9 --train.colocate_all --ds.zero_stage 2 \\
   --actor.adam.lr 3e-6 --actor.adam.betas 0.9 0.98 --actor.lr_scheduler constant_with_warmup \\
   --actor.eps_clip_low_high 0.1 0.3 --algo.kl.init_coef 2e-3 --algo.kl.use_loss --algo.kl.estimator k3 \\
   --algo.advantage.estimator dr_grpo --algo.dynamic_filtering_enable --algo.kl.estimater k2
"""
OPENRLHF_OF_2025 = """
python3 -m openrlhf.cli.train_ppo_ray --rollout_batch_size 32 --n_samples_per_prompt 8 --train_batch_size 128 \\
   --micro_rollout_batch_size 4 --actor_learning_rate 4e-7 --init_kl_coef 0.005 --eps_clip 0.15 \\
   --generate_max_len 700 --advantage_estimator reinforce_baseline --vllm_num_engines 2 --normalize_reward
"""


def test_openrlhf_with_dots_and_before_them(tmp_path: Path) -> None:
    found = read_file(tmp_path, "openrlhf", "run.sh", OPENRLHF)
    check(found, prompts_per_step=48, num_generations=4, num_minibatches=3, num_iterations=2, temperature=0.9)
    check(found, max_completion_length=300, learning_rate=3e-6, adam_beta2=0.98, lr_scheduler_type="constant")
    check(found, epsilon=0.1, epsilon_high=0.3, beta=2e-3, kl_estimator="k3", kl_placement="loss", scale_rewards="none")
    assert found.settings.filter_groups is not None
    assert said(found, "algo.kl.estimater=k2: OpenRLHF has no such key (did you mean algo.kl.estimator")
    older = read_file(tmp_path, "openrlhf", "old.sh", OPENRLHF_OF_2025)
    check(older, prompts_per_step=32, num_minibatches=2, learning_rate=4e-7, beta=0.005, kl_placement="advantage")
    check(older, epsilon=0.15, epsilon_high=0.15, max_completion_length=700, whiten_advantages="population")
    assert not said(older, "no such key")
    assert said(older, "reward.normalize_enable=True")


SLIME = """
ROLLOUT_ARGS=(
   --prompt-data /data/sums.jsonl
   --num-rollout 120
   --rollout-batch-size 24
   --n-samples-per-prompt 8
   --rollout-max-response-len 900
   --num-steps-per-rollout 2
   # --rollout-temperature 0.5
   --rollout-top-p 0.95
)
GRPO_ARGS=(
   --advantage-estimator gspo --eps-clip 3e-4 --eps-clip-high 4e-4
   --use-kl-loss --kl-loss-coef 0.02 --kl-loss-type low_var_kl
   --disable-grpo-std-normalization --eps-clip-hi 5e-4
)
OPTIMIZER_ARGS=(--lr 2e-6 --lr-decay-style cosine --min-lr 2e-7 --weight-decay 0.1 --adam-beta2 0.98 --clip-grad 0.5)
ray job submit -- python3 train.py --colocate --hf-checkpoint /models/small --tensor-model-parallel-size 2 \\
   ${ROLLOUT_ARGS[@]} ${GRPO_ARGS[@]} ${OPTIMIZER_ARGS[@]} --sglang-mem-fraction-static 0.7
"""


def test_slime_with_its_arrays_of_arguments(tmp_path: Path) -> None:
    found = read_file(tmp_path, "slime", "run.sh", SLIME)
    check(found, prompts_per_step=24, num_generations=8, num_minibatches=2, num_iterations=1, rollout_steps=120)
    check(found, max_completion_length=900, temperature=1.0, importance_sampling_level="sequence", epsilon=3e-4)
    check(found, beta=0.02, kl_estimator="k3", kl_output_clamp=10.0, scale_rewards="none", max_grad_norm=0.5)
    check(found, learning_rate=2e-6, lr_scheduler_type="cosine", min_lr_ratio=pytest.approx(0.1), adam_beta2=0.98)
    check(found, top_p=0.95, keep_sampling_mask=True)
    assert said(found, "eps_clip_hi=0.0005: slime has no such key (did you mean eps_clip")


SLIME_OF_WANDB = """
_wandb: {value: {python_version: "3.11"}}
hf_checkpoint: {value: /models/small}
rollout_batch_size: {value: 16}
n_samples_per_prompt: {value: 4}
global_batch_size: {value: 32}
num_rollout: {value: 50}
lr_decay_style: {value: constant}
min_lr: {value: 0.0}
grpo_std_normalization: {value: false}
start_weight_decay: {value: 0.01}
"""


def test_a_record_of_slime_at_wandb_has_its_own_spelling(tmp_path: Path) -> None:
    found = read_file(tmp_path, "slime", "config.yaml", SLIME_OF_WANDB)
    check(found, prompts_per_step=16, num_minibatches=2, rollout_steps=50, scale_rewards="none")
    assert not said(found, "no such key")


AREAL = """
total_train_epochs: 3
rollout: {consumer_batch_size: "${train_dataset.batch_size}", max_head_offpolicyness: 2}
gconfig: {n_samples: 6, max_new_tokens: 640, temperature: 0.8}
actor:
  path: Qwen/Qwen2.5-0.5B
  temperature: ${gconfig.temperature}
  optimizer: {type: adam, lr: 2.0e-5, beta2: 0.98, lr_scheduler_type: linear, gradient_clipping: 0.5}
  eps_clip: 0.3
  eps_clip_higher: 0.4
  c_clip: 5.0
  kl_ctl: 0.0
  ppo_n_minibatches: 2
  recompute_logprob: true
  use_decoupled_loss: true
  rejection_sampling: {metric: ratio, action: clamp, upper: 3.0}
  reward_norm: {mean_level: group, std_level: null, group_size: "${gconfig.n_samples}"}
  adv_norm: {mean_level: batch, std_level: batch}
  ppo_n_minibatch: 4
train_dataset: {batch_size: 64, path: openai/gsm8k}
"""


def test_areal_with_norms_and_a_weight_for_the_sampler(tmp_path: Path) -> None:
    found = read_file(tmp_path, "areal", "grpo.yaml", AREAL)
    check(found, prompts_per_step=64, num_generations=6, num_minibatches=2, num_iterations=1, temperature=0.8)
    check(found, epsilon=0.3, epsilon_high=0.4, dual_clip=5.0, beta=0.0, advantage_estimator="group_mean")
    check(found, scale_rewards="none", whiten_advantages="bessel", old_log_probs="trainer", learning_rate=2e-5)
    weight = found.settings.sampler_correction
    assert weight is not None
    assert (weight.mode, weight.high) == ("truncate", 3.0)
    assert said(found, "rollout.max_head_offpolicyness=2: a batch may be up to so many steps old")
    assert said(found, "actor.ppo_n_minibatch=4: AReaL has no such key (did you mean actor.ppo_n_minibatches")
    approximate = AREAL.replace("use_decoupled_loss: true", "use_decoupled_loss: true\n  prox_logp_method: loglinear")
    check(read_file(tmp_path, "areal", "c.yaml", approximate), old_log_probs="interpolated")
    on_policy = AREAL.replace("use_decoupled_loss: true", "use_decoupled_loss: false")
    check(read_file(tmp_path, "areal", "b.yaml", on_policy), sampler_correction=None, old_log_probs="trainer")


SKYRL = """
: "${LOSS:=dual_clip}"
uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base \\
  trainer.algorithm.advantage_estimator="rloo" trainer.algorithm.policy_loss_type=$LOSS \\
  trainer.algorithm.clip_ratio_c=4.0 trainer.algorithm.eps_clip_high=0.28 trainer.algorithm.use_kl_loss=false \\
  trainer.algorithm.use_kl_in_reward=true trainer.algorithm.kl_loss_coef=0.01 \\
  trainer.algorithm.use_entropy_loss=true trainer.algorithm.entropy_loss_coef=0.02 \\
  trainer.train_batch_size=96 trainer.policy_mini_batch_size=32 trainer.update_epochs_per_batch=2 \\
  trainer.policy.optimizer_config.adam_betas="[0.9,0.98]" trainer.policy.optimizer_config.lr=2.0e-6 \\
  generator.n_samples_per_prompt=4 generator.sampling_params.max_generate_length=$((2 * 512)) \\
  generator.num_inference_engines=4 generator.max_turns=3 trainer.algorithm.eps_clip_lo=0.1
"""


def test_skyrl_with_the_kl_in_the_reward(tmp_path: Path) -> None:
    found = read_file(tmp_path, "skyrl", "run.sh", SKYRL)
    check(found, prompts_per_step=96, num_generations=4, num_minibatches=3, num_iterations=2, learning_rate=2e-6)
    check(found, max_completion_length=1024, advantage_estimator="leave_one_out", scale_rewards="none", dual_clip=4.0)
    check(found, epsilon=0.2, epsilon_high=0.28, beta=0.01, kl_placement="reward", entropy_coef=0.02, adam_beta2=0.98)
    assert said(found, "generator.max_turns=3: an answer is one turn here")
    assert said(
        found, "trainer.algorithm.eps_clip_lo=0.1: SkyRL has no such key (did you mean trainer.algorithm.eps_clip"
    )


DEEPSPEED_CHAT = """
Actor_Lr=4e-6
deepspeed --num_gpus 1 main.py --actor_model_name_or_path facebook/opt-125m --critic_model_name_or_path org/critic \\
   --per_device_generation_batch_size 8 --generation_batches 2 --per_device_training_batch_size 4 \\
   --gradient_accumulation_steps 2 --ppo_epochs 3 --max_answer_seq_len 96 --actor_learning_rate ${Actor_Lr} \\
   --actor_weight_decay 0.1 --lr_scheduler_type linear --num_warmup_steps 20 --actor_lora_dim 16 \\
   --deepspeed --seed 1234 --actor_learn_rate 1e-5 &> training.log
"""


def test_deepspeed_chat(tmp_path: Path) -> None:
    found = read_file(tmp_path, "deepspeed_chat", "run.sh", DEEPSPEED_CHAT)
    check(found, num_generations=1, advantage_estimator="none", num_minibatches=2, num_iterations=3)
    check(found, max_completion_length=96, learning_rate=4e-6, warmup_steps=20)
    check(found, beta=0.1, kl_placement="advantage", lr_scheduler_type="linear", adam_beta2=0.95, weight_decay=0.1)
    assert said(found, "critic_model_name_or_path=org/critic: there is no critic here")
    assert said(found, "actor_lora_dim=16: all weights are trained here unless lora is set")
    assert said(found, "actor_learn_rate=1e-05: DeepSpeed-Chat has no such key (did you mean actor_learning_rate")
