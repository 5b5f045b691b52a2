"""Advantages of whole completions: (reward - baseline) / scale.

Baselines and scales are functions that `registry.py` loads by name (`baselines.py`). Returns that differ from token to
token, which only frameworks have, are in `frameworks/shared.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpolab.registry import ADVANTAGES, SCALES, resolve


@dataclass(frozen=True)
class Scored:
    """Rewards of completions, and the group that each is compared with. B rows in any order."""

    rewards_B: Tensor  # NaN: cannot be scored
    group_B: Tensor  # integers; rows of one number are a group, in any place and of any size
    lengths_B: Tensor | None = None  # tokens of each completion
    baseline_B: Tensor | None = None  # from outside (ReMax: the reward of the greedy completion)
    lone_reward: bool = False  # a group of one has advantage 0 (False) or its reward (True)


def advantages(scored: Scored, baseline: str = "group_mean", scale: str = "group", epsilon: float = 1e-4) -> Tensor:
    """Return (reward - baseline) / scale by the registry's names, shape (B,).

    A reward that is NaN gets 0 and is no part of any mean, std or count (TRL 1.16). Rewards that equal all those that
    they are compared with get exactly 0.
    """
    known_B = ~scored.rewards_B.isnan()
    rows: dict[str, Any] = {name: value[known_B] for name, value in vars(scored).items() if isinstance(value, Tensor)}
    known = replace(scored, **rows)
    centred_N = known.rewards_B - resolve(ADVANTAGES[baseline])(known)
    scaled_N = centred_N / resolve(SCALES[scale])(known, epsilon)
    values_B = torch.zeros_like(scored.rewards_B)
    values_B[known_B] = torch.where(centred_N == 0, 0.0, scaled_N)  # 0 over a std of 0 is 0
    return values_B


def normalized_sum(
    parts: Mapping[str, Tensor],
    weights: Mapping[str, float],
    group_B: Tensor,
    epsilon: float = 1e-4,
    lone_reward: bool = False,
) -> Tensor:
    """Return the weighted sum of the reward parts, each first normalised within its group; shape (B,).

    GDPO (2601.05242); TRL `normalize_then_sum`: a part that is NaN counts 0, and a row of nothing but NaN stays NaN.
    """
    scaled = {}
    for name, part_B in parts.items():
        values_B = advantages(Scored(part_B, group_B, lone_reward=lone_reward), epsilon=epsilon)
        scaled[name] = values_B.where(~part_B.isnan(), part_B)
    return weighted_sum(scaled, weights)


def weighted_sum(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of the reward parts, (B,). A part that is NaN counts 0; NaN where all are."""
    weighted_KB = torch.stack([weight * parts[name] for name, weight in weights.items()])
    return weighted_KB.nansum(0).masked_fill(weighted_KB.isnan().all(0), torch.nan)


def equal_rewards(rewards_PG: Tensor) -> Tensor:
    """Find the groups whose rewards are all equal, shape (P,), bool: they teach nothing."""
    return (rewards_PG == rewards_PG[:, :1]).all(1)


def by_group(group_B: Tensor, function: Callable[..., Tensor], *columns_B: Tensor) -> Tensor:
    """Apply a function to all groups of one size as a table (P, n), and put its values back at their rows; (B,)."""
    _, index_B, sizes_P = group_B.unique(return_inverse=True, return_counts=True)
    order_B, size_B = index_B.argsort(stable=True), sizes_P[index_B]
    values_B = torch.empty_like(columns_B[0])
    for size in sizes_P.unique().tolist():
        rows_PN = order_B[size_B[order_B] == size].view(-1, size)
        values_B[rows_PN] = function(*(column_B[rows_PN] for column_B in columns_B))  # (P, n) or (P, 1)
    return values_B


def whiten(values_BT: Tensor, mask_BT: Tensor, convention: str) -> Tensor:
    """Return (value - mean) / std over the batch's tokens, (B, T); padding too, which the caller may zero again.

    `convention`: `bessel`, sqrt(variance over N - 1, plus 1e-8) (verl, ROLL, SkyRL); `population`, the square root of
    the variance over N, at least 1e-8 (OpenRLHF, NeMo-RL). One token has no variance over N - 1: NaN.
    """
    tokens = mask_BT.sum()
    mean = torch.where(mask_BT, values_BT, 0.0).sum() / tokens
    square = torch.where(mask_BT, values_BT - mean, 0.0).square().sum()
    variance = square / (tokens - 1) + 1e-8 if convention == "bessel" else (square / tokens).clamp(min=1e-8)
    return (values_BT - mean) * variance.rsqrt()
