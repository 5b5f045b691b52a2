"""How far an output may be off because another CPU rounds otherwise: the same replay with other last places.

IEEE 754 fixes what +, -, *, / and a square root give, and every conversion: these are the same everywhere. What it
leaves open is a library's exp or log, the order in which a sum is added up, and fused products. Their results differ by
about a unit in the last place between code paths (MKL's AVX2 and AVX-512, torch's own, another compiler).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from grpolab.frameworks.replay import Replayed, Variant, inputs_of, read_variants
from grpolab.registry import CONFORMANCE, resolve

aten = torch.ops.aten
# A library's functions and fused products: their result is moved.
FUNCTIONS = {
    *(aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.pow, aten.rsqrt),
    *(aten.sigmoid, aten.sigmoid_backward, aten.tanh, aten.tanh_backward, aten.log_sigmoid_forward, aten.softplus),
    *(aten._softmax, aten._log_softmax, aten.addcmul, aten.addcdiv, aten.lerp),
}
# Sums: each term is moved, which is at least what another order of adding up can do. Of those that add to a tensor,
# only what is added.
SUMS = {
    *(aten.sum, aten.nansum, aten.mean, aten.var, aten.std, aten.var_mean, aten.std_mean, aten.cumsum, aten.prod),
    *(aten.mm, aten.bmm, aten.addmm, aten.mv, aten.dot, aten.logsumexp, aten.norm, aten.linalg_vector_norm),
}
SUMS_INTO = {aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_}

REPLAYS = 8
# What an observed spread is multiplied by: two libraries may each be a unit off, on opposite sides, and few replays see
# less than the largest deviation.
SAFETY = 4.0
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class OtherLibrary(TorchDispatchMode):
    """A math library that gives, for the numbers of some dtypes, one unit in the last place more or less than ours.

    It is a function: the same numbers at the same places are moved the same way again. `seed` picks it; 0 always gives
    more, so that what adds up does. `moved`: the dtypes of what it changed.
    """

    def __init__(self, seed: int, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.seed, self.dtypes = seed, dtypes
        self.moved: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = func.overloadpacket
        if kind in SUMS_INTO:
            return func(args[0], *tree_map(self._moved_terms, list(args[1:])), **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if kind in FUNCTIONS:
            return tree_map(self._moved, result)
        if kind in SUMS and (not isinstance(result, Tensor) or result.numel() < args[0].numel()):
            return func(*tree_map(self._moved_terms, list(args)), **(kwargs or {}))
        return result

    def _moved_terms(self, value: Any) -> Any:
        """The terms of a sum, moved; a sum of whole numbers is the same in any order."""
        if isinstance(value, Tensor) and value.is_floating_point() and (value.trunc() == value).all():
            return value
        return self._moved(value)

    def _moved(self, value: Any) -> Any:
        """Every number that is neither 0 nor infinite, moved by a unit in its last place."""
        if not isinstance(value, Tensor) or value.dtype not in self.dtypes or not value.numel():
            return value
        self.moved.add(value.dtype)
        value = value.contiguous()
        up = torch.ones_like(value, dtype=torch.bool)
        if self.seed:
            bits = value.view(BITS[value.dtype]).long() + torch.arange(value.numel()).view(value.shape) * 0x9E3779B1
            mixed = (bits ^ (bits >> 23) ^ (self.seed * 0x2545F491)) * 0x5851F42D4C957F2D
            up = (mixed >> 40) & 1 == 1
        limit = torch.where(up, torch.inf, -torch.inf).to(value.dtype)
        fixed = (value == 0) | ~value.isfinite()
        return torch.where(fixed, value, value.nextafter(limit))


def spreads(
    ours: Mapping[str, Tensor], outputs: Callable[[], Mapping[str, Tensor]], dtypes: Sequence[torch.dtype]
) -> tuple[dict[str, float], set[torch.dtype]]:
    """The largest deviation from `ours` of each output over replays with other last places, and what was moved at all.

    `outputs` replays a case: its outputs by name. 0 for an output that nothing in `dtypes` reaches; infinite where it
    stops being finite.
    """
    moved: set[torch.dtype] = set()
    found = dict.fromkeys(ours, 0.0)
    for seed in range(REPLAYS):
        with OtherLibrary(seed, dtypes) as library:
            others = outputs()
        moved |= library.moved
        if not moved:
            break
        for name, value in others.items():
            found[name] = max(found[name], deviation(value, ours[name]))
    return found, moved


def deviation(value: Tensor, other: Tensor) -> float:
    """Largest difference of two tensors; infinite where their shapes, or which numbers are finite, differ."""
    if value.shape != other.shape:
        return torch.inf
    finite = other.isfinite()
    if not torch.equal(value.isfinite(), finite):
        return torch.inf
    if not torch.equal(value[~finite].nan_to_num(), other[~finite].nan_to_num()):
        return torch.inf
    return (value - other)[finite].abs().max().item() if finite.any() else 0.0


# ----------------------------------------------------------------------------------------------------------------------
# How far our number may be from a framework's: relative to the size of what was added up, NaN equal to NaN.


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
        difference = deviation(ours, expected)
        return difference / scale if scale else (0.0 if difference == 0 else torch.inf)

    @cached_property
    def _spreads(self) -> tuple[dict[str, float], set[torch.dtype]]:
        # Rewards of a group may be equal but for the last place: there float64 cancels too.
        dtypes = [torch.float32, torch.float64] if "rewards" in self.inputs else [torch.float32]
        return spreads(self.ours, lambda: self._outputs()[0], dtypes)

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
        return self.cheap_bound(output) + SAFETY * spread

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


# ----------------------------------------------------------------------------------------------------------------------
# Every variant of an archive through our code: what agrees, by how much, what misses, what we do not support.


# A function of a framework: its options and a case's inputs (`logprobs` takes a gradient) -> what our code gives.
Replay = Callable[[Mapping[str, Any], Mapping[str, Any]], Replayed]


@dataclass(frozen=True)
class Peer:
    """What of a framework can be replayed."""

    functions: Mapping[str, Replay]  # by the name behind the path of the vector file's `function`
    # Pattern of variant names -> why they are not reproduced, with the size of the difference.
    not_reproduced: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[str, ...] = ()  # what is replayed, or trained with, only as far as the sentence says

    def reason_against(self, variant: Variant) -> str | None:
        """Why the variant is not replayed; None where it is."""
        for pattern, reason in self.not_reproduced.items():
            if fnmatch.fnmatchcase(variant.name, pattern):
                return reason
        return None if variant.function in self.functions else f"function {variant.function} is unknown here"


@dataclass(frozen=True)
class Verdict:
    """A variant after its replay."""

    variant: str  # full name
    cases: int  # replayed
    refused: int  # cases that the framework itself refused; they must be refused here too
    compared: list[Compared]
    unsupported: str | None = None  # the reason

    @property
    def misses(self) -> list[Compared]:
        """Outputs beyond their bounds."""
        return [one for one in self.compared if not one.agrees]

    @property
    def agrees(self) -> bool:
        """Whether every output is within its bound."""
        return not self.misses

    def worst(self, kind: str) -> float:
        """Largest relative error of the outputs of a kind (loss, gradient, metric, tensor); 0 where there is none."""
        return max((one.error for one in self.compared if kind_of(one.output) == kind), default=0.0)


def replay_archive(path: Path) -> Iterator[Verdict]:
    """A verdict for every variant. Raises RequestError where the archive cannot be read."""
    for variant in read_variants(path):
        yield replay_variant(variant)


def replay_variant(variant: Variant) -> Verdict:
    """Replay every case of a variant, or say why not."""
    function = function_of(variant)
    if isinstance(function, str):
        return Verdict(variant.full_name, 0, 0, [], function)
    compared: list[Compared] = []
    refusals = [case for case in variant.cases if "error" in case]
    for case in refusals:
        refused = _refuses(function, variant, differentiable_inputs(case))
        compared.append(Compared(case["name"], "refusal", 0.0 if refused else torch.inf, 0))
    try:
        for replayed in replayed_cases(function, variant):
            compared += replayed.compared()
    except (ValueError, KeyError) as unknown:
        return Verdict(variant.full_name, 0, 0, [], f"its options are not carried here: {unknown}")
    return Verdict(variant.full_name, len(variant.cases) - len(refusals), len(refusals), compared)


def function_of(variant: Variant) -> Replay | str:
    """The replay of a variant's function, or the reason why there is none."""
    if variant.framework not in CONFORMANCE:
        return f"framework {variant.framework} is unknown here"
    peer: Peer = resolve(CONFORMANCE[variant.framework])
    return peer.reason_against(variant) or peer.functions[variant.function]


def replayed_cases(function: Replay, variant: Variant) -> Iterator[Case]:
    """The cases that the framework did not refuse, with our replays of them."""
    stored = stored_as_float32(variant.cases)
    for case in variant.cases:
        if "error" not in case:
            inputs = differentiable_inputs(case)
            yield Case(case, inputs, partial(function, variant.options, inputs), stored)


def plant_in_archive(path: Path) -> Iterator[tuple[Variant, list[Planted]]]:
    """Every variant that is replayed, with an error planted in each output of each case."""
    for variant in read_variants(path):
        function = function_of(variant)
        if not isinstance(function, str):
            yield variant, [planted for case in replayed_cases(function, variant) for planted in case.planted()]


def differentiable_inputs(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case's inputs; the log-probs, or the entropies where there are none, take a gradient."""
    inputs = inputs_of(case)
    leaf = "logprobs" if "logprobs" in inputs else "entropies"
    if leaf in inputs:
        inputs[leaf].requires_grad_()
    return inputs


def _refuses(function: Replay, variant: Variant, inputs: Mapping[str, Any]) -> bool:
    try:
        function(variant.options, inputs)
    except ValueError:
        return True
    return False
