"""Same signature, same run: everything that can change a result is in it, and nothing else is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError
from tiny import VALUES, tiny_settings

from grpolab import identity
from grpolab.identity import dotted, plain, signature
from grpolab.settings import RunSettings

# For every setting another value that is allowed.
OTHER: dict[str, Any] = {
    "seed": 1,
    "fault": "aliased_old_policy",
    "task.digits": 2,
    "reward.function": "some.module:reward",
    "reward.weights.correct": 2.0,
    "reward.weights.format": 2.0,
    "max_completions": 32,
    "max_optimizer_steps": 6,
    "max_seconds": 60.0,
    "early_stop": {"metric": "eval/accuracy_expected", "at_most": 0.05, "after": 2, "evaluations": 3},
    "importance_sampling_level": "sequence",
    "kernel": "ratio",
    "epsilon_high": 0.3,
    "delta": 3.0,
    "dual_clip": 3.0,
    "log_ratio_clamp": 20.0,
    "framework": "trl",
    "loss_form": "max_negative",
    "kl_estimator": "k2",
    "kl_gradient": "score_function",
    "kl_input_clamp": 20.0,
    "kl_output_clamp": 10.0,
    "kl_placement": "reward",
    "entropy_coef": 0.01,
    "adaptive_entropy": {"target": 0.5, "step": 0.1, "least": 0.0, "most": 1.0},
    "top_entropy_quantile": 0.2,
    "off_policy_mask_threshold": 0.5,
    "sampler_correction": {"level": "token", "mode": "truncate", "low": 0.0, "high": 2.0},
    "old_log_probs": "sampler",
    "sampler_dtype": "bfloat16",
    "aggregation": "token_mean_rollout",
    "scale_reward_parts": "group",
    "advantage_estimator": "leave_one_out",
    "scale_rewards": "none",
    "whiten_advantages": "bessel",
    "lr_scheduler_type": "linear",
    "micro_batch_size": 8,
    "num_minibatches": 2,
    "warm_start.seed": 5,
    "device": "cuda",
    "dtype": "bfloat16",
    "machine.results": "elsewhere",
    "machine.tracking_uri": "auto",
    **dict.fromkeys(("machine.cell_timeout_seconds", "machine.hang_seconds", "machine.memory_mib"), 600),
}


def needed_for(key: str) -> dict[str, Any]:
    """Without these a key has no effect, and is no part of the signature."""
    if key.startswith("kernel_options."):
        return {"kernel": key.split(".")[1]}
    if key.startswith("kl_"):
        return {"beta": 0.1}
    return {"entropy_coef": 0.02} if key == "adaptive_entropy" else {}


def changed(key: str, value: Any) -> RunSettings:
    values = json.loads(json.dumps({**VALUES, **needed_for(key)}))
    *path, last = key.split(".")
    group = values
    for name in path:
        group = group[name]
    group[last] = value
    return RunSettings.model_validate(values)


def other_value(key: str, value: Any) -> Any:
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 or 0.5 if math.isfinite(value) else 2.0
    return value * 2 or 1  # stays divisible by what it was


@pytest.mark.parametrize("key", [key for key, _ in dotted(VALUES) if key not in ("task.name", "model.name")])
def test_every_setting_that_can_change_a_result_is_in_the_signature(key: str) -> None:
    before = signature(tiny_settings(**needed_for(key)).identity())
    after = signature(changed(key, other_value(key, dict(dotted(VALUES))[key])).identity())
    assert (after == before) == key.startswith("machine.")


def test_two_ways_to_write_one_run_are_one_run() -> None:
    expected = signature(tiny_settings().identity())
    for key, value in (
        ("epsilon_high", 0.2),
        ("micro_batch_size", 16),
        ("max_completions", 50),
        ("max_optimizer_steps", 9),
        ("warm_start.seed", 0),
        ("reward", dict(reversed(VALUES["reward"].items()))),
    ):
        assert signature(changed(key, value).identity()) == expected


def test_signature_is_short_and_does_not_depend_on_key_order() -> None:
    assert signature({"a": 1, "b": {"c": 2.0, "d": math.inf}}) == signature({"b": {"d": math.inf, "c": 2.0}, "a": 1})
    assert signature({"a": 1}) != signature({"a": 2})
    assert len(signature({"a": 1})) == 16
    assert set(signature({"a": 1})) <= set("0123456789abcdef")


def test_results_version_is_in_every_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signature({"a": 1})
    monkeypatch.setattr(identity, "RESULTS_VERSION", identity.RESULTS_VERSION + 1)
    assert signature({"a": 1}) != before


def test_what_a_warm_start_depends_on_is_its_identity() -> None:
    base = signature(tiny_settings().warm_start_identity())
    for change in ({"learning_rate": 0.5}, {"num_iterations": 1}, {"epsilon": 0.1}, {"rollout_steps": 9}):
        assert signature(tiny_settings(**change).warm_start_identity()) == base
    for change in ({"seed": 1}, {"temperature": 0.5}, {"warm_start": {"max_steps": 1}}, {"max_completion_length": 2}):
        assert signature(tiny_settings(**change).warm_start_identity()) != base


def test_plain_is_strict_json() -> None:
    value = {"a": math.inf, 1: [(-math.inf, math.nan)], "b": None}
    assert plain(value) == {"a": "inf", "1": [["-inf", "nan"]], "b": None}
    json.dumps(plain(value), allow_nan=False)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("epsilon", -0.1, "epsilon"),
        ("epsilon_high", -0.1, "epsilon_high"),
        ("delta", 0.0, "delta"),
        ("delta", -1.0, "delta"),
        ("num_generations", 1, "num_generations=1 leaves every group-normalised advantage undefined"),
        ("num_minibatches", 3, "num_minibatches=3 must divide"),
        ("micro_batch_size", 5, "micro_batch_size=5 must divide"),
        ("model.heads", 3, "must divide"),
        ("temperature", 0.0, "temperature"),
        ("learning_rate", math.nan, "learning_rate"),
        ("kernel", "clip", "kernel"),
        ("no_such_key", 1, "no_such_key"),
    ],
)
def test_settings_that_make_no_sense_are_refused(key: str, value: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        changed(key, value)


def test_a_clip_that_cannot_bind_is_known() -> None:
    assert tiny_settings().clip_can_bind
    assert not tiny_settings(num_iterations=1).clip_can_bind
    assert tiny_settings(num_iterations=1, num_minibatches=2).clip_can_bind
    assert not tiny_settings(kernel="ratio").clip_can_bind
