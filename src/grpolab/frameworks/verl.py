"""verl 0.9.1 (2026-09-20): `verl/trainer/ppo/core_algos.py` and `verl/workers/utils/losses.py`.

Its own way: sapo and geo_mean average their loss by sequences, and `loss_agg_mode` only affects KL and entropy (gspo
too before 0.9, as in 1dda039b, v0.8.0+337, of which the vectors are); the ratio of gspo is at most e^10; geo_mean takes
the geometric mean of a sequence's sampler weights; padding is masked only in sums; the loss of a batch without tokens
is NaN. See also `verl_options.py` and `verl_correction.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from numpy.random import default_rng
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks import verl_correction as correction
from grpolab.frameworks.framework import Framework, Inputs, Options, Replay, Replayed
from grpolab.frameworks.objectives import make_correction
from grpolab.frameworks.verl_options import KERNEL, LOSS, objective, sampler_rule
from grpolab.grpo import loss as core
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, policy_loss
from grpolab.grpo.ratios import masked_log_ratio, row_mean
from grpolab.registry import AGGREGATIONS, SCALES, resolve
from grpolab.settings.objective import Objective, SamplerCorrection

TINY = 1e-10  # added to the weights of geo_mean before their logarithm


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; gspo's is at most e^10, beyond which there is no gradient."""
    if objective.importance_sampling_level != "sequence_token":
        return core.importance_ratio(objective, log_ratio_BT, mask_BT)
    return shared.capped_sequence_token_ratio(log_ratio_BT, mask_BT)


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the sampler's weights; in geo_mean the geometric mean of a sequence's weights."""
    weight = core.importance_weight(rule, objective, inputs)
    return row_mean((weight + TINY).log(), inputs.mask_BT).exp() if objective.kernel == "gmpo" else weight


def loss_aggregation(objective: Objective, before_0_9: bool) -> str:
    """Return how the policy loss is averaged."""
    is_gspo = objective.importance_sampling_level == "sequence_token"
    by_sequence = objective.kernel in ("sapo", "gmpo") or (is_gspo and before_0_9)
    return "sequence_mean" if by_sequence else objective.aggregation


def average(objective: Objective, inputs: LossInputs, per_token: Tensor, before_0_9: bool = False) -> Tensor:
    """Average the policy loss; NaN if there is no token to average over."""
    return aggregate(objective.but(aggregation=loss_aggregation(objective, before_0_9)), inputs, per_token)


def aggregate(objective: Objective, inputs: LossInputs, values: Tensor) -> Tensor:
    """Average as `agg_loss` does: token means select the tokens, sequence means multiply padding by 0."""
    name, mask_BT, totals = objective.aggregation, inputs.mask_BT, inputs.totals
    if name == "token_mean_minibatch":
        return torch.where(mask_BT, values, 0.0).sum() / torch.tensor(totals.tokens)
    weights_BT = resolve(AGGREGATIONS[name])(mask_BT.to(values.dtype), totals)
    counted = mask_BT if name == "token_sum" else mask_BT.any(1, keepdim=True)
    return (torch.where(counted, values, 0.0) * weights_BT).sum()


def add_kl_penalty(
    objective: Objective, inputs: LossInputs, per_token: Tensor, kl_ref_BT: Tensor, before_0_9: bool = False
) -> Tensor:
    """Add the KL, averaged by `loss_agg_mode` even if the policy loss is not."""
    mask_BT, names = inputs.mask_BT, (objective.aggregation, loss_aggregation(objective, before_0_9))
    of_kl, of_loss = (resolve(AGGREGATIONS[name])(mask_BT.to(kl_ref_BT.dtype), inputs.totals) for name in names)
    return per_token + objective.beta * torch.where(mask_BT, of_kl / of_loss, 0.0) * kl_ref_BT


def metrics(objective: Objective, inputs: LossInputs, loss: Loss, before_0_9: bool = False) -> dict[str, float]:
    """Return the metrics of `ppo_loss`, and those of the rollout correction if there is one."""
    mask_BT, rule = inputs.mask_BT, objective.sampler_correction
    sampler_BT = None if rule is None else inputs.sampler_log_probs_BT
    per_token = find_clipped_tokens(objective, inputs, loss)
    if objective.kernel != "policy_gradient":
        per_token["actor/ppo_kl"] = loss.log_ratio_BT.abs() if objective.kernel == "kl_cov" else -loss.log_ratio_BT
    elif sampler_BT is not None:  # bypass_mode
        per_token["actor/ppo_kl"] = masked_log_ratio(sampler_BT, inputs.log_probs_BT, mask_BT)
    logged: dict[str, float] = {}
    if per_token:  # means over the tokens, 0 without any
        values_KBT = torch.stack([value.expand_as(mask_BT) for value in per_token.values()])  # masks become numbers
        sums_K = torch.where(mask_BT, values_KBT, 0.0).sum((1, 2), dtype=torch.double)
        logged = dict(zip(per_token, (sums_K / mask_BT.sum().clamp(min=1)).tolist(), strict=True))
    weight = 1.0 if rule is None else importance_weight(rule, objective, inputs)
    logged["actor/pg_loss"] = float(average(objective, inputs, loss.surrogate.loss * weight, before_0_9))
    if inputs.entropy_BT is not None:
        logged["actor/entropy_loss"] = float(aggregate(objective, inputs, inputs.entropy_BT))
    if loss.kl_ref_BT is not None:
        logged["kl_loss"] = float(aggregate(objective, inputs, loss.kl_ref_BT))
        logged["kl_coef"] = objective.beta
    if sampler_BT is not None and mask_BT.any():
        logged |= correction.mismatch_metrics(rule, inputs.old_log_probs_BT, sampler_BT, mask_BT)
    return logged


def find_clipped_tokens(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, Tensor]:
    """Return masks of the tokens that a loss mode reports as clipped, under the names of the dual clip's metrics."""
    parts, A = loss.surrogate, inputs.advantages
    counted: tuple[Tensor, ...] = ()
    match objective.kernel:
        case "clipped":
            negated = torch.maximum(-A * loss.ratio, -A * loss.ratio.clamp(objective.low, objective.high))
            cap = torch.inf if objective.dual_clip is None else objective.dual_clip
            counted = (shared.find_clipped_losses(objective, A, loss.ratio), (negated > -A * cap) & (A < 0))
        case "sapo":
            counted = (parts.dropped, parts.dropped)  # none
        case "cispo":
            counted = (parts.capped, parts.dropped)
        case "gmpo":
            counted = (parts.out_of_range & (A > 0), parts.out_of_range & (A < 0))
        case "clip_cov":
            counted = (parts.dropped,)
        case "dppo_tv" | "dppo_kl":
            counted = (parts.active_low | parts.active_high, parts.capped)
    return dict(zip(("actor/pg_clipfrac", "actor/pg_clipfrac_lower"), counted, strict=False))


# Replays: policy losses, `ppo_loss`, aggregations and KL penalties.


def count_totals(mask_BT: Tensor, counts: Options) -> Totals:
    """Return `agg_loss`'s denominators: counts of the global batch, or this batch's tokens and nonempty sequences."""
    here = Totals.of(mask_BT, counts.get("loss_scale_factor"))
    sequences = counts.get("global_batch_size", here.nonempty_sequences)
    return replace(here, tokens=counts.get("batch_num_tokens", here.tokens), sequences=sequences)


def scale_loss(replayed: Replayed, factor: float) -> Replayed:
    """Multiply the loss, as verl does by `dp_size` because its trainer averages gradients over the ranks."""
    assert replayed.loss is not None
    return replace(replayed, loss=replayed.loss * factor, scale=replayed.scale * factor)


def translate_mode(options: Options, mode: str) -> Objective:
    return objective({**options, "policy_loss": {**(options.get("policy_loss") or {}), "loss_mode": mode}})


def replay_mode(mode: str, options: Options, inputs: Inputs) -> Replayed:
    """Replay `compute_policy_loss_<mode>`; given `rollout_is_weights` become sampler log-probs with these weights."""
    counts = options.get("global_batch_info") or {}
    if mode == "geo_mean":  # torch.mean over all rows
        counts = {"global_batch_size": len(inputs["mask"])}
    point = translate_mode(options, mode)
    batch = shared.make_loss_inputs(inputs, totals=count_totals(inputs["mask"], counts))
    if "rollout_is_weights" in inputs:
        point = point.but(sampler_correction=make_correction("token", "truncate", 0.0, torch.inf))
        batch = replace(batch, sampler_log_probs_BT=batch.old_log_probs_BT - inputs["rollout_is_weights"].log())
    if mode == "clip_cov":
        batch = replace(batch, noise_BT=draw_like_verl(point, batch, options.get("torch_manual_seed", 0)))
    return scale_loss(shared.replay_loss(VECTORS, point, batch), counts.get("dp_size", 1))


@torch.no_grad()
def draw_like_verl(objective: Objective, inputs: LossInputs, seed: int) -> Tensor:
    """Return noise that is smallest at the tokens that verl draws: the first of a permutation of all candidates."""
    all_tokens = objective.but(kernel_options={objective.kernel: {**objective.options, "share": 1.0}})
    noise_BT = torch.zeros_like(inputs.log_probs_BT)
    eligible_BT = policy_loss(all_tokens, replace(inputs, noise_BT=noise_BT), FRAMEWORK).surrogate.dropped
    order_N = torch.randperm(int(eligible_BT.sum()), generator=torch.Generator().manual_seed(seed))
    noise_BT[eligible_BT] = order_N.argsort().to(noise_BT.dtype)
    return noise_BT


def replay_bypass_mode(options: Options, inputs: Inputs) -> Replayed:
    """Replay `bypass_mode`, where the sampler's log-probs are the old ones; rejected tokens leave the mask."""
    o, mask_BT = LOSS["rollout_correction"] | dict(options["rollout_correction"]), inputs["mask"]
    now_BT, sampler_BT, rule = inputs["logprobs"].detach(), inputs["old_logprobs"], sampler_rule(o)
    log_ratio_BT, kept_BT = masked_log_ratio(now_BT, sampler_BT, mask_BT), mask_BT
    logged: dict[str, float] = {}
    correction.refuse_zero_weights(rule, log_ratio_BT, mask_BT)
    if o.get("rollout_rs"):
        kept_BT, logged = correction.reject(o["rollout_rs"], o["rollout_rs_threshold"], log_ratio_BT, mask_BT)
    logged = {f"rollout_corr/{name}": value for name, value in logged.items()}
    logged |= correction.mismatch_metrics(rule, now_BT, sampler_BT, mask_BT)
    counts = count_totals(kept_BT, options.get("global_batch_info") or {})
    batch = shared.make_loss_inputs({**inputs, "mask": kept_BT}, totals=counts)
    if o["loss_type"] == "reinforce":  # no ratio (old = current); the weight is current over sampler
        batch = replace(batch, old_log_probs_BT=now_BT, sampler_log_probs_BT=sampler_BT)
    return shared.replay_loss(VECTORS, translate_mode(options, "bypass_mode"), batch).with_metrics(logged)


def replay_ppo_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay policy loss, entropy bonus and KL; this batch, empty rows included, is the global batch."""
    counts = count_totals(inputs["mask"], {"global_batch_size": len(inputs["mask"])})
    return shared.replay_loss(VECTORS, objective(options), shared.make_loss_inputs(inputs, totals=counts))


def replay_agg_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay `agg_loss` of the entropies."""
    values_BT, point = inputs["entropies"], objective({"loss_agg_mode": options["loss_agg_mode"]})
    batch = shared.make_loss_inputs({**inputs, "logprobs": values_BT}, totals=count_totals(inputs["mask"], options))
    size = float(average(point, batch, values_BT.detach().abs()))
    return scale_loss(Replayed(average(point, batch, values_BT), size), options.get("dp_size", 1))


def replay_kl(options: Options, inputs: Inputs) -> Replayed:
    """Replay the KL at each position, and its sum over the tokens as the loss."""
    kl_only = objective({"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": options["kl_penalty"]})
    ratio_BT = torch.ones_like(inputs["logprobs"])  # verl's KL function does not weight by the ratio
    values_BT = shared.kl_with_padding(kl_only, shared.make_loss_inputs(inputs), ratio_BT)
    return shared.sum_over_tokens(values_BT, inputs["mask"])


# Replays: advantages. Rewards are sums of `token_level_rewards`; an estimator that gives one number per completion
# gives it to every token.


def pack_advantages(advantages_BT: Tensor, returns_BT: Tensor | None = None) -> Replayed:
    """Return both outputs of verl's function: advantages, and returns, which equal them unless given."""
    returns_BT = advantages_BT if returns_BT is None else returns_BT
    return Replayed(tensors={"advantages": advantages_BT, "returns": returns_BT})


def replay_outcome(
    baseline: str, scale: str | None, options: Options, inputs: Inputs, lone_reward: bool = True
) -> Replayed:
    """Replay one advantage per completion; `scale` None: the group's std if `norm_adv_by_std_in_grpo`.

    For equal rewards it is exactly 0 here; in verl it is a rounding error, divided by as little as epsilon.
    `lone_reward`: the only completion of a group keeps its reward.
    """
    scale = scale or ("group" if options.get("norm_adv_by_std_in_grpo", True) else "none")
    epsilon, by_token_BT = options.get("epsilon", 1e-6), inputs.get("token_level_rewards")
    rewards_B = inputs["rewards"] if by_token_BT is None else by_token_BT.sum(1)
    lengths_B, group_B = inputs["mask"].sum(1), torch.as_tensor(inputs["group_ids"])
    scored = Scored(rewards_B, group_B, lengths_B=lengths_B, lone_reward=lone_reward)
    divisor_B = resolve(SCALES[scale])(scored, epsilon)
    if scale == "group":  # the std of a group of one is torch.tensor(1.0)
        _, index_B, sizes_P = group_B.unique(return_inverse=True, return_counts=True)
        divisor_B = torch.where(sizes_P[index_B] == 1, torch.tensor(1.0) + epsilon, divisor_B)
    elif scale == "nonzero_share":  # a quotient of two counts
        divisor_B = 1 / (len(rewards_B) / rewards_B.count_nonzero().clamp(min=1)).double()
    centred_B = advantages(scored, baseline, "none")
    return pack_advantages(torch.where(centred_B == 0, 0.0, centred_B / divisor_B)[:, None] * inputs["mask"])


def replay_whitened_outcome(scale: str | None, options: Options, inputs: Inputs) -> Replayed:
    """Whiten `outcome` over the tokens: reinforce++ with baseline, and GDPO with a single reward."""
    advantages_BT, mask_BT = replay_outcome("group_mean", scale, options, inputs).tensors["advantages"], inputs["mask"]
    return pack_advantages(shared.whiten_tokens(advantages_BT, mask_BT) * mask_BT)


def replay_reinforce_plus_plus(options: Options, inputs: Inputs) -> Replayed:
    """Replay discounted returns, whitened over the tokens."""
    returns_BT = shared.sum_discounted_rewards(inputs["token_level_rewards"], inputs["mask"], options["gamma"])
    return pack_advantages(shared.whiten_tokens(returns_BT, inputs["mask"]) * inputs["mask"], returns_BT)


def replay_remax(options: Options, inputs: Inputs) -> Replayed:
    """Replay the return minus the baseline; outside the mask no baseline is subtracted."""
    mask_BT, everywhere_BT = inputs["mask"], torch.ones_like(inputs["mask"])
    returns_BT = shared.sum_discounted_rewards(inputs["token_level_rewards"] * mask_BT, everywhere_BT, 1.0)
    baseline = inputs.get("reward_baselines")
    baseline_B = torch.full((len(mask_BT),), 0.25) if baseline is None else baseline
    return pack_advantages(returns_BT - baseline_B[:, None] * mask_BT, returns_BT)


def replay_gae(options: Options, inputs: Inputs) -> Replayed:
    """Replay GAE of given values, whitened over the tokens."""
    mask_BT, values_BT = inputs["mask"], inputs.get("values")
    if values_BT is None:  # the archive says how they were drawn
        values_BT = torch.from_numpy(default_rng(5).normal(0, 1, tuple(mask_BT.shape)))
    rewards_BT, gamma, lam = inputs["token_level_rewards"], options["gamma"], options["lam"]
    advantages_BT, returns_BT = shared.compute_gae(rewards_BT, values_BT, mask_BT, gamma, lam)
    return pack_advantages(shared.whiten_tokens(advantages_BT, mask_BT), returns_BT)


def replay_grpo_vectorized(options: Options, inputs: Inputs) -> Replayed:
    """Replay GRPO with the group's mean and std in float32, summed in the order of the rows."""
    rewards_B = inputs["token_level_rewards"].sum(1)
    _, group_B, sizes_P = torch.as_tensor(inputs["group_ids"]).unique(return_inverse=True, return_counts=True)

    def group_sum(values_B: Tensor) -> Tensor:
        return torch.zeros(len(sizes_P)).index_add_(0, group_B, values_B)

    mean_P = torch.where(sizes_P > 1, group_sum(rewards_B.float()) / sizes_P, 0.0)
    square_P = group_sum((rewards_B.float() - mean_P[group_B]).square())
    std_P = torch.where(sizes_P > 1, (square_P / (sizes_P - 1)).sqrt(), 1.0)
    advantages_B = rewards_B - mean_P[group_B]
    if options["norm_adv_by_std_in_grpo"]:
        advantages_B = advantages_B / (std_P[group_B] + options["epsilon"])
    return pack_advantages(advantages_B[:, None] * inputs["mask"])


ESTIMATORS: dict[str, Replay] = {
    "grpo": partial(replay_outcome, "group_mean", None),
    "grpo_vectorized": replay_grpo_vectorized,
    "grpo_passk": partial(replay_outcome, "second_best", None),
    "rloo": partial(replay_outcome, "leave_one_out", "none"),
    "rloo_vectorized": partial(replay_outcome, "leave_one_out", "none", lone_reward=False),
    "opo": partial(replay_outcome, "length_weighted", "none"),
    "gpg": partial(replay_outcome, "group_mean", "nonzero_share"),
    "gdpo": partial(replay_whitened_outcome, None),
    "reinforce_plus_plus_baseline": partial(replay_whitened_outcome, "none"),
    "reinforce_plus_plus": replay_reinforce_plus_plus,
    "remax": replay_remax,
}
FRAMEWORK = Framework(
    objective=objective,
    prepare=shared.keep_padding,
    ratio=ratio,
    importance_weight=importance_weight,
    kl=shared.kl_with_padding,
    add_kl_penalty=add_kl_penalty,
    average=average,
    average_entropy=aggregate,
    metrics=metrics,
    replays={
        **{f"compute_policy_loss_{mode}": partial(replay_mode, mode) for mode in KERNEL},
        "compute_policy_loss_bypass_mode": replay_bypass_mode,
        "ppo_loss": replay_ppo_loss,
        "agg_loss": replay_agg_loss,
        "kl_penalty": replay_kl,
        "compute_rollout_correction_weights": correction.replay_weights,
        "compute_rollout_rejection_mask": correction.replay_rejection,
        **{f"compute_{name}_outcome_advantage": replay for name, replay in ESTIMATORS.items()},
        "compute_gae_advantage_return": replay_gae,
    },
    not_reproduced={
        "adv__*optimal_token_baseline": "its baseline of every token needs the sum of squared probabilities over the"
        " vocabulary, which this learner does not keep; the group mean in its place differs by 47% (median of the"
        " cases) to 100% of the largest advantage",
    },
)
# The version of the vectors, which differs by gspo's average only.
VECTORS = replace(
    FRAMEWORK,
    average=partial(average, before_0_9=True),
    add_kl_penalty=partial(add_kl_penalty, before_0_9=True),
    metrics=partial(metrics, before_0_9=True),
)
