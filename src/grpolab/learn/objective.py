"""The axes put together: ratio level x kernel x clip range x loss form x KL x aggregation, one number at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from grpolab.learn.aggregation import Totals, aggregate
from grpolab.learn.kernels.parts import KernelInputs, KernelParts
from grpolab.learn.kl import k3
from grpolab.learn.ratios import masked_log_ratio
from grpolab.registry import KERNELS, RATIOS, resolve
from grpolab.settings import RunSettings


@dataclass(frozen=True)
class Objective:
    """One point in the space of GRPO losses. Field by field as in the settings."""

    importance_sampling_level: str
    kernel: str
    epsilon: float
    epsilon_high: float
    delta: float | None
    loss_form: Literal["min_positive", "max_negative"]
    aggregation: str
    beta: float

    @classmethod
    def of(cls, settings: RunSettings) -> Objective:
        """The objective that the settings describe."""
        resolved = settings.resolved()
        return cls(**{name: getattr(resolved, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Loss:
    """The number to minimise, and its parts for the diagnostics."""

    total: Tensor
    kernel: KernelParts
    log_ratio_BT: Tensor
    kl_ref_BT: Tensor | None


def policy_loss(
    objective: Objective,
    *,
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    totals: Totals,
    reference_log_probs_BT: Tensor | None = None,
) -> Loss:
    """The objective of a micro-batch; summed over the micro-batches of a minibatch it is the minibatch's.

    The KL to the reference (k3, weight beta) is added to each token's loss before averaging, as GRPO has it.
    """
    log_ratio_BT = masked_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    kernel: KernelParts = resolve(KERNELS[objective.kernel])(
        KernelInputs(
            ratio=resolve(RATIOS[objective.importance_sampling_level])(log_ratio_BT, mask_BT),
            log_probs_BT=log_probs_BT,
            advantages_B1=advantages_B[:, None],
            epsilon=objective.epsilon,
            epsilon_high=objective.epsilon_high,
            delta=objective.delta,
            loss_form=objective.loss_form,
        )
    )
    per_token, kl_ref_BT = kernel.loss, None
    if objective.beta and reference_log_probs_BT is not None:
        kl_ref_BT = k3(masked_log_ratio(reference_log_probs_BT, log_probs_BT, mask_BT))
        per_token = per_token + objective.beta * kl_ref_BT
    return Loss(aggregate(objective.aggregation, per_token, mask_BT, totals), kernel, log_ratio_BT, kl_ref_BT)
