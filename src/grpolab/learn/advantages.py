"""Group-relative advantages."""

from __future__ import annotations

from torch import Tensor


def group_advantages(rewards_B: Tensor, group: int, scale: str, epsilon: float) -> Tensor:
    """(reward - mean of its group) / (std + epsilon), shape (B,); rows of one group stand together.

    `scale`: std of the group (GRPO), of the whole batch, or `none` for no division (Dr. GRPO). The std has Bessel's
    correction, as torch and TRL have it. A group of equal rewards gets exactly 0.
    """
    rewards_PG = rewards_B.view(-1, group)
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    centred_PG = centred_PG.masked_fill(equal_rewards(rewards_PG)[:, None], 0.0)  # a mean of equals may round
    if scale == "group":
        centred_PG = centred_PG / (rewards_PG.std(1, keepdim=True) + epsilon)
    elif scale == "batch":
        centred_PG = centred_PG / (rewards_B.std() + epsilon)
    return centred_PG.reshape(-1)


def equal_rewards(rewards_PG: Tensor) -> Tensor:
    """Groups that teach nothing, shape (P,), bool."""
    return (rewards_PG == rewards_PG[:, :1]).all(1)
