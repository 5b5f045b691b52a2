"""Divergence estimators from log-probabilities of sampled tokens (Schulman, 'Approximating KL divergence', 2020).

Each takes log(p/q), where q was sampled from: for the KL to the reference log pi_ref - log pi_new. Shapes stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpolab.registry import KL_ESTIMATORS, resolve


def k1(log_ratio: Tensor) -> Tensor:
    """-log(p/q): unbiased for KL(q || p), can be negative. As a loss its gradient is not the KL's."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Half the squared log ratio: biased, little variance; its gradient is unbiased for that of KL(q || p)."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """p/q - 1 - log(p/q): unbiased for KL(q || p), never negative."""
    return log_ratio.exp() - log_ratio - 1


def absolute(log_ratio: Tensor) -> Tensor:
    """|log(p/q)|: verl's, ROLL's and SkyRL's `abs`; no estimate of the KL."""
    return log_ratio.abs()


def exact_kl(p_BTV: Tensor, q_BTV: Tensor) -> Tensor:
    """Return KL(p || q) over the vocabulary at every position, from log-probabilities; (B, T)."""
    return (p_BTV.exp() * (p_BTV - q_BTV)).sum(-1)


def kl_penalty(
    log_ratio: Tensor,
    estimator: str,
    gradient: str,
    input_clamp: float | None,
    output_clamp: float | None,
    ratio: Tensor,
    own: Tensor,
) -> Tensor:
    """Return the KL term of each token, shape (B, T), before its weight beta.

    `input_clamp` bounds |log ratio|, `output_clamp` the absolute value; beyond either there is no gradient. `ratio` is
    the importance ratio, `own` a 1 with the gradient of the token's log-probability. `gradient` is `plain`;
    `importance_weighted`, times the ratio with its gradient (TRL's bias correction, slime's unbiased KL);
    `score_function`, times `own` (NeMo-RL); `straight_through`, the value with the gradient of k2 (verl's `k3+`).
    """
    bounded = log_ratio if input_clamp is None else log_ratio.clamp(-input_clamp, input_clamp)
    value: Tensor = resolve(KL_ESTIMATORS[estimator])(bounded)
    if output_clamp is not None:
        value = value.clamp(-output_clamp, output_clamp)
    if gradient == "importance_weighted":
        return value * ratio
    if gradient == "score_function":
        return value * own
    if gradient == "straight_through":
        squared = k2(log_ratio)
        return value.detach() + squared - squared.detach()
    return value


def unit_gradient(log_probs_BT: Tensor) -> Tensor:
    """Return exp(log pi - sg(log pi)): 1 everywhere, with the gradient of each token's log-probability."""
    return torch.exp(log_probs_BT - log_probs_BT.detach())
