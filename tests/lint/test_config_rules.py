"""Each rule about the keys of a config file: what triggers it, and its nearest neighbour that does not."""

from __future__ import annotations

from typing import Any

import pytest

from grpolab.lint.config_rules import ACTOR, CONFIG_RULES, ROLLOUT, check_written

BATCHES = {
    f"{ACTOR}ppo_mini_batch_size": 16,
    f"{ROLLOUT}n": "5",
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 16,
    "trainer.n_gpus_per_node": 8,
}
EAGER = {f"{ROLLOUT}free_cache_engine": True, f"{ROLLOUT}enforce_eager": "False"}
UNEQUAL = {
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 32,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 4,
    f"{ACTOR}clip_ratio_high": 4e-4,
}
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "learning-rate": ("trl", {"learning_rate": 5e-5}, {"learning_rate": 5e-5, "use_peft": True}),
    "adapter-and-vllm": ("trl", {"use_peft": True, "use_vllm": True}, {"use_peft": True, "use_vllm": False}),
    "weight-of-a-sequence": (
        "trl",
        {"vllm_importance_sampling_mode": "sequence_mask"},
        {"vllm_importance_sampling_mode": "token_truncate"},
    ),
    "temperature-of-vllm": ("trl", {"use_vllm": True, "temperature": 0.6}, {"use_vllm": True, "temperature": 1.0}),
    "groups-across-processes": (
        "trl",
        {"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
        {"num_generations": 8, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    ),
    "kl-without-reward": ("trl", {"beta": 0.04}, {}),
    "verl-learning-rate": ("verl", {f"{ACTOR}optim.lr": "1e-9"}, {f"{ACTOR}optim.lr": "${lr}"}),
    "micro-batch-above-mini-batch": ("verl", BATCHES, BATCHES | {f"{ACTOR}ppo_micro_batch_size_per_gpu": 10}),
    "cache-and-graphs": ("verl", EAGER, EAGER | {f"{ROLLOUT}enforce_eager": True}),
    "filter-groups": ("verl", {"algorithm.filter_groups.enable": "True"}, {"algorithm.filter_groups.enable": False}),
    "unequal-micro-batches": ("verl", UNEQUAL, UNEQUAL | {f"{ACTOR}clip_ratio_high": 0.28}),
}


def test_every_rule_has_a_pair() -> None:
    assert {rule.name for rules in CONFIG_RULES.values() for rule in rules.rules} == PAIRS.keys()


@pytest.mark.parametrize("rule", PAIRS)
def test_rule_finds_what_it_is_about_and_is_silent_about_its_neighbour(rule: str) -> None:
    framework, found, neighbour = PAIRS[rule]
    (finding,) = check_written(framework, found)
    assert finding.rule == rule
    assert rule not in {finding.rule for finding in check_written(framework, neighbour)}


def test_a_config_that_says_nothing_has_no_finding() -> None:
    assert [check_written(framework, {}) for framework in CONFIG_RULES] == [[], []]


@pytest.mark.parametrize("value", [None, "", "nan", "inf", -1, 0, 0.5, "${x}", [1], True, 10**400])
def test_no_value_breaks_a_rule(value: Any) -> None:
    """What stands in somebody's file may be anything."""
    for framework, rules in CONFIG_RULES.items():
        keys = {key for _, found, _ in PAIRS.values() for key in found}
        assert rules.rules
        for key in keys:
            check_written(framework, dict.fromkeys(keys, 4) | {key: value})
        check_written(framework, dict.fromkeys(keys, value))


def test_without_a_kl_it_is_said_what_that_leaves_open() -> None:
    (finding,) = check_written("trl", {"beta": 0.0})
    assert "over-fit" in finding.sentence
