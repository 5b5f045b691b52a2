"""TRL's own traps: a `GRPOConfig` that has one, with the numbers that it must say, and its nearest neighbour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpolab.lint import rules as trl
from grpolab.lint.rules import Rule
from grpolab.readers import trl as trl_reader
from grpolab.readers.given import Given


def options(given: dict[str, Any]) -> dict[str, Any]:
    return trl_reader.resolve_options(Given(given))


REUSED = {"num_iterations": 2, "steps_per_generation": 1}
PLANTED: list[tuple[Rule[trl.Options], dict[str, Any], str, dict[str, Any]]] = [
    (trl.trl_clip_cannot_bind, {}, "1 * 1 / 1 = 1; every ratio is 1", {"num_iterations": 2}),
    (trl.trl_clip_cannot_bind, {"gradient_accumulation_steps": 4}, "1 * 4 / 4 = 1", {"steps_per_generation": 2}),
    (trl.trl_clip_cannot_bind, {"loss_type": "cispo", "epsilon_high": 5.0}, "clip_ratio is 0", {"loss_type": "sapo"}),
    (trl.trl_clip_cannot_bind, {"generation_batch_size": 8}, "epsilon=0.2", {"generation_batch_size": 16}),
    (
        trl.reuse_is_no_op,
        {**REUSED, "gradient_accumulation_steps": 2},
        "2 * 1 / 2 = 1; the passes add up",
        {**REUSED, "gradient_accumulation_steps": 1},
    ),
    (trl.hidden_staleness, {"steps_per_generation": 4}, "1 * 4 / 1 = 4", {"gradient_accumulation_steps": 4}),
    (trl.sampler_is_another_policy, {"top_p": 0.9, "top_k": 50}, "top_p=0.9, top_k=50 change", {"temperature": 0.7}),
    (
        trl.luspo_by_token,
        {"loss_type": "luspo"},
        "importance_sampling_level=token",
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
]


@pytest.mark.parametrize(("rule", "planted", "says", "neighbour"), PLANTED)
def test_a_rule_speaks_where_it_is_broken_and_nowhere_else(
    rule: Rule[trl.Options], planted: dict[str, Any], says: str, neighbour: dict[str, Any]
) -> None:
    (sentence,) = rule.check(options(planted))
    assert says in sentence
    assert list(rule.check(options(neighbour))) == []


def test_dropout_of_a_local_model_moves_the_ratio_unless_it_is_disabled(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"attention_dropout": 0.1}))
    config = {"model_name_or_path": str(tmp_path)}
    (sentence,) = trl.dropout_moves_the_ratio.check(options(config))
    assert "attention_dropout=0.1" in sentence
    assert list(trl.dropout_moves_the_ratio.check(options({**config, "disable_dropout": True}))) == []


def test_every_rule_of_trl_is_planted() -> None:
    assert {rule.name for rule, *_ in PLANTED} | {trl.dropout_moves_the_ratio.name} == {
        rule.name for rule in trl.TRL_RULES.rules
    }
