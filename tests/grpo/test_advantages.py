"""Every baseline, scale and normaliser by numbers that were worked out by hand, beyond what the frameworks' show."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import tiny_parts
from torch import Tensor

from grpolab.grpo.advantages import Scored, advantages, equal_rewards, normalized_sum, whiten
from grpolab.grpo.batch import decode
from grpolab.grpo.decoding import sample
from grpolab.grpo.metrics import rollout_metrics
from grpolab.registry import ADVANTAGES, SCALES


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def scored(rewards: list[float], groups: list[int], **more: Any) -> Scored:
    return Scored(numbers(*rewards), torch.tensor(groups), **more)


def is_close(found: Tensor, *expected: float) -> None:
    torch.testing.assert_close(found.flatten(), numbers(*expected))


# Two interleaved groups (1, 3, 8 and 0, 2), lengths 1 2 1 and 1 3: means 4 and 1, mean of all 14/5.
REWARDS, GROUPS = [1.0, 0.0, 3.0, 2.0, 8.0], [7, 2, 7, 2, 7]
LENGTHS, BASELINES = torch.tensor([1, 1, 2, 3, 1]), numbers(1, 1, 2, 2, 3)
CENTRED: dict[str, list[float]] = {
    "none": [1, 0, 3, 2, 8],
    "group_mean": [-3, -1, -1, 1, 4],
    "batch_mean": [-1.8, -2.8, 0.2, -0.8, 5.2],
    "leave_one_out": [1 - 5.5, -2, 3 - 4.5, 2, 8 - 2],
    "length_weighted": [1 - 15 / 4, -1.5, 3 - 15 / 4, 0.5, 8 - 15 / 4],
    "second_best": [0, 0, 0, 2, 5],
    "given": [0, -1, 1, 0, 5],
    "log_mean_exp": [
        r - math.log((math.e + math.e**3 + math.e**8) / 3) if odd else r - math.log((1 + math.e**2) / 2)
        for r, odd in ((1, 1), (0, 0), (3, 1), (2, 0), (8, 1))
    ],
    "plus_minus": [1, -1, 5, 3, 15],
}


@pytest.mark.parametrize("baseline", ADVANTAGES)
def test_baselines_of_interleaved_groups_of_unequal_size(baseline: str) -> None:
    given = scored(REWARDS, GROUPS, lengths_B=LENGTHS, baseline_B=BASELINES)
    is_close(advantages(given, baseline, "none"), *CENTRED[baseline])


# Squared deviations: 9 1 16 and 1 1; of all 3.24 7.84 .04 .64 27.04; std of two others: their distance over sqrt 2.
ROOT2 = math.sqrt(2)
DIVISORS: dict[str, list[float]] = {
    "none": [1, 1, 1, 1, 1],
    "group": [13**0.5 + 0.5, ROOT2 + 0.5, 13**0.5 + 0.5, ROOT2 + 0.5, 13**0.5 + 0.5],
    "group_population": [(26 / 3) ** 0.5 + 0.5, 1.5, (26 / 3) ** 0.5 + 0.5, 1.5, (26 / 3) ** 0.5 + 0.5],
    "batch": [9.7**0.5 + 0.5] * 5,
    "leave_one_out": [5 / ROOT2 + 0.5, 1, 7 / ROOT2 + 0.5, 1, 2 / ROOT2 + 0.5],
    "group_mean": [4.5, 1.5, 4.5, 1.5, 4.5],
    "nonzero_share": [0.8] * 5,
}


@pytest.mark.parametrize("scale", SCALES)
def test_scales_of_interleaved_groups_of_unequal_size(scale: str) -> None:
    found_B = advantages(scored(REWARDS, GROUPS), "none", scale, epsilon=0.5)
    is_close(found_B, *(reward / divisor for reward, divisor in zip(REWARDS, DIVISORS[scale], strict=True)))


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "length_weighted"])
def test_a_group_of_one_keeps_its_reward_or_gets_nothing(baseline: str) -> None:
    for scale, lone in itertools.product(("none", "group", "group_population", "leave_one_out", "group_mean"), (0, 5)):
        given = scored([5, 1, 1], [0, 1, 1], lengths_B=torch.tensor([3, 1, 1]), lone_reward=bool(lone))
        assert advantages(given, baseline, scale, epsilon=0.0).tolist() == [lone, 0, 0]
    with pytest.raises(ValueError, match="at least two"):
        advantages(given, "second_best")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "length_weighted", "second_best"])
def test_equal_rewards_are_exactly_zero_however_their_mean_rounds(baseline: str, scale: str) -> None:
    values_N = torch.linspace(-2, 2, 400)
    rewards_PG = values_N[:, None].expand(-1, 3).contiguous()
    assert (rewards_PG.mean(1) != values_N).any()
    given = Scored(rewards_PG.flatten(), torch.arange(1200) // 3, torch.arange(1200) % 7 + 1)
    for epsilon in (0.0, 1e-4):
        assert (advantages(given, baseline, scale, epsilon) == 0).all()
    assert equal_rewards(rewards_PG).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch_mean"])
def test_a_reward_that_is_not_a_number_is_as_if_it_were_not_there(baseline: str, scale: str) -> None:
    nan = math.nan
    found_B = advantages(scored([1, nan, 0, 0.5, nan, 2, nan], [0, 0, 0, 0, 1, 1, 2]), baseline, scale)
    kept_B = advantages(scored([1, 0, 0.5, 2], [0, 0, 0, 1]), baseline, scale)
    assert found_B[[0, 2, 3, 5]].equal(kept_B)
    assert found_B[[1, 4, 6]].tolist() == [0, 0, 0]


def test_every_part_is_normalised_before_the_sum() -> None:
    """GDPO: parts (1, 0) and (0, 40) with weights 1 and 2 become +-1/sqrt 2 each, whatever their size."""
    parts = {"right": numbers(1, 0, 1, 1), "short": numbers(0, 40, 0, 40)}
    found_B = normalized_sum(parts, {"right": 1.0, "short": 2.0}, torch.tensor([0, 0, 1, 1]), epsilon=0.0)
    is_close(found_B, -1 / ROOT2, 1 / ROOT2, -ROOT2, ROOT2)
    # A part that cannot be scored counts nothing, and a row of such parts is left out.
    parts = {"right": numbers(1, 0, math.nan, math.nan), "short": numbers(math.nan, 3, 5, math.nan)}
    found_B = normalized_sum(parts, {"right": 1.0, "short": 1.0}, torch.tensor([0, 0, 0, 0]), epsilon=0.0)
    is_close(found_B[:3], 1 / ROOT2, -ROOT2, 1 / ROOT2)
    assert found_B[3].isnan()


MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0]]).bool()


def test_whitening_conventions() -> None:
    """Tokens 1 3 5 7: mean 4, squares 20, over 3 or 4. Tokens of no variance are multiplied by 1e4, not by infinity."""
    values_BT = numbers(1, 3, math.nan, 5, 7, math.nan, math.nan, math.nan).view(2, 4)
    is_close(whiten(values_BT, MASK, "bessel")[MASK], *(v / (20 / 3 + 1e-8) ** 0.5 for v in (-3, -1, 1, 3)))
    is_close(whiten(values_BT, MASK, "population")[MASK], *(v / 5**0.5 for v in (-3, -1, 1, 3)))
    is_close(whiten(numbers(2, 2).view(1, 2), torch.ones(1, 2).bool(), "bessel"), 0, 0)
    small_BT = numbers(1, 1 + 2e-6).view(1, 2)  # variance 1e-12 over N, 2e-12 over N - 1
    is_close(whiten(small_BT, torch.ones(1, 2).bool(), "population"), -0.01, 0.01)
    is_close(whiten(small_BT, torch.ones(1, 2).bool(), "bessel"), -1e-6 / 1.0002e-8**0.5, 1e-6 / 1.0002e-8**0.5)


def test_a_run_uses_the_axes_that_it_names() -> None:
    """reinforce++ on reward parts that are normalised first: whitened over tokens, so their token mean is 0."""
    axes = {"scale_reward_parts": "group", "advantage_estimator": "none", "scale_rewards": "none"}
    parts = tiny_parts(**axes, whiten_advantages="bessel")
    rollout = parts.learner.collector.rollout(parts.state.policy, 0)
    batch = rollout.batch
    summed_B = normalized_sum(rollout.parts, {"correct": 1.0, "format": 1.0}, batch.prompt_of_B)
    expected_BT = whiten(summed_B[:, None].expand_as(batch.mask_BT), batch.mask_BT, "bessel")
    torch.testing.assert_close(batch.advantages_B, expected_BT[:, 0])
    assert summed_B.std() > 0.1


def test_remax_compares_with_the_greedy_completion_of_the_prompt_also_after_a_resume() -> None:
    parts = tiny_parts(advantage_estimator="given", scale_rewards="none", staleness=1)
    collector, policy = parts.learner.collector, parts.state.policy
    rollout = collector.rollout(policy, 0)
    always = replace(policy, temperature=1e-6)  # sampling that is greedy
    greedy = sample(always, collector._prompt_tensors(policy, collector.prompts(range(4))), 1, torch.full((4, 3), 0.5))
    texts = decode(policy.tokenizer, greedy.tokens_BT, greedy.mask_BT)
    expected = [sum(collector.score(e, t).values()) for e, t in zip(collector.prompts(range(4)), texts, strict=True)]
    baseline_B = rollout.compared["baseline_B"]
    assert baseline_B.view(4, 4).tolist() == [[reward] * 4 for reward in expected]
    assert rollout.batch.advantages_B.equal(rollout.rewards_B - baseline_B)
    (again,) = collector.load_state_dict(policy, 0, collector.state_dict([rollout]))
    assert again.batch.advantages_B.equal(rollout.batch.advantages_B)


def test_a_run_leaves_out_a_completion_that_cannot_be_scored() -> None:
    parts = tiny_parts()
    collector, policy = parts.learner.collector, parts.state.policy
    (saved,) = collector.state_dict([collector.rollout(policy, 0)])
    saved["parts"] = {name: values_B.clone() for name, values_B in saved["parts"].items()}
    saved["parts"]["correct"][:4] = torch.tensor([1.0, 0.0, math.nan, 0.0])
    saved["parts"]["format"][:4] = torch.tensor([0.0, 0.0, math.nan, math.nan])
    (rollout,) = collector.load_state_dict(policy, 0, [saved])
    torch.testing.assert_close(rollout.rewards_B[:4], torch.tensor([1, 0, math.nan, 0]), equal_nan=True)
    expected_B = advantages(Scored(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.long)))
    assert rollout.batch.advantages_B[[0, 1, 3]].equal(expected_B)
    assert rollout.batch.advantages_B[2] == 0
    step = parts.learner.update(parts.state, rollout.batch, int(rollout.batch.mask_BT.sum()))
    found = rollout_metrics(rollout, step.batch, 4)
    assert found["reward/mean"] == pytest.approx(rollout.rewards_B.nanmean().item())
    assert math.isfinite(found["reward/std"])
