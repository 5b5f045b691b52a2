"""Prompts, rewards and rollouts of a rollout step."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_parts, tiny_settings

from grpolab.errors import RequestError
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.metrics import rollout_metrics
from grpolab.grpo.rewards import make_score, reward_parts
from grpolab.grpo.rollout import total_reward
from grpolab.grpo.step import learning_rate
from grpolab.tasks import make_task
from grpolab.tasks.base import Example

EXAMPLES = [Example("1+2=", "3"), Example("4+4=", "8")]


def test_prompts_of_an_epoch_are_all_different_and_the_next_epoch_is_shuffled_anew() -> None:
    collector = tiny_parts(prompts_per_step=7).learner.collector
    count = len(collector.examples)
    stream = list(itertools.chain.from_iterable(collector.prompts(step) for step in range(2 * count // 7 + 1)))
    first, second = stream[:count], stream[count : 2 * count]
    assert set(first) == set(second) == set(collector.examples)
    assert first != second
    assert collector.prompts(3) == stream[21:28]


def test_a_rollout_is_scored_row_by_row() -> None:
    parts = tiny_parts()
    collector, policy = parts.learner.collector, parts.state.policy
    rollout = collector.rollout(policy, 0)
    assert rollout.examples_B == [example for example in collector.prompts(0) for _ in range(4)]
    answered = zip(rollout.examples_B, rollout.texts_B, strict=True)
    assert rollout.rewards_B.tolist() == [sum(collector.score(*answer).values()) for answer in answered]
    alone = advantages(Scored(rollout.rewards_B, rollout.batch.prompt_of_B))
    torch.testing.assert_close(rollout.batch.advantages_B, alone)
    for row, text in enumerate(rollout.texts_B):
        kept = rollout.batch.tokens_BT[row][rollout.batch.mask_BT[row]]
        assert policy.tokenizer.decode(kept, skip_special_tokens=True) == text
        assert rollout.truncated_B[row] == (kept[-1] != policy.end)
    assert 0 < rollout.truncated_B.sum() < 16


def test_learning_rate_warms_up_and_then_takes_its_course() -> None:
    course = {}
    for name in ("constant", "linear", "cosine"):
        settings = tiny_settings(lr_scheduler_type=name, warmup_steps=4, learning_rate=2.0, rollout_steps=8)
        assert settings.optimizer_steps == 24
        course[name] = [learning_rate(settings, step) for step in range(24)]
        assert course[name][:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert set(course["constant"][4:]) == {2.0}
    for name in ("linear", "cosine"):
        assert course[name][14] == pytest.approx(1.0)
        assert 0 < course[name][-1] < 0.2
        assert course[name][4:] == sorted(course[name][4:], reverse=True)


def by_length(prompt: str, answer: str, completion: str) -> dict[str, float]:
    """A user's reward in parts; whole numbers are numbers too."""
    return {"correct": int(completion == answer), "short": 1 / (1 + len(completion)), "prompt": len(prompt)}


NOT_A_FUNCTION = 3


def test_own_reward_function_with_parts() -> None:
    settings = tiny_settings(reward={"function": f"{__name__}:by_length", "weights": {"correct": 1.0, "short": 2.0}})
    parts = reward_parts(make_score(settings.reward, make_task(settings.task)), EXAMPLES, ["3", "77"])
    assert {name: values.dtype for name, values in parts.items()} == dict.fromkeys(parts, torch.float32)
    assert parts["correct"].tolist() == [1, 0]
    assert parts["prompt"].tolist() == [4, 4]
    torch.testing.assert_close(total_reward(parts, settings.reward.weights), torch.tensor([2.0, 2 / 3]))
    with pytest.raises(RequestError, match="no part called corect; there are correct, prompt, short"):
        total_reward(parts, {"corect": 1.0})


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module:f", "reward.function=no_such_module:f cannot be imported"),
        (f"{__name__}:absent", "cannot be imported"),
        (f"{__name__}:NOT_A_FUNCTION", "is not a function"),
        ("just_a_name", "write it as package.module:name"),
        (".relative:f", "cannot be imported"),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_refused(path: str, says: str) -> None:
    settings = tiny_settings(reward={"function": path, "weights": {"correct": 1.0}})
    with pytest.raises(RequestError, match=says):
        make_score(settings.reward, make_task(settings.task))


def test_rollout_metrics_by_hand() -> None:
    """Four groups of two: all right, one right, none right, and equal rewards for a right and a wrong answer."""
    parts = tiny_parts(prompts_per_step=4, num_generations=2)
    rollout = parts.learner.collector.rollout(parts.state.policy, 0)
    mask_BT = rollout.batch.mask_BT
    step = parts.learner.update(parts.state, rollout.batch, int(mask_BT.sum()))
    right = [True, True, False, True, False, False, True, False]
    rollout = replace(
        rollout,
        texts_B=["1", "1", "1", "2", "3", "4", "5", "5"],
        rewards_B=torch.tensor([1.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.5, 0.5]),
        parts={"correct": torch.tensor(right).float(), "format": torch.tensor([1.0] * 3 + [0.0] * 5)},
        truncated_B=torch.tensor([True, False, False, False, True, False, False, True]),
    )
    lengths_B = mask_BT.sum(1).numpy()
    found = rollout_metrics(rollout, step.batch, 2)
    assert (found["reward/mean"], found["reward/std"]) == pytest.approx((5 / 8, rollout.rewards_B.std().item()))
    assert (found["reward/correct"], found["reward/format"]) == (4 / 8, 3 / 8)
    assert found["zero_variance/share"] == 3 / 4
    assert found["zero_variance/all_right"] == found["zero_variance/all_wrong"] == 1 / 4
    assert found["completions/unique"] == (1 / 2 + 1 + 1 + 1 / 2) / 4
    assert (found["truncation/share"], found["truncation/right"], found["truncation/wrong"]) == (3 / 8, 1 / 4, 2 / 4)
    for name, rows_B in (("", lengths_B > 0), ("right_", np.array(right)), ("wrong_", ~np.array(right))):
        assert found[f"length/{name}mean"] == pytest.approx(lengths_B[rows_B].mean())
        assert found[f"length/{name}p95"] == pytest.approx(np.quantile(lengths_B[rows_B], 0.95))
    assert found["length/std"] == pytest.approx(lengths_B.std(ddof=1))
    assert step.inputs.entropy_BT is not None
    entropy_N, p_old_N = step.inputs.entropy_BT[mask_BT].numpy(), step.inputs.old_log_probs_BT[mask_BT].exp().numpy()
    assert found["entropy/behaviour"] == pytest.approx(entropy_N.mean())
    assert found["entropy/behaviour_p80"] == pytest.approx(np.quantile(entropy_N, 0.8))
    assert found["probability/below_0.1"] == pytest.approx((p_old_N < 0.1).mean())
