"""When the policy that is trained is still the one that sampled: every importance ratio is then exactly 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from grpolab.settings.run import RunSettings


def updates_per_batch(settings: RunSettings) -> int:
    """Optimiser steps on one rollout batch."""
    return settings.num_iterations * settings.num_minibatches


def ratio_is_one(settings: RunSettings) -> bool:
    """Whether every ratio is exactly 1: one update per batch, and old log-probs that are those of the same weights."""
    of_others = settings.staleness > 0 or settings.sampler_dtype not in (None, settings.dtype)
    return updates_per_batch(settings) == 1 and not (settings.old_log_probs == "sampler" and of_others)


def absolute_cap(settings: RunSettings) -> float | None:
    """TRL's CISPO cap, which is `epsilon_high` itself and not 1 + epsilon_high; None elsewhere."""
    cap = settings.resolved_axes()["epsilon_high"]
    return cap if settings.framework == "trl" and settings.kernel == "cispo" else None


# ----------------------------------------------------------------------------------------------------------------------
# Which settings are the same function written in two ways: a table of known equalities.
#
# Each entry is a function of a run and of its point (settings by key) that names what the point may be rewritten to.
# Two runs are the same function when their points are equal after all rewritings; the table's order matters.


Point = dict[str, Any]
Equality = Callable[[RunSettings, Point], Point]

# What is measured, and where, is no part of the function; a seed is no arm.
NOT_THE_FUNCTION = {"machine", "seed", "evaluation", "diagnostics"}
# Kernels whose gradient at ratio 1 is that of -A log pi.
POLICY_GRADIENT_AT_ONE = {
    "clipped",
    "ratio",
    "policy_gradient",
    "policy_gradient_masked",
    "cispo",
    "cispo_masked",
    "sapo",
    "vespo",
    "gmpo",
    "dro",
}
MEANS_AND_SUMS_OF_ONE = {
    "sequence_mean",
    "sequence_sum",
    "token_mean_minibatch",
    "token_mean_rollout",
    "token_sum_constant",
}
MEANS = MEANS_AND_SUMS_OF_ONE - {"sequence_sum", "token_sum_constant"}


def written_form(run: RunSettings, point: Point) -> Point:
    """the minimum of two surrogates and the maximum of their negatives are one function"""
    return {"loss_form": "min_positive"}


def switched_off(run: RunSettings, point: Point) -> Point:
    """a weight of 0 and a share of 1 are switches that are off"""
    off = {"entropy_coef": 0.0, "top_entropy_quantile": 1.0}
    return {key: None for key, value in off.items() if point[key] == value}


def never_empty(run: RunSettings, point: Point) -> Point:
    """no completion is empty, so that all sequences are those with a token"""
    return {"aggregation": point["aggregation"].removesuffix("_nonempty")}


def one_micro_batch(run: RunSettings, point: Point) -> Point:
    """without micro-batching bnpo's mean over a micro-batch is dapo's over the batch"""
    whole = point["micro_batch_size"] == run.minibatch_size
    return {"aggregation": "token_mean_minibatch"} if whole and _averages(point, "token_mean_microbatch") else {}


def one_minibatch(run: RunSettings, point: Point) -> Point:
    """a single minibatch is the rollout batch"""
    single = run.num_minibatches == 1
    return {"aggregation": "token_mean_rollout"} if single and _averages(point, "token_mean_minibatch") else {}


def micro_batching(run: RunSettings, point: Point) -> Point:
    """micro-batching changes no result, but bnpo's"""
    return {} if _averages(point, "token_mean_microbatch") else {"micro_batch_size": None}


def one_token(run: RunSettings, point: Point) -> Point:
    """completions of one token: the token is the sequence"""
    if run.max_completion_length > 1 or run.framework:
        return {}
    averages = point["aggregation"] in MEANS_AND_SUMS_OF_ONE
    return {"importance_sampling_level": "token"} | ({"aggregation": "sequence_mean"} if averages else {})


def own_average(run: RunSettings, point: Point) -> Point:
    """verl averages gspo, sapo and geo_mean by sequences, and only KL and entropy by aggregation"""
    by_sequence = run.kernel in ("sapo", "gmpo") or run.importance_sampling_level == "sequence_token"
    if run.framework != "verl" or not by_sequence or _averages(point, "sequence_mean"):
        return {}
    beside = f", beside {point['aggregation']}" if run.beta or point["entropy_coef"] else ""
    return {"aggregation": f"sequence_mean{beside}"}


def absolute_caps(run: RunSettings, point: Point) -> Point:
    """TRL's cap of CISPO is 1 + epsilon_high elsewhere"""
    cap = absolute_cap(run)
    return {} if cap is None else {"epsilon_high": cap - 1}


def ratio_of_one(run: RunSettings, point: Point) -> Point:
    """at ratio 1 every level, kernel and clip range has the gradient of -A log pi"""
    open_range = min(run.epsilon, point["epsilon_high"]) > 0 and (run.delta or 2.0) > 1
    if run.kernel not in POLICY_GRADIENT_AT_ONE or not ratio_is_one(run) or not open_range:
        return {}
    silent = dict.fromkeys(("epsilon", "epsilon_high", "delta", "dual_clip", "log_ratio_clamp", "kernel_options"))
    level = {} if point["kl_gradient"] == "importance_weighted" else {"importance_sampling_level": "token"}
    return {"kernel": "policy_gradient", **silent, **level}


def gspo_token(run: RunSettings, point: Point) -> Point:
    """GSPO and GSPO-token have one gradient where a completion has one advantage"""
    same = run.kernel == "clipped" and point["kl_gradient"] != "importance_weighted" and run.kl_placement != "reward"
    by_token = point["importance_sampling_level"] == "sequence_token"
    return {"importance_sampling_level": "sequence"} if same and by_token and not run.whiten_advantages else {}


def delta_outside(run: RunSettings, point: Point) -> Point:
    """delta above 1 + epsilon_high is dual clip"""
    outside = run.kernel == "clipped" and (run.delta or 0.0) > 1 + (point["epsilon_high"] or 0.0)
    return {"delta": None, "dual_clip": run.delta} if outside and point["delta"] is not None else {}


def unreachable_cap(run: RunSettings, point: Point) -> Point:
    """an outer cap above what log_ratio_clamp lets through never acts"""
    clamp, cap = point["log_ratio_clamp"], point["dual_clip"]
    return {"dual_clip": None} if None not in (clamp, cap) and cap > math.exp(clamp) else {}


def no_bounds(run: RunSettings, point: Point) -> Point:
    """without bounds CISPO and the clipped surrogate have the gradient of the plain ratio"""
    bare = (point["epsilon_high"], point["delta"], point["dual_clip"]) == (math.inf, None, None) and run.epsilon >= 1
    unbounded = bare and point["kernel"] in ("cispo", "clipped") and run.importance_sampling_level != "segment"
    return {"kernel": "ratio"} if unbounded else {}


def range_of_nothing(run: RunSettings, point: Point) -> Point:
    """a kernel without a clip has no use for a range"""
    unused = point["kernel"] in ("ratio", "policy_gradient", "sapo", "vespo", "dro")
    return {"epsilon": None, "epsilon_high": None} if unused else {}


def equal_lengths(run: RunSettings, point: Point) -> Point:
    """answers of one length: a mean over sequences of means over tokens is the mean over tokens"""
    if run.task.name != "sorting":
        return {}
    constant = point["aggregation"] == "token_sum_constant" and run.max_completion_length == run.task.length + 1
    return {"aggregation": "token_mean_rollout"} if constant or point["aggregation"] in MEANS else {}


def _averages(point: Point, name: str) -> bool:
    return bool(point["aggregation"] == name)


EXACT: tuple[Equality, ...] = (
    written_form,
    switched_off,
    never_empty,
    one_micro_batch,
    one_minibatch,
    micro_batching,
    one_token,
    own_average,
    absolute_caps,
    ratio_of_one,
    gspo_token,
    delta_outside,
    unreachable_cap,
    no_bounds,
    range_of_nothing,
)
# Up to answers that end early or late, which the task's right ones do not.
AT_EQUAL_LENGTHS = (*EXACT, equal_lengths)


def point(run: RunSettings) -> Point:
    """What decides the function, by key, before any rewriting."""
    return run.resolved().model_dump(exclude=NOT_THE_FUNCTION)


def rewritten(run: RunSettings, table: Sequence[Equality] = EXACT) -> Point:
    """The run's point after all rewritings."""
    found = point(run)
    for equality in table:
        found |= equality(run, found)
    return found


def different(first: Point, second: Point) -> set[str]:
    """Keys with different values."""
    return {key for key in first if first[key] != second[key]}


def why_the_same(first: RunSettings, second: RunSettings, table: Sequence[Equality] = EXACT) -> list[str] | None:
    """The equalities that make two runs one function; None where they are not."""
    points, reasons = [point(first), point(second)], []
    for equality in table:
        before = _values_that_differ(*points)
        points = [found | equality(run, found) for run, found in zip((first, second), points, strict=True)]
        if before != _values_that_differ(*points):
            reasons.append(" ".join((equality.__doc__ or "").split()))
    return None if different(*points) else reasons


def _values_that_differ(first: Point, second: Point) -> Point:
    return {key: (first[key], second[key]) for key in different(first, second)}
