"""TRL 1.16.0: the fields of `GRPOConfig` that decide the loss, and their values in our settings. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpolab.frameworks.objectives import kl_axes, make_correction, make_objective
from grpolab.settings.objective import Objective

# fmt: off
# Option of the loss -> TRL's default.
LOSS: dict[str, Any] = {
    "loss_type": "dapo", "importance_sampling_level": "token",
    "epsilon": 0.2, "epsilon_high": None, "delta": None, "beta": 0.0, "use_bias_correction_kl": True,
    "top_entropy_quantile": 1.0, "entropy_coef": 0.0, "off_policy_mask_threshold": None,
    "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
    "use_vllm": False, "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0, "vllm_importance_sampling_clip_min": None,
}
# loss_type -> kernel and aggregation.
LOSS_TYPES = {
    "grpo": ("clipped", "sequence_mean"),
    "bnpo": ("clipped", "token_mean_microbatch"),
    "dr_grpo": ("clipped", "token_sum_constant"),
    "dapo": ("clipped", "token_mean_rollout"),
    "luspo": ("clipped", "sequence_sum"),
    "cispo": ("cispo", "token_mean_rollout"),
    "sapo": ("sapo", "sequence_mean"),
    "vespo": ("vespo", "token_mean_rollout"),
}
# Kernel -> our name of its options -> theirs.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "sapo_temperature_pos", "temperature_negative": "sapo_temperature_neg"},
    "vespo": {
        "k_positive": "vespo_k_pos", "lambda_positive": "vespo_lambda_pos",
        "k_negative": "vespo_k_neg", "lambda_negative": "vespo_lambda_neg",
    },
}
# fmt: on


def objective(options: Mapping[str, Any]) -> Objective:
    """Translate fields of a `GRPOConfig`. Raises ValueError for what TRL does not have."""
    o = LOSS | dict(options)
    if o["loss_type"] not in LOSS_TYPES:
        raise ValueError(f"loss_type={o['loss_type']}: TRL has {', '.join(LOSS_TYPES)}")
    if o["importance_sampling_level"] not in ("token", "sequence"):
        raise ValueError(f"importance_sampling_level={o['importance_sampling_level']}: TRL has token, sequence")
    kernel, aggregation = LOSS_TYPES[o["loss_type"]]
    correction = None
    if o["use_vllm"] and o["vllm_importance_sampling_correction"]:
        level, _, mode = o["vllm_importance_sampling_mode"].partition("_")
        if level not in ("token", "sequence") or mode not in ("truncate", "mask"):
            raise ValueError(f"vllm_importance_sampling_mode={o['vllm_importance_sampling_mode']} is not of TRL")
        low, high = o["vllm_importance_sampling_clip_min"], o["vllm_importance_sampling_clip_max"]
        correction = make_correction(level, mode, 0.0 if low is None else low, math.inf if high is None else high)
    return make_objective(
        importance_sampling_level=o["importance_sampling_level"],
        kernel=kernel,
        kernel_options={ours: o[theirs] for ours, theirs in KERNEL_OPTIONS.get(kernel, {}).items()},
        epsilon=1.0 if kernel == "cispo" else o["epsilon"],  # no lower bound
        epsilon_high=o["epsilon"] if o["epsilon_high"] is None else o["epsilon_high"],
        delta=o["delta"] if kernel == "clipped" else None,
        loss_form="min_positive",
        aggregation=aggregation,
        **kl_axes(o["beta"], "k3", "importance_weighted" if o["use_bias_correction_kl"] else "plain"),
        entropy_coef=o["entropy_coef"],
        top_entropy_quantile=o["top_entropy_quantile"] if o["top_entropy_quantile"] < 1 else None,
        off_policy_mask_threshold=o["off_policy_mask_threshold"],
        sampler_correction=correction,
    )
