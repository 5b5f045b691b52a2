"""Baselines and scales of rewards that no study here compares. `registry.py` loads them by name.

Their arguments and results are those of `grpo/baselines.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grpolab.grpo.advantages import Scored, by_group
from grpolab.grpo.baselines import mean_of_others, std_of_group, within_groups


def batch_mean(scored: Scored) -> Tensor:
    """Mean of the batch. ROLL `norm_mean_type` batch; the last step of GDPO."""
    rewards_B = scored.rewards_B
    return rewards_B if (rewards_B == rewards_B[:1]).all() else rewards_B.mean().expand_as(rewards_B)


def length_weighted(scored: Scored) -> Tensor:
    """Mean of the group, each completion weighted by its length. OPO (2505.23585); verl `opo`."""
    assert scored.lengths_B is not None

    def weighted(rewards_PN: Tensor, lengths_PN: Tensor) -> Tensor:
        return (lengths_PN * rewards_PN).sum(1, keepdim=True) / lengths_PN.sum(1, keepdim=True)

    return within_groups(scored, weighted, scored.lengths_B.to(scored.rewards_B.dtype))


def second_best(scored: Scored) -> Tensor:
    """For the best of a group the second best reward; for others their own. verl `grpo_passk`; ValueError for one."""

    def runner_up(rewards_PN: Tensor) -> Tensor:
        if rewards_PN.shape[1] < 2:
            raise ValueError("the second best needs groups of at least two completions")
        best_P2, index_P2 = rewards_PN.topk(2)
        return rewards_PN.scatter(1, index_P2[:, :1], best_P2[:, 1:])

    return by_group(scored.group_B, runner_up, scored.rewards_B)


def log_mean_exp(scored: Scored) -> Tensor:
    """log mean exp(reward) of the group: the soft maximum of OAPL (2602.19362, eq. 2) with beta_1 = 1."""

    def soft_maximum(rewards_PN: Tensor) -> Tensor:
        return rewards_PN.logsumexp(1, keepdim=True) - math.log(rewards_PN.shape[1])

    return within_groups(scored, soft_maximum)


def plus_minus(scored: Scored) -> Tensor:
    """1 - reward, so that a reward of 1 becomes an advantage of 1, one of 0 an advantage of -1. NSR (2506.01347)."""
    return 1 - scored.rewards_B


def given(scored: Scored) -> Tensor:
    """The given baseline. ReMax (2310.10505): the reward of the prompt's greedy completion."""
    assert scored.baseline_B is not None
    return scored.baseline_B


def group_population_std(scored: Scored, epsilon: float) -> Tensor:
    """Std of the group over n, plus epsilon. open-instruct `standard` (np.std)."""
    return std_of_group(scored, ddof=0) + epsilon


def leave_one_out_std(scored: Scored, epsilon: float) -> Tensor:
    """Std (over n - 1) of the group's other members, plus epsilon; 1 if it does not exist or is 0. NeMo-RL `grpo`."""

    def std(rewards_PN: Tensor) -> Tensor:
        others = rewards_PN.shape[1] - 1
        if others < 2:
            return torch.ones_like(rewards_PN)
        deviation_PNN = rewards_PN[:, None, :] - mean_of_others(rewards_PN)[:, :, None]
        own_NN = torch.eye(others + 1, dtype=torch.bool, device=rewards_PN.device)
        square_PNN = deviation_PNN.square().masked_fill(own_NN, 0.0)
        std_PN = (square_PNN.sum(2) / (others - 1)).sqrt()
        return torch.where(std_PN > 0, std_PN + epsilon, 1.0)

    return by_group(scored.group_B, std, scored.rewards_B)


def group_mean_reward(scored: Scored, epsilon: float) -> Tensor:
    """Mean of the group, plus epsilon; 1 for a group of one. MaxRL (2602.02710); SkyRL, prime-rl `max_rl`."""

    def mean(rewards_PN: Tensor) -> Tensor:
        alone = rewards_PN.shape[1] == 1
        return torch.ones_like(rewards_PN) if alone else rewards_PN.mean(1, keepdim=True) + epsilon

    return by_group(scored.group_B, mean, scored.rewards_B)


def nonzero_share(scored: Scored, epsilon: float) -> Tensor:
    """Share of the batch's rewards that are not 0 (at least one). GPG (2504.02546); verl `gpg`."""
    rewards_B = scored.rewards_B
    count = rewards_B.count_nonzero().clamp(min=1)
    return (count.to(rewards_B.dtype) / len(rewards_B)).expand_as(rewards_B)
