"""Rules about the clip range: whether it can act, and whether its numbers fit the ratio that they bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpolab.lint.reuse import absolute_cap, ratio_is_one
from grpolab.lint.rule import rule
from grpolab.registry import UNCLIPPED
from grpolab.settings import RunSettings

# Kernels whose clip range bounds the ratio (or its logarithm), and ends the gradient there.
BOUNDS_THE_RATIO = {"clipped", "policy_gradient_masked", "cispo_masked", "band", "clip_cov", "gmpo"}
ONE_A_SEQUENCE = {"sequence", "sequence_token"}
# The field's range of a token's ratio. A mean over T independent tokens moves less, by sqrt(T).
TOKEN_EPSILON, TOO_WIDE = 0.2, 3.0
# What rounding alone does to a token's log-prob (standard deviation, measured on the tiny model: 1.2e-6 and 0.016).
LOG_PROB_NOISE = {"float32": 1e-6, "bfloat16": 0.016}
# What a dialect switches on without being asked.
DUAL_CLIP_BY_DEFAULT = {"verl": 3.0}


def clip_range(settings: RunSettings) -> tuple[float, float]:
    """`epsilon` and `epsilon_high`, as they act."""
    return settings.epsilon, settings.resolved_axes()["epsilon_high"]


@rule("warning", "num_iterations or num_minibatches")
def clip_cannot_bind(settings: RunSettings) -> Iterator[str]:
    """One update per fresh batch: every ratio is exactly 1, so that no clip range can act, and clip_ratio is 0."""
    cap = absolute_cap(settings)
    if settings.kernel not in UNCLIPPED and ratio_is_one(settings) and (cap is None or cap >= 1):
        low, high = clip_range(settings)
        yield (
            "num_iterations=1 and num_minibatches=1 make one update per batch, with every ratio exactly 1:"
            f" epsilon={low:g} and epsilon_high={high:g} cannot act, the clip fraction stays 0"
        )


@rule("warning", "epsilon or importance_sampling_level")
def epsilon_of_another_level(settings: RunSettings) -> Iterator[str]:
    """A sequence ratio is a mean over T tokens and moves less than a token's, by about sqrt(T): a token's clip range
    hardly acts on it (dialects: 2.9% instead of 6.6% clipped at 0.2; GSPO has 3e-4).
    """
    low, _ = clip_range(settings)
    length = settings.max_completion_length
    comparable = TOKEN_EPSILON / math.sqrt(length)
    sequence = settings.importance_sampling_level in ONE_A_SEQUENCE and settings.kernel in BOUNDS_THE_RATIO
    if sequence and not ratio_is_one(settings) and low > TOO_WIDE * comparable:
        yield (
            f"epsilon={low:g} at importance_sampling_level={settings.importance_sampling_level} is"
            f" {low / comparable:.0f} times what compares with a token's {TOKEN_EPSILON} over {length} tokens"
            f" ({comparable:.1g}): it will hardly clip"
        )


@rule("warning", "epsilon")
def epsilon_below_noise(settings: RunSettings) -> Iterator[str]:
    """The clip range is narrower than what rounding in `dtype` does to the ratio of a completion of that length: it
    clips at random.
    """
    level, length = settings.importance_sampling_level, settings.max_completion_length
    averaged = length if level in ONE_A_SEQUENCE else 1
    noise = LOG_PROB_NOISE[settings.dtype] / math.sqrt(averaged)
    narrow = min(clip_range(settings))
    if settings.kernel in BOUNDS_THE_RATIO and not ratio_is_one(settings) and narrow < noise:
        over = f" over {length} tokens" if averaged > 1 else ""
        yield (
            f"a clip range of {narrow:g} is below what {settings.dtype} rounds a {level} ratio by{over}"
            f" (about {noise:.1g}): it clips at random"
        )


@rule("warning", "delta")
def delta_inside_range(settings: RunSettings) -> Iterator[str]:
    """The outer cap delta lies inside the clip range, and then caps positive advantages too."""
    _, high = clip_range(settings)
    if settings.kernel == "clipped" and settings.delta is not None and settings.delta < 1 + high:
        yield (
            f"delta={settings.delta:g} is below 1 + epsilon_high = {1 + high:g}: it caps positive advantages too, and"
            " epsilon_high never acts"
        )


@rule("note", "dual_clip")
def dual_clip_by_default(settings: RunSettings) -> Iterator[str]:
    """A dialect has dual clip switched on although its plain name (GRPO, PPO) does not say so."""
    default = DUAL_CLIP_BY_DEFAULT.get(settings.framework or "")
    if default is not None and settings.dual_clip == default and settings.kernel == "clipped":
        yield (
            f"{settings.framework} has dual clip on by default: where A < 0 no ratio counts above"
            f" dual_clip={default:g}, in GRPO's paper there is no such bound"
        )
