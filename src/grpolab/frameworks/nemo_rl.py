"""NeMo-RL 7ea279ab (v0.1.0+1338): `nemo_rl/algorithms/loss/loss_functions.py`, `ClippedPGLossFn`.

Its own way: 1e-8 is added to every divisor; the KL is multiplied by a weight before its output clamp, and this weight
has no gradient where the input clamp acts; an infinite sampler weight counts as 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.options import nemo_rl
from grpolab.grpo.advantages import by_group, whiten
from grpolab.grpo.kl import k3, kl_penalty
from grpolab.grpo.loss import Loss, LossInputs, importance_ratio
from grpolab.grpo.ratios import bounded_weight
from grpolab.registry import KL_ESTIMATORS, resolve
from grpolab.settings.objective import Objective, SamplerCorrection

TINY = 1e-8


def masked_mean(values: Tensor, mask: Tensor, count: float) -> Tensor:
    """Divide the sum over the mask by (count + 1e-8)."""
    return (values * mask).sum() / (count + TINY)


def row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Average each row over its tokens, with 1e-8 in the divisor, (B, 1)."""
    return (values_BT * mask_BT).sum(1, keepdim=True) / (mask_BT.to(values_BT).sum(1, keepdim=True) + TINY)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; for sequences by the row mean above."""
    if objective.importance_sampling_level == "token":
        return importance_ratio(objective, log_ratio_BT, mask_BT)
    return row_mean(log_ratio_BT, mask_BT).exp()


def bounded_sampler_weight(objective: Objective, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return exp(old - sampler) within its bounds, and a mask of what was outside; (B, T) or (B, 1) each."""
    rule, mask_BT, old_BT = objective.sampler_correction, inputs.mask_BT, inputs.old_log_probs_BT
    log_BT = old_BT - (old_BT if inputs.sampler_log_probs_BT is None else inputs.sampler_log_probs_BT)
    by_row = objective.importance_sampling_level == "sequence"
    weight = ((log_BT * mask_BT).sum(1, keepdim=True) if by_row else log_BT).exp().nan_to_num(0, 0, 0)  # NaN, inf: 0
    if rule is None:
        return weight, torch.zeros_like(weight, dtype=torch.bool)
    if rule.level != "geometric":
        return bounded_weight(rule, weight), (weight < rule.low) | (weight > rule.high)
    # Geometric: a row whose mean ratio is out of bounds has weight 0; the other rows' weights are not bounded.
    mean_B1 = row_mean(log_BT.nan_to_num(0, 0, 0), mask_BT).exp()
    out_B1 = (mean_B1 < rule.low) | (mean_B1 > rule.high)
    return weight * ~out_B1, out_B1


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the sampler weight within its bounds."""
    return bounded_sampler_weight(objective, inputs)[0]


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return the KL estimate times a weight, then clamped; the weight is exp(log pi - sg(log pi)), or pi / sampler."""
    assert inputs.reference_log_probs_BT is not None
    log_probs_BT, anchor_BT = inputs.log_probs_BT, inputs.log_probs_BT.detach()
    if objective.kl_gradient == "importance_weighted" and inputs.sampler_log_probs_BT is not None:
        anchor_BT = inputs.sampler_log_probs_BT
    weight_BT = (log_probs_BT - anchor_BT).exp().nan_to_num(0, 0, 0)
    log_ratio_BT, bound = inputs.reference_log_probs_BT - log_probs_BT, objective.kl_input_clamp
    if bound is not None:
        weight_BT = torch.where(log_ratio_BT.abs() <= bound, weight_BT, weight_BT.detach())
    assert objective.kl_estimator is not None
    value_BT = weight_BT * kl_penalty(log_ratio_BT, objective.kl_estimator, "plain", bound, None, ratio, weight_BT)
    bound = objective.kl_output_clamp
    return value_BT if bound is None else value_BT.clamp(-bound, bound)


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average over tokens, or the rows' means over rows, with 1e-8 in every divisor."""
    if objective.aggregation not in ("token_mean_minibatch", "sequence_mean_nonempty"):
        return shared.average_with_padding(objective, inputs, per_token)
    mask_BT, totals = inputs.mask_BT, inputs.totals
    if objective.aggregation == "token_mean_minibatch":
        return masked_mean(per_token, mask_BT, totals.tokens)
    return row_mean(per_token, mask_BT).sum() / (totals.nonempty_sequences + TINY)


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return the dictionary that the loss returns.

    At the sequence level `sampling_importance_ratio` is a sum, because NeMo-RL multiplies the mean by the count.
    """
    mask_BT, totals, new_BT, old_BT = inputs.mask_BT, inputs.totals, inputs.log_probs_BT, inputs.old_log_probs_BT
    sampler_BT = old_BT if inputs.sampler_log_probs_BT is None else inputs.sampler_log_probs_BT
    ratio = clamped = new_BT if objective.kernel == "policy_gradient" else loss.ratio.expand_as(new_BT)
    if objective.kernel not in ("policy_gradient", "ratio"):
        clamped = ratio.clamp(objective.low, objective.high)
    mixture_BT = (0.5 * old_BT.exp() + 0.5 * sampler_BT.exp()).log()
    divergence = resolve(KL_ESTIMATORS[objective.kl_estimator or "k3"])
    (weight, outside), rule = bounded_sampler_weight(objective, inputs), objective.sampler_correction
    logged: dict[str, Any] = {
        "loss": loss.total,
        "kl_penalty": 0.0 if loss.kl_ref_BT is None else average(objective, inputs, loss.kl_ref_BT),
        "num_valid_samples": totals.nonempty_sequences,
        "positive_nll_loss": 0.0,
    }
    for name, values in (("probs_ratio", ratio), ("probs_ratio_clamped", clamped)):
        logged[name] = masked_mean(values, mask_BT, totals.tokens)
        logged[f"{name}_min"] = torch.where(mask_BT, values, torch.inf).min()
        logged[f"{name}_max"] = torch.where(mask_BT, values, -torch.inf).max()
    per_token = {
        "token_mult_prob_error": ((sampler_BT - old_BT).abs() * mask_BT).exp(),
        "gen_kl_error": divergence(old_BT - sampler_BT),
        "policy_kl_error": divergence(sampler_BT - old_BT),
        "js_divergence_error": (k3(old_BT - mixture_BT) + k3(sampler_BT - mixture_BT)) / 2,
        "approx_entropy": -(new_BT - sampler_BT).exp() * new_BT,
        "sampling_importance_ratio": weight,
    }
    logged |= {name: masked_mean(values, mask_BT, totals.tokens) for name, values in per_token.items()}
    if objective.importance_sampling_level == "sequence":
        sequences = totals.nonempty_sequences
        logged["sampling_importance_ratio"] = weight.sum() * sequences / (sequences + TINY)
    if rule is not None and (rule.level == "geometric" or rule.high < torch.inf):
        counted = (mask_BT, totals.tokens)
        if rule.level == "geometric":
            counted = (mask_BT.any(1, keepdim=True), totals.nonempty_sequences)
        logged["is_oob_ratio"] = masked_mean(outside.to(weight), *counted)
    return {name: float(value) for name, value in logged.items()}


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss; without `rollout_logprobs` the sampler is the old policy."""
    changed = {"sampler_log_probs_BT": inputs.get("rollout_logprobs", inputs["old_logprobs"])}
    if options.get("force_on_policy_ratio"):
        changed["old_log_probs_BT"] = inputs["logprobs"].detach()
    return shared.replay_loss(FRAMEWORK, nemo_rl(options), shared.make_loss_inputs(inputs, **changed))


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay the estimate without a weight."""
    return shared.replay_kl(inputs, options["kl_type"], options["input_clamp"], options["output_clamp"])


def replay_grpo(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards minus their baseline, over the std of the same rewards, all in float32."""
    rewards_B = inputs["rewards"].float()
    baseline_B, std_B = baseline_and_std(rewards_B, inputs, options["use_leave_one_out_baseline"])
    advantages_B = rewards_B - baseline_B
    if options["normalize_rewards"]:
        advantages_B = torch.where(std_B > 0, advantages_B / (std_B + 1e-6), advantages_B)
    return Replayed(tensors={"advantages": advantages_B[:, None].expand_as(inputs["mask"])})


def replay_reinforce_plus_plus(options: Options, inputs: Inputs) -> Replayed:
    """Replay rewards (minus their group's mean, with `minus_baseline`), whitened over the tokens, padding included."""
    rewards_B = inputs["rewards"].float()
    if options["minus_baseline"]:
        rewards_B = rewards_B - baseline_and_std(rewards_B, inputs, leave_one_out=False)[0]
    rewards_BT = rewards_B[:, None].expand_as(inputs["mask"])
    return Replayed(tensors={"advantages": whiten(rewards_BT, inputs["mask"], "population")})


def baseline_and_std(rewards_B: Tensor, inputs: Inputs, leave_one_out: bool) -> tuple[Tensor, Tensor]:
    """Return mean and std of each row's group, or of its other members, (B,) each; for a group of one its reward and 0.

    The variance is E[x^2] - E[x]^2, which loses precision if the rewards are close.
    """

    def mean(rewards_PN: Tensor) -> Tensor:
        if (size := rewards_PN.shape[1]) == 1:
            return rewards_PN
        counted_NN = torch.ones(size, size) - leave_one_out * torch.eye(size)
        return torch.stack([counted_NN @ rewards_N for rewards_N in rewards_PN]) / (size - leave_one_out)

    def std(rewards_PN: Tensor) -> Tensor:
        if rewards_PN.shape[1] == 1:
            return torch.zeros_like(rewards_PN)
        count = torch.tensor(float(rewards_PN.shape[1] - leave_one_out))
        variance_PN = (mean(rewards_PN.square()) - mean(rewards_PN).square()) * (count / (count - 1))
        return variance_PN.sqrt().nan_to_num(0)

    group_B = torch.as_tensor(inputs["group_ids"])
    return by_group(group_B, mean, rewards_B), by_group(group_B, std, rewards_B)


FRAMEWORK = Framework(
    objective=nemo_rl,
    prepare=shared.keep_padding,
    ratio=ratio,
    importance_weight=importance_weight,
    kl=kl,
    average=average,
    metrics=metrics,
    replays={
        "ClippedPGLossFn.__call__": replay_loss,
        "calculate_kl": replay_kl,
        "GRPOAdvantageEstimator.compute_advantage": replay_grpo,
        "ReinforcePlusPlusAdvantageEstimator.compute_advantage": replay_reinforce_plus_plus,
    },
)
