"""Functions that several frameworks share: first steps of the loss, then parts of replays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.framework import Framework, Inputs, Replayed
from grpolab.grpo import loss as core
from grpolab.grpo.advantages import Scored
from grpolab.grpo.aggregation import Totals, aggregate
from grpolab.grpo.kl import kl_penalty, unit_gradient
from grpolab.grpo.loss import LossInputs
from grpolab.grpo.ratios import row_mean
from grpolab.settings.objective import Objective


def find_clipped_losses(objective: Objective, advantages: Tensor, ratio: Tensor) -> Tensor:
    """Return the tokens whose loss the clip changed, bool; a clipped ratio may leave the rounded loss unchanged."""
    return ratio.clamp(objective.low, objective.high) * advantages < ratio * advantages


def capped_sequence_token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor, cap: float = 10.0) -> Tensor:
    """Return GSPO-token's ratio, (B, T), cut at e^cap, beyond which there is no gradient. verl; SkyRL copied it."""
    own_BT = log_ratio_BT - log_ratio_BT.detach()
    return (own_BT + row_mean(log_ratio_BT, mask_BT).detach()).clamp(max=cap).exp()


def sampler_log_ratio(inputs: LossInputs) -> Tensor:
    """Return log pi_old - log pi_sampler, at padding too, (B, T)."""
    assert inputs.sampler_log_probs_BT is not None
    return inputs.old_log_probs_BT - inputs.sampler_log_probs_BT


# Steps of frameworks that multiply by the mask: an infinity or NaN at padding makes their loss NaN.


def keep_padding(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Return the inputs unchanged, so that numbers at padding reach the loss."""
    return inputs


def masked_log_ratio(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the core's log ratio times the mask, (B, T)."""
    return core.log_ratio(objective, inputs) * inputs.mask_BT


def kl_with_padding(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return the core's KL to the reference, at padding too, (B, T)."""
    return core.kl_to_reference(objective, replace(inputs, mask_BT=torch.ones_like(inputs.mask_BT)), ratio)


def average_with_padding(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Return the core's average, but multiply padding by 0 instead of leaving it out."""
    poison = (per_token * ~inputs.mask_BT).sum() * 0
    return aggregate(objective.aggregation, per_token, inputs.mask_BT, inputs.totals) + poison


# Replays.


def make_loss_inputs(inputs: Inputs, **changed: Tensor | Totals) -> LossInputs:
    """Return a case's inputs as `LossInputs`, the whole batch as one micro-batch; `changed` replaces fields."""
    fields: dict[str, Any] = {
        "log_probs_BT": inputs["logprobs"],
        "old_log_probs_BT": inputs.get("old_logprobs"),
        "advantages": inputs.get("advantages"),
        "mask_BT": inputs["mask"],
        "totals": Totals.of(inputs["mask"]),
        "reference_log_probs_BT": inputs.get("ref_logprobs"),
        "sampler_log_probs_BT": inputs.get("rollout_logprobs"),
        "entropy_BT": inputs.get("entropies"),
    }
    return LossInputs(**{**fields, **changed})


def replay_loss(
    framework: Framework, objective: Objective, inputs: LossInputs, kept_BT: Tensor | None = None
) -> Replayed:
    """Compute loss and metrics as training does. `kept_BT`: the tokens that rejection keeps in the loss."""
    learnt_from = inputs if kept_BT is None else replace(inputs, mask_BT=kept_BT)
    loss = core.policy_loss(objective, learnt_from, framework)
    with torch.no_grad():
        prepared = framework.prepare(objective, learnt_from)
        scale = float(framework.average(objective, prepared, loss.per_token.abs()))
        return Replayed(loss.total, scale, framework.metrics(objective, inputs, loss))


def replay_kl(
    inputs: Inputs,
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    dtype: torch.dtype = torch.double,
) -> Replayed:
    """Compute a KL estimate at each position, in `dtype`, and its sum over the tokens as the loss."""
    log_probs_BT = inputs["logprobs"].to(dtype)
    log_ratio_BT, own = inputs["ref_logprobs"].to(dtype) - log_probs_BT, unit_gradient(log_probs_BT)
    values_BT = kl_penalty(log_ratio_BT, estimator, "plain", input_clamp, output_clamp, own, own)
    return sum_over_tokens(values_BT, inputs["mask"])


def sum_over_tokens(values_BT: Tensor, mask_BT: Tensor) -> Replayed:
    """Return values at each position, and their sum over the tokens as the loss."""
    of_tokens_BT = torch.where(mask_BT, values_BT, 0.0)
    return Replayed(of_tokens_BT.sum(), float(of_tokens_BT.detach().abs().sum()), tensors={"per_token": values_BT})


def put_at_last_token(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Place the values at each row's last token, 0 elsewhere and in a row without tokens, (B, T)."""
    last_B1 = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1, keepdim=True)
    return values_B.new_zeros(mask_BT.shape).scatter(1, last_B1, values_B[:, None]) * mask_BT


def score_groups(rewards_B: Tensor, size: int) -> Scored:
    """Return rewards in groups of one size that follow each other."""
    return Scored(rewards_B, torch.arange(len(rewards_B)) // size)


def whiten_tokens(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (value - mean) / std over the tokens, as verl, ROLL and SkyRL compute it; at padding too, (B, T).

    The Bessel factor N / (N - 1) is rounded to float32. Raises ValueError for fewer than two tokens.
    """
    tokens = mask_BT.sum()
    if tokens < 2:
        raise ValueError("fewer than two tokens cannot be whitened")
    mean = (values_BT * mask_BT).sum() / tokens
    variance = ((values_BT - mean).square() * mask_BT).sum() / tokens * (tokens / (tokens - 1))
    return (values_BT - mean) * (variance + 1e-8).rsqrt()


def sum_discounted_rewards(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """Return each token's discounted return; 0 at padding, (B, T).

    Positions outside the mask are no steps, so they add no discount. REINFORCE++ (2501.03262).
    """
    sums_BT, _ = compute_gae(rewards_BT, torch.zeros_like(rewards_BT), mask_BT, gamma, 1.0)
    return torch.where(mask_BT, sums_BT, 0.0)


def compute_gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return GAE's advantages (1506.02438, eq. 16) and returns (advantage + value) of given values, (B, T) each.

    Positions outside the mask are no steps, and have the advantage of the next token.
    """
    advantages_BT = torch.zeros_like(rewards_BT)
    next_value_B = running_B = rewards_BT.new_zeros(len(rewards_BT))
    for t in reversed(range(rewards_BT.shape[1])):
        error_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        running_B = torch.where(mask_BT[:, t], error_B + gamma * lam * running_B, running_B)
        next_value_B = torch.where(mask_BT[:, t], values_BT[:, t], next_value_B)
        advantages_BT[:, t] = running_B
    return advantages_BT, advantages_BT + values_BT
