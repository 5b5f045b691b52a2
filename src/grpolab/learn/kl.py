"""Divergence estimators from log-probabilities of sampled tokens (Schulman, 'Approximating KL divergence', 2020)."""

from __future__ import annotations

from torch import Tensor


def k1(log_ratio: Tensor) -> Tensor:
    """-log(p/q) for samples of q: unbiased for KL(q || p), can be negative. Shape of the input."""
    return -log_ratio


def k3(log_ratio: Tensor) -> Tensor:
    """p/q - 1 - log(p/q) for samples of q: unbiased for KL(q || p), never negative. Shape of the input."""
    return log_ratio.exp() - log_ratio - 1
