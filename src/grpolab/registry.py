"""The names that settings choose from, each with the place of its function.

Settings are checked without importing torch; `resolve` imports when a run begins.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

# Importance ratio (grpo/ratios.py): how far the policy has moved, per token or per sequence.
RATIOS = {level: f"grpolab.grpo.ratios:{level}_ratio" for level in ("token", "sequence", "sequence_token", "segment")}

POSITIVE, ANY_SIGN = (0.0, float("inf")), (float("-inf"), float("inf"))


class Surrogate(NamedTuple):
    """A policy loss, chosen by the setting `kernel`: its function, and what settings must know about it."""

    function: str
    options: Mapping[str, tuple[float, float]] = {}  # its own numbers, `kernel_options.<kernel>`: (more than, at most)
    clips: bool = True  # it reads the clip range, epsilon and epsilon_high
    bounds_the_ratio: bool = False  # its range bounds the ratio or its logarithm, and ends the gradient there
    policy_gradient_at_one: bool = False  # at ratio 1 its gradient is that of -A log pi
    draws_tokens: bool = False  # it needs uniform numbers
    whole_minibatch: bool = False  # it compares the tokens of a minibatch with each other, and needs it in one piece


# Surrogate (grpo/surrogates.py, frameworks/kernels.py): the loss of a token or sequence before averaging.
COMMON, MORE = "grpolab.grpo.surrogates", "grpolab.frameworks.kernels"
SURROGATES = {
    "clipped": Surrogate(f"{COMMON}:clipped", bounds_the_ratio=True, policy_gradient_at_one=True),
    "ratio": Surrogate(f"{COMMON}:ratio", clips=False, policy_gradient_at_one=True),
    "policy_gradient": Surrogate(f"{COMMON}:policy_gradient", clips=False, policy_gradient_at_one=True),
    "policy_gradient_masked": Surrogate(
        f"{COMMON}:policy_gradient_masked", bounds_the_ratio=True, policy_gradient_at_one=True
    ),
    "cispo": Surrogate(f"{COMMON}:cispo", policy_gradient_at_one=True),
    "cispo_masked": Surrogate(f"{MORE}:cispo_masked", bounds_the_ratio=True, policy_gradient_at_one=True),
    "band": Surrogate(f"{MORE}:band", bounds_the_ratio=True),
    "aspo": Surrogate(f"{MORE}:aspo", {"cap": POSITIVE}),
    "topr": Surrogate(f"{MORE}:topr", {"positive_weight": POSITIVE, "negative_weight": POSITIVE}, clips=False),
    "vespo": Surrogate(
        f"{MORE}:vespo",
        dict.fromkeys(("k_positive", "lambda_positive", "k_negative", "lambda_negative"), POSITIVE),
        clips=False,
        policy_gradient_at_one=True,
    ),
    "dro": Surrogate(f"{MORE}:dro", {"coefficient": POSITIVE}, clips=False, policy_gradient_at_one=True),
    "sapo": Surrogate(
        f"{MORE}:sapo",
        {"temperature_positive": POSITIVE, "temperature_negative": POSITIVE},
        clips=False,
        policy_gradient_at_one=True,
    ),
    "gmpo": Surrogate(f"{MORE}:gmpo", bounds_the_ratio=True, policy_gradient_at_one=True),
    "clip_cov": Surrogate(
        f"{MORE}:clip_cov",
        {"share": (0.0, 1.0), "lower": ANY_SIGN, "upper": ANY_SIGN},
        draws_tokens=True,
        whole_minibatch=True,
        bounds_the_ratio=True,
    ),
    "kl_cov": Surrogate(
        f"{MORE}:kl_cov",
        {"share": (0.0, 1.0), "coefficient": POSITIVE},
        clips=False,
        whole_minibatch=True,
    ),
    "dppo_tv": Surrogate(f"{MORE}:dppo_tv", {"cap": POSITIVE}),
    "dppo_kl": Surrogate(f"{MORE}:dppo_kl", {"cap": POSITIVE}),
    "dppo_ratio": Surrogate(f"{MORE}:dppo_ratio", {"advantage_weight": POSITIVE, "drift_weight": POSITIVE}),
    "ipo": Surrogate(f"{MORE}:ipo", {"advantage_weight": POSITIVE, "drift_weight": POSITIVE}),
}

# Aggregation (grpo/aggregation.py): how per-token losses become one number; the denominator is in the name.
AGGREGATIONS = {
    name: f"grpolab.grpo.aggregation:{name}"
    for name in (
        *("sequence_mean", "sequence_mean_nonempty", "sequence_sum", "sequence_sum_nonempty"),
        *("token_mean_rollout", "token_mean_minibatch", "token_mean_microbatch"),
        *("token_sum", "token_sum_constant", "token_sum_length"),
    )
}

# KL estimator (grpo/kl.py), from the log ratio of the reference to the policy.
KL_ESTIMATORS = {
    "k1": "grpolab.grpo.kl:k1",
    "k2": "grpolab.grpo.kl:k2",
    "k3": "grpolab.grpo.kl:k3",
    "abs": "grpolab.grpo.kl:absolute",
}

# Advantage estimator (grpo/baselines.py): the baseline that rewards are compared with.
ADVANTAGES = {
    "none": "grpolab.grpo.baselines:no_baseline",
    "group_mean": "grpolab.grpo.baselines:group_mean",
    "batch_mean": "grpolab.grpo.baselines:batch_mean",
    "leave_one_out": "grpolab.grpo.baselines:leave_one_out",
    "length_weighted": "grpolab.grpo.baselines:length_weighted",
    "second_best": "grpolab.grpo.baselines:second_best",
    "given": "grpolab.grpo.baselines:given",
}

# Those that compare a completion with the others of its group, and have nothing to say about a group of one.
GROUP_BASELINES = {"group_mean", "leave_one_out", "length_weighted", "second_best"}

# Scale (grpo/baselines.py): what a reward less its baseline is divided by.
SCALES = {
    "none": "grpolab.grpo.baselines:unscaled",
    "group": "grpolab.grpo.baselines:group_std",
    "group_population": "grpolab.grpo.baselines:group_population_std",
    "batch": "grpolab.grpo.baselines:batch_std",
    "leave_one_out": "grpolab.grpo.baselines:leave_one_out_std",
    "group_mean": "grpolab.grpo.baselines:group_mean_reward",
    "nonzero_share": "grpolab.grpo.baselines:nonzero_share",
}

# Faults of the training loop (doctor/faults.py), planted by conf/fault/: learners that do one thing wrong.
FAULTS = {
    "aliased_old_policy": "grpolab.doctor.faults:AliasedOldPolicy",
    "resynchronised_old_policy": "grpolab.doctor.faults:ResynchronisedOldPolicy",
    "recomputed_old_log_probs": "grpolab.doctor.faults:RecomputedOldLogProbs",
    "frozen_parameters": "grpolab.doctor.faults:FrozenParameters",
    "low_precision_weights": "grpolab.doctor.faults:LowPrecisionWeights",
    "dropout": "grpolab.doctor.faults:Dropout",
    "visible_padding": "grpolab.doctor.faults:VisiblePadding",
    "temperature_mismatch": "grpolab.doctor.faults:TemperatureMismatch",
    "mask_mismatch": "grpolab.doctor.faults:MaskMismatch",
    "padding_in_clip_metric": "grpolab.doctor.faults:PaddingInClipMetric",
    "group_of_one": "grpolab.doctor.faults:GroupOfOne",
    "truncated_from_the_start": "grpolab.doctor.faults:TruncatedFromTheStart",
    "zero_gradient": "grpolab.doctor.faults:ZeroGradient",
    "gradient_explosion": "grpolab.doctor.faults:GradientExplosion",
    "not_finite": "grpolab.doctor.faults:NotFinite",
    "growing_sampler_gap": "grpolab.doctor.faults:GrowingSamplerGap",
}

# Frameworks (frameworks/): what each does its own way, its metrics under its names, and the replay of its outputs.
FRAMEWORKS = {
    name: f"grpolab.frameworks.{name}:FRAMEWORK"
    for name in (
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
}

# Loaded only where a run asks for it: what frameworks log of an update, and the processes of data_parallel.
LOGGED_METRICS = "grpolab.frameworks.framework:logged_metrics"
DATA_PARALLEL = "grpolab.run.parallel:together"
# The content of files and code that settings name, and a user's own task or reward.
CONTENT_OF = "grpolab.content:content_of"
ENVIRONMENT_READ = "grpolab.content:environment_read"
LOAD_OBJECT = "grpolab.tasks.imports:load_object"

# Tasks (tasks/), by the name of their settings; a user's own is named by its import path.
TASKS = {
    "addition": "grpolab.tasks.addition:Addition",
    "sorting": "grpolab.tasks.sorting:Sorting",
    "filler_sorting": "grpolab.tasks.filler_sorting:FillerSorting",
    "written_addition": "grpolab.tasks.written_addition:WrittenAddition",
    "char_count": "grpolab.tasks.char_count:CharCount",
    "reasoning_gym": "grpolab.tasks.reasoning_gym:ReasoningGym",
    "jsonl": "grpolab.tasks.jsonl:Jsonl",
}


@functools.cache
def resolve(path: str) -> Any:
    """Import the object at `package.module:name`. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
