"""The losses of 2025 and 2026 against what their official code, or a framework's, computes, in our own words."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import VALUES, tiny_parts
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss, surrogate
from grpolab.settings.objective import Objective
from grpolab.sweep.compose import compose

OPTIONS = VALUES["kernel_options"]
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
MASK = torch.arange(6) < torch.tensor([6, 4, 1, 3, 2, 5, 2, 6])[:, None]
ADVANTAGES = torch.tensor([0.7, -0.3, -0.4, 1.2, -1.0, -0.2, 0.5, 0.1], dtype=torch.double)[:, None]


def example(seed: int, spread: float) -> tuple[Tensor, Tensor]:
    """Log-probs, the policy's and the old ones, of eight completions in three groups; the last are all right."""
    draw = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(8, 6, generator=draw, dtype=torch.double) * 2 - 0.05
    moved_BT = spread * torch.randn(8, 6, generator=draw, dtype=torch.double)
    return (old_BT + moved_BT).requires_grad_(), old_BT


def inputs_of(log_probs_BT: Tensor, old_BT: Tensor) -> LossInputs:
    return LossInputs(log_probs_BT, old_BT, ADVANTAGES, MASK, Totals.of(MASK), group_B=GROUPS)


def objective_of(kernel: str, options: dict[str, float] | None = None, **axes: Any) -> Objective:
    values = {"aggregation": "token_mean_minibatch", **axes}
    return make_objective(kernel=kernel, **values, kernel_options={**OPTIONS[kernel], **(options or {})})


def loss_and_gradient(objective: Objective, log_probs_BT: Tensor, old_BT: Tensor) -> tuple[Tensor, Tensor]:
    total = policy_loss(objective, inputs_of(log_probs_BT, old_BT)).total
    return total, torch.autograd.grad(total, log_probs_BT)[0]


def agree(objective: Objective, theirs: Tensor, log_probs_BT: Tensor, old_BT: Tensor) -> None:
    total, gradient_BT = loss_and_gradient(objective, log_probs_BT, old_BT)
    torch.testing.assert_close(total, theirs, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(gradient_BT, torch.autograd.grad(theirs, log_probs_BT)[0], rtol=1e-10, atol=1e-14)


def bapo_of_its_code(log_probs_BT: Tensor, old_BT: Tensor, o: dict[str, float]) -> tuple[Tensor, float, float]:
    """WooooDyy/BAPO 7287044: the loss, and the bounds of the ratio that it ends with."""
    r_BT, A_BT, kept_BT = (log_probs_BT - old_BT).exp(), ADVANTAGES.expand(8, 6), MASK.double()
    low, high = o["low_start"], o["high_start"]

    def balance() -> float:
        effective_BT = torch.where(A_BT >= 0, r_BT.clamp(max=high), r_BT.clamp(min=low)) * A_BT * kept_BT
        effective_BT = effective_BT.detach()
        return float(effective_BT.clamp(min=0).sum() / ((-effective_BT.clamp(max=0)).sum() + 1e-8))

    while balance() < o["target"] and low < o["low_end"]:
        low = min(low + o["low_step"], o["low_end"])
    while balance() < o["target"] and high < o["high_end"]:
        high = min(high + o["high_step"], o["high_end"])
    worse_BT = torch.maximum(-A_BT * r_BT, -A_BT * r_BT.clamp(low, high))
    loss_BT = torch.where(A_BT < 0, torch.minimum(-A_BT * 3.0, worse_BT), worse_BT)
    return (loss_BT * kept_BT).sum() / kept_BT.sum(), low, high


@pytest.mark.parametrize(("target", "high_end"), [(0.5, 1.2), (1.1, 1.8), (99.0, 3.0)])  # at once, by both ends, never
def test_bapo_ends_with_the_bounds_and_the_loss_of_its_code(target: float, high_end: float) -> None:
    options, (log_probs_BT, old_BT) = {**OPTIONS["bapo"], "target": target}, example(3, 0.9)
    theirs, low, high = bapo_of_its_code(log_probs_BT, old_BT, options)
    objective = objective_of("bapo", options, dual_clip=3.0)
    agree(objective, theirs, log_probs_BT, old_BT)
    parts = policy_loss(objective, inputs_of(log_probs_BT, old_BT)).surrogate
    r_BT = (log_probs_BT - old_BT).detach().exp()
    assert (parts.out_of_range == ((r_BT < low) | (r_BT > high)))[MASK].all()
    assert (low, high) == pytest.approx((0.6 if target == 0.5 else 0.9, high_end))


@pytest.mark.parametrize("spread", [0.2, 1.5])
def test_dcpo_has_the_loss_of_its_code(spread: float) -> None:
    """lime-RL/DCPO 01787b0, clip_type dynamic, with its `get_clip_low_high`."""
    log_probs_BT, old_BT = example(1, spread)
    r_BT, q_BT, A_BT = (log_probs_BT - old_BT).exp(), old_BT.exp(), ADVANTAGES.expand(8, 6)
    rest_BT = 1 - 4 * 0.16 / q_BT
    low_BT, high_BT = (1 + (rest_BT * (rest_BT >= 0)).sqrt()) / 2, ((1 + (1 + 4 * 0.2 / q_BT).sqrt()) / 2).clamp(0, 10)
    worse_BT = torch.maximum(-A_BT * r_BT, -A_BT * torch.clamp(r_BT, low_BT, high_BT))
    loss_BT = torch.where(A_BT < 0, torch.minimum(-A_BT * 10.0, worse_BT), worse_BT)
    theirs = (loss_BT * MASK).sum() / MASK.sum()
    agree(objective_of("dcpo", epsilon=0.16, epsilon_high=0.2, dual_clip=10.0), theirs, log_probs_BT, old_BT)


def test_dcpo_widens_the_range_of_unlikely_tokens_as_its_readme_says() -> None:
    """Its table: old probability .9 lets a token go from .69 to 1; .01, from .005 to .05."""
    old_1N = torch.tensor([[0.9, 0.01]], dtype=torch.double).log()
    objective = objective_of("dcpo", epsilon=0.16, epsilon_high=0.2)
    mask_1N = torch.ones(1, 2, dtype=torch.bool)
    for A, factors, expected in ((1.0, [9.0, 9.0], [1.06, 0.05]), (-1.0, [0.1, 0.1], [0.69, 0.005])):
        log_probs_1N = old_1N + torch.tensor([factors]).double().log()
        inputs = LossInputs(log_probs_1N, old_1N, torch.tensor([[A]]).double(), mask_1N, Totals.of(mask_1N))
        bound_1N = surrogate(objective, inputs, log_probs_1N - old_1N, torch.tensor([factors]).double()).loss.abs()
        torch.testing.assert_close(bound_1N * old_1N.exp(), torch.tensor([expected]).double(), rtol=0.015, atol=0)


@pytest.mark.parametrize(("delta", "least"), [(None, 1.0), (2.0, 0.8)])
def test_fipo_has_the_loss_of_ms_swift(delta: float | None, least: float) -> None:
    """modelscope/ms-swift 3602360a, `_compute_fipo_influence`: a loop over the tokens ahead."""
    log_probs_BT, old_BT = example(2, 0.8)
    log_ratio_BT, A_BT = log_probs_BT - old_BT, ADVANTAGES.expand(8, 6)
    r_BT, weight_BT = log_ratio_BT.exp(), torch.empty(8, 6, dtype=torch.double)
    for b in range(8):
        for t in range(6):
            ahead = 0.0
            for k in range(t, 6):
                if MASK[b, k] and not (delta is not None and r_BT[b, k] > delta):
                    ahead += 2 ** (-(k - t) / 2.0) * log_ratio_BT[b, k].item()
            f = min(max(math.exp(ahead), least), 1.2)
            weight_BT[b, t] = min(max(f, 0.8), 1.0) if A_BT[b, t] < 0 and r_BT[b, t] > 1.5 else f
    capped_BT = r_BT if delta is None else r_BT.clamp(max=delta)
    loss_BT = -torch.minimum(capped_BT * A_BT, r_BT.clamp(0.8, 1.28) * A_BT) * weight_BT
    theirs = (loss_BT * MASK).sum() / MASK.sum()
    options = {"half_life": 2.0, "least": least, "most": 1.2, "safety": 1.5}
    agree(objective_of("fipo", options, epsilon=0.2, epsilon_high=0.28, delta=delta), theirs, log_probs_BT, old_BT)


def test_oapl_has_the_loss_of_the_papers_equation_3() -> None:
    log_probs_BT, old_BT = example(4, 0.5)
    moved_B1 = ((log_probs_BT - old_BT) * MASK).sum(1, keepdim=True)
    theirs = (0.01 * moved_B1 - ADVANTAGES).square().mean()
    agree(objective_of("oapl", {"scale": 0.01}, aggregation="sequence_mean"), theirs, log_probs_BT, old_BT)


def test_real_has_the_loss_of_ms_swift_and_the_gradient_of_the_paper() -> None:
    """modelscope/ms-swift 3602360a, group by group; a group of one kind counts in the mean and has no loss."""
    log_probs_BT, old_BT = example(5, 0.5)
    score_B = ((log_probs_BT - old_BT) * MASK).sum(1) / MASK.sum(1) / 0.5
    total = torch.zeros((), dtype=torch.double)
    for group in range(3):
        rows = GROUPS.eq(group).nonzero()[:, 0]
        right = ADVANTAGES[rows, 0] > 0
        if right.any() and not right.all():
            total = total + torch.log1p((-score_B[rows[right]]).exp().sum())
            total = total + torch.log1p(score_B[rows[~right]].exp().sum())
    # The three groups have 3, 3 and 2 rows; the mean over sequences weighs them so.
    theirs = total * 3 / 8
    objective = objective_of("real", aggregation="sequence_mean")
    agree(objective, theirs, log_probs_BT, old_BT)

    def value(log_probs_BT: Tensor) -> Tensor:
        return policy_loss(objective, inputs_of(log_probs_BT, old_BT)).total

    assert torch.autograd.gradcheck(value, log_probs_BT, fast_mode=True)


def test_the_gradient_of_bapo_is_the_derivative_between_two_steps_of_its_bounds() -> None:
    log_probs_BT, old_BT = example(3, 0.9)
    objective = objective_of("bapo", {"target": 1.1}, dual_clip=3.0)

    def value(log_probs_BT: Tensor) -> Tensor:
        return policy_loss(objective, inputs_of(log_probs_BT, old_BT)).total

    assert torch.autograd.gradcheck(value, log_probs_BT, fast_mode=True)


@pytest.mark.parametrize("right", [0.0, 0.1])
def test_negative_samples_alone_or_right_ones_at_a_tenth(right: float) -> None:
    """NSR and W-REINFORCE (TianHongZXY/RLVR-Decomposed a5d4e7c): -1 for wrong answers, 0 or .1 for right ones."""
    weights = {"positive": right, "negative": 1.0}
    axes = {"advantage_estimator": "plus_minus", "scale_rewards": "none", "advantage_weights": weights}
    parts = tiny_parts(**axes, reward={"weights": {"correct": 0.0, "format": 1.0}}, prompts_per_step=16)
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    expected_B = torch.where(batch.rewards_B == 1, right, -1.0)
    torch.testing.assert_close(batch.advantages_B, expected_B.to(batch.advantages_B.dtype))
    assert set(batch.rewards_B.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("bound", [None, 1.0])
def test_whitened_advantages_beyond_the_filter_are_0(bound: float | None) -> None:
    axes = {"advantage_estimator": "none", "scale_rewards": "none", "whiten_advantages": "population"}
    parts = tiny_parts(**axes, advantage_filter=bound, prompts_per_step=16)
    advantages_B = parts.learner.collector.rollout(parts.state.policy, 0).batch.advantages_B
    assert advantages_B.abs().max() > 0
    assert (advantages_B.abs().max() > 1.0) == (bound is None)


REFUSED = {
    "kernel=real num_minibatches=2 prompts_per_step=4": "num_minibatches=2: kernel=real compares the completions",
    "kernel=bapo micro_batch_size=4": "kernel=bapo compares the tokens of a minibatch",
    "advantage_weights={positive:0.0,negative:0.0}": "positive and negative are both 0",
    "advantage_filter=3.0": "advantage_filter=3.0 counts standard deviations: set whiten_advantages",
    "paper=dcpo advantage_estimator=none": "advantage_estimator=none: advantage_history compares a prompt's",
    "paper=dcpo scale_rewards=batch": "own rewards: it must be one of group, group_population, none",
    "paper=dcpo scale_reward_parts=group": "scale_reward_parts=group: advantage_history compares",
    "paper=dcpo beta=0.1 kl_placement=reward": "kl_placement=reward: advantage_history compares",
    "kernel_options.fipo.least=1.5": "kernel_options.fipo.least=1.5 must be more than 0.0, at most 1.0",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(overrides: str) -> None:
    with pytest.raises(RequestError) as refused:
        compose(overrides.split())
    assert REFUSED[overrides] in str(refused.value)
