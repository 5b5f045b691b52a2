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

REUSED = {"num_iterations": 2, "steps_per_generation": 1}
OPTIONS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("clip-cannot-bind", {}, "1 * 1 / 1 = 1; every ratio is 1", {"num_iterations": 2}),
    ("clip-cannot-bind", {"gradient_accumulation_steps": 4}, "1 * 4 / 4 = 1", {"steps_per_generation": 2}),
    ("clip-cannot-bind", {"loss_type": "cispo", "epsilon_high": 5.0}, "clip_ratio is 0", {"loss_type": "sapo"}),
    ("clip-cannot-bind", {"generation_batch_size": 8}, "epsilon=0.2", {"generation_batch_size": 16}),
    (
        "reuse-is-no-op",
        {**REUSED, "gradient_accumulation_steps": 2},
        "2 * 1 / 2 = 1; the passes add up",
        {**REUSED, "gradient_accumulation_steps": 1},
    ),
    ("hidden-staleness", {"steps_per_generation": 4}, "1 * 4 / 1 = 4", {"gradient_accumulation_steps": 4}),
    ("sampler-is-another-policy", {"top_p": 0.9, "top_k": 50}, "top_p=0.9, top_k=50 change", {"temperature": 0.7}),
    (
        "luspo-by-token",
        {"loss_type": "luspo"},
        "importance_sampling_level=token",
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
]


def check_options(given: dict[str, Any]) -> list[LintFinding]:
    return check_trl_options(trl.resolve_options(Given(given)))


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
    assert sentences(check_options({**config, "disable_dropout": True}), "dropout-moves-the-ratio") == []


# --- the keys of a file ----------------------------------------------------------------------------------------------

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


def test_every_rule_is_planted() -> None:
    assert {rule for rule, *_ in OPTIONS} | {"dropout-moves-the-ratio"} == TRL_RULES.keys()
    assert {rule for rules in FILE_RULES.values() for rule in rules} == PAIRS.keys()


@pytest.mark.parametrize("rule", PAIRS)
def test_rule_finds_what_it_is_about_and_is_silent_about_its_neighbour(rule: str) -> None:
    framework, found, neighbour = PAIRS[rule]
    (finding,) = check_written(framework, found)
    assert finding.rule == rule
    assert rule not in {finding.rule for finding in check_written(framework, neighbour)}


@pytest.mark.parametrize("value", [None, "", "nan", "inf", -1, 0, 0.5, "${x}", [1], True, 10**400])
def test_no_value_breaks_a_rule(value: Any) -> None:
    """A user's file may hold anything."""
    for framework in FILE_RULES:
        keys = {key for _, found, _ in PAIRS.values() for key in found}
        for key in keys:
            check_written(framework, dict.fromkeys(keys, 4) | {key: value})
        check_written(framework, dict.fromkeys(keys, value))
        assert check_written(framework, {}) == []


def test_without_a_kl_it_is_said_what_that_leaves_open() -> None:
    (finding,) = check_written("trl", {"beta": 0.0})
    assert "over-fit" in finding.sentence
