"""How far our number may be from a framework's: relative to the size of what was added up, NaN equal to NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.conformance import rounding
from grpolab.learn.conformance.vectors import Replayed

FLOAT64 = 1e-9  # largest relative error of what is computed in float64
# Of a number that the framework stores as float32: the sum or quotient before it was rounded to float32 too.
STORED = 2 * torch.finfo(torch.float32).eps
LEAST_METRIC, LEAST_TENSOR = 1e-4, 1e-6  # metrics are shares, ratios and nats: smaller ones count as this large


KINDS = ("loss", "gradient", "metric", "tensor")
PLANTED = {True: 1e-6, False: 1e-8}  # by whether float32 has part in an output: the relative error it must show


@dataclass(frozen=True)
class Planted:
    """An error planted in an output, in the place of its largest number."""

    case: str
    output: str
    error: float  # relative
    bound: float  # the output's own
    already: float  # its error before
    caught: bool

    @property
    def looser(self) -> bool:
        """Whether the output's own bound cannot show it, should it be on the other side of ours."""
        return self.bound + self.already >= self.error


@dataclass(frozen=True)
class Compared:
    """One output of one case: its relative error (infinite where it is missing or finite on one side only)."""

    case: str
    output: str  # `loss`, `gradient`, `metric <name>`, or the name of a tensor
    error: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound


class Case:
    """A case with our replay of it: errors of its outputs, and their bounds, which cost more replays."""

    def __init__(
        self, case: Mapping[str, Any], inputs: Mapping[str, Any], replay: Callable[[], Replayed], stored: set[str]
    ) -> None:
        self.name, self.inputs, self.replay, self.stored = case["name"], inputs, replay, stored
        self.expected = expected_outputs(case)
        self.ours, self.terms = self._outputs()

    def _outputs(self) -> tuple[dict[str, Tensor], float]:
        replayed = self.replay()
        found = {f"metric {name}": tensor(value) for name, value in (replayed.metrics or {}).items()}
        found |= {name: tensor(value) for name, value in (replayed.tensors or {}).items()}
        if replayed.loss is not None:
            found |= {"loss": tensor(replayed.loss), "gradient": gradient(replayed.loss, self.inputs)}
        return found, replayed.scale

    def scale(self, output: str) -> float:
        """What an error is relative to: the largest finite number of the output, or of what a loss adds up."""
        expected = self.expected[output]
        largest = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 0.0
        if output == "gradient":
            return largest
        least = LEAST_METRIC if output.startswith("metric ") else LEAST_TENSOR
        return max(largest, self.terms if output == "loss" else least)

    def error(self, output: str, planted: float = 0.0) -> float:
        """The output's relative error, with that of its largest number made `planted` larger."""
        ours, expected, scale = self.ours.get(output), self.expected[output], self.scale(output)
        if ours is None:
            return torch.inf
        if planted:
            expected = expected.clone()
            index = expected.nan_to_num(0, 0, 0).abs().argmax()
            expected.view(-1)[index] += planted * scale
        difference = rounding.deviation(ours, expected)
        return difference / scale if scale else (0.0 if difference == 0 else torch.inf)

    @cached_property
    def _spreads(self) -> tuple[dict[str, float], set[torch.dtype]]:
        # Rewards of a group may be equal but for the last place: there float64 cancels too.
        dtypes = [torch.float32, torch.float64] if "rewards" in self.inputs else [torch.float32]
        return rounding.spreads(self.ours, lambda: self._outputs()[0], dtypes)

    def cheap_bound(self, output: str) -> float:
        """The largest relative error that float64 explains, and the float32 in which the framework stored a number."""
        expected, scale = self.expected[output], self.scale(output)
        finite = expected[expected.isfinite()]
        if output not in self.stored or not scale or not len(finite):
            return FLOAT64
        return FLOAT64 + STORED * finite.abs().max().item() / scale

    def bound(self, output: str) -> float:
        """The same with what float32 explains on the way to the output; costs some replays."""
        scale = self.scale(output)
        spread = self._spreads[0].get(output, 0.0) / scale if scale else 0.0
        return self.cheap_bound(output) + rounding.SAFETY * spread

    def compared(self) -> Iterator[Compared]:
        """Every output that the framework reported against ours; replays only where the cheap bound is not enough."""
        for output in self.expected:
            error, bound = self.error(output), self.cheap_bound(output)
            yield Compared(self.name, output, error, bound if error <= bound else self.bound(output))

    def planted(self) -> Iterator[Planted]:
        """An error in each output that has a finite number other than 0, and whether it is seen."""
        for output in self.expected:
            if self.scale(output) and self.expected[output].isfinite().any():
                bound = self.bound(output)
                float32 = output in self.stored or (bound > FLOAT64 and torch.float32 in self._spreads[1])
                error = PLANTED[float32]
                caught = self.error(output, error) > bound
                yield Planted(self.name, output, error, bound, self.error(output), caught)


def kind_of(output: str) -> str:
    """loss, gradient, metric, or tensor for all else."""
    word = output.partition(" ")[0]
    return word if word in KINDS else "tensor"


def expected_outputs(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the framework reported, by the output's name."""
    found = {"loss": tensor(case["loss"])} if "loss" in case else {}
    if "loss" in case and case.get("grad_logprobs") is not None:
        found["gradient"] = tensor(case["grad_logprobs"])
    found |= {f"metric {name}": tensor(value) for name, value in (case.get("metrics") or {}).items()}
    named = {"name", "inputs", "loss", "grad_logprobs", "metrics", "error"}
    return found | {name: tensor(case[name]) for name in sorted(set(case) - named)}


def stored_as_float32(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Outputs whose numbers, in every case of a variant, are float32 numbers, and not all of them short fractions."""
    numbers: dict[str, list[Tensor]] = {}
    for case in cases:
        for output, value in expected_outputs(case).items():
            numbers.setdefault(output, []).append(value[value.isfinite()].flatten())
    return {
        output
        for output, values in numbers.items()
        if (found := torch.cat(values)).equal(found.float().double()) and (found.frexp().mantissa * 2**12 % 1).any()
    }


def gradient(loss: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """That of our loss with respect to the log-probs, or to the entropies where there are none."""
    leaf = inputs["logprobs"] if "logprobs" in inputs else inputs["entropies"]
    if not loss.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


def tensor(value: Any) -> Tensor:
    """Numbers in float64."""
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)
