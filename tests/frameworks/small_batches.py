"""Batches small enough to compute by hand, for the tests of dialects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.framework import Framework
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss

Rows = list[list[float]]


def batch(log_ratio: Rows, mask: Rows, advantages: Rows, **others: Rows) -> LossInputs:
    """Sequences with these log ratios; the old log-probs are -1, the others are given (`reference`, `sampler`)."""
    mask_BT, log_ratio_BT = torch.tensor(mask, dtype=torch.bool), torch.tensor(log_ratio, dtype=torch.double)
    given: dict[str, Any] = {
        f"{name}_log_probs_BT": torch.tensor(rows, dtype=torch.double) for name, rows in others.items()
    }
    return LossInputs(
        log_probs_BT=(log_ratio_BT - 1).requires_grad_(),
        old_log_probs_BT=torch.full_like(log_ratio_BT, -1.0),
        advantages=torch.tensor(advantages, dtype=torch.double),
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT),
        **given,
    )


@dataclass(frozen=True)
class ByOptions:
    """A framework, asked by its own options."""

    framework: Framework

    def loss(self, options: Mapping[str, Any], inputs: LossInputs) -> Tensor:
        """The framework's loss."""
        return policy_loss(self.framework.objective(options), inputs, self.framework.recipe).total

    def core_loss(self, options: Mapping[str, Any], inputs: LossInputs) -> Tensor:
        """The same point on our axes without the framework's own ways."""
        return policy_loss(self.framework.objective(options), inputs).total

    def gradient(self, options: Mapping[str, Any], inputs: LossInputs) -> Tensor:
        """Of the framework's loss by the log-probs, (B, T)."""
        return torch.autograd.grad(self.loss(options, inputs), inputs.log_probs_BT)[0]

    def metrics(self, options: Mapping[str, Any], inputs: LossInputs) -> dict[str, float]:
        """The framework's metrics."""
        objective = self.framework.objective(options)
        with torch.no_grad():
            return self.framework.metrics(objective, inputs, policy_loss(objective, inputs, self.framework.recipe))
