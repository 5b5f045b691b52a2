"""SkyRL a9564572: the options of `AlgorithmConfig` that decide its loss, in our settings. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpolab.errors import choose
from grpolab.frameworks.objectives import make_correction, make_objective
from grpolab.settings.objective import Objective, SamplerCorrection

# fmt: off
# Option -> its default; the groups with a loss's name are read with that `policy_loss_type` only.
LOSS: dict[str, Any] = {
    "policy_loss_type": "regular", "loss_reduction": "token_mean",
    "eps_clip_low": 0.2, "eps_clip_high": 0.2, "clip_ratio_c": 3.0,
    "use_kl_loss": True, "kl_loss_coef": 0.001, "kl_estimator_type": "k3",
    "cispo": {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 4.0, "cispo_anchor": "old"},
    "dppo": {"dppo_type": "binary_tv", "delta_low": 0.2, "delta_high": 0.2},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "clip_cov": {"clip_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
    "kl_cov": {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0},
    "off_policy_correction": {
        "tis_ratio_type": None, "token_tis_ratio_clip_high": 2.0, "sequence_tis_ratio_clip_high": 5.0,
        "sequence_mask_metric": None, "geo_mask_low": 0.99, "geo_mask_high": 1.01,
        "product_mask_low": 0.5, "product_mask_high": 2.0,
        "outlier_token_is_threshold_low": None, "outlier_token_is_threshold_high": None,
        "token_mask_is_threshold_low": None, "token_mask_is_threshold_high": None,
    },
}
REDUCTIONS = {
    "token_mean": "token_mean_minibatch",
    "token_mean_legacy": "token_mean_microbatch",  # its token_mean until March 2026
    "sequence_mean": "sequence_mean",
    "seq_mean_token_sum_norm": "token_sum_constant",
    "prompt_mean": "token_sum",  # advantages are already divided by their prompt's tokens and the number of prompts
}
# `policy_loss_type` -> kernel.
KERNELS = {
    **dict.fromkeys(("regular", "dual_clip", "gspo"), "clipped"), "rollout_is": "band", "importance_sampling": "ratio",
    **{name: name for name in ("cispo", "dppo", "sapo", "clip_cov", "kl_cov")},
}
DPPO = {"binary_tv": "dppo_tv", "binary_kl": "dppo_kl"}
# Loss -> our name of its kernel's options -> theirs in its group.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "tau_pos", "temperature_negative": "tau_neg"},
    "clip_cov": {"share": "clip_ratio", "lower": "clip_cov_lb", "upper": "clip_cov_ub"},
    "kl_cov": {"share": "kl_cov_frac", "coefficient": "ppo_kl_coef"},
}
# Loss -> its clip range in its group, if it has one of its own.
RANGES = {"cispo": ("cispo_eps_clip_low", "cispo_eps_clip_high"), "dppo": ("delta_low", "delta_high")}
# fmt: on
ESTIMATORS = {name: name for name in ("k1", "k2", "k3", "abs")}
ANCHORS = {"old": "old", "rollout": "rollout"}  # denominator of CISPO's ratio; `old_log_probs` has it here
LOG_RATIO = 20.0
UNBOUNDED = ("gspo", "clip_cov", "kl_cov", "importance_sampling")  # losses without a bound of the log ratio


def kl_clamps(estimator: str) -> tuple[float | None, float | None]:
    """Return the bounds of the log ratio to the reference and of the estimate."""
    return (20.0, 10.0) if estimator == "k3" else (None, None)


def objective(options: Mapping[str, Any]) -> Objective:
    """Translate options of `AlgorithmConfig`. Raises ValueError for what SkyRL or our settings lack."""
    o = LOSS | dict(options)
    kind: str = o["policy_loss_type"]
    kernel = choose("SkyRL", "policy_loss_type", kind, KERNELS)
    group = {**LOSS.get(kind, {}), **(o.get(kind) or {})}
    numbers = {ours: group[theirs] for ours, theirs in KERNEL_OPTIONS.get(kind, {}).items()}
    if kind == "dppo":
        kernel, numbers = choose("SkyRL", "dppo.dppo_type", group["dppo_type"], DPPO), {"cap": math.inf}
    correction = o["off_policy_correction"] or {}
    anchor = choose("SkyRL", "cispo.cispo_anchor", group["cispo_anchor"], ANCHORS) if kind == "cispo" else "old"
    if anchor == "rollout" and correction.get("tis_ratio_type"):  # the ratio to the sampler is the correction already
        raise ValueError("cispo.cispo_anchor=rollout and off_policy_correction.tis_ratio_type correct twice")
    low, high = RANGES.get(kind, ("eps_clip_low", "eps_clip_high"))
    clamps = kl_clamps(estimator := choose("SkyRL", "kl_estimator_type", o["kl_estimator_type"], ESTIMATORS))
    return make_objective(
        importance_sampling_level="sequence_token" if kind == "gspo" else "token",
        log_ratio_clamp=None if kind in UNBOUNDED else LOG_RATIO,
        kernel=kernel,
        kernel_options=numbers,
        epsilon=(o | group)[low],
        epsilon_high=(o | group)[high],
        dual_clip=o["clip_ratio_c"] if kind == "dual_clip" else None,
        loss_form="max_negative" if kind == "clip_cov" else "min_positive",
        aggregation=choose("SkyRL", "loss_reduction", o["loss_reduction"], REDUCTIONS),
        beta=o["kl_loss_coef"] if o["use_kl_loss"] else 0.0,
        kl_estimator=estimator,
        kl_input_clamp=clamps[0],
        kl_output_clamp=clamps[1],
        sampler_correction=sampler_rule(correction),
    )


def sampler_rule(options: Mapping[str, Any]) -> SamplerCorrection | None:
    """Translate the sampler correction; the level `outlier`, of SkyRL only, drops rows with any token out of bounds."""
    o, rules, key = LOSS["off_policy_correction"] | dict(options), [], "off_policy_correction."
    if o["tis_ratio_type"]:
        levels = {"token": "token_tis_ratio_clip_high", "sequence": "sequence_tis_ratio_clip_high"}
        high = o[choose("SkyRL", f"{key}tis_ratio_type", o["tis_ratio_type"], levels)]
        rules.append((o["tis_ratio_type"], "truncate", 0.0, high))
    if o["sequence_mask_metric"]:
        metrics = {"geometric": ("geometric", "geo"), "product": ("sequence", "product")}
        level, name = choose("SkyRL", f"{key}sequence_mask_metric", o["sequence_mask_metric"], metrics)
        rules.append((level, "mask", o[f"{name}_mask_low"], o[f"{name}_mask_high"]))
    for level, name in (("outlier", "outlier_token"), ("token", "token_mask")):
        low, high = o[f"{name}_is_threshold_low"], o[f"{name}_is_threshold_high"]
        if low is not None or high is not None:
            rules.append((level, "mask", low or 0.0, math.inf if high is None else high))
    if len(rules) > 1:
        raise ValueError("off_policy_correction: one correction at a time is supported")
    return make_correction(*rules[0]) if rules else None
