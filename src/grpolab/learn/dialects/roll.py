"""ROLL (alibaba/ROLL, 8eb27cc of 2026-08-19, v0.3.0+9): roll/utils/functionals.py `agg_loss` and its four workers.

roll/pipeline/base_worker.py (base), rlvr/actor_worker.py (rlvr), agentic/agentic_actor_worker.py (agentic) and
rlvr/actor_pg_worker.py (pg). Its accidents: log-probs are multiplied by the mask, but `token-mean` adds up everything,
padding too; sequences are divided by their count + 1e-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.dialects import Dialect, unmasked
from grpolab.learn.dialects.roll_metrics import Measured
from grpolab.learn.objective import Loss, LossInputs, Objective, SamplerCorrection, Stages, importance_ratio, weigh
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
LEVEL = {"token": "token", "seq": "sequence", "segment": "segment"}
ESTIMATOR = {"kl": "k1", "abs": "abs", "mse": "k2", "k3": "k3"}  # `kl_penalty`
KL: dict[str, Any] = {"kl_estimator": "k3", "kl_gradient": "plain", "kl_input_clamp": None, "kl_output_clamp": 10.0}


def objective(options: Mapping[str, Any]) -> Objective:
    """The point on our axes that ROLL's options mean. Raises ValueError for a value that ROLL or our axes lack."""
    o = DEFAULTS | dict(options)
    if o["rl_loss_coef"] != 1:
        raise ValueError(f"rl_loss_coef={o['rl_loss_coef']} has no place on our axes, only 1 has")
    clip = (o["pg_clip_low"], o["pg_clip_high"]) if o["use_pg_clip_range"] else (o["pg_clip"], o["pg_clip"])
    level = o["importance_sampling"] if o["ratio_type"] == "token" else o["ratio_type"]
    beta = o["kl_loss_coef"] if o["use_kl_loss"] else 0.0
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
        beta=beta,
        **(KL if beta else dict.fromkeys(KL)),
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


def bonus(objective: Objective, inputs: LossInputs) -> Tensor:
    """The entropy, averaged as the loss is."""
    assert inputs.entropy_BT is not None
    return average(objective, inputs, inputs.entropy_BT)


def metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    """ROLL's metrics under all its workers' names that fit the kernel."""
    inputs = prepare(objective, inputs)
    policy = average(objective, inputs, weigh(objective, inputs, loss.kernel.loss))
    k3_BT = None
    if inputs.reference_log_probs_BT is not None:  # ROLL reports it whether it is in the loss or not
        k3_BT = unmasked.kl(replace(objective, beta=1.0, **KL), inputs, loss.ratio)
    weights = cache(partial(token_weights, inputs=inputs))
    measured = Measured(objective, inputs, loss, lambda values, aggregation: weighted_sum(values, weights(aggregation)))
    return measured.metrics(policy, k3_BT)


DIALECT = Dialect(
    objective,
    Stages(prepare=prepare, log_ratio=unmasked.log_ratio, ratio=ratio, kl=unmasked.kl, average=average, bonus=bonus),
    metrics,
)
