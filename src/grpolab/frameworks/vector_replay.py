"""Steps that the replays of several frameworks share: a case's inputs as ours, its loss and KL, returns of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.framework import Framework, Inputs, Replayed
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.kl import kl_penalty, own_gradient
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.settings.objective import Objective


def loss_inputs(inputs: Inputs, max_completion_length: int | None = None, **changed: Tensor | Totals) -> LossInputs:
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
    inputs: Inputs,
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    dtype: torch.dtype = torch.double,
) -> Replayed:
    """A KL estimate at each position, in `dtype`, and its sum over the tokens as the loss."""
    log_probs_BT = inputs["logprobs"].to(dtype)
    log_ratio_BT = inputs["ref_logprobs"].to(dtype) - log_probs_BT
    own = own_gradient(log_probs_BT)
    return summed(kl_penalty(log_ratio_BT, estimator, "plain", input_clamp, output_clamp, own, own), inputs["mask"])


def summed(values_BT: Tensor, mask_BT: Tensor) -> Replayed:
    """Values at each position, and their sum over the tokens as the loss."""
    of_tokens_BT = torch.where(mask_BT, values_BT, 0.0)
    return Replayed(of_tokens_BT.sum(), float(of_tokens_BT.detach().abs().sum()), tensors={"per_token": values_BT})


def at_last_token(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at each row's last token, 0 elsewhere and for a row without tokens, (B, T)."""
    last_B1 = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1, keepdim=True)
    return values_B.new_zeros(mask_BT.shape).scatter(1, last_B1, values_B[:, None]) * mask_BT


def groups_of(rewards_B: Tensor, size: int) -> Tensor:
    """Group numbers of rows that stand together in groups of one size, (B,)."""
    return torch.arange(len(rewards_B)) // size


def masked_whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(value - mean) / std over the tokens, as verl, ROLL and SkyRL have it; padding too, (B, T).

    Its Bessel factor N / (N - 1), a quotient of two counts, is float32. Raises ValueError for fewer than two tokens.
    """
    tokens = mask_BT.sum()
    if tokens < 2:
        raise ValueError("fewer than two tokens cannot be whitened")
    mean = (values_BT * mask_BT).sum() / tokens
    variance = ((values_BT - mean).square() * mask_BT).sum() / tokens * (tokens / (tokens - 1))
    return (values_BT - mean) * (variance + 1e-8).rsqrt()


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """Sum of the rewards from a token on, each discounted by its distance in tokens; 0 at padding, shape (B, T).

    What stands outside the mask is no step: a later reward passes over it. REINFORCE++ (2501.03262); verl
    `reinforce_plus_plus`.
    """
    sums_BT, _ = generalized_advantages(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma, 1.0)
    return torch.where(mask_BT, sums_BT, 0.0)


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (advantage + value) of given values, (B, T) each.

    GAE (1506.02438, eq. 16). What stands outside the mask is no step: it has the advantage of the token behind it.
    verl `gae` (before its whitening); DeepSpeed-Chat with a mask that is full.
    """
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B = running_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(rewards_BT.shape[1])):
        error_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        running_B = torch.where(mask_BT[:, t], error_B + gamma * lam * running_B, running_B)
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        advantages_BT[:, t] = running_B
    return advantages_BT, advantages_BT + values_BT
