"""What can be chosen by name, and where it is: a new objective is one function and one line here.

Names only, so that settings are checked without importing torch; `resolve` imports when the run begins.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

# Importance ratio (grpo/ratios.py): how far the policy has moved, per token or per sequence.
RATIOS = {
    "token": "grpolab.grpo.ratios:token_ratio",
    "sequence": "grpolab.grpo.ratios:sequence_ratio",
    "sequence_token": "grpolab.grpo.ratios:sequence_token_ratio",
    "segment": "grpolab.grpo.ratios:segment_ratio",
}

# Objective kernel (grpo/surrogates.py): the loss of a token or sequence before averaging.
KERNELS = {
    "clipped": "grpolab.grpo.surrogates:clipped",
    "ratio": "grpolab.grpo.surrogates:ratio",
    "policy_gradient": "grpolab.grpo.surrogates:policy_gradient",
    "policy_gradient_masked": "grpolab.grpo.surrogates:policy_gradient_masked",
    "cispo": "grpolab.grpo.surrogates:cispo",
    "cispo_masked": "grpolab.grpo.surrogates:cispo_masked",
    "band": "grpolab.grpo.surrogates:band",
    "aspo": "grpolab.grpo.surrogates:aspo",
    "topr": "grpolab.grpo.surrogates:topr",
    "vespo": "grpolab.grpo.surrogates:vespo",
    "dro": "grpolab.grpo.surrogates:dro",
    "sapo": "grpolab.grpo.surrogates:sapo",
    "gmpo": "grpolab.grpo.surrogates:gmpo",
    "clip_cov": "grpolab.grpo.surrogates:clip_cov",
    "kl_cov": "grpolab.grpo.surrogates:kl_cov",
    "dppo_tv": "grpolab.grpo.surrogates:dppo_tv",
    "dppo_kl": "grpolab.grpo.surrogates:dppo_kl",
    "dppo_ratio": "grpolab.grpo.surrogates:dppo_ratio",
    "ipo": "grpolab.grpo.surrogates:ipo",
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

# Aggregation (grpo/aggregation.py): how per-token losses become one number; the denominator is in the name.
AGGREGATIONS = {
    "sequence_mean": "grpolab.grpo.aggregation:sequence_mean",
    "sequence_mean_nonempty": "grpolab.grpo.aggregation:sequence_mean_nonempty",
    "sequence_sum": "grpolab.grpo.aggregation:sequence_sum",
    "sequence_sum_nonempty": "grpolab.grpo.aggregation:sequence_sum_nonempty",
    "token_mean_rollout": "grpolab.grpo.aggregation:token_mean_rollout",
    "token_mean_minibatch": "grpolab.grpo.aggregation:token_mean_minibatch",
    "token_mean_microbatch": "grpolab.grpo.aggregation:token_mean_microbatch",
    "token_sum": "grpolab.grpo.aggregation:token_sum",
    "token_sum_constant": "grpolab.grpo.aggregation:token_sum_constant",
    "token_sum_length": "grpolab.grpo.aggregation:token_sum_length",
}

# KL estimator (grpo/kl.py), from the log ratio of the reference to the policy.
KL_ESTIMATORS = {
    "k1": "grpolab.grpo.kl:k1",
    "k2": "grpolab.grpo.kl:k2",
    "k3": "grpolab.grpo.kl:k3",
    "abs": "grpolab.grpo.kl:absolute",
}

# Advantage estimator (grpo/advantages.py): the baseline that rewards are compared with.
ADVANTAGES = {
    "none": "grpolab.grpo.advantages:no_baseline",
    "group_mean": "grpolab.grpo.advantages:group_mean",
    "batch_mean": "grpolab.grpo.advantages:batch_mean",
    "leave_one_out": "grpolab.grpo.advantages:leave_one_out",
    "length_weighted": "grpolab.grpo.advantages:length_weighted",
    "second_best": "grpolab.grpo.advantages:second_best",
    "given": "grpolab.grpo.advantages:given",
}

# Scale (grpo/advantages.py): what a reward less its baseline is divided by.
SCALES = {
    "none": "grpolab.grpo.advantages:unscaled",
    "group": "grpolab.grpo.advantages:group_std",
    "group_population": "grpolab.grpo.advantages:group_population_std",
    "batch": "grpolab.grpo.advantages:batch_std",
    "leave_one_out": "grpolab.grpo.advantages:leave_one_out_std",
    "group_mean": "grpolab.grpo.advantages:group_mean_reward",
    "nonzero_share": "grpolab.grpo.advantages:nonzero_share",
}

# Faults of the training loop (grpo/faults.py), planted by conf/fault/: what of the loop's steps is replaced.
FAULTS = {
    name: f"grpolab.grpo.faults:{name}"
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
# Framework adapters (frameworks/): what a framework does its own way, and its metrics under its names.
DIALECTS = {name: f"grpolab.frameworks.{name}:DIALECT" for name in FRAMEWORKS}
# What of a framework's own outputs can be replayed (frameworks/).
CONFORMANCE = {name: f"grpolab.frameworks.{name}{'_replay' if name == 'verl' else ''}:PEER" for name in FRAMEWORKS}


@functools.cache
def resolve(path: str) -> Any:
    """The object at `package.module:name`; raises ImportError or AttributeError where nothing is there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
