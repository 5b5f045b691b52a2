"""Rules about the loss besides its clip range: weights that scale every gradient, averages, the KL."""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpolab.lint.clip import ONE_A_SEQUENCE
from grpolab.lint.reuse import absolute_cap
from grpolab.lint.rule import rule
from grpolab.settings import RunSettings

# Every token weighs the same. LUSPO's sums of sequences are left out: there the length is the point.
BY_TOKEN = {
    "token_mean_rollout",
    "token_mean_minibatch",
    "token_mean_microbatch",
    "token_sum",
    "token_sum_constant",
    "token_sum_length",
}


FAR = 10.0  # no policy is that far from its reference on a token that matters


@rule("warning", "epsilon_high")
def cap_scales_gradient(settings: RunSettings) -> Iterator[str]:
    """TRL's CISPO takes `epsilon_high` as the cap itself: below 1 it multiplies every gradient, also at ratio 1. Unset
    it falls back to epsilon, 0.2.
    """
    cap = absolute_cap(settings)
    if cap is not None and cap < 1:
        yield (
            f"epsilon_high={cap:g} is the cap itself in TRL's cispo, not 1 + epsilon_high: every weight at ratio"
            f" {cap:g} and above becomes {cap:g}, so on-policy gradients are scaled by {cap:g} (ScaleRL has 5.0)"
        )


@rule("warning", "aggregation")
def sequences_weighted_by_length(settings: RunSettings) -> Iterator[str]:
    """One loss per sequence averaged over tokens: each sequence then weighs as much as it is long. GSPO's is
    sequence_mean.
    """
    by_kernel = settings.kernel == "gmpo"
    by_ratio = settings.importance_sampling_level in ONE_A_SEQUENCE
    own_average = settings.framework == "verl" and (by_kernel or settings.importance_sampling_level == "sequence_token")
    longest = settings.max_completion_length
    if (by_ratio or by_kernel) and settings.aggregation in BY_TOKEN and longest > 1 and not own_average:
        what = "kernel=gmpo" if by_kernel else f"importance_sampling_level={settings.importance_sampling_level}"
        yield (
            f"{what} has one ratio per sequence, and aggregation={settings.aggregation} weighs each sequence by its"
            f" length, 1 to {longest}: GSPO's is sequence_mean"
        )


@rule("warning", "kl_output_clamp")
def kl_clamp_ends_gradient(settings: RunSettings) -> Iterator[str]:
    """Beyond a clamp the KL has no gradient: it lets go where the policy is furthest from the reference."""
    plain = settings.beta > 0 and settings.kl_placement == "loss" and settings.kl_gradient == "plain"
    bounds = _bounds(settings) if plain else {}
    if bounds and min(above for above, _ in bounds.values()) < FAR:
        above, below = min(high for high, _ in bounds.values()), max(low for _, low in bounds.values())
        yield (
            f"with {' and '.join(bounds)} the KL (beta={settings.beta:g}) has no gradient where log(reference / policy)"
            f" is above {above:.2f} or below {below:.2f}"
        )


def _bounds(settings: RunSettings) -> dict[str, tuple[float, float]]:
    """Where the gradient ends, above and below, by each clamp that is set, with its value."""
    found = {}
    if (most := settings.kl_input_clamp) is not None:
        found[f"kl_input_clamp={most:g}"] = (most, -most)
    if (most := settings.kl_output_clamp) is not None:
        reach = math.sqrt(2 * most) if settings.kl_estimator == "k2" else most
        k3 = settings.kl_estimator == "k3"
        found[f"kl_output_clamp={most:g}"] = (_k3_reaches(most, 1), -_k3_reaches(most, -1)) if k3 else (reach, -reach)
    return found


def _k3_reaches(value: float, sign: int) -> float:
    """|q| at which exp(q) - q - 1 is `value`, for q of that sign; by bisection."""
    low, high = 0.0, value + 2.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = math.exp(min(sign * middle, 700.0)) - sign * middle - 1  # exp(710) would overflow
        low, high = (low, middle) if reached > value else (middle, high)
    return high
