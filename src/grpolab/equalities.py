"""Find runs that compute one function although their settings differ: a table of known equalities.

A run's point is the mapping of the resolved settings that decide its function. An equality returns new values for some
keys of the point that leave the gradient unchanged. Equalities are applied in order, each to the result of the one
before. Two runs compute the same function if their points are equal after the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from grpolab.registry import SURROGATES
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings

Point = dict[str, Any]
Equality = Callable[[RunSettings, Point], Point]  # users read its docstring

NOT_THE_FUNCTION = {"machine", "seed", "evaluation", "diagnostics"}
EXACT: list[Equality] = []  # those that hold up to rounding, in order


def exact(equality: Equality) -> Equality:
    """Add an equality to EXACT."""
    EXACT.append(equality)
    return equality


def point_of(run: RunSettings) -> Point:
    """Return the settings that decide the function, by key, as they are resolved."""
    return resolve_run(run).model_dump(exclude=NOT_THE_FUNCTION)


def rewrite(run: RunSettings, table: Sequence[Equality] = EXACT) -> Point:
    """Return a canonical form of the run's settings: two runs compute the same function if it is equal for both."""
    point = point_of(run)
    for equality in table:
        point |= equality(run, point)
    return point


def differences(first: Point, second: Point) -> dict[str, tuple[Any, Any]]:
    """Return both values of each key that differs."""
    return {key: (first[key], second[key]) for key in first if first[key] != second[key]}


def explain_equality(first: RunSettings, second: RunSettings, table: Sequence[Equality] = EXACT) -> list[str] | None:
    """Return, in words, the equalities by which two runs compute the same function; None if they do not."""
    points, reasons = [point_of(first), point_of(second)], []
    before = differences(*points)
    for equality in table:
        points = [point | equality(run, point) for run, point in zip((first, second), points, strict=True)]
        if (after := differences(*points)) != before:
            reasons.append(describe(equality))
        before = after
    return None if before else reasons


def describe(equality: Equality) -> str:
    """Return an equality in words: its docstring."""
    return " ".join((equality.__doc__ or "").split())


def absolute_cap(run: RunSettings) -> float | None:
    """Return the cap of TRL's CISPO, which is `epsilon_high` itself, not 1 + epsilon_high; None for any other run."""
    return run.epsilon_above if run.framework == "trl" and run.kernel == "cispo" else None


MEANS = {"sequence_mean", "token_mean_minibatch", "token_mean_rollout"}
MEANS_OF_ONE_TOKEN = MEANS | {"sequence_sum", "token_sum_constant"}


@exact
def written_form(run: RunSettings, point: Point) -> Point:
    """the minimum of two surrogates and the maximum of their negatives are one function"""
    return {"loss_form": "min_positive"}


@exact
def switched_off(run: RunSettings, point: Point) -> Point:
    """entropy_coef=0 and top_entropy_quantile=1 turn those options off"""
    off = {"entropy_coef": 0.0, "top_entropy_quantile": 1.0}
    return {key: None for key, value in off.items() if point[key] == value}


@exact
def never_empty(run: RunSettings, point: Point) -> Point:
    """no completion is empty, so a mean over the non-empty sequences is the mean over all"""
    masks, average = run.mask_truncated_completions, point["aggregation"]  # those that are cut off are empty then
    return {} if masks or ":" in average else {"aggregation": average.removesuffix("_nonempty")}


@exact
def one_micro_batch(run: RunSettings, point: Point) -> Point:
    """without micro-batching bnpo's mean over a micro-batch is dapo's over the batch"""
    whole = point["micro_batch_size"] == run.minibatch_size
    return {"aggregation": "token_mean_minibatch"} if whole and point["aggregation"] == "token_mean_microbatch" else {}


@exact
def one_minibatch(run: RunSettings, point: Point) -> Point:
    """a single minibatch is the rollout batch"""
    single = run.num_minibatches == 1
    return {"aggregation": "token_mean_rollout"} if single and point["aggregation"] == "token_mean_minibatch" else {}


@exact
def micro_batching(run: RunSettings, point: Point) -> Point:
    """micro-batching changes the result of bnpo's aggregation (token_mean_microbatch) only"""
    return {} if point["aggregation"] == "token_mean_microbatch" else {"micro_batch_size": None}


@exact
def one_token(run: RunSettings, point: Point) -> Point:
    """where completions have one token, the token is the sequence"""
    if run.max_completion_length > 1 or run.framework:
        return {}
    averages = point["aggregation"] in MEANS_OF_ONE_TOKEN
    return {"importance_sampling_level": "token"} | ({"aggregation": "sequence_mean"} if averages else {})


@exact
def average_of_verl(run: RunSettings, point: Point) -> Point:
    """in verl sapo and geo_mean always average per sequence; `aggregation` only affects KL and entropy terms"""
    if run.framework != "verl" or run.kernel not in ("sapo", "gmpo") or point["aggregation"] == "sequence_mean":
        return {}
    beside = f", beside {point['aggregation']}" if run.beta or point["entropy_coef"] else ""
    return {"aggregation": f"sequence_mean{beside}"}


@exact
def absolute_caps(run: RunSettings, point: Point) -> Point:
    """TRL's epsilon_high is CISPO's cap itself; elsewhere the cap is 1 + epsilon_high"""
    cap = absolute_cap(run)
    return {} if cap is None else {"epsilon_high": cap - 1}


@exact
def ratio_of_one(run: RunSettings, point: Point) -> Point:
    """at ratio 1 every level, kernel and clip range has the gradient of -A log pi"""
    open_range = min(run.epsilon, point["epsilon_high"]) > 0 and (run.delta or 2.0) > 1
    if not SURROGATES[run.kernel].policy_gradient_at_one or not run.ratio_is_one or not open_range:
        return {}
    silent = dict.fromkeys(("epsilon", "epsilon_high", "delta", "dual_clip", "log_ratio_clamp", "kernel_options"))
    level = {} if point["kl_gradient"] == "importance_weighted" else {"importance_sampling_level": "token"}
    return {"kernel": "policy_gradient", **silent, **level}


@exact
def gspo_token(run: RunSettings, point: Point) -> Point:
    """GSPO and GSPO-token have one gradient where a completion has one advantage"""
    same = run.kernel == "clipped" and point["kl_gradient"] != "importance_weighted" and run.kl_placement != "reward"
    by_token = point["importance_sampling_level"] == "sequence_token"
    return {"importance_sampling_level": "sequence"} if same and by_token and not run.whiten_advantages else {}


@exact
def delta_outside(run: RunSettings, point: Point) -> Point:
    """delta above 1 + epsilon_high is dual clip"""
    outside = run.kernel == "clipped" and (run.delta or 0.0) > 1 + (point["epsilon_high"] or 0.0)
    return {"delta": None, "dual_clip": run.delta} if outside and point["delta"] is not None else {}


@exact
def unreachable_cap(run: RunSettings, point: Point) -> Point:
    """an outer cap above what log_ratio_clamp lets through never acts"""
    clamp, cap = point["log_ratio_clamp"], point["dual_clip"]
    return {"dual_clip": None} if None not in (clamp, cap) and cap > math.exp(clamp) else {}


@exact
def no_bounds(run: RunSettings, point: Point) -> Point:
    """without bounds CISPO and the clipped surrogate have the gradient of the plain ratio"""
    bare = (point["epsilon_high"], point["delta"], point["dual_clip"]) == (math.inf, None, None) and run.epsilon >= 1
    unbounded = bare and point["kernel"] in ("cispo", "clipped") and run.importance_sampling_level != "segment"
    return {"kernel": "ratio"} if unbounded else {}


@exact
def range_of_nothing(run: RunSettings, point: Point) -> Point:
    """a kernel without a clip ignores the clip range"""
    unused = point["kernel"] in ("ratio", "policy_gradient", "sapo", "vespo", "dro")
    return {"epsilon": None, "epsilon_high": None} if unused else {}


def equal_lengths(run: RunSettings, point: Point) -> Point:
    """where answers have one length, a mean over sequences of means over tokens is the mean over tokens"""
    if run.task.name != "sorting":
        return {}
    constant = point["aggregation"] == "token_sum_constant" and run.max_completion_length == run.task.length + 1
    return {"aggregation": "token_mean_rollout"} if constant or point["aggregation"] in MEANS else {}


# `equal_lengths` is exact for right answers only: a wrong one may end early or late.
AT_EQUAL_LENGTHS = (*EXACT, equal_lengths)
