"""What goes into a kernel and what comes out. (B, ...) is (B, T), or (B, 1) with one value per sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class KernelInputs:
    """Ratio, log-probabilities and advantages of a micro-batch, and the clip range. Padding holds finite numbers."""

    ratio: Tensor  # (B, T) or (B, 1), with gradient
    log_ratio_BT: Tensor  # with gradient, 0 at padding
    log_probs_BT: Tensor  # with gradient
    old_log_probs_BT: Tensor
    advantages: Tensor  # (B, 1), or (B, T) where the tokens of a sequence differ
    mask_BT: Tensor  # bool
    epsilon: float
    epsilon_high: float  # inf: no upper clip
    delta: float | None = None  # outer cap of the ratio, for both signs of the advantage, before the clip
    dual_clip: float | None = None  # outer cap where A < 0, after the clip
    loss_form: Literal["min_positive", "max_negative"] = "min_positive"
    options: Mapping[str, float] = field(default_factory=dict)  # the kernel's own numbers
    rewards_B1: Tensor | None = None
    noise_BT: Tensor | None = None  # uniform numbers, for kernels that draw tokens

    @property
    def low(self) -> float:
        """Lower end of the clip range."""
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """Upper end of the clip range."""
        return 1 + self.epsilon_high


def choose(condition: Tensor, where_true: float, where_false: float, like: Tensor) -> Tensor:
    """One of two numbers by a condition, in the precision of `like` (torch.where of two numbers would be float32)."""
    return torch.where(condition, like.new_tensor(where_true), like.new_tensor(where_false))


@dataclass(frozen=True)
class KernelParts:
    """The loss and what acted on it; diagnostics count the masks, kernels never do. Masks are bool and (B, ...)."""

    loss: Tensor  # (B, ...)
    out_of_range: Tensor  # the ratio left the clip range, whether that acted or not
    active_low: Tensor  # too low and A < 0: gradient zero
    active_high: Tensor  # too high and A > 0: gradient zero
    outer: Tensor  # A < 0 and the outer cap (delta, dual clip) cut the ratio
    capped: Tensor  # the weight was cut but the gradient kept (CISPO)
    dropped: Tensor  # left out of the loss for another reason than the ratio (covariance)

    @classmethod
    def of(cls, inputs: KernelInputs, loss: Tensor, **masks: Tensor) -> KernelParts:
        """The parts with every mask that is not named empty; out of range is by the ratio where it is not named."""
        if "out_of_range" not in masks:
            ratio = inputs.ratio.detach()
            masks["out_of_range"] = (ratio < inputs.low) | (ratio > inputs.high)
        nothing = torch.zeros_like(masks["out_of_range"])
        return cls(loss, **{name: masks.get(name, nothing) for name in cls.__annotations__ if name != "loss"})
