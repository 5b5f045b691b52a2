"""TRL 1.16.0: `trl/trainer/grpo_trainer.py`, `GRPOTrainer._compute_loss`, its reducers and its advantages.

Its own way: the mask is applied last, as a factor, so that a NaN at padding makes the loss NaN; CISPO's
`epsilon_high` is the cap itself; the temperatures of SAPO and the gammas of VESPO are float32; the sampler's weights
are part of VESPO's product; the entropy bonus is a separate mean over the trained tokens. Options: `trl_options.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from grpolab.frameworks import shared
from grpolab.frameworks.framework import Framework, Inputs, Options, Replayed
from grpolab.frameworks.kernels import VESPO_LEAST, VESPO_LOG_RATIO, gamma_weight
from grpolab.frameworks.trl_options import LOSS, objective
from grpolab.grpo import loss as core
from grpolab.grpo.advantages import Scored, advantages, by_group, weighted_sum
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, SurrogateParts
from grpolab.grpo.ratios import off_policy_keep, sampler_weight
from grpolab.registry import AGGREGATIONS, last_name, resolve
from grpolab.settings.objective import Objective, SamplerCorrection


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Round the sampler's log-probs to float32, as they come from vLLM."""
    sampler_BT = inputs.sampler_log_probs_BT
    return inputs if sampler_BT is None else replace(inputs, sampler_log_probs_BT=sampler_BT.float())


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the core's ratio; token ratios at padding too."""
    token = objective.importance_sampling_level == "token"
    return core.importance_ratio(objective, log_ratio_BT if token else log_ratio_BT * mask_BT, mask_BT)


def surrogate(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor, ratio: Tensor) -> SurrogateParts:
    """Return the core's kernel in TRL's units: CISPO's cap is `epsilon_high`, a kernel's options are float32."""
    if objective.kernel == "cispo":
        objective = objective.but(epsilon_high=objective.epsilon_above - 1)
    if objective.kernel == "vespo":
        log_ratio_BT = vespo_log_ratio(objective, inputs, log_ratio_BT)
    rounded = objective.but(kernel_options={last_name(objective.kernel): round_options(objective)})
    return core.surrogate(rounded, inputs, log_ratio_BT, ratio)


def round_options(objective: Objective) -> dict[str, float]:
    """Round the kernel's options as `torch.where` of two Python numbers does; VESPO's lambdas are at least 1e-4."""
    least = {name: 1e-4 if "lambda" in name else -math.inf for name in objective.options}
    return {name: round_to_float32(max(value, least[name])) for name, value in objective.options.items()}


def round_to_float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def vespo_log_ratio(objective: Objective, inputs: LossInputs, log_ratio_BT: Tensor) -> Tensor:
    """Return the terms of VESPO's sum in each row: the tokens' log ratios and the sampler's log weights; (B, columns).

    A row with a NaN has an infinite sum, for which phi is 0.
    """
    log_BT = log_ratio_BT.detach().clamp(-VESPO_LOG_RATIO, VESPO_LOG_RATIO) * inputs.mask_BT
    if (rule := objective.sampler_correction) is not None:
        log_weight = vllm_weight(rule, inputs).log()
        log_BT = torch.cat([log_BT, log_weight.clamp(math.log(VESPO_LEAST), VESPO_LOG_RATIO)], 1)
    return torch.where(log_BT.isnan().any(1, keepdim=True), VESPO_LOG_RATIO, log_BT)


def vllm_weight(rule: SamplerCorrection, inputs: LossInputs) -> Tensor:
    """Return the sampler's weight, 1 for a token whose log-prob the sampler did not give (NaN); (B, T) or (B, 1)."""
    sampler_BT, old_BT = inputs.sampler_log_probs_BT, inputs.old_log_probs_BT
    assert sampler_BT is not None
    return sampler_weight(rule, old_BT, torch.where(sampler_BT.isnan(), old_BT, sampler_BT), inputs.mask_BT)


def mask(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Multiply the kernel's loss by off-policy mask and entropy mask."""
    log_probs_BT, sampler_BT = inputs.log_probs_BT.detach(), inputs.sampler_log_probs_BT
    if (threshold := objective.off_policy_mask_threshold) is not None:
        behaviour_BT = inputs.old_log_probs_BT if sampler_BT is None else sampler_BT
        behaviour_BT = torch.where(behaviour_BT.isnan(), log_probs_BT, behaviour_BT)
        keep = off_policy_keep(inputs.advantages, behaviour_BT, log_probs_BT, inputs.mask_BT, threshold)
        per_token = per_token * keep
    if objective.top_entropy_quantile is not None:
        per_token = per_token * keep_high_entropy(objective, inputs)
    return per_token


def keep_high_entropy(objective: Objective, inputs: LossInputs) -> Tensor:
    """Return 1 for tokens whose entropy is at least the quantile, which is float32, else 0; (B, T)."""
    assert inputs.entropy_BT is not None
    entropy_BT, mask_BT, share = inputs.entropy_BT.detach(), inputs.mask_BT, objective.top_entropy_quantile
    if share is None or not mask_BT.any():
        return mask_BT.to(entropy_BT.dtype)
    bound = torch.quantile(entropy_BT[mask_BT].float(), 1 - share)
    return ((entropy_BT >= bound.to(entropy_BT.dtype)) & mask_BT).to(entropy_BT.dtype)


def importance_weight(rule: SamplerCorrection, objective: Objective, inputs: LossInputs) -> Tensor:
    """Return the sampler's weight; 1 for VESPO, which includes it in its ratio."""
    return torch.ones(()) if objective.kernel == "vespo" else vllm_weight(rule, inputs)


def kl(objective: Objective, inputs: LossInputs, ratio: Tensor) -> Tensor:
    """Return k3, also at padding, times the ratio with its gradient.

    The log ratio is computed twice, as in the source: far from the reference the gradient is a sum of terms e^q that
    cancel, and its rounding depends on their order.
    """
    has_k3 = (objective.kl_estimator, objective.kl_input_clamp, objective.kl_output_clamp) == ("k3", None, None)
    log_probs_BT, reference_BT, gradient = inputs.log_probs_BT, inputs.reference_log_probs_BT, objective.kl_gradient
    assert reference_BT is not None
    if not has_k3 or gradient not in ("plain", "importance_weighted"):  # TRL does not have these
        return shared.kl_with_padding(objective, inputs, ratio)
    k3_BT = torch.exp(reference_BT - log_probs_BT) - (reference_BT - log_probs_BT) - 1
    return k3_BT * ratio if gradient == "importance_weighted" else k3_BT


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """Average with a float32 token count; NaN or infinity at padding makes the result NaN.

    Row means are divided in the source's order, because terms cancel (see `kl`).
    """
    mask_BT, totals = inputs.mask_BT.to(per_token.dtype), inputs.totals
    if objective.aggregation == "sequence_mean":
        rows_B = (per_token * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        return rows_B.sum() / (totals.sequences / totals.micro_batches) / totals.micro_batches
    totals = replace(totals, rollout_tokens=round_to_float32(totals.rollout_tokens))
    return (per_token * resolve(AGGREGATIONS[objective.aggregation])(mask_BT, totals)).sum()


def average_entropy(objective: Objective, inputs: LossInputs, entropy_BT: Tensor) -> Tensor:
    """Average the entropy over the trained tokens, then over micro-batches."""
    keep_BT = keep_high_entropy(objective, inputs)
    return (entropy_BT * keep_BT).sum() / keep_BT.sum().clamp(min=1) / inputs.totals.micro_batches


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """Return the metrics of a micro-batch, and those metrics of a generation batch that concern the sampler."""
    mask_BT = inputs.mask_BT
    logged: dict[str, float] = {}
    if objective.entropy_coef:
        logged["policy_loss"] = float(average(objective, inputs, loss.per_token))
        if objective.aggregation != "token_mean_rollout":  # the others are divided by the accumulation later
            logged["policy_loss"] *= inputs.totals.micro_batches
        logged["entropy_coef"] = objective.entropy_coef
    if loss.kl_ref_BT is not None:
        logged["kl"] = masked_mean(loss.kl_ref_BT, mask_BT)
    if inputs.entropy_BT is not None:
        logged["entropy"] = masked_mean(inputs.entropy_BT, mask_BT)
    if objective.kernel == "clipped":
        logged |= clip_metrics(objective, inputs, loss.ratio)
    elif objective.kernel == "cispo":
        clipped = (loss.ratio > objective.epsilon_above) & (inputs.advantages > 0)
        logged["cispo_clip_ratio"] = masked_mean(clipped, mask_BT)
    elif objective.kernel == "vespo":
        log_BT = vespo_log_ratio(objective, inputs, loss.log_ratio_BT)
        phi = gamma_weight(inputs.advantages, log_BT, round_options(objective))
        logged["vespo/phi_seq_mean"] = masked_mean(phi, mask_BT)
    if (rule := objective.sampler_correction) is not None:
        prepared = prepare(objective, inputs)
        weight, gap_N = vllm_weight(rule, prepared), shared.sampler_log_ratio(prepared)[mask_BT].abs()
        gap_N, weight_N = gap_N[~gap_N.isnan()], weight.flatten() if weight.shape[1] == 1 else weight[mask_BT]
        ratio_name = "sampling/importance_sampling_ratio"
        logged |= {f"sampling/sampling_logp_difference/{name}": statistic(gap_N, name) for name in ("mean", "max")}
        logged |= {f"{ratio_name}/{name}": statistic(weight_N, name) for name in ("min", "mean", "max")}
    return logged


def statistic(values_N: Tensor, name: str) -> float:
    """Return the mean, max or min; 0 of no values."""
    return float(getattr(values_N, name)()) if len(values_N) else 0.0


def masked_mean(values: Tensor, mask_BT: Tensor) -> float:
    """Average over tokens, or over all sequences, empty ones too, if there is one column: `global_masked_mean`."""
    if values.shape[1] == 1:  # also where completions are one token wide
        return float(values.double().mean())
    return float((values.double() * mask_BT).sum() / mask_BT.sum().clamp(min=1))


def clip_metrics(objective: Objective, inputs: LossInputs, ratio: Tensor) -> dict[str, float]:
    """Return the shares of clipped tokens (or sequences, as the ratio's level says), after the cap delta."""
    A, mask = inputs.advantages, inputs.mask_BT
    ratio = ratio if objective.delta is None else ratio.clamp(max=objective.delta)
    low, high = (ratio < objective.low) & (A < 0), (ratio > objective.high) & (A > 0)
    if low.shape[1] == 1:  # one column: every sequence counts, and an empty one as any other
        mask = torch.ones_like(low)
    counts_3B = torch.stack([(low & mask).sum(1), (high & mask).sum(1), mask.sum(1)]).cpu().numpy()
    below, above, tokens = counts_3B.sum(1).tolist()
    below_N, above_N, length_N = counts_3B[:, counts_3B[2] > 0]
    return {
        "clip_ratio/low_mean": below / max(tokens, 1),
        "clip_ratio/high_mean": above / max(tokens, 1),
        "clip_ratio/region_mean": (below + above) / max(tokens, 1),
        "clip_ratio/low_min": float((below_N / length_N).min()) if tokens else math.nan,
        "clip_ratio/high_max": float((above_N / length_N).max()) if tokens else math.nan,
    }


# What else of `GRPOConfig` the loss depends on; `steps_per_generation` is by default the accumulation.
TRAINER = {"gradient_accumulation_steps": 1, "steps_per_generation": None, "max_completion_length": 512}
EPSILON = 1e-4  # added to each std


def replay_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay one micro-batch of an accumulation window; the window's other micro-batches have the same size.

    `effective` has the defaults of what `options` leaves out. TRL was given one advantage per sequence, or one per
    token in the cases whose tag says so.
    """
    o = {**TRAINER, **options, **options.get("effective", {})}
    by_token = "seq_advantages" not in inputs or {"dirty", "per_token_adv"} & set(inputs.get("tags") or ())
    A = inputs["advantages"] if by_token else inputs["seq_advantages"][:, None]
    mask_BT, windows, items = inputs["mask"], o["gradient_accumulation_steps"], o.get("num_items_in_batch")
    if items in (None, "mask.sum()"):
        items = int(mask_BT.sum())
    totals = Totals(
        sequences=len(mask_BT) * windows,
        nonempty_sequences=int(mask_BT.any(1).sum()) * windows,
        tokens=int(mask_BT.sum()) * windows,
        rollout_tokens=max(items, 1) * windows / (o["steps_per_generation"] or windows),
        max_completion_length=o["max_completion_length"],
        micro_batches=windows,
    )
    point = objective({name: o[name] for name in LOSS if name in o})
    batch = shared.make_loss_inputs(inputs, advantages=A, totals=totals)
    replayed, rule = shared.replay_loss(FRAMEWORK, point, batch), point.sampler_correction
    if rule is None:
        return replayed
    return replace(replayed, tensors={"importance_sampling_ratio": vllm_weight(rule, prepare(point, batch))})


def replay_vllm_loss(options: Options, inputs: Inputs) -> Replayed:
    """Replay a micro-batch with a sampler whose log-probs are known, and its weights."""
    return replay_loss({**options, "use_vllm": True}, inputs)


def replay_advantages(options: Options, inputs: Inputs) -> Replayed:
    """Replay advantages and reward metrics; `rewards` is (B,), or (B, K) of K reward functions."""
    rewards_BK = inputs["rewards"].view(len(inputs["group_ids"]), -1)
    parts = {f"f{k}": rewards_B for k, rewards_B in enumerate(rewards_BK.unbind(1))}
    weights = dict(zip(parts, options.get("reward_weights") or [1.0] * len(parts), strict=True))
    group_B, scale = torch.arange(len(rewards_BK)) // inputs["group_size"], options.get("scale_rewards", "group")
    batch_B, rewards_B = torch.zeros_like(group_B), weighted_sum(parts, weights)
    source_B, mean_of_B, std_of_B = rewards_B, group_B, {"group": group_B, "batch": batch_B}.get(scale)
    if options.get("multi_objective_aggregation") == "normalize_then_sum":
        # Each reward is normalised in its group, and their sum once more over the batch.
        normal = {name: normalize(part_B, group_B, group_B) for name, part_B in parts.items()}
        normal = {name: part_B.where(~parts[name].isnan(), parts[name]) for name, part_B in normal.items()}
        source_B, scale, mean_of_B, std_of_B = weighted_sum(normal, weights), "batch", batch_B, batch_B
    return Replayed(
        metrics=reward_metrics(parts, rewards_B, source_B, group_B, scale),
        tensors={"advantages": normalize(source_B, mean_of_B, std_of_B)},
    )


def normalize(values_B: Tensor, group_B: Tensor, scaled_B: Tensor | None) -> Tensor:
    """Return values minus their group's mean, over the std of their group in `scaled_B` (None: not divided); NaN: 0."""
    centred_B = advantages(Scored(values_B, group_B), "group_mean", "none")
    std_B = torch.ones_like(values_B) if scaled_B is None else std_by_group(values_B, scaled_B) + EPSILON
    return torch.where(centred_B == 0, 0.0, centred_B / std_B)


def std_by_group(values_B: Tensor, group_B: Tensor) -> Tensor:
    """Return `nanstd` (with Bessel's correction) of each row's group, (B,); NaN for a group of one.

    The Bessel factor N / (N - 1) is rounded to float32.
    """

    def nanstd(row_N: Tensor) -> Tensor:
        known_N, count = row_N[~row_N.isnan()], (~row_N.isnan()).sum()
        variance = known_N.var(correction=0) * (count / (count - 1)) if count > 1 else row_N.new_tensor(torch.nan)
        return variance.sqrt().reshape(1)

    return by_group(group_B, lambda values_PN: torch.stack([nanstd(row_N) for row_N in values_PN]), values_B)


def reward_metrics(
    parts: Mapping[str, Tensor], rewards_B: Tensor, normalized_B: Tensor, group_B: Tensor, scale: str
) -> dict[str, float]:
    """Return what a generation batch logs of its rewards: parts, their weighted sum, and rows without variance.

    `normalized_B`: the sum that advantages are made of; only with `normalize_then_sum` not `rewards_B`. With `scale`
    batch, the share of rows without variance is 0 or 1 for the whole batch.
    """
    batch_B = torch.zeros_like(group_B)
    named = {f"rewards/{name}/": part_B for name, part_B in parts.items()} | {"reward": rewards_B}
    logged: dict[str, float] = {}
    for name, values_B in named.items():
        mean, std = ("reward", "reward_std") if name == "reward" else (f"{name}mean", f"{name}std")
        logged |= {mean: float(values_B.nanmean()), std: float(std_by_group(values_B, batch_B)[0])}
    std_B = std_by_group(normalized_B, batch_B if scale == "batch" else group_B)
    return logged | {"frac_reward_zero_std": float(torch.isclose(std_B, torch.zeros_like(std_B)).double().mean())}


FRAMEWORK = Framework(
    objective=objective,
    prepare=prepare,
    ratio=ratio,
    surrogate=surrogate,
    mask=mask,
    importance_weight=importance_weight,
    kl=kl,
    average=average,
    average_entropy=average_entropy,
    metrics=metrics,
    replays={
        "GRPOTrainer._compute_loss": replay_loss,
        "GRPOTrainer._generate_and_score_completions + _compute_loss": replay_vllm_loss,
        "GRPOTrainer._generate_and_score_completions": replay_advantages,
    },
)
