"""Replay the frameworks' own outputs through our code: what agrees, by how much, what misses, what is not replayed.

A file of vectors holds one variant of a framework (tests/vectors/README.md). Its outputs are `loss` with
`grad_logprobs` (by inputs.logprobs, or by inputs.entropies if there are no log-probs), `metrics`, and tensors by name
(`advantages`, `per_token`, ...); a case that the framework refused has `error` instead.

An error is relative to the size of what was added up, and NaN equals NaN. float64 explains 1e-9; more is allowed only
as far as replays with other last places differ from each other (`rounding.py`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.frameworks import vectors
from grpolab.frameworks.framework import load_framework
from grpolab.frameworks.rounding import largest_difference, spreads
from grpolab.registry import FRAMEWORKS

KEYS = {"framework": str, "variant": str, "function": str, "options": dict, "cases": list}
NOT_TENSORS = {"tags", "group_size", "group_ids", "prompt_boundaries", "kept_lengths"}
NOT_OUTPUTS = {"name", "inputs", "error"}
KINDS = ("loss", "gradient", "metric", "tensor")

FLOAT64 = 1e-9  # largest relative error of what is computed in float64
# Of a number that the framework stores as float32: the sum or quotient before it was rounded to float32 too.
STORED = 2 * torch.finfo(torch.float32).eps
# Two libraries may each be a unit off, on opposite sides, and few replays see less than the largest deviation.
SAFETY = 4.0
LEAST_METRIC, LEAST_TENSOR = 1e-4, 1e-6  # metrics are shares, ratios and nats: smaller ones count as this large
# What computing with values of other types and shapes than a framework's ends in.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


@dataclass(frozen=True)
class FrameworkVariant:
    """A framework's function with one choice of options, and what it returned."""

    framework: str
    name: str
    function: str  # the part behind the path
    options: Mapping[str, Any]
    cases: list[dict[str, Any]]

    @property
    def full_name(self) -> str:
        """Return e.g. `verl__vanilla__sym__c3.0__token-mean`."""
        return f"{self.framework}__{self.name}"


def read_variants(path: Path) -> Iterator[FrameworkVariant]:
    """Read the variants of an archive, a folder or one JSON file, in order of their names.

    Raises RequestError if nothing is there, a file is not in the format, or there is more than can be.
    """
    texts = vectors.read_texts(path)
    for name in sorted(texts):
        content = vectors.parse(name, texts.pop(name))
        absent = sorted(KEYS.keys() - set(content)) if isinstance(content, dict) else sorted(KEYS)
        if absent:
            raise RequestError(f"{name} is not a file of vectors: it lacks {', '.join(absent)}")
        wrong = [f"its {key}" for key, kind in KEYS.items() if not isinstance(content[key], kind)]
        if wrong or not all(map(_is_case, content["cases"])):
            raise RequestError(
                f"{name} is not a file of vectors: {[*wrong, 'one of its cases'][0]} is not in the format"
            )
        function = content["function"].rpartition(":")[2]
        yield FrameworkVariant(content["framework"], content["variant"], function, content["options"], content["cases"])


def _is_case(case: Any) -> bool:
    return isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("inputs"), dict)


def inputs_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's inputs as float64 tensors, `mask` as bool; group ids, sizes, boundaries and tags as they are.

    The log-probs, or the entropies if there are none, take a gradient.
    """
    inputs: dict[str, Any] = {}
    for name, value in case["inputs"].items():
        as_it_is = name in NOT_TENSORS or value is None
        inputs[name] = value if as_it_is else torch.tensor(value, dtype=torch.bool if name == "mask" else torch.double)
    if (leaf := _find_leaf(inputs)) is not None:
        leaf.requires_grad_()
    return inputs


def _find_leaf(inputs: Mapping[str, Any]) -> Tensor | None:
    """Return the input that a loss is differentiated by."""
    leaf: Tensor | None = inputs.get("logprobs", inputs.get("entropies"))
    return leaf


@dataclass(frozen=True)
class Compared:
    """One output of one case: its relative error (infinite if it is missing or finite on one side only)."""

    case: str
    output: str  # `loss`, `gradient`, `metric <name>`, or the name of a tensor
    error: float
    bound: float

    @property
    def kind(self) -> str:
        """Return loss, gradient, metric, or tensor for all else."""
        word = self.output.partition(" ")[0]
        return word if word in KINDS else "tensor"

    @property
    def agrees(self) -> bool:
        """Return whether the error is within its bound."""
        return self.error <= self.bound


class Case:
    """A case with our replay of it: errors of its outputs, and their bounds, which cost more replays."""

    def __init__(self, variant: FrameworkVariant, case: Mapping[str, Any], stored: set[str]) -> None:
        self.variant, self.name, self.inputs, self.stored = variant, case["name"], inputs_of(case), stored
        self.expected = expected_outputs(case)
        self.ours, self.terms = self.outputs()

    def outputs(self) -> tuple[dict[str, Tensor], float]:
        """Replay the case: outputs by name, and the sum of the absolute terms of its loss."""
        replay = load_framework(self.variant.framework).replays[self.variant.function]
        replayed = replay(self.variant.options, self.inputs)
        outputs = {f"metric {name}": as_float64(value) for name, value in replayed.metrics.items()}
        outputs |= {name: as_float64(value) for name, value in replayed.tensors.items()}
        if replayed.loss is not None:
            leaf = _find_leaf(self.inputs)
            assert leaf is not None
            gradient = None
            if replayed.loss.requires_grad:
                (gradient,) = torch.autograd.grad(replayed.loss, leaf, retain_graph=True, allow_unused=True)
            outputs["loss"] = as_float64(replayed.loss)
            outputs["gradient"] = torch.zeros_like(leaf) if gradient is None else gradient
        return outputs, replayed.scale

    def scale(self, output: str) -> float:
        """Return what an error is relative to: the output's largest finite number, or what a loss adds up."""
        expected = self.expected[output]
        largest = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 0.0
        if output == "gradient":
            return largest
        least = LEAST_METRIC if output.startswith("metric ") else LEAST_TENSOR
        return max(largest, self.terms if output == "loss" else least)

    def error(self, output: str) -> float:
        """Return the output's relative error."""
        if output not in self.ours:
            return torch.inf
        difference, scale = largest_difference(self.ours[output], self.expected[output]), self.scale(output)
        return difference / scale if scale else (0.0 if difference == 0 else torch.inf)

    @cached_property
    def spreads(self) -> tuple[dict[str, float], set[torch.dtype]]:
        """Return how far each output moves with other last places, and the types in which something moved."""
        # Rewards of a group may be equal but for the last place: there float64 cancels too.
        dtypes = [torch.float32, torch.float64] if "rewards" in self.inputs else [torch.float32]
        return spreads(self.ours, lambda: self.outputs()[0], dtypes)

    def cheap_bound(self, output: str) -> float:
        """Return the largest relative error that float64, and a number stored as float32, explain."""
        expected, scale = self.expected[output], self.scale(output)
        finite = expected[expected.isfinite()]
        if output not in self.stored or not scale or not len(finite):
            return FLOAT64
        return FLOAT64 + STORED * finite.abs().max().item() / scale

    def bound(self, output: str) -> float:
        """Add what float32 explains on the way to the output; costs some replays."""
        scale = self.scale(output)
        spread = self.spreads[0].get(output, 0.0) / scale if scale else 0.0
        return self.cheap_bound(output) + SAFETY * spread

    def compare(self) -> Iterator[Compared]:
        """Compare every output that the framework reported; replay only if the cheap bound is not enough."""
        for output in self.expected:
            error, bound = self.error(output), self.cheap_bound(output)
            yield Compared(self.name, output, error, bound if error <= bound else self.bound(output))


def expected_outputs(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what the framework reported, by the output's name."""
    named = {name: value for name, value in case.items() if name not in NOT_OUTPUTS}
    loss, gradient, metrics = (named.pop(name, None) for name in ("loss", "grad_logprobs", "metrics"))
    outputs = {"loss": as_float64(loss)} if "loss" in case else {}
    if "loss" in case and gradient is not None:
        outputs["gradient"] = as_float64(gradient)
    outputs |= {f"metric {name}": as_float64(value) for name, value in (metrics or {}).items()}
    return outputs | {name: as_float64(named[name]) for name in sorted(named)}


def stored_as_float32(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the outputs whose numbers are float32 in every case of a variant, and not all short fractions."""
    numbers: dict[str, list[Tensor]] = {}
    for case in cases:
        for output, value in expected_outputs(case).items():
            numbers.setdefault(output, []).append(value[value.isfinite()].flatten())
    joined = {output: torch.cat(values) for output, values in numbers.items()}
    return {
        output
        for output, values_N in joined.items()
        if values_N.equal(values_N.float().double()) and (values_N.frexp().mantissa * 2**12 % 1).any()
    }


def as_float64(value: Any) -> Tensor:
    """Return numbers, or a tensor of them, as a tensor without gradient."""
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


@dataclass(frozen=True)
class VariantVerdict:
    """A variant after its replay."""

    variant: str  # full name
    cases: int = 0  # replayed
    refused: int = 0  # cases that the framework itself refused; they must be refused here too
    compared: Sequence[Compared] = ()
    unsupported: str | None = None  # the reason

    @property
    def misses(self) -> list[Compared]:
        """Return the outputs beyond their bounds."""
        return [output for output in self.compared if not output.agrees]

    @property
    def agrees(self) -> bool:
        """Return whether every output is within its bound."""
        return not self.misses

    def worst(self, kind: str) -> float:
        """Return the largest relative error of the outputs of a kind (one of KINDS); 0 if there is none."""
        return max((compared.error for compared in self.compared if compared.kind == kind), default=0.0)


def replay_archive(path: Path) -> Iterator[VariantVerdict]:
    """Replay every variant. Raises RequestError if the archive cannot be read."""
    return map(replay_variant, read_variants(path))


def replay_variant(variant: FrameworkVariant) -> VariantVerdict:
    """Replay every case of a variant, or say why not; what the framework refused must be refused here too."""
    name = variant.full_name
    if reason := _reason_against(variant):
        return VariantVerdict(name, unsupported=reason)
    refusals = [case for case in variant.cases if "error" in case]
    compared = []
    try:
        for case in refusals:
            try:
                load_framework(variant.framework).replays[variant.function](variant.options, inputs_of(case))
            except ValueError:
                compared.append(Compared(case["name"], "refusal", 0.0, 0))
            else:
                compared.append(Compared(case["name"], "refusal", torch.inf, 0))
        for replayed in replay_cases(variant):
            compared += replayed.compare()
    except (ValueError, KeyError) as unknown:
        return VariantVerdict(name, unsupported=f"its options are not carried here: {unknown}")
    except MALFORMED as error:
        says = str(error).partition("\n")[0]
        return VariantVerdict(name, unsupported=f"its cases are not in the format: {type(error).__name__}: {says}")
    return VariantVerdict(name, len(variant.cases) - len(refusals), len(refusals), compared)


def _reason_against(variant: FrameworkVariant) -> str | None:
    """Return why the variant is not replayed; None if it is."""
    if variant.framework not in FRAMEWORKS:
        return f"framework {variant.framework} is unknown here"
    framework = load_framework(variant.framework)
    for pattern, reason in framework.not_reproduced.items():
        if fnmatch.fnmatchcase(variant.name, pattern):
            return reason
    return None if variant.function in framework.replays else f"function {variant.function} is unknown here"


def replay_cases(variant: FrameworkVariant) -> Iterator[Case]:
    """Replay the cases that the framework did not refuse."""
    stored = stored_as_float32(variant.cases)
    return (Case(variant, case, stored) for case in variant.cases if "error" not in case)


def as_json(verdicts: Sequence[VariantVerdict]) -> dict[str, Any]:
    """Return the counts, and every variant with its worst errors and its misses."""
    rows = [
        {
            "variant": verdict.variant,
            "cases": verdict.cases,
            "refused": verdict.refused,
            "agrees": verdict.agrees if verdict.unsupported is None else None,
            "worst": {kind: verdict.worst(kind) for kind in KINDS},
            "misses": [
                {name: getattr(miss, name) for name in ("case", "output", "error", "bound")} for miss in verdict.misses
            ],
            "unsupported": verdict.unsupported,
        }
        for verdict in verdicts
    ]
    return {
        "replayed": sum(verdict.unsupported is None for verdict in verdicts),
        "agree": sum(verdict.agrees for verdict in verdicts),
        "unsupported": sum(verdict.unsupported is not None for verdict in verdicts),
        "variants": rows,
    }


def verdict_lines(verdicts: Sequence[VariantVerdict], each: bool = False) -> Iterator[str]:
    """Yield a table of frameworks (`each`: of variants), every miss, every variant not replayed, and the counts."""
    titles = ("variants", "cases", *(f"worst {kind}" for kind in KINDS), "verdict")
    yield f"{'':<52}" + "".join(f"{title:>16}" for title in titles)
    replayed = [verdict for verdict in verdicts if verdict.unsupported is None]
    rows: dict[str, list[VariantVerdict]] = {}
    for verdict in replayed:
        rows.setdefault(verdict.variant if each else verdict.variant.partition("__")[0], []).append(verdict)
    for name, row in rows.items():
        worst = "".join(f"{max(verdict.worst(kind) for verdict in row):>16.1e}" for kind in KINDS)
        agree = "agree" if all(verdict.agrees for verdict in row) else "MISS"
        yield f"{name:<52}{len(row):>16}{sum(verdict.cases for verdict in row):>16}{worst}{agree:>16}"
    for verdict in verdicts:
        if verdict.misses:
            most = max(verdict.misses, key=lambda miss: miss.error)
            worst = f"{most.output} of case {most.case}: {most.error:.1e}"
            yield f"miss: {verdict.variant}: {len(verdict.misses)} outputs, the worst is {worst}"
    for verdict in verdicts:
        if verdict.unsupported is not None:
            yield f"not replayed: {verdict.variant}: {verdict.unsupported}"
    agreeing = sum(verdict.agrees for verdict in replayed)
    yield (
        f"{len(verdicts)} variants: {len(replayed)} replayed with {sum(verdict.cases for verdict in replayed)} cases,"
        f" {agreeing} agree, {len(replayed) - agreeing} miss; {len(verdicts) - len(replayed)} not replayed"
    )
