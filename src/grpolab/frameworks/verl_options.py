"""verl 1dda039b (2026-08-22): the options that decide its loss, and their values in our settings. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpolab.frameworks.objectives import kl_axes, make_correction, make_objective
from grpolab.settings.objective import Objective, SamplerCorrection

# The options of the loss: `actor_rollout_ref.actor` with `policy_loss` in it, and `algorithm.rollout_correction`.
LOSS: dict[str, Any] = {
    "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0,
    "tau_pos": 1.0, "tau_neg": 1.05, "loss_agg_mode": "token-mean", "entropy_coeff": 0.0,
    "use_kl_loss": False, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl",
    "policy_loss": {
        "loss_mode": "vanilla", "clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1, "dro_beta": None,
    },
    "rollout_correction": {"rollout_is": None, "rollout_is_threshold": 2.0, "loss_type": "ppo_clip"},
}  # fmt: skip

# loss_mode -> kernel; bypass_mode's `loss_type` -> the equivalent mode.
KERNEL = {
    "vanilla": "clipped", "gspo": "clipped", "sapo": "sapo", "cispo": "cispo", "geo_mean": "gmpo",
    "gpg": "policy_gradient", **{name: name for name in ("clip_cov", "kl_cov", "dro", "dppo_tv", "dppo_kl")},
}  # fmt: skip
BYPASS = {"ppo_clip": "vanilla", "reinforce": "gpg"}
# Kernel -> our name of its options -> theirs.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "tau_pos", "temperature_negative": "tau_neg"},
    "clip_cov": {
        "share": "policy_loss.clip_cov_ratio",
        "lower": "policy_loss.clip_cov_lb",
        "upper": "policy_loss.clip_cov_ub",
    },
    "kl_cov": {"share": "policy_loss.kl_cov_ratio", "coefficient": "policy_loss.ppo_kl_coef"},
    "dro": {"coefficient": "policy_loss.dro_beta"},
    "dppo_tv": {"cap": "clip_ratio_c"},
    "dppo_kl": {"cap": "clip_ratio_c"},
}
# Sequences are counted as in training: all of the minibatch, empty ones too (`global_batch_size`).
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "token_sum_constant",
}
# Estimators; the first name of each is the one that is written.
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}

CLAMPED = {"vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"}  # modes whose log ratio is bounded
BOUND = 20.0  # of log ratios, and of the logarithm of a sampler weight


def objective(options: Mapping[str, Any]) -> Objective:
    """Translate verl's actor options. Raises ValueError for what verl does not have."""
    o = LOSS | dict(options)
    policy, rollout = ({**LOSS[name], **(o[name] or {})} for name in ("policy_loss", "rollout_correction"))
    mode, weighted = policy["loss_mode"], True
    numbers = o | {f"policy_loss.{name}": value for name, value in policy.items()}
    try:
        if mode == "bypass_mode":  # its ratio to the sampler takes the place of the weight
            mode, weighted = BYPASS[rollout["loss_type"]], rollout["loss_type"] == "reinforce"
        estimator = KL[o["kl_loss_type"].removesuffix("+")]
        gradient = "straight_through" if o["kl_loss_type"].endswith("+") else "plain"  # that of k2
        clamps = (20.0, 10.0) if estimator == "k3" else (None, None)
        if mode == "dro" and not (policy["dro_beta"] or 0) > 0:
            raise ValueError(f"policy_loss.dro_beta={policy['dro_beta']} must be more than 0 for loss_mode=dro")
        return make_objective(
            importance_sampling_level="sequence_token" if mode == "gspo" else "token",
            log_ratio_clamp=BOUND if mode in CLAMPED else None,
            kernel=KERNEL[mode],
            kernel_options={ours: numbers[theirs] for ours, theirs in KERNEL_OPTIONS.get(KERNEL[mode], {}).items()},
            epsilon=o["clip_ratio"] if o["clip_ratio_low"] is None else o["clip_ratio_low"],
            epsilon_high=o["clip_ratio"] if o["clip_ratio_high"] is None else o["clip_ratio_high"],
            dual_clip=o["clip_ratio_c"] if mode == "vanilla" else None,
            loss_form="max_negative",
            aggregation=AGGREGATION[o["loss_agg_mode"]],
            **kl_axes(o["kl_loss_coef"] if o["use_kl_loss"] else 0.0, estimator, gradient, *clamps),
            entropy_coef=o["entropy_coeff"],
            sampler_correction=sampler_rule(rollout) if weighted else None,
        )
    except KeyError as unknown:
        raise ValueError(f"verl has no {unknown}") from unknown


def sampler_rule(options: Mapping[str, Any]) -> SamplerCorrection | None:
    """Translate `algorithm.rollout_correction`: `2.0` truncates the weight (TIS), `0.5_2.0` makes it 0 outside."""
    o = LOSS["rollout_correction"] | dict(options)
    if not o["rollout_is"]:
        return None
    low, _, high = str(o["rollout_is_threshold"]).rpartition("_")
    if low:
        return make_correction(o["rollout_is"], "mask", float(low), float(high))
    return make_correction(o["rollout_is"], "truncate", math.exp(-BOUND), float(high))
