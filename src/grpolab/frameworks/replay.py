"""Steps that the replays of several frameworks share: a case's inputs as ours, and the outputs of our own functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.base import Framework, Replayed
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.kl import kl_penalty, own_gradient
from grpolab.grpo.loss import LossInputs, Objective, policy_loss


def loss_inputs(inputs: Mapping[str, Any], max_completion_length: int | None = None, **changed: Tensor) -> LossInputs:
    """A case's inputs as the loss takes them, the whole batch in one micro-batch; `changed` replaces fields."""
    fields: dict[str, Any] = {
        "log_probs_BT": inputs["logprobs"],
        "old_log_probs_BT": inputs.get("old_logprobs"),
        "advantages": inputs.get("advantages"),
        "mask_BT": inputs["mask"],
        "totals": Totals.of(inputs["mask"], max_completion_length),
        "reference_log_probs_BT": inputs.get("ref_logprobs"),
        "sampler_log_probs_BT": inputs.get("rollout_logprobs"),
        "entropy_BT": inputs.get("entropies"),
    }
    return LossInputs(**{**fields, **changed})


def replay_loss(
    framework: Framework, objective: Objective, inputs: LossInputs, kept_BT: Tensor | None = None
) -> Replayed:
    """Loss and metrics, as training computes them; `kept_BT`: tokens that a rejection left in the loss."""
    learnt_from = inputs if kept_BT is None else replace(inputs, mask_BT=kept_BT)
    loss = policy_loss(objective, learnt_from, framework.recipe)
    with torch.no_grad():
        prepared = framework.recipe.prepare(objective, learnt_from)
        scale = float(framework.recipe.average(objective, prepared, loss.per_token.abs()))
        metrics = framework.metrics(objective, inputs, loss)
    return Replayed(loss.total, scale, metrics)


def replay_kl(
    inputs: Mapping[str, Any],
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    dtype: torch.dtype = torch.double,
    masked: bool = False,
) -> Replayed:
    """A KL estimate at each position (`masked`: 0 at padding) and its sum over the tokens as the loss, in `dtype`."""
    log_probs_BT, mask_BT = inputs["logprobs"].to(dtype), inputs["mask"]
    log_ratio_BT = inputs["ref_logprobs"].to(dtype) - log_probs_BT
    own = own_gradient(log_probs_BT)
    values_BT = kl_penalty(log_ratio_BT, estimator, "plain", input_clamp, output_clamp, own, own)
    masked_BT = torch.where(mask_BT, values_BT, 0.0)
    scale = float(masked_BT.detach().abs().sum())
    return Replayed(masked_BT.sum(), scale, tensors={"per_token": masked_BT if masked else values_BT})


def at_last_token(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at each row's last token, 0 elsewhere and for a row without tokens, (B, T)."""
    last_B1 = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1, keepdim=True)
    return values_B.new_zeros(mask_BT.shape).scatter(1, last_B1, values_B[:, None]) * mask_BT


def groups_of(rewards_B: Tensor, size: int) -> Tensor:
    """Group numbers of rows that stand together in groups of one size, (B,)."""
    return torch.arange(len(rewards_B)) // size


def masked_whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(value - mean) / std over the tokens, as verl, ROLL and SkyRL have it; padding too, (B, T).

    Its Bessel factor N / (N - 1), a quotient of two counts, is float32.
    """
    tokens = mask_BT.sum()
    mean = (values_BT * mask_BT).sum() / tokens
    variance = ((values_BT - mean).square() * mask_BT).sum() / tokens * (tokens / (tokens - 1))
    return (values_BT - mean) * (variance + 1e-8).rsqrt()
