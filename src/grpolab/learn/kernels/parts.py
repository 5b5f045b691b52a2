"""What goes into a kernel and what comes out. (B, ...) is (B, T), or (B, 1) with one ratio per sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class KernelInputs:
    """Ratio, log-probabilities and advantages of a minibatch, and the clip range."""

    ratio: Tensor  # (B, T) or (B, 1)
    log_probs_BT: Tensor
    advantages_B1: Tensor
    epsilon: float
    epsilon_high: float  # inf: no upper clip
    delta: float | None  # outer cap of the ratio
    loss_form: Literal["min_positive", "max_negative"]

    @property
    def low(self) -> float:
        """Lower end of the clip range."""
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """Upper end of the clip range."""
        return 1 + self.epsilon_high


@dataclass(frozen=True)
class KernelParts:
    """The loss and what acted on it, all shaped like the ratio; diagnostics count the masks, kernels never do."""

    loss: Tensor
    active_low: Tensor  # bool: below the range, gradient zero
    active_high: Tensor  # bool: above the range, gradient zero
    outer: Tensor  # bool: A<0 and the outer cap cut the ratio
    capped: Tensor  # bool: the weight was capped but the gradient kept (CISPO)
