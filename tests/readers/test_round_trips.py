"""A config of another framework, read, written and read again, is the same run; what cannot be said is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpolab.equalities import differences, point_of, rewrite
from grpolab.errors import RequestError
from grpolab.readers.exchange import EXCHANGED, GUARDS, convert, export, read
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer

COMPOSER = Composer()
ACTOR, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.model."
TRL: list[dict[str, Any]] = [
    {},
    {"loss_type": "grpo", "num_iterations": 4, "epsilon_high": 0.28, "delta": 4.0},
    {"loss_type": "dr_grpo", "scale_rewards": False, "beta": 0.04, "use_bias_correction_kl": False},
    {"loss_type": "sapo", "num_iterations": 2, "sapo_temperature_neg": 3.0},
    {"loss_type": "vespo", "num_iterations": 2, "vespo_k_pos": 1.5, "steps_per_generation": 4},
    {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate", "num_iterations": 2},
    {"use_adaptive_entropy": True, "entropy_target": 0.5, "top_entropy_quantile": 0.2},
    {"off_policy_mask_threshold": 0.5, "multi_objective_aggregation": "normalize_then_sum"},
    {"max_grad_norm": 0.0, "bf16": False, "learning_rate": 3e-5, "lr_scheduler_type": "cosine", "seed": 7},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"epsilon_high": float("inf"), "num_iterations": 2, "model_name_or_path": "some/model"},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "mask_truncated_completions": True},
    {"use_peft": True, "lora_r": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "v_proj"]},
    {"use_peft": True, "lora_alpha": 64, "lora_dropout": 0.0, "lora_target_modules": [r".*\.attn\.c_proj"]},
]
GRPO = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"}
VERL: list[dict[str, Any]] = [
    GRPO,
    {**GRPO, f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}clip_ratio_low": 3e-4, f"{ACTOR}clip_ratio_high": 4e-4},
    {**GRPO, f"{ACTOR}policy_loss.loss_mode": "cispo", f"{ACTOR}loss_agg_mode": "token-sum"},
    {**GRPO, f"{ACTOR}policy_loss.loss_mode": "dro", f"{ACTOR}policy_loss.dro_beta": 0.3},
    {**GRPO, f"{ACTOR}policy_loss.loss_mode": "geo_mean", f"{ACTOR}ppo_epochs": 2},
    {**GRPO, f"{ACTOR}use_kl_loss": True, f"{ACTOR}kl_loss_type": "k3+", f"{ACTOR}entropy_coeff": 0.01},
    {**GRPO, "algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01},
    {**GRPO, "algorithm.rollout_correction.rollout_is": "token", "data.max_response_length": 64},
    {**GRPO, "algorithm.rollout_correction.bypass_mode": True},
    {**GRPO, "algorithm.adv_estimator": "rloo", f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm"},
    {**GRPO, "algorithm.adv_estimator": "reinforce_plus_plus_baseline", f"{ACTOR}optim.betas": [0.9, 0.95]},
    {**GRPO, f"{ACTOR}optim.lr_scheduler_type": "cosine", f"{ACTOR}optim.min_lr_ratio": 0.1},
    {**GRPO, f"{MODEL}lora_rank": 8, f"{MODEL}lora_alpha": 32, f"{MODEL}target_modules": ["q_proj", "attn.c_proj"]},
]
CONFIGS = [("trl", given, "config.py") for given in TRL] + [("verl", given, "run.sh") for given in VERL]


def of_the_exchange(settings: RunSettings) -> dict[str, Any]:
    return {key: value for key, value in rewrite(settings).items() if key in EXCHANGED}


@pytest.mark.parametrize(("framework", "given", "file"), CONFIGS)
def test_what_is_read_is_written_as_it_was(framework: str, given: dict[str, Any], file: str, tmp_path: Path) -> None:
    first = convert(framework, given, COMPOSER.compose)
    exported = export(framework, first.settings, COMPOSER.compose)
    assert exported.remarks == []
    (tmp_path / file).write_text(exported.text)
    again = convert(
        framework,
        {**read(framework, str(tmp_path / file)).options, **_beside(exported.options, framework)},
        COMPOSER.compose,
    )
    assert differences(of_the_exchange(first.settings), of_the_exchange(again.settings)) == {}
    length = {"rollout_steps", "max_optimizer_steps"}
    one_way = {"dual_clip", "micro_batch_size", "importance_sampling_level"}  # of several that are the same function
    assert differences(point_of(first.settings), point_of(again.settings)).keys() <= length | one_way


def _beside(options: dict[str, Any], framework: str) -> dict[str, Any]:
    """TRL's trainer takes the model beside its GRPOConfig."""
    return {key: value for key, value in options.items() if key == "model_name_or_path" and framework == "trl"}


EXPORTED = [
    ("trl", "", "loss_type='grpo'"),
    ("trl", "loss_type=cispo", "epsilon_high=5.0"),  # 1 + ours
    ("trl", "loss_type=gspo num_minibatches=4 micro_batch_size=8", "steps_per_generation=32"),
    ("trl", "paper=intellect2 staleness=0", "delta=4.0"),
    ("trl", "importance_sampling_level=sequence_token", "importance_sampling_level='sequence'"),
    ("trl", "aggregation=sequence_mean_nonempty loss_form=max_negative", "loss_type='grpo'"),
    ("verl", "", f"{ACTOR}clip_ratio_c=1000000000.0"),
    ("verl", "loss_type=cispo", f"{ACTOR}clip_ratio_high=4.0"),
    ("verl", "loss_type=gmpo", f"{ACTOR}policy_loss.loss_mode=geo_mean"),
    ("verl", "dialect=verl num_minibatches=2", f"{ACTOR}ppo_mini_batch_size=16"),
    ("verl", "top_p=0.9", "actor_rollout_ref.rollout.top_p=0.9"),
    (
        "trl",
        "lora={rank:16,alpha:32,targets:null}",
        "use_peft=True,\n    lora_dropout=0.0,\n    lora_target_modules=['all-",
    ),
    ("trl", "lora={rank:8,alpha:32,targets:[q_proj]}", r"lora_target_modules=['.*\\.q_proj']"),
    ("verl", "lora={rank:8,alpha:32,targets:null}", f"{MODEL}lora_rank=8\n{MODEL}lora_alpha=32"),
]


@pytest.mark.parametrize(("framework", "overrides", "has"), EXPORTED)
def test_ours_is_written_with_the_same_function(framework: str, overrides: str, has: str) -> None:
    settings = COMPOSER.compose(overrides.split())
    exported = export(framework, settings, COMPOSER.compose)
    assert has in exported.text
    again = convert(framework, exported.options, COMPOSER.compose).settings
    assert differences(of_the_exchange(settings), of_the_exchange(again)).keys() <= GUARDS
    assert len(exported.remarks) == len(differences(of_the_exchange(settings), of_the_exchange(again)))


IMPOSSIBLE = [
    ("trl", "filter_groups={metric:correct,max_batches:4}", "filter_groups={metric:correct,max_batches:4}: trl"),
    ("verl", "top_p=0.9 keep_sampling_mask=true", "keep_sampling_mask=true: verl has null"),
    ("verl", "min_p=0.1", "min_p=0.1: verl has null"),
    ("trl", "loss_type=gmpo", "kernel=gmpo is in none"),
    ("trl", "advantage_estimator=leave_one_out", "advantage_estimator=leave_one_out: trl has group_mean"),
    ("trl", "loss_type=cispo epsilon=0.2", "epsilon=0.2: trl has 1.0"),
    ("verl", "dialect=trl/vespo", "kernel=vespo is in none"),
    (
        "verl",
        "loss_type=sapo aggregation=token_mean_minibatch num_minibatches=2",
        "aggregation=token_mean_minibatch",
    ),
    ("trl", "lr_scheduler_type=linear min_lr_ratio=0.1", "min_lr_ratio=0.1: trl has null"),
    ("trl", "sampler_refresh=4", "sampler_refresh=4: trl has null"),
    ("verl", "paper=mis_po", "sampler_rejection={policy:old,bounds:{token:[0.5, 2.0],geometric:[0.996, 1.001]}"),
]


@pytest.mark.parametrize(("framework", "overrides", "says"), IMPOSSIBLE)
def test_what_a_framework_cannot_say_is_refused_with_the_reason(framework: str, overrides: str, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        export(framework, COMPOSER.compose(overrides.split()), COMPOSER.compose)
    assert any(says in problem for problem in refused.value.problems), refused.value.problems


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_what_a_config_has_no_key_for_is_said(framework: str) -> None:
    task = "task=jsonl task.chat=true task.system=Think. task.stop=['</a>'] task.train_file=a task.evaluation_file=b"
    words = [*task.split(), "reward.overlong_buffer=0.2", "reward.weights.overlong=1.0", "kernel=clipped"]
    exported = export(framework, COMPOSER.compose(words), COMPOSER.compose)
    assert [sentence.partition(":")[0] for sentence in exported.left_out] == [
        "task.stop=['</a>']",
        "task.system='Think.'",
        "reward.weights.overlong=1.0",
    ]
    assert export(framework, COMPOSER.compose([]), COMPOSER.compose).left_out == []


@pytest.mark.parametrize(
    ("overrides", "remark"),
    [
        ("dialect=roll scale_epsilon=1e-4", "framework=roll"),
        ("loss_type=dapo entropy_coef=0.01", "averages the entropy"),
    ],
)
def test_what_is_computed_another_way_there_is_said(overrides: str, remark: str) -> None:
    (found,) = export("trl", COMPOSER.compose(overrides.split()), COMPOSER.compose).remarks
    assert remark in found
