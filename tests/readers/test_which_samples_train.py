"""Which samples train, as frameworks' files say it: cut sampling, filtered groups, long answers, rejection."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from grpolab.cli import main
from grpolab.identity import dotted
from grpolab.readers.exchange import Converted, convert, read
from grpolab.readers.given import Given
from grpolab.readers.selection import NO_LIMIT
from grpolab.sweep.compose import Composer

ROLLOUT, FILTER, RULES = (
    "actor_rollout_ref.rollout.",
    "algorithm.filter_groups.",
    "algorithm.rollout_correction.rollout_rs",
)
BUFFER, OLD_BUFFER = "+reward.reward_kwargs.overlong_buffer_cfg.", "reward_model.overlong_buffer."
RECIPE, PPO = "recipe.dapo.main_dapo", "verl.trainer.main_ppo"
PENALTY = f"{BUFFER}enable=True {BUFFER}len=256 {BUFFER}penalty_factor=0.5"
DAPO = f"{FILTER}enable=True {FILTER}metric=acc {FILTER}max_num_gen_batches=5"
SAMPLES = ("filter_groups", "sampler_rejection", "top_k", "top_p", "min_p", "keep_sampling_mask", "pass_rate_cap")
SAMPLES = (*SAMPLES, "mask_truncated_completions", "reward")


@functools.cache
def composer() -> Composer:
    return Composer()


def read_file(folder: Path, framework: str, name: str, text: str) -> Converted:
    (folder / name).write_text(text)
    return convert(framework, read(framework, str(folder / name)), composer().compose)


def carried(found: Converted) -> dict[str, Any]:
    """Return what the settings have of SAMPLES, dotted, without what is off everywhere."""
    values = dict(dotted({name: found.settings.model_dump()[name] for name in SAMPLES}))
    usual = dict(dotted(composer().compose([]).model_dump()))
    return {name: value for name, value in values.items() if value != usual.get(name)}


def verl(folder: Path, overrides: str, program: str = PPO) -> Converted:
    base = f"python3 -m {program} algorithm.adv_estimator=grpo {ROLLOUT}n=4 data.train_batch_size=64"
    sizes = "actor_rollout_ref.actor.ppo_mini_batch_size=32 data.max_response_length=1024"
    return read_file(folder, "verl", "run.sh", f"{base} {sizes} trainer.total_training_steps=9 {overrides}")


def filtered(metric: str, batches: int) -> dict[str, Any]:
    return {"filter_groups.metric": metric, "filter_groups.max_batches": batches}


def punished(share: float, weight: float) -> dict[str, Any]:
    return {"reward.overlong_buffer": share, "reward.weights.overlong": weight}


def rejected(policy: str = "old", **bounds: list[float]) -> dict[str, Any]:
    ranges = {f"sampler_rejection.bounds.{level}": pytest.approx(both) for level, both in bounds.items()}
    return {"sampler_rejection.policy": policy, **ranges}


# Program, overrides, our settings, and a part of a sentence that is said.
VERL: list[tuple[str, str, dict[str, Any], str]] = [
    (PPO, f"{ROLLOUT}top_p=0.9 {ROLLOUT}top_k=20 {ROLLOUT}val_kwargs.top_p=0.7", {"top_p": 0.9, "top_k": 20}, ""),
    (PPO, f"{ROLLOUT}top_p=1.0 {ROLLOUT}top_k=-1 {ROLLOUT}val_kwargs.top_k=5", {}, ""),
    (RECIPE, DAPO, filtered("correct", 5), "max_num_gen_batches=5: an error ends verl then, here what differs trains"),
    (RECIPE, f"{DAPO} data.gen_batch_size=160", filtered("correct", 13), "counts batches of 64 prompts, not of 160"),
    (RECIPE, f"{FILTER}enable=True {FILTER}metric=seq_reward", filtered("reward", NO_LIMIT), "stands for no limit"),
    (PPO, DAPO, filtered("correct", NO_LIMIT), "DAPO's trainers read it, and main_ppo since 0.9"),
    ("verl.experimental.fully_async_policy.fully_async_main", DAPO, {}, "main_ppo since 0.9: this one does not"),
    (RECIPE, f"{FILTER}enable=True {FILTER}metric=mine", {}, "metric=mine: here it is one of acc, score, seq_reward"),
    (RECIPE, f"{FILTER}enable=False {FILTER}metric=acc {FILTER}max_num_gen_batches=5", {}, ""),
    (
        RECIPE,
        f"{DAPO} {FILTER}metric=seq_final_reward algorithm.use_kl_in_reward=True",
        {},
        "no two of a group are equal",
    ),
    (RECIPE, PENALTY, punished(0.25, 0.5), "overlong=0.5: beside a reward whose scale the file does not say"),
    (RECIPE, PENALTY.replace(BUFFER, OLD_BUFFER), punished(0.25, 0.5), ""),
    (PPO, f"{PENALTY} reward_model.reward_manager=dapo", punished(0.25, 0.5), ""),
    (RECIPE, f"{DAPO} {ROLLOUT}n=1", {}, "a group of one differs in nothing"),
    (PPO, PENALTY, {}, "reward.reward_manager.name=naive does not read it, dapo does"),
    (
        RECIPE,
        f"{PENALTY} +reward.reward_kwargs.max_resp_len=2048",
        {},
        "a penalty over 256 tokens before 2048: here they",
    ),
    (
        RECIPE,
        f"{PENALTY} {BUFFER}len=4096",
        {},
        "a penalty over 4096 tokens of 1024: it must be more than 0, at most all",
    ),
    (RECIPE, f"{BUFFER}enable=True {BUFFER}len=$LEN", {}, "the file alone does not say len and penalty_factor"),
    (
        PPO,
        f"{RULES}=token_k1 {RULES}_threshold=0.5_1.25",
        rejected(token=[0.8, 2.0]),
        "takes rejected tokens out of the",
    ),
    (
        PPO,
        f"{RULES}=seq_mean_k1,seq_max_k2 {RULES}_threshold=\\'1.25,0.02\\'",
        rejected(geometric=[0.8, 1.25], worst=[0.818731, 1.221403]),  # sqrt(2 * 0.02) = 0.2
        "",
    ),
    (PPO, f"{RULES}=seq_sum_k1 {RULES}_threshold=0.25_2.0", rejected(sequence=[0.5, 4.0]), ""),
    (PPO, f"{RULES}=sequence {RULES}_threshold=4 {RULES}_threshold_lower=0.5", {}, "here each is one of token_k1"),
    (PPO, "algorithm.rollout_correction.rollout_token_veto_threshold=1e-4", {}, "bounds.worst is the like"),
    (
        PPO,
        f"{RULES}=token_k1 {RULES}_threshold=2.0 algorithm.rollout_correction.bypass_mode=True",
        rejected("current", token=[0.5, 2.0]),
        "",
    ),
    (PPO, f"{RULES}=token_k1,seq_sum_k3 {RULES}_threshold=2.0", {}, "here each is one of token_k1, seq_sum_k1"),
    (PPO, f"{RULES}=token_k1 {RULES}_threshold=2.0 {ROLLOUT}calculate_log_probs=False", {}, "has nothing to compare"),
]


@pytest.mark.parametrize(("program", "overrides", "ours", "sentence"), VERL)
def test_verl(program: str, overrides: str, ours: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    found = verl(tmp_path, overrides, program)
    assert carried(found) == ours
    assert sentence in " ".join(found.left_out)
    assert ("0 not carried" in found.counts) == (bool(ours) or not sentence)


def test_before_its_version_a_program_filters_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"python3 -m {PPO} algorithm.adv_estimator=grpo {ROLLOUT}n=4 {DAPO}")
    given = read("verl", str(tmp_path / "run.sh"))
    assert convert("verl", given, composer().compose).settings.filter_groups is not None
    old = convert("verl", dataclasses.replace(given, version="0.8"), composer().compose)
    assert old.settings.filter_groups is None
    assert "main_ppo since 0.9: this one does not" in " ".join(old.left_out)


TRL: list[tuple[str, dict[str, Any]]] = [
    ("top_p=0.9, top_k=-1, min_p=0.0", {"top_p": 0.9}),
    ("top_k=0, mask_truncated_completions=True", {"mask_truncated_completions": True}),
    ("top_p=0.9, generation_kwargs={'top_p': 0.8, 'min_p': 0.1}", {"top_p": 0.8, "min_p": 0.1}),
    ("num_generations=8", {}),
    ("vllm_device='auto'", {"top_k": 50}),  # a field of 0.17 and before, when it was the default
    ("vllm_device='auto', top_k=None", {}),
]


@pytest.mark.parametrize(("fields", "ours"), TRL)
def test_trl(fields: str, ours: dict[str, Any], tmp_path: Path) -> None:
    assert (
        carried(read_file(tmp_path, "trl", "a.py", f"from trl import GRPOConfig\nGRPOConfig(max_steps=3, {fields})"))
        == ours
    )


def test_vllm_of_the_first_trl_samples_from_all_tokens() -> None:
    fields = {"max_steps": 3, "num_generations": 4}
    for options, kept in ((fields, 50), ({**fields, "use_vllm": True}, None)):
        assert convert("trl", Given(options, version="0.15"), composer().compose).settings.top_k == kept


OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4"
)
OPENRLHF = f"{OPENRLHF} --rollout.max_new_tokens 400"
SKYRL = "python3 -m skyrl.train.entrypoints.main_base trainer.algorithm.advantage_estimator=grpo"
SLIME = "python3 slime/train.py --rollout-batch-size 8 --n-samples-per-prompt 4 --num-rollout 3"
SLIME_FILTER = (
    "--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
)
OPEN = "python open_instruct/grpo_fast.py --num_unique_prompts_rollout 8 --num_samples_per_prompt_rollout 4"
AREAL = "gconfig: {{n_samples: 4, max_new_tokens: 640, {}}}\nactor: {{eps_clip: 0.2, ppo_n_minibatches: 2, {}}}\n"
LONG = "overlong_reward_penalty: {}, overlong_tokens: 64, overlong_penalty_factor: 2.0, max_new_tokens: {}"
NEMO = "grpo: {{num_prompts_per_step: 8, max_num_steps: 4, {}}}\npolicy: {{generation: {{max_new_tokens: 500, {}}}}}"
SHAPED = (
    "reward_shaping: {enabled: true, overlong_buffer_length: 50, overlong_buffer_penalty: 1, max_response_length: 500}"
)
ROLL = "num_return_sequences_in_group: 4\nadv_estimator: grpo\nactor_infer: {{generating_args: {}}}\n"
PRIME = "max_steps = 9\n[orchestrator]\nbatch_size = 32\ngroup_size = 4\n"
MASKED, NUCLEUS = {"mask_truncated_completions": True}, {"top_p": 0.9, "keep_sampling_mask": True}
# Framework, file, text, our settings, and a part of a sentence that is said.
OTHERS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("openrlhf", "a.sh", f"{OPENRLHF} --rollout.top_p 0.9", {"top_p": 0.9}, ""),
    (
        "openrlhf",
        "a.sh",
        f"{OPENRLHF} --algo.dynamic_filtering_enable",
        filtered("correct", NO_LIMIT),
        "above 0 and below",
    ),
    (
        "openrlhf",
        "a.sh",
        f"{OPENRLHF} --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0.2 0.8",
        {},
        "dynamic_filtering_enable=True: it keeps groups by their mean score, which this range narrows",
    ),
    ("openrlhf", "a.sh", f"{OPENRLHF} --overlong_buffer_len 100", punished(0.25, 1.0), "beside a reward"),
    ("skyrl", "a.sh", f"{SKYRL} generator.sampling_params.min_p=0.1", {"min_p": 0.1}, ""),
    ("skyrl", "a.sh", f"{SKYRL} generator.apply_overlong_filtering=true", MASKED, ""),
    (
        "skyrl",
        "a.sh",
        f"{SKYRL} trainer.algorithm.dynamic_sampling.type=filter",
        filtered("correct", 30),
        "an error ends",
    ),
    (
        "skyrl",
        "a.sh",
        f"{SKYRL} trainer.algorithm.dynamic_sampling.type=replace",
        {},
        "others of the batch take the place",
    ),
    ("skyrl", "a.sh", f"{SKYRL} +trainer.algorithm.overlong_buffer_len=256", punished(0.25, 1.0), "main_dapo.py"),
    ("slime", "a.sh", f"{SLIME} --rollout-top-p 0.9", NUCLEUS, "slime 0.3.1"),
    ("slime", "a.sh", f"{SLIME} --rollout-top-k 9", {"top_k": 9}, ""),
    ("slime", "a.sh", f"{SLIME} {SLIME_FILTER}", filtered("reward", NO_LIMIT), ""),
    ("slime", "a.sh", f"{SLIME} {SLIME_FILTER}_with_fallback", {}, "fill the batch there"),
    ("open_instruct", "a.sh", OPEN, filtered("reward", 1), ""),
    ("open_instruct", "a.sh", f"{OPEN} --no_filter_zero_std_samples --vllm_top_p 0.9", {"top_p": 0.9}, ""),
    ("open_instruct", "a.sh", f"{OPEN} --active_sampling", filtered("reward", NO_LIMIT), ""),
    (
        "open_instruct",
        "a.sh",
        f"{OPEN} --no_resampling_pass_rate 0.9 --mask_truncated_completions",
        {**filtered("reward", 1), "pass_rate_cap": 0.9},
        "it drops them before a group has its mean",
    ),
    ("areal", "a.yaml", AREAL.format("top_k: 9", LONG.format("true", 640)), {"top_k": 9, **punished(0.1, 2.0)}, ""),
    ("areal", "a.yaml", AREAL.format("top_k: 100000000", LONG.format("false", 640)), {}, ""),
    ("areal", "a.yaml", AREAL.format("top_p: 1.0", LONG.format("true", 700)), {}, "over 64 tokens before 700: here"),
    (
        "nemo_rl",
        "a.yaml",
        NEMO.format("overlong_filtering: true", "top_p: 0.9"),
        MASKED | NUCLEUS,
        "cuts by its own weights",
    ),
    (
        "nemo_rl",
        "a.yaml",
        NEMO.format("use_dynamic_sampling: true", "top_k: -1"),
        filtered("correct", 10),
        "one batch more",
    ),
    ("nemo_rl", "a.yaml", NEMO.format(SHAPED, "top_p: 1.0"), punished(0.1, 1), ""),
    ("nemo_rl", "a.yaml", NEMO.format(SHAPED.replace("enabled: true", "enabled: false"), "top_p: 1.0"), {}, ""),
    (
        "nemo_rl",
        "a.yaml",
        NEMO.format(SHAPED.replace("enabled: true", "enabled: true, stop_properly_penalty_coef: 0"), "top_p: 1.0"),
        {},
        "with stop_properly_penalty_coef it scales the reward",
    ),
    ("roll", "a.yaml", ROLL.format("{top_p: 1, top_k: -1, temperature: 1}"), {}, ""),
    ("roll", "a.yaml", ROLL.format("{temperature: 1}"), {"top_p": 0.7, "top_k": 50}, ""),  # its defaults
    ("roll", "a.yaml", ROLL.format("{top_p: 1, top_k: 0}") + "max_len_mask: true", MASKED, "counts as cut there"),
    (
        "roll",
        "a.yaml",
        ROLL.format("{top_p: 1, top_k: 0}") + "rewards: {math: {query_filter_config: {type: std_filter}}}",
        {},
        "rewards.math.query_filter_config.type=std_filter: set filter_groups",
    ),
    (
        "prime_rl",
        "a.toml",
        f'{PRIME}[orchestrator.algo.length_penalty]\ntype = "linear"\nnum_output_tokens_weight = 0.5',
        {"reward.length_penalty": "pass_rate", "reward.weights.length": 0.5},
        "",
    ),
    ("prime_rl", "a.toml", f"{PRIME}[orchestrator.train.sampling]\nextra_body = {{top_k = 9}}", {"top_k": 9}, ""),
    (
        "prime_rl",
        "a.toml",
        f"{PRIME}[orchestrator.buffer]\nonline_difficulty_filtering = true",
        filtered("correct", NO_LIMIT),
        "whose mean reward is 0 or 1",
    ),
    (
        "torchtune",
        "a.yaml",
        "grpo_samples: 4\nloss: {kl_coeff: 0.1}\ntop_k: 9\nppo_epochs: 1\ntemperature: 1.0\nnum_steps: 3",
        {"top_k": 9},
        "",
    ),
]


@pytest.mark.parametrize(("framework", "name", "text", "ours", "sentence"), OTHERS)
def test_others(framework: str, name: str, text: str, ours: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    found = read_file(tmp_path, framework, name, text)
    assert carried(found) == ours
    assert sentence in " ".join(found.left_out)


def test_skyrls_average_over_prompts_is_ours(tmp_path: Path) -> None:
    found = read_file(tmp_path, "skyrl", "a.sh", f"{SKYRL} trainer.algorithm.loss_reduction=prompt_mean")
    assert found.settings.aggregation == "prompt_mean"


LINTED = [
    (
        "trl",
        "a.py",
        "from trl import GRPOConfig\nGRPOConfig(top_p=0.9)",
        "sampling-mask-lost",
        "top_p=0.9: completions",
    ),
    ("slime", "a.sh", f"{SLIME} --rollout-top-k 9", "sampling-mask-lost", "top_k=9: completions"),
    ("slime", "a.sh", f"{SLIME} --rollout-top-p 0.9", "", "sampling-mask-lost"),
    (
        "verl",
        "a.sh",
        f"{RULES}=token_k1 {RULES}_threshold=0.99_1.01",
        "rejection-within-noise",
        "token: [0.990099, 1.0101]",
    ),
    ("verl", "a.sh", f"{RULES}=token_k1 {RULES}_threshold=0.5_2.0", "", "rejection-"),  # vLLM is another sampler
    (
        "verl",
        "a.sh",
        f"{ROLLOUT}n=2 data.train_batch_size=1 {DAPO} {FILTER}max_num_gen_batches=1 {PENALTY}",
        "filter-starves",
        "of 1 groups fewer",
    ),
    (
        "verl",
        "a.sh",
        f"{DAPO} data.train_batch_size=160 data.gen_batch_size=32",
        "filter-without-room",
        "=5 of 32 prompts",
    ),
]


@pytest.mark.parametrize(("framework", "name", "text", "rule", "sentence"), LINTED)
def test_the_linter_speaks_of_what_was_read(
    framework: str, name: str, text: str, rule: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f"python3 -m {RECIPE} algorithm.adv_estimator=grpo " if framework == "verl" else ""
    (tmp_path / name).write_text(program + text)
    assert main(["lint", "--json", "--from", framework, str(tmp_path / name)]) == 0
    found = {finding["rule"]: finding["sentence"] for finding in json.loads(capsys.readouterr().out)}
    assert sentence in found[rule] if rule else not any(name.startswith(sentence) for name in found)
