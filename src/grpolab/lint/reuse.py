"""When the policy that is trained is still the one that sampled: every importance ratio is then exactly 1."""

from __future__ import annotations

from grpolab.settings import RunSettings


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
