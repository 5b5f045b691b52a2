"""A framework as its differences from the core.

Each framework is one file: what its options are on our axes, the functions of the loss that it does its own way, its
metrics under its names, and the replay of its own outputs. The accidents that the core does not have (a float32
exponential, `+1e-8` in a divisor, an unmasked numerator) stand there, and so do its defaults, under its own names;
`conf/dialect/` has them under ours, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import Tensor

from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, policy_loss
from grpolab.registry import FRAMEWORKS, resolve
from grpolab.settings.objective import Objective
from grpolab.vocabulary import CLIP_METRIC


@dataclass(frozen=True)
class Replayed:
    """What our code gives for the inputs of a case that the framework computed."""

    loss: Tensor | None = None
    scale: float = 0.0  # sum of the absolute weighted per-token terms of the loss: what rounding is measured against
    metrics: Mapping[str, Any] = field(default_factory=dict)  # numbers, or lists of them; the framework's names
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def with_metrics(self, more: Mapping[str, Any]) -> Replayed:
        """The same with more metrics, or other values of them."""
        return replace(self, metrics={**self.metrics, **more})


# A function of a framework: its options and a case's inputs (`logprobs` takes a gradient) -> what our code gives.
Options: TypeAlias = Mapping[str, Any]
Inputs: TypeAlias = Mapping[str, Any]
Replay: TypeAlias = Callable[[Options, Inputs], Replayed]


@dataclass(frozen=True)
class Framework:
    """Somebody else's trainer."""

    # Its own option names and values -> the point on our axes. Raises ValueError for what it does not have.
    objective: Callable[[Options], Objective]
    recipe: LossRecipe
    replays: Mapping[str, Replay]  # by the name behind the path of a vector file's `function`
    # Metrics of an update under its names, from a minibatch and its loss; called without gradient.
    metrics: Callable[[Objective, LossInputs, Loss], dict[str, float]] = lambda objective, inputs, loss: {}
    # Pattern of variant names -> why they are not reproduced, with the size of the difference.
    not_reproduced: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[str, ...] = ()  # what is replayed, or trained with, only as far as the sentence says


def framework(name: str) -> Framework:
    """The framework of that name."""
    chosen: Framework = resolve(FRAMEWORKS[name])
    return chosen


def recipe_of(name: str | None) -> LossRecipe:
    """How the loss is computed in that framework; the core's way for None."""
    return CORE if name is None else framework(name).recipe


def metrics_of(name: str, objective: Objective, inputs: LossInputs, loss: Loss | None = None) -> dict[str, float]:
    """What that framework logs of a minibatch; call it without gradient.

    `loss` is the minibatch's where it was computed that framework's way already.
    """
    chosen = framework(name)
    return chosen.metrics(objective, inputs, loss or policy_loss(objective, inputs, chosen.recipe))


def clip_conventions(objective: Objective, inputs: LossInputs) -> dict[str, float]:
    """The clip fraction of a minibatch by each framework's definition; without those that have none for this kernel.

    All at the objective's own ratio, kernel and range. KL, entropy bonus, masks and sampler weights are left out: each
    framework has its own, and no other knows them.
    """
    clip = objective.but(
        beta=0.0,
        kl_estimator="k3",
        kl_gradient="plain",
        entropy_coef=0.0,
        top_entropy_quantile=None,
        off_policy_mask_threshold=None,
        sampler_correction=None,
    )
    bare = replace(inputs, reference_log_probs_BT=None, sampler_log_probs_BT=None, entropy_BT=None)
    logged = {name: metrics_of(name, clip, bare) for name in CLIP_METRIC}
    return {name: logged[name][metric] for name, metric in CLIP_METRIC.items() if metric in logged[name]}
