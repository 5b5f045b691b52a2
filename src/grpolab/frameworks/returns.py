"""Returns that differ from token to token, and rewards normalised across batches, as frameworks have them.

A run here has one advantage for each completion (`grpo/advantages.py`); the replays of frameworks need these too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """Sum of the rewards from a token on, each discounted by its distance in tokens; 0 at padding, shape (B, T).

    What stands outside the mask is no step: a later reward passes over it. REINFORCE++ (2501.03262); verl
    `reinforce_plus_plus`.
    """
    found_BT = torch.zeros_like(rewards_BT)
    running_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(rewards_BT.shape[1])):
        running_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * running_B, running_B)
        found_BT[:, t] = torch.where(mask_BT[:, t], running_B, 0.0)
    return found_BT


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (advantage + value) of given values, (B, T) each.

    GAE (1506.02438, eq. 16). What stands outside the mask is no step: it has the advantage of the token behind it.
    verl `gae` (before its whitening); DeepSpeed-Chat with a mask that is full.
    """
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B = running_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(rewards_BT.shape[1])):
        error_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        running_B = torch.where(mask_BT[:, t], error_B + gamma * lam * running_B, running_B)
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        advantages_BT[:, t] = running_B
    return advantages_BT, advantages_BT + values_BT


@dataclass(frozen=True)
class Moments:
    """Mean and variance of all rewards so far."""

    count: float = 1e-24  # nearly nothing, so that the variance of nothing weighs nothing
    mean: float = 0.0
    variance: float = 1.0  # over the count

    def with_rewards(self, rewards_B: Tensor) -> Moments:
        """The moments after some more rewards (Chan's parallel update). ROLL `RunningMoments`."""
        more = len(rewards_B)
        count = self.count + more
        apart = rewards_B.mean().item() - self.mean
        square = self.variance * self.count + rewards_B.var(correction=0).item() * more
        square += apart**2 * self.count * more / count
        return Moments(count, self.mean + apart * more / count, square / count)

    @property
    def std(self) -> float:
        """With Bessel's correction."""
        return float((self.variance * self.count / (self.count - 1)) ** 0.5)


def running_normalized(rewards_B: Tensor, before: Moments, epsilon: float = 1e-6) -> tuple[Tensor, Moments]:
    """Rewards less the mean, over the std, of all rewards so far, these included; (B,), and the moments after them.

    ROLL `norm_mean_type` and `norm_std_type` running.
    """
    after = before.with_rewards(rewards_B)
    return (rewards_B - after.mean) / (after.std + epsilon), after
