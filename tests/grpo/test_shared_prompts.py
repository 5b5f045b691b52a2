"""What completions and prompts have in common is computed once, and what one pass gives is not computed by another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import gradient_of, tiny_parts, tiny_policy
from torch import Tensor

from grpolab.grpo.batch import Prompts
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.model import old_log_probs
from grpolab.grpo.step import Update
from grpolab.run.assembly import RunParts

SHAPE = {"prompts_per_step": 8, "num_generations": 4, "num_minibatches": 2, "micro_batch_size": 4, "num_iterations": 1}


def first_update(**changes: Any) -> tuple[RunParts, Update, Tensor, int]:
    """A run's first update on a random half of its batch: the gradient, and the places that forward passes computed."""
    parts = tiny_parts(**{**SHAPE, "max_completion_length": 4, "task": {"digits": 2}, **changes})
    state, learner, places = parts.state, parts.learner, 0
    batch = learner.collector.rollout(replace(state.policy, by_prompt=False), 0).batch
    minibatch = learner.minibatches(state.policy, batch, 0)[0]

    def count(_module: Any, inputs: Any) -> None:
        nonlocal places
        places += inputs[0].numel() // inputs[0].shape[-1]

    hook = state.policy.model.lm_head.register_forward_pre_hook(count)
    update = learner.update(state, minibatch, int(batch.mask_BT.sum()))
    hook.remove()
    return parts, update, gradient_of(state.policy), places


@pytest.mark.parametrize("micro_batch_size", [4, 16])
def test_an_update_sorted_by_prompt_is_the_same_from_fewer_places(micro_batch_size: int) -> None:
    axes = {"micro_batch_size": micro_batch_size, "beta": 0.1}
    _, plain, gradient, places = first_update(**axes)
    _, ordered, sorted_gradient, fewer = first_update(**axes, sort_by_prompt=True)
    plain_B, sorted_B = plain.batch.rows_B.argsort(), ordered.batch.rows_B.argsort()
    assert torch.equal(plain.batch.rows_B[plain_B], ordered.batch.rows_B[sorted_B])
    assert ordered.batch.prompt_of_B.tolist() == sorted(plain.batch.prompt_of_B.tolist())
    mask_BT = plain.inputs.mask_BT[plain_B]
    pair = (update.inputs.log_probs_BT[rows_B][mask_BT] for update, rows_B in ((plain, plain_B), (ordered, sorted_B)))
    torch.testing.assert_close(*pair, rtol=0, atol=1e-5)
    assert ordered.loss == pytest.approx(plain.loss, abs=1e-6)
    assert (sorted_gradient - gradient).norm() <= 1e-4 * gradient.norm() > 0
    assert fewer < places


def test_prompts_share_a_tree_where_that_costs_less() -> None:
    batch = tiny_parts(**SHAPE).learner.collector.rollout(tiny_policy(), 0).batch
    same = Prompts(batch.prompts.tokens_PL[:1].expand(8, -1).repeat(1, 9), None)  # long, and the same 8 times
    batch = replace(batch, prompts=same)
    apart, together = (replace(batch, one_tree=one).with_trees(32, 500.0).tree for one in (False, True))
    assert together is not None
    assert apart is None or together.cost < apart.cost / 2
    assert together.tokens_RW.numel() < same.tokens_PL.numel() / 8 + batch.tokens_BT.numel()


def test_whole_groups_are_not_cut() -> None:
    parts = tiny_parts(**SHAPE, whole_groups=True)
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    minibatches = parts.learner.minibatches(parts.state.policy, batch, 0)
    assert [m.prompt_of_B.unique().tolist() for m in minibatches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_first_minibatch_takes_its_old_log_probs_from_its_own_pass_once_that_was_seen_to_be_exact() -> None:
    parts = tiny_parts(**SHAPE, sort_by_prompt=True)
    state, learner = parts.state, parts.learner
    batch = learner.collector.rollout(state.policy, 0).batch
    assert all(m.old_log_probs_BT is not None for m in learner.minibatches(state.policy, batch, 0))
    first, second = learner.minibatches(state.policy, batch, 1)
    assert first.old_log_probs_BT is None
    assert second.old_log_probs_BT is not None
    expected_BT, entropy_BT = old_log_probs(state.policy, first, learner.settings.forward_size)
    update = learner.update(state, first, int(batch.mask_BT.sum()))
    assert torch.equal(update.batch.old_log_probs_BT, expected_BT)
    assert torch.equal(update.batch.old_entropy_BT, entropy_BT)
    half = replace(learner, settings=learner.settings.model_copy(update={"dtype": "bfloat16"}))
    assert all(m.old_log_probs_BT is not None for m in half.minibatches(state.policy, batch, 1)), "nobody has seen it"


@pytest.mark.parametrize("padded", [False, True])
def test_what_all_prompts_begin_with_is_read_once_before_sampling(padded: bool) -> None:
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.lm_head.weight *= 20
    tokens_PL = torch.tensor([[4, 5, 6, 4, 5, 7, 8], [0, 4, 5, 6, 4, 5, 9], [0, 0, 4, 5, 6, 8, 4]])
    mask_PL = torch.arange(7) >= torch.tensor([[0], [1], [2]])
    prompts = Prompts(tokens_PL, mask_PL) if padded else Prompts(torch.roll(tokens_PL[:1], 2).repeat(3, 1), None)
    noise_BT = sampling_noise(0, "rollout", 0, 3, 4, 6)
    read: list[int] = []
    policy.model.model.layers[0].register_forward_pre_hook(
        lambda _layer, inputs: read.append(inputs[0].shape[:2].numel())
    )
    plain = sample(policy, prompts, 4, noise_BT)
    plain_read, read[:] = read[0], []
    shared = sample(replace(policy, by_prompt=True), prompts, 4, noise_BT)
    assert torch.equal(shared.tokens_BT, plain.tokens_BT)
    torch.testing.assert_close(shared.log_probs_BT, plain.log_probs_BT, rtol=0, atol=1e-5)
    common = 3 if padded else 6  # of the unpadded ones all but the last token
    assert (plain_read, read[:2]) == (21, [common, 3 * (7 - common)])
    alone = Prompts(tokens_PL[:1], None)
    assert torch.equal(
        *(sample(p, alone, 4, noise_BT[:4]).tokens_BT for p in (policy, replace(policy, by_prompt=True)))
    )
