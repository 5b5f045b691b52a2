"""A framework as its differences from the core loss.

Each framework has one file, in this order: the steps of the loss that it computes in its own way, its metrics under its
names, and replays: its own functions' outputs computed with our code. Its peculiarities (a float32 exponential, `+1e-8`
in a divisor, an unmasked numerator) are there. Its options, with their defaults and what they mean in our settings, are
in `options.py`, or in a file of their own beside it; `conf/dialect/` has the defaults under our names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import CORE, Loss, LossInputs, LossRecipe, policy_loss
from grpolab.identity import STEPS
from grpolab.meanings import CLIP_METRIC, convention
from grpolab.registry import FRAMEWORKS, LOAD_OBJECT, SURROGATES, last_name, resolve
from grpolab.settings.objective import Objective
from grpolab.settings.resolved import Resolved

if TYPE_CHECKING:
    from grpolab.grpo.step import Update


@dataclass(frozen=True)
class Replayed:
    """The outputs of our code for the inputs of a case that the framework computed."""

    loss: Tensor | None = None
    scale: float = 0.0  # sum of the absolute weighted terms of the loss: rounding is relative to it
    metrics: Mapping[str, Any] = field(default_factory=dict)  # numbers or lists of numbers, by the framework's names
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def with_metrics(self, more: Mapping[str, Any]) -> Replayed:
        """Return a copy with more metrics, or with other values of them."""
        return replace(self, metrics={**self.metrics, **more})


Options: TypeAlias = Mapping[str, Any]  # of a framework, by its own names
Inputs: TypeAlias = Mapping[str, Any]  # of a case; `logprobs` takes a gradient
Replay: TypeAlias = Callable[[Options, Inputs], Replayed]


@dataclass(frozen=True, kw_only=True)
class Framework(LossRecipe):
    """Another trainer: the steps of the loss that it computes in its own way, and the replays that prove it."""

    objective: Callable[[Options], Objective]  # raises ValueError for options that it does not have
    # Metrics of an update under its names, from a minibatch and its loss; called without gradient.
    metrics: Callable[[Objective, LossInputs, Loss], dict[str, float]] = lambda objective, inputs, loss: {}
    replays: Mapping[str, Replay]  # by the name behind the path of a vector file's `function`
    # Pattern of variant names -> why they are not reproduced, with the size of the difference.
    not_reproduced: Mapping[str, str] = field(default_factory=dict)


def load_framework(name: str) -> Framework:
    """Import a framework's file and return its record."""
    framework: Framework = resolve(FRAMEWORKS[name])
    return framework


def compute_metrics(name: str, objective: Objective, inputs: LossInputs, loss: Loss | None = None) -> dict[str, float]:
    """Return what a framework logs of a minibatch; `loss`: its loss, if known. Call it without gradient."""
    framework = load_framework(name)
    return framework.metrics(objective, inputs, loss or policy_loss(objective, inputs, framework))


def clip_conventions(objective: Objective, inputs: LossInputs) -> dict[str, float]:
    """Return a minibatch's clip fraction by the definition of each framework that has one for this kernel.

    All count at the objective's own ratio, kernel and range. KL, entropy bonus, masks and sampler weights are left out,
    because each framework has its own.
    """
    off = dict.fromkeys(
        ("top_entropy_quantile", "off_policy_mask_threshold", "sampler_correction", "sampler_rejection")
    )
    objective = objective.but(beta=0.0, kl_estimator="k3", kl_gradient="plain", entropy_coef=0.0, **off)
    inputs = replace(inputs, reference_log_probs_BT=None, sampler_log_probs_BT=None, entropy_BT=None)
    logged = {name: compute_metrics(name, objective, inputs) for name in CLIP_METRIC}
    return {name: logged[name][metric] for name, metric in CLIP_METRIC.items() if metric in logged[name]}


def try_steps(settings: Resolved) -> list[str]:
    """Compute the loss of two completions, where steps of it are code from elsewhere; return a sentence if it fails.

    Raises RequestError if the code cannot be imported, or a framework has the name of one of ours.
    """
    steps = {key: path for key in STEPS if ":" in (path := getattr(settings, key) or "")}
    named = " ".join(f"{key}={path}" for key, path in steps.items())
    for key, path in steps.items():
        resolve(LOAD_OBJECT)(key, path)
        if key == "kernel":
            resolve(LOAD_OBJECT)(key, SURROGATES[path].function)
        if key == "framework" and last_name(path) in FRAMEWORKS:  # its metrics would be taken for those of ours
            raise RequestError(f"{key}={path} has the name of {key}={last_name(path)} of GRPO Lab: rename it")
    ones_BT = torch.ones(2, 2)
    inputs = LossInputs(
        log_probs_BT=(-ones_BT).requires_grad_(),
        old_log_probs_BT=-1.1 * ones_BT,
        advantages=torch.tensor([[1.0], [-1.0]]),
        mask_BT=ones_BT.bool(),
        totals=Totals.of(ones_BT.bool()),
        reference_log_probs_BT=-ones_BT,
        sampler_log_probs_BT=-ones_BT,
        entropy_BT=ones_BT,
        rewards_B1=torch.tensor([[1.0], [0.0]]),
        group_B=torch.zeros(2, dtype=torch.long),
        noise_BT=0.5 * ones_BT,
    )
    try:
        recipe = load_framework(settings.framework) if settings.framework else CORE
        policy_loss(settings.objective, inputs, recipe).total.backward()
    except Exception as error:  # code from elsewhere may raise anything
        return [f"{named} fails on two completions: {type(error).__name__}: {error}"]
    return []


@torch.no_grad()
def logged_metrics(settings: Resolved, update: Update) -> dict[str, float]:
    """Return what the run's own framework logs of an optimiser step, by journal name.

    If the settings ask for them, the clip fractions by each framework's definition follow.
    """
    framework = settings.framework
    metrics, logged = dict[str, float](), dict[str, float]()
    if framework:
        logged = compute_metrics(framework, update.objective, update.inputs, update.whole_loss)
        metrics = {f"{last_name(framework)}/{name}": value for name, value in logged.items()}
    if settings.diagnostics.clip_conventions:
        shares = clip_conventions(update.objective, update.inputs)
        if framework and (name := CLIP_METRIC.get(framework)) in logged:
            shares[framework] = logged[name]
        metrics |= {convention(name): share for name, share in shares.items()}
    return metrics
