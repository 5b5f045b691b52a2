"""Stale batches: what is learnt from late was sampled early, and comes out of a checkpoint bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import teach, tiny_parts

from grpolab.grpo.batch import Rollout
from grpolab.grpo.model import Policy
from grpolab.grpo.rollout import Collector
from grpolab.grpo.step import EntropyControl
from grpolab.run.assembly import RunParts
from grpolab.settings.objective import AdaptiveEntropySettings
from grpolab.settings.task import RewardSettings
from grpolab.tasks import make_task


def same(one: Rollout, other: Rollout) -> bool:
    mine, theirs = one.batch.tensors(), other.batch.tensors()
    equal = all(torch.equal(value, theirs[name]) for name, value in mine.items())
    return equal and mine.keys() == theirs.keys() and one.texts_B == other.texts_B


def learn_something(parts: RunParts, rollout: Rollout) -> None:
    for minibatch in parts.learner.minibatches(parts.state.policy, rollout.batch, 0):
        parts.learner.update(parts.state, minibatch, 10)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_batch_is_sampled_by_the_policy_of_so_many_steps_before(staleness: int) -> None:
    parts = tiny_parts(staleness=staleness, rollout_steps=5)
    collector, policy, stale_batches = parts.learner.collector, parts.state.policy, parts.state.stale_batches
    then: list[Policy] = []  # the policy before each rollout step
    for step in range(5):
        then.append(copy.deepcopy(policy))  # weights that take no gradient round differently
        rollout = collector.next(policy, step, stale_batches)
        assert same(rollout, collector.rollout(then[max(0, step - staleness)], step))
        assert len(stale_batches) == min(staleness, 4 - step)  # nothing is sampled that no step would learn from
        learn_something(parts, rollout)


def test_the_queue_of_stale_batches_survives_its_state_dict_bit_for_bit() -> None:
    parts = tiny_parts(staleness=2, rollout_steps=5, beta=0.1)
    collector, policy, stale_batches = parts.learner.collector, parts.state.policy, parts.state.stale_batches
    learn_something(parts, collector.next(policy, 0, stale_batches))
    back = collector.load_state_dict(policy, 1, collector.state_dict(stale_batches))
    assert len(back) == len(stale_batches) == 2
    assert all(same(one, other) for one, other in zip(stale_batches, back, strict=True))


@pytest.mark.parametrize(("source", "is_on_policy"), [("trainer", True), ("sampler", False)])
def test_old_log_probs_of_the_sampler_make_stale_batches_off_policy(source: str, is_on_policy: bool) -> None:
    parts = tiny_parts(staleness=1, learning_rate=0.05, old_log_probs=source)
    collector, state = parts.learner.collector, parts.state
    learn_something(parts, collector.next(state.policy, 0, state.stale_batches))
    rollout = collector.next(state.policy, 1, state.stale_batches)
    (minibatch,) = parts.learner.minibatches(state.policy, rollout.batch, 1)
    log_ratio = parts.learner.check(parts.learner.update(state, minibatch, 10))
    assert log_ratio == 0 if is_on_policy else log_ratio > 1e-3


def test_a_low_precision_sampler_is_another_policy() -> None:
    parts = tiny_parts(sampler_dtype="bfloat16")
    teach(parts.state.policy, make_task(parts.settings.task), 5)
    collector, state = parts.learner.collector, parts.state
    rollout = collector.next(state.policy, 0, state.stale_batches)
    (minibatch,) = parts.learner.minibatches(state.policy, rollout.batch, 0)
    step = parts.learner.update(state, minibatch, 10)
    assert step.batch.old_log_probs_BT is not None
    gap_BT = (rollout.batch.sampler_log_probs_BT - step.batch.old_log_probs_BT)[rollout.batch.mask_BT].abs()
    assert 1e-4 < gap_BT.max() < 0.5
    assert parts.learner.check(step) == 0


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


def advantages(collector: Collector, policy: Policy, **changes: Any) -> torch.Tensor:
    changed = replace(collector, settings=collector.settings.model_copy(update=changes))
    return changed.rollout(policy, 0).batch.advantages_B


def test_a_kl_in_the_reward_moves_advantages_and_leaves_the_loss_alone() -> None:
    parts = tiny_parts(beta=0.5, kl_placement="reward", scale_rewards="none", kl_estimator="k1")
    assert parts.learner.objective.beta == 0
    teach(parts.state.policy, make_task(parts.settings.task), 5)  # away from the reference
    collector, policy = parts.learner.collector, parts.state.policy
    assert collector.reference is not None
    batch = collector.rollout(policy, 0).batch
    assert batch.reference_log_probs_BT is not None
    kl_B = ((batch.sampler_log_probs_BT - batch.reference_log_probs_BT) * batch.mask_BT).sum(1)
    shaped_PG = (batch.rewards_B - 0.5 * kl_B).view(-1, 4)
    expected_B = (shaped_PG - shaped_PG.mean(1, keepdim=True)).flatten()
    torch.testing.assert_close(batch.advantages_B, expected_B, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(expected_B, advantages(collector, policy, kl_placement="loss"))


def test_a_kl_that_is_taken_from_the_advantage_is_scaled_by_no_std() -> None:
    """OpenRLHF, AReaL: where all rewards are equal, only the KL is left, as large as it is."""
    parts = tiny_parts(beta=0.01, kl_placement="advantage", kl_estimator="k1", scale_epsilon=1e-9)
    teach(parts.state.policy, make_task(parts.settings.task), 5)
    collector, policy = parts.learner.collector, parts.state.policy
    (saved,) = collector.state_dict([collector.rollout(policy, 0)])
    saved["parts"] = {name: torch.ones_like(values_B) for name, values_B in saved["parts"].items()}
    (rollout,) = collector.load_state_dict(policy, 0, [saved])
    batch = rollout.batch
    assert batch.reference_log_probs_BT is not None
    kl_B = ((batch.sampler_log_probs_BT - batch.reference_log_probs_BT) * batch.mask_BT).sum(1)
    torch.testing.assert_close(batch.advantages_B, -0.01 * kl_B)


def test_the_entropy_bonus_rises_below_its_target_and_is_off_above() -> None:
    rule = AdaptiveEntropySettings(target=0.5, step=0.25, least=0.0, most=0.5)
    control = EntropyControl(0.5)
    assert control.weight(rule) == 0  # no entropy is known yet
    control = EntropyControl(0.0)
    seen = []
    for entropy in (0.4, 0.4, 0.4, 0.9, 0.9, 0.9, 0.5):
        control = control.after(entropy, rule)
        seen.append((control.coefficient, control.weight(rule)))
    assert seen == [(0.25, 0.25), (0.5, 0.5), (0.5, 0.5), (0.25, 0.0), (0.0, 0.0), (0.0, 0.0), (0.25, 0.25)]
