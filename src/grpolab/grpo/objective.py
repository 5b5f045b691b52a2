"""One point in the space of GRPO losses: what `loss.py` computes. No tensor is in it, and torch is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpolab.settings.run import RunSettings


@dataclass(frozen=True)
class SamplerCorrection:
    """The weight for what the sampler's policy was not the trainer's. Field by field as in the settings."""

    level: str  # token, sequence (product), geometric
    mode: str  # truncate, mask
    low: float
    high: float


@dataclass(frozen=True)
class Objective:
    """One point in the space of GRPO losses. Field by field as in the settings; what has a default is off by it.

    Not the settings themselves, because those have no defaults and refuse what replays of frameworks need.
    """

    importance_sampling_level: str
    kernel: str
    epsilon: float
    epsilon_high: float
    delta: float | None
    loss_form: Literal["min_positive", "max_negative"]
    aggregation: str
    beta: float
    dual_clip: float | None = None
    log_ratio_clamp: float | None = None
    kernel_options: Mapping[str, float] = field(default_factory=dict)
    kl_estimator: str = "k3"
    kl_gradient: str = "plain"
    kl_input_clamp: float | None = None
    kl_output_clamp: float | None = None
    entropy_coef: float = 0.0
    top_entropy_quantile: float | None = None
    off_policy_mask_threshold: float | None = None
    sampler_correction: SamplerCorrection | None = None

    @property
    def low(self) -> float:
        """Lower end of the clip range."""
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """Upper end of the clip range; inf: no upper clip."""
        return 1 + self.epsilon_high

    @classmethod
    def of(cls, settings: RunSettings) -> Objective:
        """The objective that the settings describe."""
        resolved = settings.resolved()
        values: dict[str, Any] = {name: getattr(resolved, name) for name in cls.__dataclass_fields__}
        values["kernel_options"] = (resolved.kernel_options or {}).get(resolved.kernel, {})
        values["entropy_coef"] = resolved.entropy_coef or 0.0
        if resolved.kl_placement != "loss":
            values["beta"] = 0.0
        correction = resolved.sampler_correction
        values["sampler_correction"] = correction and SamplerCorrection(**correction.model_dump())
        return cls(**values)


def kl_axes(
    beta: float,
    estimator: str,
    gradient: str = "plain",
    input_clamp: float | None = None,
    output_clamp: float | None = None,
) -> dict[str, Any]:
    """The axes of the KL to the reference; only its weight where that is 0."""
    axes = {
        "kl_estimator": estimator,
        "kl_gradient": gradient,
        "kl_input_clamp": input_clamp,
        "kl_output_clamp": output_clamp,
    }
    return {"beta": beta, **(axes if beta else dict.fromkeys(axes))}
