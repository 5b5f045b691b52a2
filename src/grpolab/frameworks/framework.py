"""A framework as its differences from the core.

Each framework has one file, in this order: its options on our axes, the functions of the loss that it computes its own
way, its metrics under its names, the replays of its own outputs. Its accidents stand there (a float32 exponential,
`+1e-8` in a divisor, an unmasked numerator), and so do its defaults under its own names; `conf/dialect/` has them
under ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import Tensor

from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, policy_loss
from grpolab.meanings import CLIP_METRIC
from grpolab.registry import FRAMEWORKS, resolve
from grpolab.settings.objective import Objective


@dataclass(frozen=True)
class Replayed:
    """The outputs of our code for the inputs of a case that the framework computed."""

    loss: Tensor | None = None
    scale: float = (
        0.0  # sum of the absolute weighted per-token terms of the loss: the size that rounding is relative to
    )
    metrics: Mapping[str, Any] = field(default_factory=dict)  # numbers or lists of numbers, by the framework's names
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def with_metrics(self, more: Mapping[str, Any]) -> Replayed:
        """Return a copy with more metrics, or with other values of them."""
        return replace(self, metrics={**self.metrics, **more})


Options: TypeAlias = Mapping[str, Any]  # of a framework, by its own names
Inputs: TypeAlias = Mapping[str, Any]  # of a case; `logprobs` takes a gradient
Replay: TypeAlias = Callable[[Options, Inputs], Replayed]


@dataclass(frozen=True)
class Framework:
    """Somebody else's trainer."""

    objective: Callable[[Options], Objective]  # raises ValueError for options that it does not have
    recipe: LossRecipe
    replays: Mapping[str, Replay]  # by the name behind the path of a vector file's `function`
    # Metrics of an update under its names, from a minibatch and its loss; called without gradient.
    metrics: Callable[[Objective, LossInputs, Loss], dict[str, float]] = lambda objective, inputs, loss: {}
    # Pattern of variant names -> why they are not reproduced, with the size of the difference.
    not_reproduced: Mapping[str, str] = field(default_factory=dict)


def load_framework(name: str) -> Framework:
    """Import a framework's file and return its record."""
    framework: Framework = resolve(FRAMEWORKS[name])
    return framework


def recipe_of(name: str | None) -> LossRecipe:
    """Return how a framework computes the loss; for None how the core does."""
    return CORE if name is None else load_framework(name).recipe


def metrics_of(name: str, objective: Objective, inputs: LossInputs, loss: Loss | None = None) -> dict[str, float]:
    """Return what a framework logs of a minibatch; call it without gradient.

    `loss` is the minibatch's, if it was computed that framework's way already.
    """
    framework = load_framework(name)
    return framework.metrics(objective, inputs, loss or policy_loss(objective, inputs, framework.recipe))


def clip_conventions(objective: Objective, inputs: LossInputs) -> dict[str, float]:
    """Return a minibatch's clip fraction by the definition of each framework that has one for this kernel.

    All count at the objective's own ratio, kernel and range. KL, entropy bonus, masks and sampler weights are left out,
    because each framework has its own.
    """
    bare_objective = objective.but(
        beta=0.0,
        kl_estimator="k3",
        kl_gradient="plain",
        entropy_coef=0.0,
        top_entropy_quantile=None,
        off_policy_mask_threshold=None,
        sampler_correction=None,
    )
    bare_inputs = replace(inputs, reference_log_probs_BT=None, sampler_log_probs_BT=None, entropy_BT=None)
    logged = {name: metrics_of(name, bare_objective, bare_inputs) for name in CLIP_METRIC}
    return {name: logged[name][metric] for name, metric in CLIP_METRIC.items() if metric in logged[name]}
