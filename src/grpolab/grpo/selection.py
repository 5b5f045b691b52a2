"""Which samples train: pure functions of rewards and lengths, one row for each group of completions.

`Collector` in `rollout.py` applies them; `settings/selection.py` switches them on. Letters of shapes: P prompts, of
which each has a group of G completions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def differs(values_PG: Tensor) -> Tensor:
    """Find the groups in which a value differs, shape (P,), bool: the others have nothing to be compared with.

    DAPO (2503.14476, sec. 3.2 and eq. 11: 0 < right completions < G). verl's `filter_groups` asks for a standard
    deviation above 0 of any metric (verl-recipe 59fa05c, dapo/dapo_ray_trainer.py). Its deviation of equal fractions
    may be rounding and not 0, and here they are equal. A value that is NaN is not compared.
    """
    missing_PG = values_PG.isnan()
    least_P = values_PG.masked_fill(missing_PG, torch.inf).amin(1)
    return values_PG.masked_fill(missing_PG, -torch.inf).amax(1) > least_P


# --- parts of the reward that depend on the length, (P, G) each; a length counts the end token ------------------------


def overlong(lengths_PG: Tensor, longest: int, buffer: float) -> Tensor:
    """Return DAPO's soft punishment: 0 until `buffer` tokens before `longest`, then linearly down to -1 there.

    2503.14476, eq. 13, L_cache = `buffer`; TRL `get_soft_overlong_punishment`; verl `overlong_buffer`, whose
    `penalty_factor` is the weight of the part.
    """
    return ((longest - buffer - lengths_PG) / buffer).clamp(-1, 0)


def linear(lengths_PG: Tensor, right_PG: Tensor, rewards_PG: Tensor, longest: int) -> Tensor:
    """Return minus the length as a share of the longest one that is allowed."""
    return -lengths_PG / longest


def group_range(lengths_PG: Tensor, right_PG: Tensor, rewards_PG: Tensor, longest: int) -> Tensor:
    """Return Kimi k1.5's length reward, -.5 to .5: where a length lies between the least and the most of its group.

    2501.12599, sec. 2.3.3: .5 - (length - least) / (most - least), of a wrong completion at most 0; 0 for a group whose
    lengths are all equal.
    """
    least_P1, most_P1 = lengths_PG.amin(1, keepdim=True), lengths_PG.amax(1, keepdim=True)
    reward_PG = 0.5 - (lengths_PG - least_P1) / (most_P1 - least_P1).clamp(min=1)
    return reward_PG.where(right_PG, reward_PG.clamp(max=0)).where(most_P1 > least_P1, 0.0)


def pass_rate(lengths_PG: Tensor, right_PG: Tensor, rewards_PG: Tensor, longest: int) -> Tensor:
    """Return prime-rl's linear penalty: minus the length over the most of its group, times the group's mean reward.

    `LinearLengthPenaltyConfig` (prime-rl 559b447, orchestrator/algo/grpo.py), its term of output tokens, whose default
    weight is .25. A group that is never right is not pressed to be short. Rewards are those of all other parts.
    """
    return -rewards_PG.nanmean(1, keepdim=True) * lengths_PG / lengths_PG.amax(1, keepdim=True)


LENGTH_PENALTIES = {"linear": linear, "group_range": group_range, "pass_rate": pass_rate}
