"""Each rule about a config of TRL or verl: options or keys that trigger it, and their nearest neighbour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lint_subjects import sentences

from grpolab.lint.config_rules import ACTOR, FILE_RULES, ROLLOUT, TRL_RULES, check_trl_options, check_written
from grpolab.lint.rules import LintFinding
from grpolab.readers import trl
from grpolab.readers.given import Given

GAS, STEPS, BATCH = "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"
GROUP = {"num_generations": 8, "per_device_train_batch_size": 4}
DAPO, MASKED = {"loss_type": "dapo"}, {"mask_truncated_completions": True}
REUSED, LUSPO = {"num_iterations": 2, STEPS: 1}, {"loss_type": "luspo"}
OPTIONS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [  # rule, what breaks it, what it says, what does not
    ("clip-cannot-bind", {}, "1 * 1 / 1 = 1; every ratio is 1 up to rounding", {"num_iterations": 2}),
    ("clip-cannot-bind", {GAS: 4}, "1 * 4 / 4 = 1", {STEPS: 2}),
    ("clip-cannot-bind", {"loss_type": "cispo", "epsilon_high": 5.0}, "clip_ratio is 0 or", {"loss_type": "sapo"}),
    ("clip-cannot-bind", {BATCH: 8}, "epsilon=0.2", {BATCH: 16}),
    ("reuse-is-no-op", REUSED | {GAS: 2}, "2 * 1 / 2 = 1; the passes add up", REUSED | {GAS: 1}),
    ("hidden-staleness", {STEPS: 4}, "1 * 4 / 1 = 4", {GAS: 4}),
    ("sampler-is-another-policy", {"repetition_penalty": 1.1}, "repetition_penalty=1.1 changes", {"top_p": 0.9}),
    ("window-of-tokens", DAPO | {STEPS: 8, GAS: 32}, "is 4 times as large", DAPO | {STEPS: 8, GAS: 8}),
    ("window-of-tokens", DAPO | {STEPS: 4, GAS: 2}, "0.5 times", {"loss_type": "grpo", STEPS: 4, GAS: 2}),
    ("groups-across-processes", GROUP, "a multiple of 2 processes only (one GPU", GROUP | {GAS: 2}),
    ("groups-across-processes", GROUP, "--processes says", GROUP | {"num_processes": 1}),
    ("groups-do-not-fit", GROUP | {"num_processes": 3}, "with 3 it raises a ValueError", GROUP | {"num_processes": 4}),
    ("luspo-by-token", LUSPO, "=token is a sum", LUSPO | {"importance_sampling_level": "sequence"}),
]


def check_options(options: dict[str, Any]) -> list[LintFinding]:
    return check_trl_options(trl.resolve_options(Given(options)))


@pytest.mark.parametrize(("rule", "planted", "says", "neighbour"), OPTIONS)
def test_a_rule_about_options_speaks_where_it_is_broken_and_nowhere_else(
    rule: str, planted: dict[str, Any], says: str, neighbour: dict[str, Any]
) -> None:
    (sentence,) = sentences(check_options(planted), rule)
    assert says in sentence
    assert sentences(check_options(neighbour), rule) == []


def test_dropout_of_a_local_model_moves_the_ratio_unless_it_is_disabled(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"attention_dropout": 0.1}))
    config = {"model_name_or_path": str(tmp_path)}
    (sentence,) = sentences(check_options(config), "dropout-moves-the-ratio")
    assert "attention_dropout=0.1" in sentence
    assert sentences(check_options(config | {"disable_dropout": True}), "dropout-moves-the-ratio") == []


# --- the keys of a file ----------------------------------------------------------------------------------------------

MICRO, LOG_PROBS = f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"
RATE, HIGH, FILTER = f"{ACTOR}optim.lr", f"{ACTOR}clip_ratio_high", "algorithm.filter_groups.enable"
ROOM = {
    FILTER: True,
    "algorithm.filter_groups.max_num_gen_batches": 2,
    "data.train_batch_size": 64,
    "data.gen_batch_size": 32,
}
BATCHES = {f"{ACTOR}ppo_mini_batch_size": 16, f"{ROLLOUT}n": "5", MICRO: 16, "trainer.n_gpus_per_node": 8}
EAGER = {f"{ROLLOUT}free_cache_engine": True, f"{ROLLOUT}enforce_eager": "False"}
UNEQUAL = {LOG_PROBS: 32, MICRO: 4, HIGH: 4e-4}
ADAPTER = {"actor_rollout_ref.model.lora_rank": 32, f"{ROLLOUT}name": "vllm"}
MODE, FAST, VLLM = "vllm_importance_sampling_mode", {"learning_rate": 5e-5}, {"use_vllm": True}
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "learning-rate": ("trl", FAST, FAST | {"use_peft": True}),
    "adapter-and-vllm": ("trl", {"use_peft": True, "use_vllm": True}, {"use_peft": True, "use_vllm": False}),
    "truncated-in-denominator": ("trl", DAPO | MASKED, {"loss_type": "grpo"} | MASKED),
    "weight-of-a-sequence": ("trl", {MODE: "sequence_mask"}, {MODE: "token_truncate"}),
    "temperature-of-vllm": ("trl", VLLM | {"temperature": 0.6}, VLLM | {"temperature": 1.0}),
    "kl-without-reward": ("trl", {"beta": 0.04}, {}),
    "verl-learning-rate": ("verl", {RATE: "1e-9"}, {RATE: "${lr}"}),
    "micro-batch-above-mini-batch": ("verl", BATCHES, BATCHES | {MICRO: 10}),
    "cache-and-graphs": ("verl", EAGER, EAGER | {f"{ROLLOUT}enforce_eager": True}),
    "filter-groups": ("verl", {FILTER: "True"}, {FILTER: False}),
    "filter-without-room": ("verl", ROOM, ROOM | {"data.gen_batch_size": 48}),
    "verl-adapter-and-vllm": ("verl", ADAPTER, ADAPTER | {f"{ROLLOUT}free_cache_engine": False}),
    "entropy-bonus": ("verl", {f"{ACTOR}entropy_coeff": "0.001"}, {f"{ACTOR}entropy_coeff": 0}),
    "unequal-micro-batches": ("verl", UNEQUAL, UNEQUAL | {HIGH: 0.28}),
}


def test_every_rule_is_planted() -> None:
    assert {rule for rule, *_ in OPTIONS} | {"dropout-moves-the-ratio"} == TRL_RULES.keys()
    assert {rule for rules in FILE_RULES.values() for rule in rules} == PAIRS.keys()


@pytest.mark.parametrize("rule", PAIRS)
def test_rule_finds_what_it_is_about_and_is_silent_about_its_neighbour(rule: str) -> None:
    framework, planted, neighbour = PAIRS[rule]
    beside = ["filter-groups"] if rule == "filter-without-room" else []
    assert [finding.rule for finding in check_written(framework, planted)] == [rule, *beside]
    assert rule not in {finding.rule for finding in check_written(framework, neighbour)}


@pytest.mark.parametrize("value", [None, "", "nan", "inf", -1, 0, 0.5, "${x}", [1], True, 10**400])
def test_no_value_breaks_a_rule(value: Any) -> None:
    """A user's file may hold anything."""
    keys = {key for _, planted, _ in PAIRS.values() for key in planted}
    for framework in FILE_RULES:
        for key in keys:
            check_written(framework, dict.fromkeys(keys, 4) | {key: value})
        check_written(framework, dict.fromkeys(keys, value))
        assert check_written(framework, {}) == []


def test_an_adapter_of_verl_may_be_merged_and_vllm_is_its_default() -> None:
    keys = {"actor_rollout_ref.model.lora.merge": "true", f"{ROLLOUT}free_cache_engine": True}
    (finding,) = check_written("verl", keys)
    assert "lora.merge=True with vLLM" in finding.sentence
    assert check_written("verl", keys | {f"{ROLLOUT}name": "sglang"}) == []


def test_without_a_kl_it_is_said_what_that_leaves_open() -> None:
    (finding,) = check_written("trl", {"beta": 0.0})
    assert "over-fit" in finding.sentence
