"""Group-relative advantages, beyond what TRL's vectors show."""

from __future__ import annotations

import pytest
import torch

from grpolab.learn.advantages import equal_rewards, group_advantages


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_every_group_sums_to_zero(scale: str) -> None:
    rewards_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.2, 0.9, 0.1], dtype=torch.double)
    found_PG = group_advantages(rewards_B, 4, scale, 1e-4).view(2, 4)
    assert found_PG.sum(1).abs().max() <= 1e-12
    assert found_PG.abs().max() > 0.3


def test_scales_by_hand() -> None:
    rewards_B = torch.tensor([1.0, 0.0, 3.0, 3.0])
    assert group_advantages(rewards_B, 2, "none", 0.0).tolist() == [0.5, -0.5, 0.0, 0.0]
    root_half = 0.5**0.5  # the std of (1, 0) with Bessel's correction is .7071
    torch.testing.assert_close(group_advantages(rewards_B, 2, "group", 0.0)[:2], torch.tensor([root_half, -root_half]))
    torch.testing.assert_close(group_advantages(rewards_B, 2, "batch", 0.25)[0], 0.5 / (rewards_B.std() + 0.25))


def test_a_group_of_equal_rewards_is_exactly_zero_however_its_mean_rounds() -> None:
    values_N = torch.linspace(-2, 2, 401)
    rewards_PG = values_N[:, None].expand(-1, 3).contiguous()
    assert (rewards_PG.mean(1) != values_N).any()
    assert (group_advantages(rewards_PG.reshape(-1), 3, "group", 1e-4) == 0).all()
    assert equal_rewards(rewards_PG).all()


def test_one_different_reward_makes_a_group_teach() -> None:
    assert equal_rewards(torch.tensor([[1.0, 1.0], [1.0, 0.999999]])).tolist() == [True, False]
