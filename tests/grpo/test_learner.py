"""Prompts, rewards and rollouts of a rollout step, and batches that are learnt from late."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import teach, tiny_parts, tiny_policy, tiny_settings

from grpolab.errors import RequestError
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.batch import Rollout, TrainingBatch
from grpolab.grpo.metrics import rollout_metrics
from grpolab.grpo.model import Policy
from grpolab.grpo.rewards import make_score, noisy_verdicts, reward_parts
from grpolab.grpo.rollout import total_reward
from grpolab.grpo.step import EntropyControl, Update, learning_rate
from grpolab.run.assembly import RunParts
from grpolab.settings.objective import AdaptiveEntropySettings
from grpolab.settings.task import VerifierSettings
from grpolab.tasks import make_task
from grpolab.tasks.base import Example

EXAMPLES = [Example("1+2=", "3"), Example("4+4=", "8")]


def test_prompts_of_an_epoch_are_all_different_and_the_next_epoch_is_shuffled_anew() -> None:
    collector = tiny_parts(prompts_per_step=7).learner.collector
    count = len(collector.examples)
    stream = collector.prompts(range(2 * count))
    first, second = stream[:count], stream[count : 2 * count]
    assert set(first) == set(second) == set(collector.examples)
    assert first != second
    assert collector.rollout(tiny_policy(), 3).examples_B[::4] == stream[21:28]


def test_a_rollout_is_scored_row_by_row() -> None:
    parts = tiny_parts()
    collector, policy = parts.learner.collector, parts.state.policy
    rollout = collector.rollout(policy, 0)
    assert rollout.examples_B == [example for example in collector.prompts(range(4)) for _ in range(4)]
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


def same(one: Rollout, other: Rollout) -> bool:
    mine, theirs = one.batch.tensors(), other.batch.tensors()
    equal = all(torch.equal(value, theirs[name]) for name, value in mine.items())
    return equal and mine.keys() == theirs.keys() and one.texts_B == other.texts_B


def next_batch(parts: RunParts, step: int = 0) -> Rollout:
    return parts.learner.collector.next(parts.state.policy, step, parts.state.stale_batches, parts.state.stream)


def learn(parts: RunParts, rollout: Rollout, step: int = 0) -> Update:
    minibatches = parts.learner.minibatches(parts.state.policy, rollout.batch, step)
    return [parts.learner.update(parts.state, minibatch, 10) for minibatch in minibatches][-1]


def taught_parts(**changes: Any) -> RunParts:
    """A tiny run whose policy has moved away from its reference."""
    parts = tiny_parts(**changes)
    teach(parts.state.policy, make_task(parts.settings.task), 5)
    return parts


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_batch_is_sampled_by_the_policy_of_so_many_steps_before(staleness: int) -> None:
    parts = tiny_parts(staleness=staleness, rollout_steps=5)
    then: list[Policy] = []  # the policy before each rollout step
    for step in range(5):
        then.append(copy.deepcopy(parts.state.policy))  # weights that take no gradient round differently
        rollout = next_batch(parts, step)
        assert same(rollout, parts.learner.collector.rollout(then[max(0, step - staleness)], step))
        assert len(parts.state.stale_batches) == min(staleness, 4 - step)  # none that no step would learn from
        learn(parts, rollout)


def test_the_queue_of_stale_batches_survives_its_state_dict_bit_for_bit() -> None:
    parts = tiny_parts(staleness=2, rollout_steps=5, beta=0.1)
    learn(parts, next_batch(parts))
    collector, stale_batches = parts.learner.collector, parts.state.stale_batches
    back = collector.load_state_dict(parts.state.policy, 1, collector.state_dict(stale_batches))
    assert len(back) == len(stale_batches) == 2
    assert all(map(same, stale_batches, back))


@pytest.mark.parametrize(("source", "is_on_policy"), [("trainer", True), ("sampler", False)])
def test_old_log_probs_of_the_sampler_make_stale_batches_off_policy(source: str, is_on_policy: bool) -> None:
    parts = tiny_parts(staleness=1, learning_rate=0.05, old_log_probs=source)
    learn(parts, next_batch(parts))
    log_ratio = parts.learner.check(learn(parts, next_batch(parts, 1), 1))
    assert log_ratio == 0 if is_on_policy else log_ratio > 1e-3


def test_a_low_precision_sampler_is_another_policy() -> None:
    parts = taught_parts(sampler_dtype="bfloat16")
    update = learn(parts, next_batch(parts))
    assert update.batch.old_log_probs_BT is not None
    gap_BT = (update.batch.sampler_log_probs_BT - update.batch.old_log_probs_BT)[update.batch.mask_BT].abs()
    assert 1e-4 < gap_BT.max() < 0.5
    assert parts.learner.check(update) == 0


def test_a_random_reward_knows_nothing_of_the_completion() -> None:
    parts = tiny_parts(reward={"weights": {"correct": 0.0, "random": 1.0}})
    collector, policy = parts.learner.collector, parts.state.policy
    first, second = (collector.rollout(policy, step) for step in (0, 1))
    assert set(first.rewards_B.tolist()) == {0.0, 1.0} == set(second.rewards_B.tolist())
    assert not torch.equal(first.rewards_B, second.rewards_B)
    teach(policy, make_task(parts.settings.task), 5)
    other = collector.rollout(policy, 0)
    assert other.texts_B != first.texts_B
    assert torch.equal(other.rewards_B, first.rewards_B)


def test_a_verifier_errs_at_its_rates_and_the_metrics_keep_the_truth() -> None:
    right_B = torch.tensor([1.0, 0.0, torch.nan] * 4000)
    verdict_B = noisy_verdicts(right_B, VerifierSettings(false_right=0.1, false_wrong=0.3), 3, 7)
    assert verdict_B[right_B == 1].mean().item() == pytest.approx(0.7, abs=0.02)
    assert verdict_B[right_B == 0].mean().item() == pytest.approx(0.1, abs=0.02)
    assert torch.equal(verdict_B.isnan(), right_B.isnan())

    def next_with(**verifier: float) -> Rollout:
        errs = VerifierSettings(**verifier) if verifier else None
        reward = {"weights": {"correct": 0.5, "format": 1.0}, "verifier": errs}
        return next_batch(taught_parts(reward=reward))

    truth, accepts_all = next_with(), next_with(false_right=1.0, false_wrong=0.0)
    assert torch.equal(accepts_all.rewards_B, 0.5 + accepts_all.parts["format"])
    assert torch.equal(accepts_all.parts["correct"], truth.parts["correct"])
    never_errs = next_with(false_right=0.0, false_wrong=0.0)
    assert torch.equal(never_errs.batch.advantages_B, truth.batch.advantages_B)
    with pytest.raises(ValueError, match=r"reward.verifier judges the part `correct`, which reward.weights must name"):
        tiny_settings(reward={"weights": {"format": 1.0}, "verifier": {"false_right": 0, "false_wrong": 0}})


def sampled_kl(batch: TrainingBatch) -> torch.Tensor:
    assert batch.reference_log_probs_BT is not None
    return ((batch.sampler_log_probs_BT - batch.reference_log_probs_BT) * batch.mask_BT).sum(1)


def test_a_kl_in_the_reward_moves_advantages_and_leaves_the_loss_alone() -> None:
    parts = taught_parts(beta=0.5, kl_placement="reward", scale_rewards="none", kl_estimator="k1")
    assert parts.learner.objective.beta == 0
    collector, policy = parts.learner.collector, parts.state.policy
    batch = collector.rollout(policy, 0).batch
    shaped_PG = (batch.rewards_B - 0.5 * sampled_kl(batch)).view(-1, 4)
    expected_B = (shaped_PG - shaped_PG.mean(1, keepdim=True)).flatten()
    torch.testing.assert_close(batch.advantages_B, expected_B, rtol=1e-5, atol=1e-6)
    in_loss = replace(collector, settings=collector.settings.model_copy(update={"kl_placement": "loss"}))
    assert not torch.allclose(expected_B, in_loss.rollout(policy, 0).batch.advantages_B)


def test_a_kl_that_is_taken_from_the_advantage_is_scaled_by_no_std() -> None:
    """OpenRLHF, AReaL: where all rewards are equal, only the KL is left, as large as it is."""
    parts = taught_parts(beta=0.01, kl_placement="advantage", kl_estimator="k1", scale_epsilon=1e-9)
    collector, policy = parts.learner.collector, parts.state.policy
    (saved,) = collector.state_dict([collector.rollout(policy, 0)])
    saved["parts"] = {name: torch.ones_like(values_B) for name, values_B in saved["parts"].items()}
    (rollout,) = collector.load_state_dict(policy, 0, [saved])
    torch.testing.assert_close(rollout.batch.advantages_B, -0.01 * sampled_kl(rollout.batch))


def test_the_entropy_bonus_rises_below_its_target_and_is_off_above() -> None:
    rule = AdaptiveEntropySettings(target=0.5, step=0.25, least=0.0, most=0.5)
    assert EntropyControl(0.5).weight(rule) == 0  # no entropy is known yet
    control, seen = EntropyControl(0.0), []
    for entropy in (0.4, 0.4, 0.4, 0.9, 0.9, 0.9, 0.5):
        control = control.after(entropy, rule)
        seen.append((control.coefficient, control.weight(rule)))
    assert seen == [(0.25, 0.25), (0.5, 0.5), (0.5, 0.5), (0.25, 0.0), (0.0, 0.0), (0.0, 0.0), (0.25, 0.25)]
