"""What can be chosen by name, and where it is: a new objective is one function and one line here.

Names only, so that settings are checked without importing torch; `resolve` imports when the run begins.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

# Importance ratio (learn/ratios.py): how far the policy has moved, per token or per sequence.
RATIOS = {
    "token": "grpolab.learn.ratios:token_ratio",
    "sequence": "grpolab.learn.ratios:sequence_ratio",
    "sequence_token": "grpolab.learn.ratios:sequence_token_ratio",
    "segment": "grpolab.learn.ratios:segment_ratio",
}

# Objective kernel (learn/kernels/): the loss of a token or sequence before averaging.
KERNELS = {
    "clipped": "grpolab.learn.kernels.clipped:clipped",
    "ratio": "grpolab.learn.kernels.clipped:ratio",
    "policy_gradient": "grpolab.learn.kernels.weighted:policy_gradient",
    "policy_gradient_masked": "grpolab.learn.kernels.weighted:policy_gradient_masked",
    "cispo": "grpolab.learn.kernels.weighted:cispo",
    "cispo_masked": "grpolab.learn.kernels.weighted:cispo_masked",
    "band": "grpolab.learn.kernels.weighted:band",
    "aspo": "grpolab.learn.kernels.weighted:aspo",
    "topr": "grpolab.learn.kernels.weighted:topr",
    "vespo": "grpolab.learn.kernels.weighted:vespo",
    "dro": "grpolab.learn.kernels.weighted:dro",
    "sapo": "grpolab.learn.kernels.soft:sapo",
    "gmpo": "grpolab.learn.kernels.soft:gmpo",
    "clip_cov": "grpolab.learn.kernels.covariance:clip_cov",
    "kl_cov": "grpolab.learn.kernels.covariance:kl_cov",
    "dppo_tv": "grpolab.learn.kernels.dppo:dppo_tv",
    "dppo_kl": "grpolab.learn.kernels.dppo:dppo_kl",
    "dppo_ratio": "grpolab.learn.kernels.dppo:dppo_ratio",
    "ipo": "grpolab.learn.kernels.dppo:ipo",
}

# A kernel's own numbers, under `kernel_options.<kernel>` of the settings: name -> (more than, at most).
POSITIVE, ANY_SIGN = (0.0, float("inf")), (float("-inf"), float("inf"))
KERNEL_OPTIONS = {
    "aspo": {"cap": POSITIVE},
    "topr": {"positive_weight": POSITIVE, "negative_weight": POSITIVE},
    "vespo": dict.fromkeys(("k_positive", "lambda_positive", "k_negative", "lambda_negative"), POSITIVE),
    "dro": {"coefficient": POSITIVE},
    "sapo": {"temperature_positive": POSITIVE, "temperature_negative": POSITIVE},
    "clip_cov": {"share": (0.0, 1.0), "lower": ANY_SIGN, "upper": ANY_SIGN},
    "kl_cov": {"share": (0.0, 1.0), "coefficient": POSITIVE},
    "dppo_tv": {"cap": POSITIVE},
    "dppo_kl": {"cap": POSITIVE},
    "dppo_ratio": {"advantage_weight": POSITIVE, "drift_weight": POSITIVE},
    "ipo": {"advantage_weight": POSITIVE, "drift_weight": POSITIVE},
}
# Kernels that compare the tokens of a minibatch with each other: they need it in one piece.
WHOLE_MINIBATCH = {"clip_cov", "kl_cov"}
DRAWS_TOKENS = {"clip_cov"}  # kernels that need uniform numbers
# Kernels whose loss has no clip range that could bind.
UNCLIPPED = {"ratio", "policy_gradient", "topr", "vespo", "dro", "sapo", "kl_cov"}

# Aggregation (learn/aggregation.py): how per-token losses become one number; the denominator is in the name.
AGGREGATIONS = {
    "sequence_mean": "grpolab.learn.aggregation:sequence_mean",
    "sequence_mean_nonempty": "grpolab.learn.aggregation:sequence_mean_nonempty",
    "sequence_sum": "grpolab.learn.aggregation:sequence_sum",
    "sequence_sum_nonempty": "grpolab.learn.aggregation:sequence_sum_nonempty",
    "token_mean_rollout": "grpolab.learn.aggregation:token_mean_rollout",
    "token_mean_minibatch": "grpolab.learn.aggregation:token_mean_minibatch",
    "token_mean_microbatch": "grpolab.learn.aggregation:token_mean_microbatch",
    "token_sum": "grpolab.learn.aggregation:token_sum",
    "token_sum_constant": "grpolab.learn.aggregation:token_sum_constant",
    "token_sum_length": "grpolab.learn.aggregation:token_sum_length",
}

# KL estimator (learn/kl.py), from the log ratio of the reference to the policy.
KL_ESTIMATORS = {
    "k1": "grpolab.learn.kl:k1",
    "k2": "grpolab.learn.kl:k2",
    "k3": "grpolab.learn.kl:k3",
    "abs": "grpolab.learn.kl:absolute",
}

# Advantage estimator (learn/advantages.py): the baseline that rewards are compared with.
ADVANTAGES = {
    "none": "grpolab.learn.advantages:no_baseline",
    "group_mean": "grpolab.learn.advantages:group_mean",
    "batch_mean": "grpolab.learn.advantages:batch_mean",
    "leave_one_out": "grpolab.learn.advantages:leave_one_out",
    "length_weighted": "grpolab.learn.advantages:length_weighted",
    "second_best": "grpolab.learn.advantages:second_best",
    "given": "grpolab.learn.advantages:given",
}

# Scale (learn/advantages.py): what a reward less its baseline is divided by.
SCALES = {
    "none": "grpolab.learn.advantages:unscaled",
    "group": "grpolab.learn.advantages:group_std",
    "group_population": "grpolab.learn.advantages:group_population_std",
    "batch": "grpolab.learn.advantages:batch_std",
    "leave_one_out": "grpolab.learn.advantages:leave_one_out_std",
    "group_mean": "grpolab.learn.advantages:group_mean_reward",
    "nonzero_share": "grpolab.learn.advantages:nonzero_share",
}

# Faults of the training loop (learn/faults.py), planted by conf/fault/: what of the loop's steps is replaced.
FAULTS = {
    name: f"grpolab.learn.faults:{name}"
    for name in (
        "aliased_old_policy",
        "resynchronised_old_policy",
        "recomputed_old_log_probs",
        "frozen_parameters",
        "low_precision_weights",
        "dropout",
        "visible_padding",
        "temperature_mismatch",
        "mask_mismatch",
        "padding_in_clip_metric",
    )
}

FRAMEWORKS = (
    "trl",
    "verl",
    "roll",
    "deepspeed_chat",
    "openrlhf",
    "slime",
    "areal",
    "nemo_rl",
    "open_instruct",
    "prime_rl",
    "skyrl",
    "torchtune",
)
# Framework adapters (learn/dialects/): what a framework does its own way, and its metrics under its names.
DIALECTS = {name: f"grpolab.learn.dialects.{name}:DIALECT" for name in FRAMEWORKS}
# What of a framework's own outputs can be replayed (learn/conformance/).
CONFORMANCE = {name: f"grpolab.learn.conformance.{name}:PEER" for name in FRAMEWORKS}


@functools.cache
def resolve(path: str) -> Any:
    """The object at `package.module:name`; raises ImportError or AttributeError where nothing is there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
