"""Stale batches: what is learnt from late was sampled early, and comes out of a checkpoint bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import teach, tiny_parts

from grpolab.grpo.batch import Rollout, TrainingBatch
from grpolab.grpo.model import Policy
from grpolab.grpo.step import EntropyControl, Update
from grpolab.run.assembly import RunParts
from grpolab.settings.objective import AdaptiveEntropySettings
from grpolab.settings.task import RewardSettings
from grpolab.tasks import make_task


def same(one: Rollout, other: Rollout) -> bool:
    mine, theirs = one.batch.tensors(), other.batch.tensors()
    equal = all(torch.equal(value, theirs[name]) for name, value in mine.items())
    return equal and mine.keys() == theirs.keys() and one.texts_B == other.texts_B


def next_batch(parts: RunParts, step: int = 0) -> Rollout:
    return parts.learner.collector.next(parts.state.policy, step, parts.state.stale_batches)


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
    parts = tiny_parts(reward=RewardSettings(function=None, weights={"correct": 0.0, "random": 1.0}))
    collector, policy = parts.learner.collector, parts.state.policy
    first, second = (collector.rollout(policy, step) for step in (0, 1))
    assert set(first.rewards_B.tolist()) == {0.0, 1.0} == set(second.rewards_B.tolist())
    assert not torch.equal(first.rewards_B, second.rewards_B)
    teach(policy, make_task(parts.settings.task), 5)
    other = collector.rollout(policy, 0)
    assert other.texts_B != first.texts_B
    assert torch.equal(other.rewards_B, first.rewards_B)


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
