"""Dialects: what a framework does its own way, one adapter each, built from the core's functions.

An adapter holds the accidents that the core does not have (a float32 exponential, `+1e-8` in a divisor, an unmasked
numerator) and the framework's metrics under its own names. Its defaults stand in `conf/dialect/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpolab.learn.objective import CORE, Loss, LossInputs, Objective, Stages, policy_loss
from grpolab.peer_metrics import CLIP_METRIC
from grpolab.registry import DIALECTS, resolve


def _no_metrics(objective: Objective, inputs: LossInputs, loss: Loss) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Dialect:
    """A framework as differences from the core."""

    # The framework's own option names and values -> the point on our axes.
    objective: Callable[[Mapping[str, Any]], Objective]
    stages: Stages = field(default_factory=Stages)
    # Metrics of an update under the framework's names, from a minibatch and its loss; called without gradient.
    metrics: Callable[[Objective, LossInputs, Loss], dict[str, float]] = _no_metrics


def dialect(framework: str) -> Dialect:
    """The adapter of a framework."""
    found: Dialect = resolve(DIALECTS[framework])
    return found


def stages_of(framework: str | None) -> Stages:
    """How the loss is computed in that framework; the core's way for None."""
    return CORE if framework is None else dialect(framework).stages


def metrics_of(framework: str, objective: Objective, inputs: LossInputs, loss: Loss | None = None) -> dict[str, float]:
    """What that framework logs of a minibatch; call it without gradient.

    `loss` is the minibatch's where it was computed that framework's way already.
    """
    adapter = dialect(framework)
    return adapter.metrics(objective, inputs, loss or policy_loss(objective, inputs, adapter.stages))


def clip_conventions(objective: Objective, inputs: LossInputs) -> dict[str, float]:
    """The clip fraction of a minibatch by each framework's definition; without those that have none for this kernel.

    All at the objective's own ratio, kernel and range. KL, entropy bonus, masks and sampler weights are left out: each
    framework has its own, and no other knows them.
    """
    clip = replace(
        objective,
        beta=0.0,
        kl_estimator="k3",
        kl_gradient="plain",
        entropy_coef=0.0,
        top_entropy_quantile=None,
        off_policy_mask_threshold=None,
        sampler_correction=None,
    )
    bare = replace(inputs, reference_log_probs_BT=None, sampler_log_probs_BT=None, entropy_BT=None)
    found = {name: metrics_of(name, clip, bare) for name in CLIP_METRIC}
    return {name: found[name][metric] for name, metric in CLIP_METRIC.items() if metric in found[name]}
