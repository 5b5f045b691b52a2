"""Replays verl's advantage estimators (`verl/trainer/ppo/core_algos.py`).

Rewards are sums of `token_level_rewards`; where an estimator gives one number per completion, every token has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from numpy.random import default_rng
from torch import Tensor

from grpolab.learn.advantages import Scored, advantages
from grpolab.learn.conformance.common import masked_whiten
from grpolab.learn.conformance.replay import Replay
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.returns import discounted_returns, generalized_advantages
from grpolab.registry import SCALES, resolve

Options = Mapping[str, Any]
Inputs = Mapping[str, Any]
EPSILON = 1e-6


def scored(inputs: Inputs, lone_reward: bool = True) -> Scored:
    """Rewards and groups of a case; verl leaves a completion without a group its reward."""
    by_token_BT = inputs.get("token_level_rewards")
    return Scored(
        inputs["rewards"] if by_token_BT is None else by_token_BT.sum(1),
        torch.as_tensor(inputs["group_ids"]),
        lengths_B=inputs["mask"].sum(1),
        lone_reward=lone_reward,
    )


def replayed(advantages_BT: Tensor, returns_BT: Tensor | None = None) -> Replayed:
    """Advantages, and what the function returns second: the same where it has no returns."""
    returns_BT = advantages_BT if returns_BT is None else returns_BT
    return Replayed(tensors={"advantages": advantages_BT, "returns": returns_BT})


def outcome(baseline: str, scale: str | None, options: Options, inputs: Inputs, lone_reward: bool = True) -> Replayed:
    """One advantage per completion; `scale` None: the group's std if `norm_adv_by_std_in_grpo`.

    Equal rewards have exactly 0 here, and in verl what rounding leaves of them, divided by as little as epsilon.
    """
    scale = scale or ("group" if options.get("norm_adv_by_std_in_grpo", True) else "none")
    epsilon, given = options.get("epsilon", EPSILON), scored(inputs, lone_reward)
    divisor_B = resolve(SCALES[scale])(given, epsilon)
    if scale == "group":  # the std of a group of one is torch.tensor(1.0)
        _, index_B, sizes_P = given.group_B.unique(return_inverse=True, return_counts=True)
        divisor_B = torch.where(sizes_P[index_B] == 1, torch.tensor(1.0) + epsilon, divisor_B)
    elif scale == "nonzero_share":  # a quotient of two counts
        divisor_B = 1 / (len(given.rewards_B) / given.rewards_B.count_nonzero().clamp(min=1)).double()
    centred_B = advantages(given, baseline, "none")
    return replayed(torch.where(centred_B == 0, 0.0, centred_B / divisor_B)[:, None] * inputs["mask"])


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`masked_whiten`. Raises ValueError where fewer than two tokens have no variance."""
    if mask_BT.sum() < 2:
        raise ValueError("fewer than two tokens cannot be whitened")
    return masked_whiten(values_BT, mask_BT)


def whitened_outcome(scale: str | None, options: Options, inputs: Inputs) -> Replayed:
    """The same, then whitened over the tokens: reinforce++ with baseline, and GDPO with a single reward."""
    plain, mask_BT = outcome("group_mean", scale, options, inputs), inputs["mask"]
    assert plain.tensors is not None
    return replayed(whitened(plain.tensors["advantages"], mask_BT) * mask_BT)


def reinforce_plus_plus(options: Options, inputs: Inputs) -> Replayed:
    """Discounted returns, whitened over the tokens."""
    returns_BT = discounted_returns(inputs["token_level_rewards"], inputs["mask"], options["gamma"])
    return replayed(whitened(returns_BT, inputs["mask"]) * inputs["mask"], returns_BT)


def remax(options: Options, inputs: Inputs) -> Replayed:
    """Return less the baseline; outside the mask, where there is no baseline, the return stays."""
    mask_BT, everywhere_BT = inputs["mask"], torch.ones_like(inputs["mask"])
    returns_BT = discounted_returns(inputs["token_level_rewards"] * mask_BT, everywhere_BT, 1.0)
    baseline = inputs.get("reward_baselines")
    baseline_B = torch.full((len(mask_BT),), 0.25) if baseline is None else baseline
    return replayed(returns_BT - baseline_B[:, None] * mask_BT, returns_BT)


def gae(options: Options, inputs: Inputs) -> Replayed:
    """GAE of given values, whitened over the tokens; outside the mask the values are those of no step."""
    mask_BT, values_BT = inputs["mask"], inputs.get("values")
    if values_BT is None:  # the archive says how they were drawn
        values_BT = torch.from_numpy(default_rng(5).normal(0, 1, tuple(mask_BT.shape)))
    rewards_BT, gamma, lam = inputs["token_level_rewards"], options["gamma"], options["lam"]
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma, lam)
    return replayed(whitened(advantages_BT, mask_BT), returns_BT)


def grpo_vectorized(options: Options, inputs: Inputs) -> Replayed:
    """GRPO with the group's mean and std in float32, each added up in the order of the rows."""
    rewards_B = scored(inputs).rewards_B
    _, group_B, sizes_P = torch.as_tensor(inputs["group_ids"]).unique(return_inverse=True, return_counts=True)

    def group_sum(values_B: Tensor) -> Tensor:
        return torch.zeros(len(sizes_P)).index_add_(0, group_B, values_B)

    mean_P = torch.where(sizes_P > 1, group_sum(rewards_B.float()) / sizes_P, 0.0)
    square_P = group_sum((rewards_B.float() - mean_P[group_B]).square())
    std_P = torch.where(sizes_P > 1, (square_P / (sizes_P - 1)).sqrt(), 1.0)
    advantages_B = rewards_B - mean_P[group_B]
    if options["norm_adv_by_std_in_grpo"]:
        advantages_B = advantages_B / (std_P[group_B] + options["epsilon"])
    return replayed(advantages_B[:, None] * inputs["mask"])


ADVANTAGES: dict[str, Replay] = {
    "compute_grpo_outcome_advantage": partial(outcome, "group_mean", None),
    "compute_grpo_vectorized_outcome_advantage": grpo_vectorized,
    "compute_grpo_passk_outcome_advantage": partial(outcome, "second_best", None),
    "compute_rloo_outcome_advantage": partial(outcome, "leave_one_out", "none"),
    "compute_rloo_vectorized_outcome_advantage": partial(outcome, "leave_one_out", "none", lone_reward=False),
    "compute_opo_outcome_advantage": partial(outcome, "length_weighted", "none"),
    "compute_gpg_outcome_advantage": partial(outcome, "group_mean", "nonzero_share"),
    "compute_gdpo_outcome_advantage": partial(whitened_outcome, None),
    "compute_reinforce_plus_plus_baseline_outcome_advantage": partial(whitened_outcome, "none"),
    "compute_reinforce_plus_plus_outcome_advantage": reinforce_plus_plus,
    "compute_remax_outcome_advantage": remax,
    "compute_gae_advantage_return": gae,
}
