"""Baselines that rewards are compared with, and scales that they are divided by, as the papers have them.

`registry.py` loads them by name; those that no study here compares are in `frameworks/baselines.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpolab.grpo.advantages import Scored, by_group, equal_rewards


def no_baseline(scored: Scored) -> Tensor:
    """0: the reward itself. REINFORCE; verl `reinforce_plus_plus` before its whitening."""
    return torch.zeros_like(scored.rewards_B)


def group_mean(scored: Scored) -> Tensor:
    """Mean of the group. GRPO (2402.03300)."""
    return within_groups(scored, lambda rewards_PN: rewards_PN.mean(1, keepdim=True))


def leave_one_out(scored: Scored) -> Tensor:
    """Mean of the others of the group. RLOO (2402.14740)."""
    return within_groups(scored, mean_of_others)


def unscaled(scored: Scored, epsilon: float) -> Tensor:
    """1. Dr. GRPO (2503.20783)."""
    return torch.ones_like(scored.rewards_B)


def group_std(scored: Scored, epsilon: float) -> Tensor:
    """Std of the group with Bessel's correction, plus epsilon. GRPO; TRL, verl, ROLL."""
    return std_of_group(scored, ddof=1) + epsilon


def batch_std(scored: Scored, epsilon: float) -> Tensor:
    """Std of the batch with Bessel's correction, plus epsilon; 1 for a batch of one. TRL, ROLL, AReaL `batch`."""
    rewards_B = scored.rewards_B
    std = rewards_B.std() if len(rewards_B) > 1 else rewards_B.new_ones(())
    return (std + epsilon).expand_as(rewards_B)


def within_groups(scored: Scored, baseline: Callable[..., Tensor], *columns_B: Tensor) -> Tensor:
    """Apply a baseline to each group. If all its rewards are equal, it is exactly that reward: a mean could round."""

    def exact(rewards_PN: Tensor, *others_PN: Tensor) -> Tensor:
        if rewards_PN.shape[1] == 1:
            return torch.zeros_like(rewards_PN) if scored.lone_reward else rewards_PN
        return torch.where(equal_rewards(rewards_PN)[:, None], rewards_PN, baseline(rewards_PN, *others_PN))

    return by_group(scored.group_B, exact, scored.rewards_B, *columns_B)


def mean_of_others(rewards_PN: Tensor) -> Tensor:
    """Return for each reward of a group the mean of the others, (P, n)."""
    return (rewards_PN.sum(1, keepdim=True) - rewards_PN) / (rewards_PN.shape[1] - 1)


def std_of_group(scored: Scored, ddof: int) -> Tensor:
    """Return the std of the group, 1 for a group of one, which has none."""

    def std(rewards_PN: Tensor) -> Tensor:
        if rewards_PN.shape[1] == 1:
            return torch.ones_like(rewards_PN)
        return rewards_PN.std(1, correction=ddof, keepdim=True)

    return by_group(scored.group_B, std, scored.rewards_B)
