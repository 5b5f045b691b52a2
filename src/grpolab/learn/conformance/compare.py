"""How far our number may be from a framework's: relative to the size of what was added up, NaN equal to NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.conformance.vectors import Replayed


@dataclass(frozen=True)
class Bounds:
    """Largest relative errors. The defaults are what float64 allows; a framework that drops to float32 has its own."""

    loss: float = 1e-9  # relative to max(|loss|, sum of |per-token terms|)
    gradient: float = 1e-9  # relative to the largest finite entry
    metric: float = 3e-7  # relative to max(|metric|, .01): most are computed in float32
    tensor: float = 1e-9  # advantages, weights, ...: relative to the largest finite entry


@dataclass(frozen=True)
class Compared:
    """One output of one case: its relative error (infinite where it is missing or finite on one side only)."""

    case: str
    output: str  # `loss`, `gradient`, `metric <name>`, or the name of a tensor
    error: float
    bound: float

    @property
    def kind(self) -> str:
        """loss, gradient, metric, or tensor for all else."""
        word = self.output.partition(" ")[0]
        return word if word in ("loss", "gradient", "metric") else "tensor"

    @property
    def agrees(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound


def compare(case: Mapping[str, Any], inputs: Mapping[str, Any], ours: Replayed, bounds: Bounds) -> Iterator[Compared]:
    """Every output that the framework reported against ours. Takes the gradient of our loss."""
    name = case["name"]
    known = {"name", "inputs", "loss", "grad_logprobs", "metrics"}
    if "loss" in case:
        yield Compared(name, "loss", _loss_error(ours, case["loss"]), bounds.loss)
        if case.get("grad_logprobs") is not None:
            yield Compared(name, "gradient", _gradient_error(ours, inputs, case["grad_logprobs"]), bounds.gradient)
    for metric, expected in (case.get("metrics") or {}).items():
        found = (ours.metrics or {}).get(metric)
        error = torch.inf if found is None else relative_error(found, expected, least_scale=1e-2)
        yield Compared(name, f"metric {metric}", error, bounds.metric)
    for tensor in sorted(set(case) - known):
        found = (ours.tensors or {}).get(tensor)
        error = torch.inf if found is None else relative_error(found, case[tensor], 1e-6, ours.rounding)
        yield Compared(name, tensor, error, bounds.tensor)


def _loss_error(ours: Replayed, expected: float) -> float:
    return torch.inf if ours.loss is None else relative_error(ours.loss.detach(), expected, least_scale=ours.scale)


def _gradient_error(ours: Replayed, inputs: Mapping[str, Any], expected: Any) -> float:
    leaf = inputs["logprobs"] if "logprobs" in inputs else inputs["entropies"]
    if ours.loss is None:
        return torch.inf
    if not ours.loss.requires_grad:
        return relative_error(torch.zeros_like(leaf), expected)
    (gradient,) = torch.autograd.grad(ours.loss, leaf, retain_graph=True, allow_unused=True)
    return relative_error(torch.zeros_like(leaf) if gradient is None else gradient, expected)


def relative_error(found: Any, expected: Any, least_scale: float = 0.0, rounding: Tensor | float = 0.0) -> float:
    """Largest |found - expected|, less `rounding`, over the largest finite |expected| (at least `least_scale`).

    0/0 is 0. Infinite where shapes differ or what is not finite differs.
    """
    found, expected = (_tensor(value) for value in (found, expected))
    if found.shape != expected.shape:
        return torch.inf
    finite = expected.isfinite()
    if not torch.equal(found.isfinite(), finite) or not _same(found[~finite], expected[~finite]):
        return torch.inf
    if not finite.any():
        return 0.0
    difference = ((found - expected).abs() - rounding)[finite].max().clamp(min=0).item()
    scale = max(expected[finite].abs().max().item(), least_scale)
    return difference / scale if scale else (0.0 if difference == 0 else torch.inf)


def _same(found: Tensor, expected: Tensor) -> bool:
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


def _tensor(value: Any) -> Tensor:
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)
