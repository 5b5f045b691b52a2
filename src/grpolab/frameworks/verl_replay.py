"""Replays verl's advantage estimators (`verl/trainer/ppo/core_algos.py`).

Rewards are sums of `token_level_rewards`; where an estimator gives one number per completion, every token has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from numpy.random import default_rng
from torch import Tensor

from grpolab.frameworks.agreement import Peer, Replay
from grpolab.frameworks.defaults import VERL
from grpolab.frameworks.replay import Replayed, loss_inputs, masked_whiten, replay_loss
from grpolab.frameworks.verl import (
    BOUND,
    DIALECT,
    bounded_std,
    correction_metrics,
    share,
    some_token,
    std,
    token_mean,
    weight_metrics,
    weights,
)
from grpolab.grpo.advantages import Scored, advantages, discounted_returns, generalized_advantages
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.kl import k1, k2, k3
from grpolab.grpo.loss import LossInputs, Objective, SamplerCorrection, policy_loss
from grpolab.grpo.ratios import masked_log_ratio, row_mean
from grpolab.registry import SCALES, resolve

Options = Mapping[str, Any]
Inputs = Mapping[str, Any]
EPSILON = 1e-6


def scored(inputs: Inputs, lone_reward: bool = True) -> Scored:
    """Rewards and groups of a case; verl leaves a completion without a group its reward."""
    by_token_BT = inputs.get("token_level_rewards")
    return Scored(
        inputs["rewards"] if by_token_BT is None else by_token_BT.sum(1),
        torch.as_tensor(inputs["group_ids"]),
        lengths_B=inputs["mask"].sum(1),
        lone_reward=lone_reward,
    )


def replayed(advantages_BT: Tensor, returns_BT: Tensor | None = None) -> Replayed:
    """Advantages, and what the function returns second: the same where it has no returns."""
    returns_BT = advantages_BT if returns_BT is None else returns_BT
    return Replayed(tensors={"advantages": advantages_BT, "returns": returns_BT})


def outcome(baseline: str, scale: str | None, options: Options, inputs: Inputs, lone_reward: bool = True) -> Replayed:
    """One advantage per completion; `scale` None: the group's std if `norm_adv_by_std_in_grpo`.

    Equal rewards have exactly 0 here, and in verl what rounding leaves of them, divided by as little as epsilon.
    """
    scale = scale or ("group" if options.get("norm_adv_by_std_in_grpo", True) else "none")
    epsilon, given = options.get("epsilon", EPSILON), scored(inputs, lone_reward)
    divisor_B = resolve(SCALES[scale])(given, epsilon)
    if scale == "group":  # the std of a group of one is torch.tensor(1.0)
        _, index_B, sizes_P = given.group_B.unique(return_inverse=True, return_counts=True)
        divisor_B = torch.where(sizes_P[index_B] == 1, torch.tensor(1.0) + epsilon, divisor_B)
    elif scale == "nonzero_share":  # a quotient of two counts
        divisor_B = 1 / (len(given.rewards_B) / given.rewards_B.count_nonzero().clamp(min=1)).double()
    centred_B = advantages(given, baseline, "none")
    return replayed(torch.where(centred_B == 0, 0.0, centred_B / divisor_B)[:, None] * inputs["mask"])


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`masked_whiten`. Raises ValueError where fewer than two tokens have no variance."""
    if mask_BT.sum() < 2:
        raise ValueError("fewer than two tokens cannot be whitened")
    return masked_whiten(values_BT, mask_BT)


def whitened_outcome(scale: str | None, options: Options, inputs: Inputs) -> Replayed:
    """The same, then whitened over the tokens: reinforce++ with baseline, and GDPO with a single reward."""
    plain, mask_BT = outcome("group_mean", scale, options, inputs), inputs["mask"]
    assert plain.tensors is not None
    return replayed(whitened(plain.tensors["advantages"], mask_BT) * mask_BT)


def reinforce_plus_plus(options: Options, inputs: Inputs) -> Replayed:
    """Discounted returns, whitened over the tokens."""
    returns_BT = discounted_returns(inputs["token_level_rewards"], inputs["mask"], options["gamma"])
    return replayed(whitened(returns_BT, inputs["mask"]) * inputs["mask"], returns_BT)


def remax(options: Options, inputs: Inputs) -> Replayed:
    """Return less the baseline; outside the mask, where there is no baseline, the return stays."""
    mask_BT, everywhere_BT = inputs["mask"], torch.ones_like(inputs["mask"])
    returns_BT = discounted_returns(inputs["token_level_rewards"] * mask_BT, everywhere_BT, 1.0)
    baseline = inputs.get("reward_baselines")
    baseline_B = torch.full((len(mask_BT),), 0.25) if baseline is None else baseline
    return replayed(returns_BT - baseline_B[:, None] * mask_BT, returns_BT)


def gae(options: Options, inputs: Inputs) -> Replayed:
    """GAE of given values, whitened over the tokens; outside the mask the values are those of no step."""
    mask_BT, values_BT = inputs["mask"], inputs.get("values")
    if values_BT is None:  # the archive says how they were drawn
        values_BT = torch.from_numpy(default_rng(5).normal(0, 1, tuple(mask_BT.shape)))
    rewards_BT, gamma, lam = inputs["token_level_rewards"], options["gamma"], options["lam"]
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, gamma, lam)
    return replayed(whitened(advantages_BT, mask_BT), returns_BT)


def grpo_vectorized(options: Options, inputs: Inputs) -> Replayed:
    """GRPO with the group's mean and std in float32, each added up in the order of the rows."""
    rewards_B = scored(inputs).rewards_B
    _, group_B, sizes_P = torch.as_tensor(inputs["group_ids"]).unique(return_inverse=True, return_counts=True)

    def group_sum(values_B: Tensor) -> Tensor:
        return torch.zeros(len(sizes_P)).index_add_(0, group_B, values_B)

    mean_P = torch.where(sizes_P > 1, group_sum(rewards_B.float()) / sizes_P, 0.0)
    square_P = group_sum((rewards_B.float() - mean_P[group_B]).square())
    std_P = torch.where(sizes_P > 1, (square_P / (sizes_P - 1)).sqrt(), 1.0)
    advantages_B = rewards_B - mean_P[group_B]
    if options["norm_adv_by_std_in_grpo"]:
        advantages_B = advantages_B / (std_P[group_B] + options["epsilon"])
    return replayed(advantages_B[:, None] * inputs["mask"])


ADVANTAGES: dict[str, Replay] = {
    "compute_grpo_outcome_advantage": partial(outcome, "group_mean", None),
    "compute_grpo_vectorized_outcome_advantage": grpo_vectorized,
    "compute_grpo_passk_outcome_advantage": partial(outcome, "second_best", None),
    "compute_rloo_outcome_advantage": partial(outcome, "leave_one_out", "none"),
    "compute_rloo_vectorized_outcome_advantage": partial(outcome, "leave_one_out", "none", lone_reward=False),
    "compute_opo_outcome_advantage": partial(outcome, "length_weighted", "none"),
    "compute_gpg_outcome_advantage": partial(outcome, "group_mean", "nonzero_share"),
    "compute_gdpo_outcome_advantage": partial(whitened_outcome, None),
    "compute_reinforce_plus_plus_baseline_outcome_advantage": partial(whitened_outcome, "none"),
    "compute_reinforce_plus_plus_outcome_advantage": reinforce_plus_plus,
    "compute_remax_outcome_advantage": remax,
    "compute_gae_advantage_return": gae,
}


# ----------------------------------------------------------------------------------------------------------------------
# verl 1dda039b, `verl/trainer/ppo/rollout_corr_helper.py`: which tokens its rejection leaves in a loss.
#
# The log ratio is log(trainer / sampler), and bounded by 20 wherever it is exponentiated.


DIVERGENCES = {"k1": k1, "k2": k2, "k3": k3}
LEVELS = ("token", "seq_sum", "seq_mean", "seq_max")


def batch_factor(rule: SamplerCorrection, weight_BT: Tensor, mask_BT: Tensor) -> float:
    """What `rollout_is_batch_normalize` divides by: the mean weight of a token, or of a sequence that is not empty."""
    if rule.level == "token":
        mean = float(token_mean(weight_BT, mask_BT))
    else:
        mean = float(row_mean(weight_BT, mask_BT)[mask_BT.any(1)].mean())
    return mean if mean > 1e-8 else 1.0


def rejection(options: str, thresholds: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
    """`compute_rollout_rejection_mask`: the tokens that pass every option, (B, T) bool, and the metrics.

    `token_k1,seq_mean_k3` with one threshold for all or one for each. That of k1, `0.5_1.25`, bounds sampler / trainer,
    the reciprocal of the ratio; the others are an upper bound of the divergence. Raises ValueError where there is no
    token.
    """
    some_token(mask_BT)
    names = list(dict.fromkeys(name.strip() for name in options.split(",")))
    bounds = [bound.strip() for bound in str(thresholds).split(",")]
    bounds = bounds * len(names) if len(bounds) == 1 else bounds
    kept_BT = mask_BT
    found: dict[str, float] = {}
    for name, bound in zip(names, bounds, strict=True):
        passes_BT, of_option = _passes(name, bound, log_ratio_BT, mask_BT)
        kept_BT = kept_BT & passes_BT
        found |= of_option
    found["rollout_rs_masked_fraction"] = float(token_mean(~kept_BT, mask_BT))
    found["rollout_rs_seq_masked_fraction"] = float(share((mask_BT & ~kept_BT).any(1)))
    return kept_BT, found


def _passes(option: str, threshold: str, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, float]]:
    level, _, divergence = option.rpartition("_")
    if level not in LEVELS or divergence not in DIVERGENCES or option == "seq_max_k1":
        raise ValueError(f"verl has no rollout_rs={option}")
    high, low = _bounds(divergence, threshold)
    values_BT = DIVERGENCES[divergence](log_ratio_BT.clamp(-BOUND, BOUND))
    if level != "token":
        values_BT = _of_sequence(level, values_BT, mask_BT).expand_as(values_BT)
    passes_BT = (values_BT <= high) & (values_BT >= low)
    return passes_BT, _rejection_metrics(option, values_BT, passes_BT, mask_BT, high, low)


def _bounds(divergence: str, threshold: str) -> tuple[float, float]:
    """Upper and lower bound of a divergence; only k1, a log ratio, has a lower one."""
    low, _, high = threshold.rpartition("_")
    if divergence != "k1":
        return float(threshold), -math.inf
    return math.log(float(high)), math.log(float(low) if low else 1 / float(high))


def _of_sequence(level: str, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    if level == "seq_sum":
        return torch.where(mask_BT, values_BT, 0.0).sum(1, keepdim=True)
    if level == "seq_mean":
        return row_mean(values_BT, mask_BT)
    largest_B1 = values_BT.masked_fill(~mask_BT, -math.inf).amax(1, keepdim=True)
    return torch.where(largest_B1 == -math.inf, 0.0, largest_B1)


def _rejection_metrics(
    option: str, values_BT: Tensor, passes_BT: Tensor, mask_BT: Tensor, high: float, low: float
) -> dict[str, float]:
    """`compute_rs_metrics`: of the tokens and of the sequences that are not empty."""
    nonempty_B = mask_BT.any(1)
    by_token = option.startswith("token")
    sequence_N = (row_mean(values_BT, mask_BT) if by_token else values_BT)[nonempty_B, 0]
    unit = values_BT[mask_BT] if by_token else sequence_N
    bounded_BT = values_BT.clamp(0.0 if low == -math.inf else low, high)
    found = {
        "mean": token_mean(values_BT, mask_BT),
        "max": unit.max(),
        "min": unit.min(),
        "fraction_high": share(unit > high),
        "fraction_low": share(unit < low),
        "std": bounded_std(bounded_BT, mask_BT),
        "seq_mean": sequence_N.mean(),
        "seq_std": std(sequence_N),
        "seq_max": sequence_N.max(),
        "seq_min": sequence_N.min(),
        "seq_max_deviation": sequence_N.abs().max(),
        "seq_fraction_high": share(sequence_N > high),
        "seq_fraction_low": share(sequence_N < low),
        "masked_fraction": token_mean(~passes_BT, mask_BT),
        "seq_masked_fraction": share((mask_BT & ~passes_BT).any(1)[nonempty_B]),
    }
    return {f"rollout_rs_{option}_{name}": float(value) for name, value in found.items()}


# ----------------------------------------------------------------------------------------------------------------------
# Replays verl: policy losses, `ppo_loss`, aggregations, KL penalties, rollout correction and advantages.


AS_GIVEN = SamplerCorrection("token", "truncate", 0.0, torch.inf)


def totals(mask_BT: Tensor, batch: Options) -> Totals:
    """What `agg_loss` divides by: counts of the global batch, or this one's tokens and sequences that are not empty."""
    own = Totals.of(mask_BT, batch.get("loss_scale_factor"))
    sequences = batch.get("global_batch_size", own.nonempty_sequences)
    return replace(own, tokens=batch.get("batch_num_tokens", own.tokens), sequences=sequences)


def times(replayed: Replayed, factor: float) -> Replayed:
    """The loss for a trainer that averages gradients over `dp_size` ranks."""
    assert replayed.loss is not None
    return replace(replayed, loss=replayed.loss * factor, scale=replayed.scale * factor)


def of_mode(options: Options, mode: str) -> Objective:
    """The objective of a loss mode."""
    return DIALECT.objective({**options, "policy_loss": {**(options.get("policy_loss") or {}), "loss_mode": mode}})


def replay_mode(mode: str, options: Options, inputs: Inputs) -> Replayed:
    """`compute_policy_loss_<mode>`; weights that are given are written as the sampler's log-probs that have them."""
    batch = options.get("global_batch_info") or {}
    if mode == "geo_mean":  # torch.mean over all rows
        batch = {"global_batch_size": len(inputs["mask"])}
    objective, found = of_mode(options, mode), replace(loss_inputs(inputs), totals=totals(inputs["mask"], batch))
    if "rollout_is_weights" in inputs:
        objective = replace(objective, sampler_correction=AS_GIVEN)
        found = replace(found, sampler_log_probs_BT=found.old_log_probs_BT - inputs["rollout_is_weights"].log())
    if mode == "clip_cov":
        found = replace(found, noise_BT=drawn_like_verl(objective, found, options.get("torch_manual_seed", 0)))
    return times(replay_loss(DIALECT, objective, found), batch.get("dp_size", 1))


@torch.no_grad()
def drawn_like_verl(objective: Objective, inputs: LossInputs, seed: int) -> Tensor:
    """Noise that is smallest at the tokens that verl draws: the first ones of a random permutation of the eligible."""
    everything = replace(objective, kernel_options={**objective.kernel_options, "share": 1.0})
    noise_BT = torch.zeros_like(inputs.log_probs_BT)
    eligible_BT = policy_loss(everything, replace(inputs, noise_BT=noise_BT), DIALECT.recipe).surrogate.dropped
    order_N = torch.randperm(int(eligible_BT.sum()), generator=torch.Generator().manual_seed(seed))
    noise_BT[eligible_BT] = order_N.argsort().to(noise_BT.dtype)
    return noise_BT


def bypass_mode(options: Options, inputs: Inputs) -> Replayed:
    """`compute_policy_loss_bypass_mode`: `old_logprobs` are the sampler's; tokens that are rejected leave the mask."""
    rule, mask_BT = VERL["rollout_correction"] | dict(options["rollout_correction"]), inputs["mask"]
    now_BT, sampler_BT = inputs["logprobs"].detach(), inputs["old_logprobs"]
    log_ratio_BT, kept_BT = masked_log_ratio(now_BT, sampler_BT, mask_BT), mask_BT
    rejected: dict[str, float] = {}
    refuse_without_weights(sampler_rule(rule), log_ratio_BT, mask_BT)
    if rule.get("rollout_rs"):
        kept_BT, rejected = rejection(rule["rollout_rs"], rule["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    found = {f"rollout_corr/{name}": value for name, value in rejected.items()}
    found |= correction_metrics(sampler_rule(rule), now_BT, sampler_BT, mask_BT)
    given = loss_inputs({**inputs, "mask": kept_BT})
    given = replace(given, totals=totals(kept_BT, options.get("global_batch_info") or {}))
    if rule["loss_type"] == "reinforce":  # the weight is the current policy's
        given = replace(given, old_log_probs_BT=now_BT, sampler_log_probs_BT=sampler_BT)
    replayed = replay_loss(DIALECT, of_mode(options, "bypass_mode"), given)
    return replace(replayed, metrics={**(replayed.metrics or {}), **found})


def ppo_loss(options: Options, inputs: Inputs) -> Replayed:
    """`ppo_loss`: policy loss, entropy bonus and KL; the global batch is this one, empty rows included."""
    counts = totals(inputs["mask"], {"global_batch_size": len(inputs["mask"])})
    return replay_loss(DIALECT, DIALECT.objective(options), replace(loss_inputs(inputs), totals=counts))


def agg_loss(options: Options, inputs: Inputs) -> Replayed:
    """`agg_loss` of the entropies."""
    values_BT, mask_BT = inputs["entropies"], inputs["mask"]
    given = loss_inputs({**inputs, "logprobs": values_BT})
    given = replace(given, totals=totals(mask_BT, options))
    objective = DIALECT.objective({"loss_agg_mode": options["loss_agg_mode"]})
    aggregated = Replayed(
        DIALECT.recipe.average(objective, given, values_BT),
        float(DIALECT.recipe.average(objective, given, values_BT.detach().abs())),
    )
    return times(aggregated, options.get("dp_size", 1))


def kl_penalty(options: Options, inputs: Inputs) -> Replayed:
    """`kl_penalty`: the KL at each position, and its sum over the tokens as the loss."""
    objective = DIALECT.objective({"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": options["kl_penalty"]})
    mask_BT = inputs["mask"]
    everywhere = loss_inputs({**inputs, "mask": torch.ones_like(mask_BT)})
    values_BT = DIALECT.recipe.kl(objective, everywhere, torch.ones_like(inputs["logprobs"]))
    assert values_BT is not None
    scale = float(values_BT.detach()[mask_BT].abs().sum())
    return Replayed(torch.where(mask_BT, values_BT, 0.0).sum(), scale, tensors={"per_token": values_BT})


def sampler_rule(options: Options) -> SamplerCorrection | None:
    """The sampler correction that `algorithm.rollout_correction` means."""
    return DIALECT.objective({"rollout_correction": options}).sampler_correction


def refuse_without_weights(rule: SamplerCorrection | None, log_ratio_BT: Tensor, mask_BT: Tensor) -> None:
    """Raises ValueError where weights are asked for and no token has one: verl's sample size divides by 0 there."""
    if rule is not None and not weights(rule, log_ratio_BT, mask_BT).any():
        raise ValueError("no token has a sampler weight")


def rollout_weights(options: Options, inputs: Inputs) -> Replayed:
    """`compute_rollout_correction_weights`."""
    rule, mask_BT = sampler_rule(options), inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    refuse_without_weights(rule, log_ratio_BT, mask_BT)
    assert rule is not None
    weight_BT, metrics = weights(rule, log_ratio_BT, mask_BT), weight_metrics(rule, log_ratio_BT, mask_BT)
    if options["rollout_is_batch_normalize"]:
        factor = metrics["rollout_is_batch_norm_factor"] = batch_factor(rule, weight_BT, mask_BT)
        weight_BT = weight_BT / factor
    return Replayed(metrics=metrics, tensors={"weights": weight_BT})


def rollout_rejection(options: Options, inputs: Inputs) -> Replayed:
    """`compute_rollout_rejection_mask`."""
    mask_BT = inputs["mask"]
    log_ratio_BT = masked_log_ratio(inputs["logprobs"], inputs["old_logprobs"], mask_BT).detach()
    kept_BT, metrics = rejection(options["rollout_rs"], options["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    return Replayed(metrics=metrics, tensors={"modified_mask": kept_BT.double()})


LOSS_MODES = ("vanilla", "gspo", "sapo", "cispo", "geo_mean", "gpg", "clip_cov", "kl_cov", "dro", "dppo_tv", "dppo_kl")
FUNCTIONS: dict[str, Replay] = {
    **{f"compute_policy_loss_{mode}": partial(replay_mode, mode) for mode in LOSS_MODES},
    "compute_policy_loss_bypass_mode": bypass_mode,
    "ppo_loss": ppo_loss,
    "agg_loss": agg_loss,
    "kl_penalty": kl_penalty,
    "compute_rollout_correction_weights": rollout_weights,
    "compute_rollout_rejection_mask": rollout_rejection,
}
PEER = Peer(
    functions={**FUNCTIONS, **ADVANTAGES},
    not_reproduced={
        "adv__*optimal_token_baseline": "its baseline of every token needs the sum of squared probabilities over the"
        " vocabulary, which this learner does not keep; the group mean in its place differs by 47% (median of the"
        " cases) to 100% of the largest advantage",
    },
    limits=(
        (
            "`clip_cov` draws its tokens with torch.randperm: the replay takes the seed of the variant, a run has its"
            " own stateless draw; under another draw none of the 200 cases of the archive changes."
        ),
        (
            "rejection sampling (`rollout_rs`) and the batch normalisation of weights are replayed, but are no axes "
            "of a run; `bypass_reinforce` uses the weight of the policy before the update in a run, verl that of the "
            "current one."
        ),
    ),
)
