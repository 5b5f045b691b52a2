"""ROLL (alibaba/ROLL, 8eb27cc of 2026-08-19, v0.3.0+9): roll/utils/functionals.py `agg_loss` and its four workers.

roll/pipeline/base_worker.py (base), rlvr/actor_worker.py (rlvr), agentic/agentic_actor_worker.py (agentic) and
rlvr/actor_pg_worker.py (pg). Its accidents: log-probs are multiplied by the mask, but `token-mean` adds up
everything, padding too; sequences are divided by their count + 1e-8.

In a metric's name `@sum` is ROLL's note for the log: add up over micro-batches, the denominator is already global. The
base worker's names have no such note; rlvr's and the agentic worker's names are the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks import base
from grpolab.frameworks.base import Framework, Inputs, Options, Replayed
from grpolab.frameworks.replay import (
    at_last_token,
    groups_of,
    loss_inputs,
    masked_whiten,
    replay_kl,
    replay_loss,
)
from grpolab.frameworks.returns import Moments, discounted_returns, running_normalized
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.kl import k2
from grpolab.grpo.loss import (
    Loss,
    LossInputs,
    LossRecipe,
    Objective,
    SamplerCorrection,
    correct_importance,
    importance_ratio,
)
from grpolab.registry import AGGREGATIONS, resolve

# The framework's option names and code defaults. `pg_variant` is the pg worker's; None is one of the other workers.
DEFAULTS: dict[str, Any] = {
    "importance_sampling": "token",  # rlvr: token, seq
    "ratio_type": "token",  # agentic: token, segment
    "pg_clip": 0.2,
    "use_pg_clip_range": False,
    "pg_clip_low": 0.2,
    "pg_clip_high": 0.2,
    "dual_clip_loss": False,
    "loss_agg_mode": "seq-mean-token-mean",
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "entropy_loss_coef": 0.0,
    "rl_loss_coef": 1.0,  # the only value that has a place on our axes
    "is_weight": None,  # train_infer_correction.is_weight where it is enabled: weight_type, upper_bound
    "pg_variant": None,
    "tis_lower_bound": 0.0,
    "tis_upper_bound": 1.0,
    "topr_positive_weight": 1.0,
    "topr_negative_weight": 1.0,
    "cispo_epsilon_low": 0.1,
    "cispo_epsilon_high": 0.1,
    "cispo_use_unified_mask": False,
    "kimi15_tau": 0.1,
}
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "seq-mean-token-mean": "sequence_mean_nonempty",
    "seq-mean-token-sum": "sequence_sum_nonempty",
    "seq-mean-token-sum-norm": "token_sum_length",
}
ROW_MEANS, TOKEN_MEAN = "sequence_mean_nonempty", "token_mean_minibatch"
LEVEL = {"token": "token", "seq": "sequence", "segment": "segment"}
ESTIMATOR = {"kl": "k1", "abs": "abs", "mse": "k2", "k3": "k3"}  # `kl_penalty`
KL_CLAMP = 10.0


def objective(options: Options) -> Objective:
    """The point on our axes that ROLL's options mean. Raises ValueError for a value that ROLL or our axes lack."""
    o = DEFAULTS | dict(options)
    if o["rl_loss_coef"] != 1:
        raise ValueError(f"rl_loss_coef={o['rl_loss_coef']} has no place on our axes, only 1 has")
    clip = (o["pg_clip_low"], o["pg_clip_high"]) if o["use_pg_clip_range"] else (o["pg_clip"], o["pg_clip"])
    level = o["importance_sampling"] if o["ratio_type"] == "token" else o["ratio_type"]
    try:
        axes = {
            "importance_sampling_level": LEVEL[level],
            "aggregation": AGGREGATION[o["loss_agg_mode"]],
            **_kernel(o, *clip),
        }
    except KeyError as unknown:
        raise ValueError(f"ROLL has no {unknown}") from unknown
    return Objective(
        **axes,
        delta=None,
        loss_form="min_positive",
        **base.kl_axes(o["kl_loss_coef"] if o["use_kl_loss"] else 0.0, "k3", output_clamp=KL_CLAMP),
        entropy_coef=max(o["entropy_loss_coef"], 0.0),
        sampler_correction=o["is_weight"] and _weight(**o["is_weight"]),
    )


def _kernel(o: Mapping[str, Any], low: float, high: float) -> dict[str, Any]:
    """Kernel, its options and its range; the dual clip's constant follows from `pg_clip`, not from the range."""
    dual_clip = 1 + 2 * o["pg_clip"] if o["dual_clip_loss"] else None
    cispo = "cispo_masked" if o["cispo_use_unified_mask"] else "cispo"
    weights = {"positive_weight": o["topr_positive_weight"], "negative_weight": o["topr_negative_weight"]}
    bounds = {
        "tis": (1 - o["tis_lower_bound"], o["tis_upper_bound"] - 1),
        "cispo": (o["cispo_epsilon_low"], o["cispo_epsilon_high"]),
    }
    kernels: dict[str | None, dict[str, Any]] = {
        None: {"kernel": "clipped", "dual_clip": dual_clip},
        "ppo": {"kernel": "clipped", "dual_clip": dual_clip},
        "vanilla": {"kernel": "policy_gradient"},
        "tis": {"kernel": "cispo"},
        "cispo": {"kernel": cispo},
        "topr": {"kernel": "topr", "kernel_options": weights},
        "kimi15": {"kernel": "dro", "kernel_options": {"coefficient": o["kimi15_tau"]}},
    }
    epsilon, epsilon_high = bounds.get(o["pg_variant"], (low, high))
    return {**kernels[o["pg_variant"]], "epsilon": epsilon, "epsilon_high": epsilon_high}


def _weight(weight_type: str = "token", upper_bound: float = 1.2) -> SamplerCorrection:
    if weight_type not in ("token", "geometric", "sequence"):
        raise ValueError(f"is_weight.weight_type={weight_type} has no place on our axes")
    return SamplerCorrection(weight_type, "truncate", 0.0, upper_bound)


def prepare(objective: Objective, inputs: LossInputs) -> LossInputs:
    """Log-probs and entropy times the mask; advantages of sequences at their tokens only, those of tokens as given."""
    mask_BT = inputs.mask_BT
    advantages = inputs.advantages
    given = {
        "log_probs_BT": inputs.log_probs_BT,
        "old_log_probs_BT": inputs.old_log_probs_BT,
        "reference_log_probs_BT": inputs.reference_log_probs_BT,
        "entropy_BT": inputs.entropy_BT,
    }
    masked: dict[str, Any] = {name: value * mask_BT for name, value in given.items() if value is not None}
    if advantages.shape != mask_BT.shape:
        advantages = advantages * mask_BT
    return replace(inputs, **masked, advantages=advantages)


def ratio(objective: Objective, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The core's ratio; that of an empty sequence is the number 1, without a gradient."""
    if objective.importance_sampling_level == "sequence":
        log_ratio_BT = torch.where(mask_BT.any(1, keepdim=True), log_ratio_BT, 0.0)
    return importance_ratio(objective, log_ratio_BT, mask_BT)


def token_weights(aggregation: str, inputs: LossInputs) -> Tensor:
    """What `agg_loss` weighs each position with, (B, T): padding too in token-mean, a count + 1e-8 of sequences."""
    mask_BT, totals = inputs.mask_BT, inputs.totals
    if aggregation == "token_mean_minibatch":
        return torch.ones_like(inputs.log_probs_BT.detach()) / totals.tokens
    weights_BT: Tensor = resolve(AGGREGATIONS[aggregation])(mask_BT.to(inputs.log_probs_BT.dtype), totals)
    if aggregation in ("sequence_mean_nonempty", "sequence_sum_nonempty"):
        weights_BT = weights_BT * (totals.nonempty_sequences / (totals.nonempty_sequences + 1e-8))
    return weights_BT


def weighted_sum(values: Tensor, weights_BT: Tensor) -> Tensor:
    """The values as one number; a row without weight is 0 whatever stands there."""
    return (torch.where(weights_BT.any(1, keepdim=True), values, 0.0) * weights_BT).sum()


def average(objective: Objective, inputs: LossInputs, per_token: Tensor) -> Tensor:
    """`agg_loss`."""
    return weighted_sum(per_token, token_weights(objective.aggregation, inputs))


def entropy_bonus(objective: Objective, inputs: LossInputs) -> Tensor:
    """The entropy, averaged as the loss is."""
    assert inputs.entropy_BT is not None
    return average(objective, inputs, inputs.entropy_BT)


RECIPE = LossRecipe(
    prepare=prepare, log_ratio=base.log_ratio, ratio=ratio, kl=base.kl, average=average, entropy_bonus=entropy_bonus
)
# Numbers that the base worker reports without the note.
OF_BASE = (
    *("pg_loss@sum", "total_loss@sum", "kl_loss@sum", "approxkl@sum", "policykl@sum", "clipfrac@sum"),
    *("ratio_max@max", "ratio_min@min"),
)
Logged = dict[str, Tensor | float]


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """ROLL's metrics under all its workers' names that fit the kernel."""
    inputs = prepare(objective, inputs)
    policy = average(objective, inputs, correct_importance(objective, inputs, loss.surrogate.loss))
    k3_BT = None
    if inputs.reference_log_probs_BT is not None:  # ROLL reports it whether it is in the loss or not
        k3_BT = base.kl(replace(objective, **base.kl_axes(1.0, "k3", output_clamp=KL_CLAMP)), inputs, loss.ratio)
    weights = cache(partial(token_weights, inputs=inputs))
    measured = Measured(objective, inputs, loss, lambda values, aggregation: weighted_sum(values, weights(aggregation)))
    return measured.metrics(policy, k3_BT)


@dataclass(frozen=True)
class Measured:
    """A minibatch after its loss, as ROLL's metrics see it."""

    objective: Objective
    inputs: LossInputs  # as the dialect prepared them
    loss: Loss
    average: Callable[[Tensor, str], Tensor]  # ROLL's `agg_loss` of per-token values by our name of its mode

    def metrics(self, policy: Tensor, reference_kl_BT: Tensor | None) -> dict[str, float]:
        """All that the workers of this kernel report; `policy` is the loss without KL and entropy."""
        logged = self._common(policy, reference_kl_BT) | self._samples()
        for kernels, group in GROUPS:
            if self.objective.kernel in kernels:
                logged |= group(self)
        tensors = {name: value for name, value in logged.items() if isinstance(value, Tensor)}
        values = torch.stack([value.double() for value in tensors.values()]).tolist()
        numbers: dict[str, Any] = logged | dict(zip(tensors, values, strict=True))
        numbers |= {name.partition("@")[0]: numbers[name] for name in OF_BASE if name in numbers}
        return {f"actor/{name}": value for name, value in numbers.items()}

    @property
    def ratio_BT(self) -> Tensor:
        """The ratio, at padding too: 1, or the sequence's."""
        return self.loss.ratio.expand_as(self.inputs.mask_BT)

    @property
    def out_of_range(self) -> tuple[Tensor, Tensor]:
        """Ratios below and above the clip range, whatever the advantage and at padding too; (B, T) each, 0 or 1."""
        low_BT, high_BT = self.ratio_BT < 1 - self.objective.epsilon, self.ratio_BT > 1 + self.objective.epsilon_high
        return low_BT.float(), high_BT.float()

    def averaged(self, values_BT: Tensor) -> Tensor:
        """By the objective's own mode."""
        return self.average(values_BT, self.objective.aggregation)

    def over_all_rows(self, values_BT: Tensor) -> Tensor:
        """`masked_mean(dim=-1).mean()`: mean of rows' means, where an empty row counts as 0."""
        mask_BT = self.inputs.mask_BT
        means_B = (values_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
        return torch.where(mask_BT.any(1), means_B, 0.0).mean()

    def _common(self, policy: Tensor, reference_kl_BT: Tensor | None) -> Logged:
        mask_BT, log_ratio_BT = self.inputs.mask_BT, self.inputs.log_probs_BT - self.inputs.old_log_probs_BT
        kl: Logged = {} if reference_kl_BT is None else {"kl_loss@sum": self.averaged(reference_kl_BT * mask_BT)}
        return kl | {
            "pg_loss@sum": policy,
            "weighted_pg_loss@sum": policy,
            "total_loss@sum": self.loss.total,
            "approxkl@sum": self.averaged(k2(log_ratio_BT) * mask_BT),
            "policykl@sum": self.averaged(log_ratio_BT * mask_BT),
            "ratio_max@max": (self.ratio_BT * mask_BT).max(),
            "ratio_min@min": (self.ratio_BT * mask_BT + (~mask_BT) * 1e10).min(),
            "ratio_mean@sum": self.average(self.ratio_BT, ROW_MEANS),
            "ratio_mean": self.over_all_rows(self.ratio_BT),
        }

    def _samples(self) -> Logged:
        """How many sequences count, and their weights, which are all 1 here."""
        mask_BT = self.inputs.mask_BT
        valid = mask_BT.any(1).sum()
        weights: Logged = {f"sample_weights_{name}": 1.0 for name in ("mean", "min", "max")}
        return {
            "valid_samples@sum": valid,
            "total_samples@sum": float(len(mask_BT)),
            "valid_sample_ratio": valid / len(mask_BT),
            "valid_sample_ratio@sum": valid / valid.new_tensor(self.inputs.totals.nonempty_sequences),
            **weights,
            **{f"{name}@{name.rpartition('_')[2]}": value for name, value in weights.items()},
        }


def clip_metrics(measured: Measured) -> Logged:
    """Clip fractions: `ppo_ratio_*` by the ratio only, padding in the numerator; `clipfrac` where the loss changed.

    The base worker (no `@sum`) takes the mean over all positions.
    """
    low_BT, high_BT = measured.out_of_range
    logged: Logged = {}
    for name, clipped_BT in (("high", high_BT), ("low", low_BT), ("", low_BT + high_BT)):
        key = f"ppo_ratio_{name}_clipfrac".replace("__", "_")
        logged[key] = clipped_BT.mean()
        logged[f"{key}@sum"] = measured.average(clipped_BT, TOKEN_MEAN)
    ratio_BT, A, objective = measured.ratio_BT, measured.inputs.advantages, measured.objective
    clipped_BT = ratio_BT.clamp(1 - objective.epsilon, 1 + objective.epsilon_high)
    return logged | {"clipfrac@sum": measured.averaged((clipped_BT * A < ratio_BT * A).float())}


def weight_metrics(measured: Measured) -> Logged:
    """How often the weight was cut, over all positions; the pg worker's names of tis and cispo, for both."""
    low_BT, high_BT = measured.out_of_range
    objective = measured.objective
    least, most = 1 - objective.epsilon, 1 + objective.epsilon_high
    cut_BT = measured.ratio_BT.clamp(least, most)
    shares = {"lower": low_BT, "upper": high_BT, "total": low_BT + high_BT}
    logged: Logged = {f"tis_{name}_clipfrac": share_BT.mean() for name, share_BT in shares.items()}
    logged |= {f"cispo_cispo_{name}_clipfrac": share_BT.mean() for name, share_BT in shares.items()}
    logged |= {
        "tis_lower_bound": least,
        "tis_upper_bound": most,
        "cispo_cispo_epsilon_low": objective.epsilon,
        "cispo_cispo_epsilon_high": objective.epsilon_high,
        "cispo_cispo_clip_lower": least,
        "cispo_cispo_clip_upper": most,
        "cispo_cispo_use_unified_mask": float(objective.kernel == "cispo_masked"),
    }
    logged["tis_clipped_ratio_mean@sum"] = measured.average(cut_BT, ROW_MEANS)
    logged["cispo_clipped_ratio_mean"] = measured.over_all_rows(cut_BT)
    return logged


def masked_metrics(measured: Measured) -> Logged:
    """Shares of all positions that the unified mask left out and kept."""
    kernel = measured.loss.surrogate
    return {
        "cispo_cispo_masked_positive_tokens": kernel.active_high.float().mean(),
        "cispo_cispo_masked_negative_tokens": kernel.active_low.float().mean(),
        "cispo_cispo_kept_tokens": (~(kernel.active_high | kernel.active_low)).float().mean(),
    }


def topr_metrics(measured: Measured) -> Logged:
    """TOPR's two kinds of sequences, by their score: how many, how often cut, and the loss of each."""
    inputs, options, ratio_BT = measured.inputs, measured.objective.kernel_options, measured.ratio_BT
    assert inputs.rewards_B1 is not None
    scores_B1 = inputs.rewards_B1
    positive_B1, negative_B1 = scores_B1 > 0, scores_B1 <= 0
    gradient_BT = -inputs.advantages * inputs.log_probs_BT
    loss = {
        "positive": measured.averaged(gradient_BT * positive_B1),
        "negative": measured.averaged(ratio_BT.clamp(0, 1) * gradient_BT * negative_B1),
    }
    logged: Logged = {}
    for name, chosen_B1 in (("positive", positive_B1), ("negative", negative_B1)):
        logged[f"topr_{name}_samples@sum"] = chosen_B1.sum()
        logged[f"topr_{name}_ratio"] = chosen_B1.sum() / (len(scores_B1) + 1e-8)
        logged[f"topr_{name}_weight"] = options[f"{name}_weight"]
        logged[f"topr_{name}_loss"] = loss[name]
        logged[f"topr_weighted_{name}_loss"] = options[f"{name}_weight"] * loss[name]
    cut = {"lower": (ratio_BT < 0) & negative_B1, "upper": (ratio_BT > 1) & negative_B1}
    logged |= {f"topr_negative_{name}_clipfrac": cut_BT.float().mean() for name, cut_BT in cut.items()}
    logged["topr_negative_total_clipfrac"] = (cut["lower"] | cut["upper"]).float().mean()
    return logged | {"topr_scores_mean": scores_B1.mean(), "topr_scores_std": sample_std(scores_B1)}


def kimi_metrics(measured: Measured) -> Logged:
    """Sizes of the policy gradient and of the penalty, over all positions, from log(ratio + 1e-8)."""
    tau = measured.objective.kernel_options["coefficient"]
    log_ratio_BT = (measured.ratio_BT + 1e-8).log()
    gradient = (measured.inputs.advantages * log_ratio_BT).abs().mean()
    penalty = (tau * log_ratio_BT.square() * 0.5).mean()
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
    """torch's std, NaN for a single value without its warning."""
    return ((values - values.mean()).square().sum() / (values.numel() - 1)).sqrt()


# Kernels -> what the workers that have them report beside the common metrics.
GROUPS: tuple[tuple[set[str], Callable[[Measured], Logged]], ...] = (
    ({"clipped"}, clip_metrics),
    ({"cispo", "cispo_masked"}, weight_metrics),
    ({"cispo_masked"}, masked_metrics),
    ({"topr"}, topr_metrics),
    ({"dro"}, kimi_metrics),
)
BASELINE = {None: "none", "batch": "batch_mean", "group": "group_mean"}  # `norm_mean_type` -> ours


def worker_loss(options: Options, inputs: Inputs) -> Replayed:
    """base_worker.py, rlvr/actor_worker.py and agentic/agentic_actor_worker.py: one loss, their options apart."""
    scores = {"rewards_B1": inputs["scores"][:, None]} if "scores" in inputs else {}
    return replay_loss(FRAMEWORK, FRAMEWORK.objective(options), loss_inputs(inputs, **scores))


def pg_worker_loss(options: Options, inputs: Inputs) -> Replayed:
    """rlvr/actor_pg_worker.py: the variant and its numbers are read from `actor_train`."""
    return worker_loss({"pg_variant": "vanilla", **options, **options.get("actor_train", {})}, inputs)


def compute_approx_kl(options: Options, inputs: Inputs) -> Replayed:
    """A KL estimate of each token, times the mask; only k3 is clamped."""
    name = options["kl_penalty"]
    replayed = replay_kl(inputs, ESTIMATOR[name], output_clamp=KL_CLAMP if name == "k3" else None)
    values_BT = replayed.tensors["per_token"] * inputs["mask"]
    return Replayed(values_BT.sum(), replayed.scale, tensors={"per_token": values_BT})


def compute_advantage(options: Options, inputs: Inputs) -> Replayed:
    """Normalised rewards, and in float32 their discounted sum from each position on, whitened and masked.

    The reward stands at the last token; every position is a step, padding too.
    """
    rewards_B, mask_BT = _normalized(options, inputs), inputs["mask"]
    rewards_BT = at_last_token(rewards_B.float(), mask_BT)
    returns_BT = discounted_returns(rewards_BT, torch.ones_like(mask_BT), options["gamma"])
    advantages_BT = returns_BT
    if options["whiten_advantages"] and mask_BT.sum() > 1:
        advantages_BT = masked_whiten(returns_BT, mask_BT)
    advantages_BT = advantages_BT * mask_BT
    if (bound := options.get("advantage_clip")) is not None:
        advantages_BT = advantages_BT.clamp(-bound, bound)
    return Replayed(tensors={"normalized_rewards": rewards_B, "advantages": advantages_BT, "returns": returns_BT})


def _normalized(options: Options, inputs: Inputs) -> torch.Tensor:
    """`reward_norm`, which has the group's std only with the group's mean; grpo always has both."""
    chosen = options["norm_mean_type"], options["norm_std_type"]
    mean, std = ("group", "group") if options["adv_estimator"] == "grpo" else chosen
    rewards_B = inputs["rewards"]
    if mean == std == "running":
        return running_normalized(rewards_B, Moments())[0]
    if "running" in (mean, std) or (std == "group" and mean != "group"):
        raise ValueError(f"norm_mean_type={mean} with norm_std_type={std} is not replayed")
    scored = Scored(rewards_B, groups_of(rewards_B, inputs["group_size"]))
    return advantages(scored, BASELINE[mean], std or "none", 1e-6)


FRAMEWORK = Framework(
    objective=objective,
    recipe=RECIPE,
    metrics=metrics,
    replays={
        "ActorWorker.loss_func": worker_loss,
        "ActorPGWorker.loss_func": pg_worker_loss,
        "compute_approx_kl": compute_approx_kl,
        "reward_norm + compute_advantage": compute_advantage,
    },
    limits=(
        (
            "response filters, difficulty and length weights of samples and `gigpo` are not carried, nor are "
            "`rl_loss_coef` other than 1 and a weight per segment."
        ),
    ),
)
