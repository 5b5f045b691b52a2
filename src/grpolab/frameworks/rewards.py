"""Penalties of length, and advantages among a prompt's earlier rewards: rules of single papers and frameworks.

No study here compares them; `registry.py` loads them by name. Dimension letters: P prompts, G completions of each, B
completions of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

# --- penalties of length (`reward.length_penalty`), (P, G) each; a length counts the end token -----------------------


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


# --- DCPO's smooth advantage standardization (`advantage_history=smooth`) ---------------------------------------------

# 2509.02333, sec. 3 and A.7; lime-RL/DCPO 01787b0, `get_mean_std` and `compute_dcpo_outcome_advantage`, whose scripts
# leave the history off (`use_old_mean.enable=False`). Paper and code differ in the variance of a visit's rewards, which
# one divides by n and the other by n - 1: scale_rewards=group_population and group. Here a visit is a group that was
# sampled, there one that was also trained on; without a filter that is the same.


def with_visit(so_far: list[float] | None, rewards_G: Tensor, scale: str) -> list[float]:
    """Add a visit to what is kept of a prompt: its visits, its rewards (NaN is none), their mean and their variance.

    Eq. 29 and 30: the variance is the mean of the visits' own, plus that of their means. Where all rewards were equal,
    the mean is exactly that reward, and the variance 0. `scale`: `scale_rewards`; None: it had no visit before.
    """
    visits, count, mean, variance = so_far or [0.0] * 4
    known_N = rewards_G[~rewards_G.isnan()].double()
    if not (n := len(known_N)):
        return [visits, count, mean, variance]
    equal = bool((known_N == known_N[0]).all())
    own = 0.0 if equal else known_N.var(correction=int(scale != "group_population")).item()
    gap, total = (known_N[0] if equal else known_N.mean()).item() - mean, count + n
    variance = (count * variance + n * own) / total + gap**2 * count * n / total**2
    return [visits + 1, total, mean + gap * (n / total), variance]


def smoothed(advantages_B: Tensor, rewards_B: Tensor, so_far_B4: Tensor, scale: str, epsilon: float) -> Tensor:
    """Mix each advantage with that among all rewards which its prompt has had so far, (B,).

    Eq. 5 to 7: A is the advantage and A' = (reward - mean) / (std + epsilon), at the prompt's visit i. Of the mixes
    ((i - 1) A + A') / i and (A + (i - 1) A') / i the one that is nearer to 0 counts. `so_far_B4`: what `with_visit`
    keeps, this visit included. With `scale` none A' is reward - mean.
    """
    visits_B, _, mean_B, variance_B = so_far_B4.unbind(1)
    total_B = rewards_B - mean_B
    if scale != "none":
        total_B = torch.where(total_B == 0, 0.0, total_B / (variance_B.sqrt() + epsilon))
    mix_new_B = ((visits_B - 1) * advantages_B + total_B) / visits_B
    mix_total_B = (advantages_B + (visits_B - 1) * total_B) / visits_B
    return torch.where(mix_new_B.abs() < mix_total_B.abs(), mix_new_B, mix_total_B).to(advantages_B.dtype)
