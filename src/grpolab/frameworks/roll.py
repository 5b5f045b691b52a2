"""ROLL (alibaba/ROLL, 8eb27cc of 2026-08-19, v0.3.0+9): roll/utils/functionals.py `agg_loss` and its four workers.

roll/pipeline/base_worker.py (base), rlvr/actor_worker.py (rlvr), agentic/agentic_actor_worker.py (agentic) and
rlvr/actor_pg_worker.py (pg). Its own way: log-probs are multiplied by the mask, but `token-mean` sums over padding too;
means over sequences divide by their count + 1e-8.

`@sum` in a metric's name tells ROLL's logger to sum it over micro-batches, because the denominator is already global.
The base worker's names lack it; rlvr and the agentic worker have the same names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.objectives import kl_axes
from grpolab.frameworks.roll_options import ESTIMATOR, KL_CLAMP, objective
from grpolab.grpo.advantages import advantages
from grpolab.grpo.kl import k2
from grpolab.grpo.loss import Loss, LossInputs, importance_ratio, importance_weight
from grpolab.registry import AGGREGATIONS, resolve
from grpolab.settings.objective import Objective


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Multiply log-probs, entropy and per-sequence advantages by the mask; per-token advantages stay as they are."""
    names = ("log_probs_BT", "old_log_probs_BT", "reference_log_probs_BT", "entropy_BT")
    values = {name: getattr(inputs, name) for name in names}
    masked: dict[str, Any] = {name: value * inputs.mask_BT for name, value in values.items() if value is not None}
    if inputs.advantages.shape != inputs.mask_BT.shape:
        masked["advantages"] = inputs.advantages * inputs.mask_BT
    return replace(inputs, **masked)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; for an empty sequence it is 1 without a gradient."""
    if objective.importance_sampling_level == "sequence":
        log_ratio_BT = torch.where(mask_BT.any(1, keepdim=True), log_ratio_BT, 0.0)
    return importance_ratio(objective, log_ratio_BT, mask_BT)


def token_weights(aggregation: str, inputs: LossInputs) -> Tensor:
    """Return `agg_loss`'s weight of each position, (B, T). token-mean counts padding; sequences divide by n + 1e-8."""
    mask_BT, totals = inputs.mask_BT, inputs.totals
    if aggregation == "token_mean_minibatch":
        return torch.ones_like(inputs.log_probs_BT.detach()) / totals.tokens
    weights_BT: Tensor = resolve(AGGREGATIONS[aggregation])(mask_BT.to(inputs.log_probs_BT.dtype), totals)
    if aggregation in ("sequence_mean_nonempty", "sequence_sum_nonempty"):
        weights_BT = weights_BT * (totals.nonempty_sequences / (totals.nonempty_sequences + 1e-8))
    return weights_BT


def weighted_sum(values: Tensor, weights_BT: Tensor) -> Tensor:
    """Sum values times weights; a row without weight counts as 0 even if it holds NaN."""
    return (torch.where(weights_BT.any(1, keepdim=True), values, 0.0) * weights_BT).sum()


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average as `agg_loss` does."""
    return weighted_sum(per_token, token_weights(objective.aggregation, inputs))


# Names of metrics that the base worker reports without `@sum`.
OF_BASE = (
    *("pg_loss@sum", "total_loss@sum", "kl_loss@sum", "approxkl@sum", "policykl@sum", "clipfrac@sum"),
    *("ratio_max@max", "ratio_min@min"),
)
Logged = dict[str, Tensor | float]


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return ROLL's metrics under all its workers' names that fit the kernel."""
    inputs, rule = prepare(objective, inputs), objective.sampler_correction
    mask_BT, log_ratio_BT = inputs.mask_BT, inputs.log_probs_BT - inputs.old_log_probs_BT
    ratio_BT = loss.ratio.expand_as(mask_BT)  # at padding 1, or the sequence's
    own_BT, rows_BT = (token_weights(name, inputs) for name in (objective.aggregation, "sequence_mean_nonempty"))
    weight = 1.0 if rule is None else importance_weight(rule, objective, inputs)
    policy, valid = weighted_sum(loss.surrogate.loss * weight, own_BT), mask_BT.any(1).sum()
    logged: Logged = {}
    if inputs.reference_log_probs_BT is not None:  # ROLL reports it whether it is in the loss or not
        reported = objective.but(**kl_axes(1.0, "k3", output_clamp=KL_CLAMP))
        logged["kl_loss@sum"] = weighted_sum(shared.kl_with_padding(reported, inputs, loss.ratio) * mask_BT, own_BT)
    logged |= {
        "pg_loss@sum": policy,
        "weighted_pg_loss@sum": policy,
        "total_loss@sum": loss.total,
        "approxkl@sum": weighted_sum(k2(log_ratio_BT) * mask_BT, own_BT),
        "policykl@sum": weighted_sum(log_ratio_BT * mask_BT, own_BT),
        "ratio_max@max": (ratio_BT * mask_BT).max(),
        "ratio_min@min": (ratio_BT * mask_BT + (~mask_BT) * 1e10).min(),
        "ratio_mean@sum": weighted_sum(ratio_BT, rows_BT),
        "ratio_mean": mean_of_all_rows(ratio_BT, mask_BT),
        "valid_samples@sum": valid,
        "total_samples@sum": float(len(mask_BT)),
        "valid_sample_ratio": valid / len(mask_BT),
        "valid_sample_ratio@sum": valid / valid.new_tensor(inputs.totals.nonempty_sequences),
    }
    for form in ("sample_weights_{0}", "sample_weights_{0}@{0}"):  # 1: we have no weights of sequences
        logged |= {form.format(statistic): 1.0 for statistic in ("mean", "min", "max")}
    match objective.kernel:
        case "clipped":
            logged |= clip_metrics(objective, inputs, ratio_BT, own_BT)
        case "cispo" | "cispo_masked":
            logged |= weight_metrics(objective, inputs, loss, rows_BT)
        case "topr":
            logged |= topr_metrics(objective, inputs, ratio_BT, own_BT)
        case "dro":
            logged |= kimi_metrics(objective, inputs, ratio_BT)
    tensors = {name: value for name, value in logged.items() if isinstance(value, Tensor)}
    values = torch.stack([value.double() for value in tensors.values()]).tolist()
    numbers: dict[str, Any] = logged | dict(zip(tensors, values, strict=True))
    numbers |= {name.partition("@")[0]: numbers[name] for name in OF_BASE if name in numbers}
    return {f"actor/{name}": value for name, value in numbers.items()}


def mean_of_all_rows(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Average the rows' means, 0 for an empty row: `masked_mean(dim=-1).mean()`."""
    means_B = (values_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
    return torch.where(mask_BT.any(1), means_B, 0.0).mean()


def share(mask_BT: Tensor) -> Tensor:
    """Return the masked share of all positions, padding included."""
    return mask_BT.float().mean()


def clip_metrics(objective: Objective, inputs: LossInputs, ratio_BT: Tensor, own_BT: Tensor) -> Logged:
    """Return clip fractions: `ppo_ratio_*` count ratios out of range, padding too; `clipfrac` counts changed losses.

    The base worker (no `@sum`) averages over all positions. `own_BT`: the weights of the objective's average.
    """
    low_BT, high_BT = ratio_BT < objective.low, ratio_BT > objective.high
    everywhere_BT = token_weights("token_mean_minibatch", inputs)
    changed_BT = shared.find_clipped_losses(objective, inputs.advantages, ratio_BT)
    logged: Logged = {}
    for side, outside_BT in (("high_", high_BT), ("low_", low_BT), ("", low_BT | high_BT)):
        logged[f"ppo_ratio_{side}clipfrac"] = share(outside_BT)
        logged[f"ppo_ratio_{side}clipfrac@sum"] = weighted_sum(outside_BT.float(), everywhere_BT)
    return logged | {"clipfrac@sum": weighted_sum(changed_BT.float(), own_BT)}


def weight_metrics(objective: Objective, inputs: LossInputs, loss: Loss, rows_BT: Tensor) -> Logged:
    """Return the share of all positions whose weight was cut, under the pg worker's names for both tis and cispo."""
    ratio_BT, low, high = loss.ratio.expand_as(inputs.mask_BT), objective.low, objective.high
    cut_BT, low_BT, high_BT = ratio_BT.clamp(low, high), ratio_BT < low, ratio_BT > high
    sides = {"lower": share(low_BT), "upper": share(high_BT), "total": share(low_BT | high_BT)}
    logged: Logged = {
        **{f"{name}_{side}_clipfrac": cut for name in ("tis", "cispo_cispo") for side, cut in sides.items()},
        "tis_lower_bound": low,
        "tis_upper_bound": high,
        "cispo_cispo_epsilon_low": objective.epsilon,
        "cispo_cispo_epsilon_high": objective.epsilon_above,
        "cispo_cispo_clip_lower": low,
        "cispo_cispo_clip_upper": high,
        "cispo_cispo_use_unified_mask": float(objective.kernel == "cispo_masked"),
        "tis_clipped_ratio_mean@sum": weighted_sum(cut_BT, rows_BT),
        "cispo_clipped_ratio_mean": mean_of_all_rows(cut_BT, inputs.mask_BT),
    }
    if objective.kernel == "cispo_masked":
        up_BT, down_BT = loss.surrogate.active_high, loss.surrogate.active_low
        logged["cispo_cispo_masked_positive_tokens"] = share(up_BT)
        logged["cispo_cispo_masked_negative_tokens"] = share(down_BT)
        logged["cispo_cispo_kept_tokens"] = share(~(up_BT | down_BT))
    return logged


def topr_metrics(objective: Objective, inputs: LossInputs, ratio_BT: Tensor, own_BT: Tensor) -> Logged:
    """Return counts, share of cut weights and loss of TOPR's two kinds of sequences (by the sign of their score)."""
    assert inputs.rewards_B1 is not None
    scores_B1, positive_B1 = inputs.rewards_B1, inputs.rewards_B1 > 0
    negative_B1, gradient_BT = scores_B1 <= 0, -inputs.advantages * inputs.log_probs_BT
    below_BT, above_BT = (ratio_BT < 0) & negative_B1, (ratio_BT > 1) & negative_B1
    cut_BT = ratio_BT.clamp(0, 1) * gradient_BT
    logged: Logged = {}
    for name, rows_B1, loss_BT in (("positive", positive_B1, gradient_BT), ("negative", negative_B1, cut_BT)):
        weight, loss = objective.options[f"{name}_weight"], weighted_sum(loss_BT * rows_B1, own_BT)
        logged[f"topr_{name}_samples@sum"] = rows_B1.sum()
        logged[f"topr_{name}_ratio"] = rows_B1.sum() / (len(scores_B1) + 1e-8)
        logged |= {
            f"topr_{name}_weight": weight,
            f"topr_{name}_loss": loss,
            f"topr_weighted_{name}_loss": weight * loss,
        }
    return logged | {
        "topr_negative_lower_clipfrac": share(below_BT),
        "topr_negative_upper_clipfrac": share(above_BT),
        "topr_negative_total_clipfrac": share(below_BT | above_BT),
        "topr_scores_mean": scores_B1.mean(),
        "topr_scores_std": sample_std(scores_B1),
    }


def kimi_metrics(objective: Objective, inputs: LossInputs, ratio_BT: Tensor) -> Logged:
    """Return sizes of the policy gradient and of the penalty, over all positions, from log(ratio + 1e-8)."""
    tau, log_ratio_BT = objective.options["coefficient"], (ratio_BT + 1e-8).log()
    gradient, penalty = (inputs.advantages * log_ratio_BT).abs().mean(), (tau * log_ratio_BT.square() * 0.5).mean()
    return {
        "kimi15_kimi15_tau": tau,
        "kimi15_kimi15_log_ratio_mean": log_ratio_BT.mean(),
        "kimi15_kimi15_log_ratio_std": sample_std(log_ratio_BT),
        "kimi15_kimi15_log_ratio_abs_mean": log_ratio_BT.abs().mean(),
        "kimi15_kimi15_policy_grad_magnitude": gradient,
        "kimi15_kimi15_kl_reg_magnitude": penalty,
        "kimi15_kimi15_reg_ratio": penalty / (gradient + 1e-8),
    }


def sample_std(values: Tensor) -> Tensor:
    """Return torch's std, NaN for a single value without its warning."""
    return ((values - values.mean()).square().sum() / (values.numel() - 1)).sqrt()


def replay_worker(options: Options, inputs: Inputs) -> Replayed:
    """Replay the loss of the base, rlvr and agentic workers, which differ only in their options."""
    scores = {"rewards_B1": inputs["scores"][:, None]} if "scores" in inputs else {}
    return shared.replay_loss(FRAMEWORK, objective(options), shared.make_loss_inputs(inputs, **scores))


def replay_pg_worker(options: Options, inputs: Inputs) -> Replayed:
    """Replay the pg worker's loss, whose variant and numbers are read from `actor_train`."""
    return replay_worker({"pg_variant": "vanilla", **options, **options.get("actor_train", {})}, inputs)


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay a KL estimate of each token, times the mask; only k3 is clamped."""
    name = options["kl_penalty"]
    replayed = shared.replay_kl(inputs, ESTIMATOR[name], output_clamp=KL_CLAMP if name == "k3" else None)
    values_BT = replayed.tensors["per_token"] * inputs["mask"]
    return Replayed(values_BT.sum(), replayed.scale, tensors={"per_token": values_BT})


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay normalised rewards, and in float32 the discounted returns, whitened and masked.

    The reward is at the last token; every position is a step, padding too.
    """
    rewards_B, mask_BT = normalize_rewards(options, inputs), inputs["mask"]
    rewards_BT = shared.put_at_last_token(rewards_B.float(), mask_BT)
    returns_BT = shared.sum_discounted_rewards(rewards_BT, torch.ones_like(mask_BT), options["gamma"])
    whiten = options["whiten_advantages"] and mask_BT.sum() > 1
    advantages_BT = (shared.whiten_tokens(returns_BT, mask_BT) if whiten else returns_BT) * mask_BT
    if (bound := options.get("advantage_clip")) is not None:
        advantages_BT = advantages_BT.clamp(-bound, bound)
    return Replayed(tensors={"normalized_rewards": rewards_B, "advantages": advantages_BT, "returns": returns_BT})


def normalize_rewards(options: Options, inputs: Inputs) -> Tensor:
    """Return `reward_norm`, which has the group's std only with the group's mean; grpo always has both."""
    mean, std, rewards_B = options["norm_mean_type"], options["norm_std_type"], inputs["rewards"]
    if options["adv_estimator"] == "grpo":
        mean, std = "group", "group"
    if mean == std == "running":
        return normalize_by_running_moments(rewards_B)
    if "running" in (mean, std) or (std == "group" and mean != "group"):
        raise ValueError(f"norm_mean_type={mean} with norm_std_type={std} is not replayed")
    baseline = {None: "none", "batch": "batch_mean", "group": "group_mean"}[mean]
    return advantages(shared.score_groups(rewards_B, inputs["group_size"]), baseline, std or "none", 1e-6)


def normalize_by_running_moments(rewards_B: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return the first batch's rewards minus the running mean, over the running std, (B,).

    `RunningMoments` (Chan's parallel update) starts with mean 0 and variance 1, at a weight of nearly 0.
    """
    before, more, mean = 1e-24, len(rewards_B), rewards_B.mean().item()
    count = before + more
    square = before + rewards_B.var(correction=0).item() * more + mean**2 * before * more / count
    std = (square / count * count / (count - 1)) ** 0.5
    return (rewards_B - mean * more / count) / (std + epsilon)


FRAMEWORK = Framework(
    objective=objective,
    prepare=prepare,
    ratio=ratio,
    kl=shared.kl_with_padding,
    average=average,
    average_entropy=average,
    metrics=metrics,
    replays={
        "ActorWorker.loss_func": replay_worker,
        "ActorPGWorker.loss_func": replay_pg_worker,
        "compute_approx_kl": replay_kl,
        "reward_norm + compute_advantage": replay_advantages,
    },
)
