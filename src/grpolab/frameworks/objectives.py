"""Objectives as code writes them, for frameworks' options, replays and tables: an axis that is not given is off.

Values are not checked, because some frameworks allow what our settings refuse. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grpolab.settings.objective import KL_AXES, Objective, SamplerCorrection


def make_objective(
    importance_sampling_level: str = "token",
    kernel: str = "clipped",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    loss_form: str = "min_positive",
    aggregation: str = "token_mean_minibatch",
    beta: float = 0.0,
    *,
    kernel_options: Mapping[str, float] = MappingProxyType({}),
    **others: Any,
) -> Objective:
    """Return an objective of these axes; one that is not given is as in PPO. Raises TypeError for an unknown axis."""
    if unknown := others.keys() - Objective.model_fields.keys():
        raise TypeError(f"{', '.join(sorted(unknown))} is no axis of an objective")
    axes: dict[str, Any] = dict.fromkeys(Objective.model_fields)
    axes |= {"kl_estimator": "k3", "kl_gradient": "plain", "entropy_coef": 0.0, **others}
    axes |= {"importance_sampling_level": importance_sampling_level, "kernel": kernel, "delta": delta}
    axes |= {"epsilon": epsilon, "epsilon_high": epsilon if epsilon_high is None else epsilon_high}
    axes |= {"loss_form": loss_form, "aggregation": aggregation, "beta": beta}
    axes["kernel_options"] = {kernel: dict(kernel_options)} if kernel_options else None
    return Objective.model_construct(**axes)


def make_correction(level: str, mode: str, low: float, high: float) -> SamplerCorrection:
    """Return a weight for another sampler."""
    return SamplerCorrection.model_construct(level=level, mode=mode, low=low, high=high)


def kl_axes(
    beta: float,
    estimator: str,
    gradient: str = "plain",
    input_clamp: float | None = None,
    output_clamp: float | None = None,
) -> dict[str, Any]:
    """Return the axes of the KL to the reference; only its weight if that is 0."""
    axes = (estimator, gradient, input_clamp, output_clamp) if beta else (None,) * len(KL_AXES)
    return {"beta": beta, **dict(zip(KL_AXES, axes, strict=True))}
