"""Configs of NeMo-RL, ROLL, prime-rl, open-instruct and torchtune, as people write them, in our settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from grpolab.errors import RequestError
from grpolab.readers.exchange import Converted, convert, read
from grpolab.sweep.compose import Composer


@functools.cache
def composer() -> Composer:
    return Composer()


def read_file(folder: Path, framework: str, name: str, text: str) -> Converted:
    (folder / name).write_text(text)
    return convert(framework, read(framework, str(folder / name)), composer().compose)


def differences(found: Converted, **wanted: Any) -> dict[str, Any]:
    """Return what the settings have instead of what is wanted."""
    settings = {name: getattr(found.settings, name) for name in wanted}
    return {name: value for name, value in settings.items() if value != wanted[name]}


def says(found: Converted, *parts: str) -> bool:
    sentences = [*found.left_out, found.unknown]
    return all(any(part in sentence for sentence in sentences) for part in parts)


NEMO_RL = """
defaults: ../grpo_math_1B.yaml
grpo:
  num_prompts_per_step: 24
  num_generations_per_prompt: 12
  max_num_steps: 70
  use_leave_one_out_baseline: false
  normalize_rewards: false
  overlong_filtering: true
  num_generation_per_prompt: 6
loss_fn: {ratio_clip_min: 0.15, ratio_clip_max: 0.3, ratio_clip_c: 4, reference_policy_kl_penalty: 0.002}
policy:
  model_name: some/model
  train_global_batch_size: 96
  max_total_sequence_length: 3000
  generation: {temperature: 0.9, max_new_tokens: "${policy.max_total_sequence_length}"}
  optimizer: {kwargs: {lr: 3.0e-6, betas: [0.8, 0.98]}}
  megatron_cfg: {enabled: MEGATRON, optimizer: {lr: 7.0e-7, adam_beta2: 0.97}, scheduler: {lr_warmup_iters: 9}}
"""


@pytest.mark.parametrize(
    ("megatron", "rate", "betas", "warmup"), [("false", 3e-6, (0.8, 0.98), 0), ("true", 7e-7, (0.8, 0.97), 9)]
)
def test_nemo_rl_has_two_optimisers_of_which_one_is_on(
    megatron: str, rate: float, betas: tuple[float, float], warmup: int, tmp_path: Path
) -> None:
    found = read_file(tmp_path, "nemo_rl", "a.yaml", NEMO_RL.replace("MEGATRON", megatron))
    assert not differences(
        found, prompts_per_step=24, num_generations=12, num_minibatches=3, num_iterations=1, rollout_steps=70,
        max_completion_length=3000, temperature=0.9, epsilon=0.15, epsilon_high=0.3, dual_clip=4, beta=0.002,
        advantage_estimator="group_mean", scale_rewards="none",
        learning_rate=rate, adam_beta1=betas[0], adam_beta2=betas[1], warmup_steps=warmup,
    )  # fmt: skip
    assert found.settings.mask_truncated_completions
    assert says(found, "defaults=../grpo_math_1B.yaml")
    assert says(found, "did you mean grpo.num_generations_per_prompt")


def test_nemo_rl_is_changed_on_the_command_line(tmp_path: Path) -> None:
    text = """uv run python examples/run_grpo.py grpo.num_prompts_per_step=8 grpo.num_generations_per_prompt=4 \\
      policy.train_global_batch_size=16 loss_fn.use_cispo=true grpo.adv_estimator.name=reinforce_plus_plus "$@"
    """
    found = read_file(tmp_path, "nemo_rl", "a.sh", text)
    assert not differences(
        found, prompts_per_step=8, num_generations=4, num_minibatches=2, kernel="cispo", scale_rewards="none",
        whiten_advantages="population",
    )  # fmt: skip


ROLL = """
defaults: [../config/envs@_here_]
rollout_batch_size: 48
ppo_epochs: 2
adv_estimator: grpo
use_kl_loss: true
kl_loss_coef: 0.003
use_pg_clip_range: true
pg_clip_low: 0.1
pg_clip_high: 0.25
loss_agg_mode: token-mean
advantage_clip: 3.0
max_grad_norm: 0.5
ppo_epoch: 3
pretrain: some/model
actor_train:
  training_args:
    {learning_rate: 2.0e-6, lr_scheduler_type: cosine, warmup_steps: 4, gradient_accumulation_steps: 8}
  data_args: {template: native, file_name: [data/a.jsonl]}
actor_infer: {generating_args: {temperature: 0.8, top_p: 0.9, max_new_tokens: "${response_length}"}}
"""


def test_roll_counts_prompts_and_its_agentic_pipeline_answers(tmp_path: Path) -> None:
    of_rlvr = "num_return_sequences_in_group: 6\nresponse_length: 700\nwhiten_advantages: true\n"
    rlvr = read_file(tmp_path, "roll", "a.yaml", ROLL + of_rlvr)
    assert not differences(
        rlvr, prompts_per_step=48, num_generations=6, num_iterations=2, max_completion_length=700, temperature=0.8,
        beta=0.003, epsilon=0.1, epsilon_high=0.25, aggregation="token_mean_minibatch", whiten_advantages="bessel",
        advantage_estimator="group_mean", scale_rewards="group", learning_rate=2e-6, lr_scheduler_type="cosine",
        warmup_steps=4, max_grad_norm=0.5,
    )  # fmt: skip
    assert (rlvr.settings.top_p, rlvr.settings.top_k) == (0.9, 50)
    assert says(rlvr, "advantage_clip=3.0: advantages are not clipped here")
    assert says(rlvr, "gradient_accumulation_steps=8: an optimiser step has", "did you mean ppo_epochs")
    agentic = "response_length: 90\ntrain_env_manager: {group_size: 4, num_env_groups: 12, tags: [Sokoban]}\n"
    normalised = "reward_normalization: {grouping: traj_group_id, method: mean}\n"
    found = read_file(tmp_path, "roll", "b.yaml", ROLL + agentic + normalised)
    assert not differences(found, prompts_per_step=12, num_generations=4, scale_rewards="none")


PRIME_RL = """
max_steps = 60
seq_len = 2048
[model]
name = "some/model"
[trainer.loss]
kl_tau = 0.005
dppo_mask_hihg = 0.4
[trainer.optim]
lr = 4e-6
weight_decay = 0.0
[trainer.model.lora]
rank = 16
[trainer.scheduler]
type = "cosine"
warmup_steps = 5
[orchestrator]
batch_size = 96
group_size = 12
[orchestrator.algo]
type = "max_rl"
[orchestrator.train.sampling]
max_completion_tokens = 300
[[orchestrator.train.source]]
name = "a"
env = { taskset = { id = "a" } }
"""


def test_prime_rl_in_one_file_and_in_older_ones_of_a_part(tmp_path: Path) -> None:
    found = read_file(tmp_path, "prime_rl", "rl.toml", PRIME_RL)
    assert not differences(
        found, prompts_per_step=8, num_generations=12, num_iterations=1, num_minibatches=1, rollout_steps=60,
        max_completion_length=300, learning_rate=4e-6, lr_scheduler_type="cosine", warmup_steps=5, weight_decay=0.0,
        kernel="ipo", epsilon=0.3, scale_rewards="group_mean", temperature=1.0,
    )  # fmt: skip
    assert found.settings.options == {"advantage_weight": 1.0, "drift_weight": 0.005}
    assert says(
        found,
        "trainer.model.lora.rank=16: all weights are trained here unless lora is set",
        "orchestrator.train.source=",
    )
    assert says(found, "did you mean trainer.loss.dppo_mask_high")
    old = "batch_size = 64\nrollouts_per_example = 8\nmask_truncated_completions = true\n[sampling]\nmax_tokens = 500\n"
    found = read_file(tmp_path, "prime_rl", "orch.toml", f'{old}temperature = 0.7\n[environment]\nid = "a"\n')
    assert not differences(found, prompts_per_step=8, num_generations=8, max_completion_length=500, temperature=0.7)
    assert found.settings.mask_truncated_completions


OPEN_INSTRUCT = """
exp_name="run_${RANDOM}"
python mason.py --cluster ai2/some --num_nodes 2 --gpus 8 -- source setup.sh \\&\\& python open_instruct/grpo_fast.py \\
    --exp_name $exp_name \\
    --num_unique_prompts_rollout 40 --num_samples_per_prompt_rollout 6 --num_mini_batches 2 --num_epochs 3 \\
    --beta 0.03 --clip_higher 0.3 --kl_estimator 1 --truncated_importance_sampling_ratio_cap 5.0 \\
    --advantage_normalization_type standard --learning_rate 7e-7 --lr_scheduler_type constant \\
    --response_length 900 --total_episodes 12000 --temperature 0.6 --model_name_or_path some/model \\
    --stop_strings "</answer>" \\
    --num_learners_per_node 4 4 --with_tracking --mask_truncated_completion True
"""


def test_open_instruct_is_started_by_a_launcher(tmp_path: Path) -> None:
    found = read_file(tmp_path, "open_instruct", "a.sh", OPEN_INSTRUCT)
    assert not differences(
        found, prompts_per_step=40, num_generations=6, num_minibatches=2, num_iterations=3, beta=0.03, epsilon=0.2,
        epsilon_high=0.3, kl_estimator="k2", scale_rewards="group_population", learning_rate=7e-7,
        lr_scheduler_type="constant", max_completion_length=900, temperature=0.6, rollout_steps=50,
    )  # fmt: skip
    assert found.settings.sampler_correction is not None
    assert found.settings.sampler_correction.high == 5.0
    assert says(found, "stop_strings=</answer>: an answer ends with the end token alone here")
    assert says(found, "did you mean mask_truncated_completions")


TORCHTUNE = """
base_model_path: some/model
ref_checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: "${base_model_path}"}
batch_size: 2
grpo_samples: 5
grpo_sample: 6
max_generated_tokens: 250
temperature: 0.9
ppo_epochs: 2
num_steps: 80
clip_grad_norm: null
optimizer: {_component_: torch.optim.AdamW, lr: 3e-6, betas: [0.85, 0.95], fused: true}
lr_scheduler:
  {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 7}
loss: {_component_: torchtune.dev.grpo.loss.LOSS, kl_coeff: 0.02, epsilon: 0.15}
"""


@pytest.mark.parametrize(
    ("loss", "level", "kernel", "aggregation"),
    [
        ("GRPOLoss", "token", "clipped", "token_mean_minibatch"),
        ("GRPOSimpleLoss", "token", "ratio", "sequence_mean"),
        ("GRPOCompletionLoss", "sequence", "clipped", "sequence_mean"),
    ],
)
def test_torchtune_names_a_class_of_loss(loss: str, level: str, kernel: str, aggregation: str, tmp_path: Path) -> None:
    found = read_file(tmp_path, "torchtune", "a.yaml", TORCHTUNE.replace("LOSS", loss))
    assert not differences(
        found, num_generations=5, num_iterations=2, num_minibatches=1, rollout_steps=80, max_completion_length=250,
        temperature=0.9, epsilon=0.15, beta=0.02, importance_sampling_level=level, kernel=kernel, warmup_steps=7,
        aggregation=aggregation, learning_rate=3e-6, adam_beta1=0.85, adam_beta2=0.95, lr_scheduler_type="cosine",
        max_grad_norm=float("inf"),
    )  # fmt: skip
    assert says(found, "batch_size=2: each process takes so many prompts", "did you mean grpo_samples")


@pytest.mark.parametrize("framework", ["nemo_rl", "roll", "prime_rl", "open_instruct", "torchtune"])
def test_a_supervised_config_is_none_of_them(framework: str, tmp_path: Path) -> None:
    text = "learning_rate: 1e-5\nmodel: {name: some/model}\noptimizer: {lr: 1e-5}\nbatch_size: 4\nseed: 1\n"
    with pytest.raises(RequestError, match="holds no config of"):
        read_file(tmp_path, framework, "sft.yaml", text)
