"""open-instruct e6c3044a (v0.3.0+29), grpo_fast: `open_instruct/grpo_utils.py`, `compute_grpo_loss`.

Its own way: the sampler's weight rho is cut at 2 even if it is masked, its log ratio at 10; a token that the mask drops
does not count as clipped. Rows there are packed sequences; here a row is one sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import OPEN_INSTRUCT_CLAMP, OPEN_INSTRUCT_KL, RHO, open_instruct
from grpolab.grpo.kl import kl_penalty
from grpolab.grpo.loss import Loss, LossInputs
from grpolab.grpo.ratios import masked_log_ratio, row_mean
from grpolab.settings.objective import Objective, SamplerCorrection

LOG_RHO = 10.0  # bound of the sampler's log ratio


class Rho(NamedTuple):
    """The sampler's weight, and masks of the tokens where it was dropped or cut, (B, T) each."""

    weight: Tensor
    low: Tensor  # dropped, bool
    high: Tensor
    clamped: Tensor


def compute_rho(rule: SamplerCorrection, inputs: LossInputs) -> Rho:
    """Return exp(old - sampler) of tokens or rows, 0 where the mask drops, then bounded.

    In rows whose mean |rho - 1| is out of bounds, `tv` drops the tokens that push it further.
    """
    assert inputs.sampler_log_probs_BT is not None
    mask_BT = inputs.mask_BT
    log_BT = masked_log_ratio(inputs.old_log_probs_BT, inputs.sampler_log_probs_BT, mask_BT).clamp(-LOG_RHO, LOG_RHO)
    rho_BT = (row_mean(log_BT, mask_BT).expand_as(log_BT) if rule.level == "geometric" else log_BT).exp()
    clamped_BT = rho_BT.clamp(*((rule.low, rule.high) if rule.mode == "truncate" else (0.0, RHO)))
    judged_BT, judges_BT = rho_BT, mask_BT & (rule.mode == "mask")
    if rule.level == "tv":
        judged_BT = row_mean((rho_BT - 1).abs(), mask_BT)
        judges_BT = judges_BT & (log_BT.sign() * inputs.advantages > 0)
    low_BT, high_BT = judges_BT & (judged_BT < rule.low), judges_BT & (judged_BT > rule.high)
    return Rho(torch.where(low_BT | high_BT, 0.0, clamped_BT), low_BT, high_BT, clamped_BT != rho_BT)


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return rho."""
    return compute_rho(rule, inputs).weight


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return the averages over tokens of `populate_sample_loss_stats`."""
    inputs = inputs.without_padding()
    mask_BT, rule, clipped = inputs.mask_BT, objective.sampler_correction, loss.ratio > objective.high
    if objective.kernel == "clipped":
        clipped = loss.surrogate.active_low | loss.surrogate.active_high
    per_token = {"loss/policy_avg": loss.surrogate.loss, "val/ratio": loss.ratio}
    if rule is not None:
        rho = compute_rho(rule, inputs)
        clipped = clipped & (rho.weight != 0)
        per_token |= {
            "loss/policy_avg": loss.surrogate.loss * rho.weight,
            "val/rho_drop_frac": rho.low | rho.high,
            "val/rho_drop_low_frac": rho.low,
            "val/rho_drop_high_frac": rho.high,
            "val/rho_weight": rho.weight,
            "val/rho_clipfrac": rho.clamped,
        }
    per_token["policy/clipfrac_avg"] = clipped
    if inputs.reference_log_probs_BT is not None:
        log_ratio_BT = inputs.reference_log_probs_BT - inputs.log_probs_BT
        estimates = estimate_kl_four_ways(log_ratio_BT, loss.ratio)
        per_token |= {f"objective/kl{number}_avg": values_BT for number, values_BT in enumerate(estimates)}
    if loss.kl_ref_BT is not None:
        per_token["loss/kl_avg"] = loss.kl_ref_BT
    of_tokens = {name: values.expand_as(mask_BT)[mask_BT].double() for name, values in per_token.items()}
    means = {name: float(values_N.mean().nan_to_num()) for name, values_N in of_tokens.items()}
    means["loss/kl_avg"] = objective.beta * means.pop("loss/kl_avg", 0.0)
    return {**means, "loss/total_avg": float(loss.total)}


def estimate_kl_four_ways(log_ratio_BT: Tensor, ratio_BT: Tensor) -> list[Tensor]:
    """Return the four estimates of the KL to the reference, (B, T) each."""
    return [
        kl_penalty(log_ratio_BT, *names, OPEN_INSTRUCT_CLAMP, None, ratio_BT, ratio_BT) for names in OPEN_INSTRUCT_KL
    ]


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss; without `rollout_logprobs` there is no correction, without `ref_logprobs` no KL."""
    corrected = "rollout_logprobs" in inputs and options.get("use_rho_correction", True)
    point = open_instruct({**options, "use_rho_correction": corrected})
    batch, constant = shared.make_loss_inputs(inputs), options.get("loss_denominator", "token")
    if constant != "token":  # of all rows together
        batch = replace(batch, totals=replace(batch.totals, sequences=1, max_completion_length=int(constant)))
    replayed = shared.replay_loss(FRAMEWORK, point, batch)
    if point.sampler_correction is None:
        return replayed
    weight_N = compute_rho(point.sampler_correction, batch.without_padding()).weight[batch.mask_BT]
    return replayed.with_metrics({"val/rho_weight": weight_N.float().mean().nan_to_num()})


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay the four estimates at each position; the loss is the sum of the third over the tokens."""
    ratio_BT = (inputs["logprobs"] - inputs["old_logprobs"]).exp()
    values_4BT = torch.stack(estimate_kl_four_ways(inputs["ref_logprobs"] - inputs["logprobs"], ratio_BT))
    loss = values_4BT[2][inputs["mask"]].sum()
    return Replayed(loss, float(loss.detach()), tensors={"per_token": values_4BT})


FRAMEWORK = Framework(
    objective=open_instruct,
    importance_weight=importance_weight,
    metrics=metrics,
    replays={"compute_grpo_loss": replay_loss, "estimate_kl": replay_kl},
)
