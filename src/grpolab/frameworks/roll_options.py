"""ROLL 8eb27cc: the options that decide the loss of its workers, and their values in our settings. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpolab.errors import choose
from grpolab.frameworks.objectives import kl_axes, make_correction, make_objective
from grpolab.settings.objective import Objective, SamplerCorrection

# fmt: off
# Option -> its default. `pg_variant` and the options behind it are those of the pg worker (`actor_train`), whose own
# default is vanilla; None is another worker. `is_weight` is that of `train_infer_correction`.
LOSS: dict[str, Any] = {
    "ratio_type": "token", "importance_sampling": "token", "loss_agg_mode": "seq-mean-token-mean",
    "pg_clip": 0.2, "use_pg_clip_range": False, "pg_clip_low": 0.2, "pg_clip_high": 0.2, "dual_clip_loss": False,
    "use_kl_loss": False, "kl_loss_coef": 0.0, "entropy_loss_coef": 0.0, "rl_loss_coef": 1.0,
    "is_weight": {"enabled": False, "weight_type": "token", "upper_bound": 1.2},
    "pg_variant": None, "tis_lower_bound": 0.0, "tis_upper_bound": 1.0,
    "cispo_epsilon_low": 0.1, "cispo_epsilon_high": 0.1, "cispo_use_unified_mask": False,
    "topr_positive_weight": 1.0, "topr_negative_weight": 1.0, "kimi15_tau": 0.1,
}
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "seq-mean-token-mean": "sequence_mean_nonempty",
    "seq-mean-token-sum": "sequence_sum_nonempty",
    "seq-mean-token-sum-norm": "token_sum_length",
}
RATIO = {"token": "token", "segment": "segment"}  # `ratio_type` of the agentic worker
LEVEL = {"token": "token", "seq": "sequence"}  # `importance_sampling` of rlvr
# `pg_variant` -> kernel.
KERNEL = {
    None: "clipped", "ppo": "clipped", "vanilla": "policy_gradient", "tis": "cispo", "cispo": "cispo", "topr": "topr",
    "kimi15": "dro",
}
# Variant -> our name of its kernel's options -> theirs.
KERNEL_OPTIONS = {
    "topr": {"positive_weight": "topr_positive_weight", "negative_weight": "topr_negative_weight"},
    "kimi15": {"coefficient": "kimi15_tau"},
}
# fmt: on
WEIGHT = {name: name for name in ("token", "geometric", "sequence")}  # `is_weight.weight_type`; not: segment
ESTIMATOR = {"kl": "k1", "abs": "abs", "mse": "k2", "k3": "k3"}  # by `kl_penalty`
KL_CLAMP = 10.0


def objective(options: Mapping[str, Any]) -> Objective:
    """Translate ROLL's options: those of the pg worker if they have its `pg_variant`, else those of another worker.

    Raises ValueError for a value that ROLL or our axes lack.
    """
    o = LOSS | dict(options)
    variant, clip = o["pg_variant"], o["pg_clip"]
    if o["rl_loss_coef"] != 1:
        raise ValueError(f"rl_loss_coef={o['rl_loss_coef']} has no place on our axes, only 1 has")
    ratio = choose("ROLL", "ratio_type", o["ratio_type"], RATIO)
    level = choose("ROLL", "importance_sampling", o["importance_sampling"], LEVEL) if ratio == "token" else ratio
    kernel = choose("ROLL", "pg_variant", variant, KERNEL)
    low = high = clip
    if o["use_pg_clip_range"]:
        low, high = o["pg_clip_low"], o["pg_clip_high"]
    if variant == "tis":
        low, high = 1 - o["tis_lower_bound"], o["tis_upper_bound"] - 1
    elif variant == "cispo":
        low, high = o["cispo_epsilon_low"], o["cispo_epsilon_high"]
        kernel = "cispo_masked" if o["cispo_use_unified_mask"] else kernel
    return make_objective(
        importance_sampling_level=level,
        kernel=kernel,
        kernel_options={ours: o[theirs] for ours, theirs in KERNEL_OPTIONS.get(variant, {}).items()},
        epsilon=low,
        epsilon_high=high,
        dual_clip=1 + 2 * clip if o["dual_clip_loss"] and kernel == "clipped" else None,  # not of low or high
        aggregation=choose("ROLL", "loss_agg_mode", o["loss_agg_mode"], AGGREGATION),
        **kl_axes(o["kl_loss_coef"] if o["use_kl_loss"] else 0.0, "k3", output_clamp=KL_CLAMP),
        entropy_coef=max(o["entropy_loss_coef"], 0.0),
        sampler_correction=sampler_rule(o["is_weight"] or {}),
    )


def sampler_rule(options: Mapping[str, Any]) -> SamplerCorrection | None:
    """Translate `train_infer_correction.is_weight`."""
    o = LOSS["is_weight"] | dict(options)
    if not o["enabled"]:
        return None
    level = choose("ROLL", "is_weight.weight_type", o["weight_type"], WEIGHT)
    return make_correction(level, "truncate", 0.0, math.inf if o["upper_bound"] is None else o["upper_bound"])
