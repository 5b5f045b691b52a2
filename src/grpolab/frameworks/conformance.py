"""Replay the frameworks' own outputs through our code, and report what agrees, what misses, and what is not replayed.

The outputs of a case are `loss` with `grad_logprobs` (by inputs.logprobs, or by inputs.entropies if there are no
log-probs), `metrics`, and tensors by name (`advantages`, `per_token`, ...); a case that the framework refused has
`error` instead.

An error is relative to the size of the summed terms, and NaN equals NaN. float64 explains 1e-9; more is allowed only
as far as replays with perturbed last digits differ from each other (`rounding.py`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.framework import Replayed, load_framework
from grpolab.frameworks.rounding import largest_difference, spreads
from grpolab.frameworks.vectors import FrameworkVariant, find_leaf, make_inputs, read_variants
from grpolab.registry import FRAMEWORKS

NOT_TENSORS = {"name", "inputs", "error", "loss", "grad_logprobs", "metrics"}
KINDS = ("loss", "gradient", "metric", "tensor")

FLOAT64 = 1e-9  # largest relative error of what is computed in float64
# Allowed for a number that the framework stores as float32, because a sum or quotient before it was rounded as well.
STORED = 2 * torch.finfo(torch.float32).eps
# Two libraries may each be a unit off, on opposite sides, and few replays see less than the largest deviation.
SAFETY = 4.0
LEAST_METRIC, LEAST_TENSOR = 1e-4, 1e-6  # errors of smaller numbers are relative to these
# Errors of computing with other types and shapes than a framework's.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


@dataclass(frozen=True)
class Compared:
    """One output of one case: its relative error (infinite if it is missing or finite on one side only)."""

    case: str
    output: str  # `loss`, `gradient`, `metric <name>`, or the name of a tensor
    error: float
    bound: float

    @property
    def kind(self) -> str:
        """Return one of KINDS: tensor for all that is not another."""
        word = self.output.partition(" ")[0]
        return word if word in KINDS else "tensor"


@dataclass(frozen=True)
class VariantVerdict:
    """A variant after its replay."""

    variant: str  # full name
    cases: int = 0  # replayed
    refused: int = 0  # cases that the framework itself refused; they must be refused here too
    compared: Sequence[Compared] = ()
    unsupported: str | None = None  # why it was not replayed

    @property
    def misses(self) -> list[Compared]:
        """Return the outputs beyond their bounds."""
        return [output for output in self.compared if not output.error <= output.bound]

    @property
    def agrees(self) -> bool | None:
        """Return True if every output is within its bound; None for a variant that was not replayed."""
        return not self.misses if self.unsupported is None else None

    def worst(self, kind: str) -> float:
        """Return the largest relative error of the outputs of a kind (one of KINDS); 0 if there is none."""
        return max((compared.error for compared in self.compared if compared.kind == kind), default=0.0)


class Case:
    """A case with our replay of it: errors of its outputs, and their bounds, which cost more replays."""

    def __init__(self, variant: FrameworkVariant, case: Mapping[str, Any], stored: set[str]) -> None:
        self.variant, self.name, self.inputs, self.stored = variant, case["name"], make_inputs(case), stored
        self.expected = read_outputs(case)
        self.ours, self.terms = self.outputs()

    def outputs(self) -> tuple[dict[str, Tensor], float]:
        """Replay the case: outputs by name, and the sum of the absolute terms of its loss."""
        replayed, leaf = replay(self.variant, self.inputs), find_leaf(self.inputs)
        outputs = {f"metric {name}": to_float64(value) for name, value in replayed.metrics.items()}
        outputs |= {name: to_float64(value) for name, value in replayed.tensors.items()}
        if replayed.loss is not None:
            assert leaf is not None
            outputs |= {"loss": to_float64(replayed.loss), "gradient": torch.zeros_like(leaf)}
            if replayed.loss.requires_grad:
                (gradient,) = torch.autograd.grad(replayed.loss, leaf, retain_graph=True, allow_unused=True)
                outputs["gradient"] = outputs["gradient"] if gradient is None else gradient
        return outputs, replayed.scale

    def scale(self, output: str) -> float:
        """Return what an error is relative to: the output's largest finite number, or the sum of a loss's terms."""
        largest = largest_size(self.expected[output])
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
    def spreads(self) -> dict[str, float]:
        """Return how far each output moves in replays with perturbed last digits."""
        # Rewards of a group may differ only in the last digit, where float64 cancels too.
        dtypes = [torch.float32, torch.float64] if "rewards" in self.inputs else [torch.float32]
        return spreads(self.ours, lambda: self.outputs()[0], dtypes)

    def cheap_bound(self, output: str) -> float:
        """Return the largest relative error that float64, and a number stored as float32, explain."""
        scale = self.scale(output)
        if output not in self.stored or not scale:
            return FLOAT64
        return FLOAT64 + STORED * largest_size(self.expected[output]) / scale

    def bound(self, output: str) -> float:
        """Return the largest relative error of an output that rounding explains.

        It is the cheap bound plus SAFETY times the output's spread when last digits are perturbed. The first call
        replays the case eight times.
        """
        scale = self.scale(output)
        spread = self.spreads.get(output, 0.0) / scale if scale else 0.0
        return self.cheap_bound(output) + SAFETY * spread

    def compare(self) -> Iterator[Compared]:
        """Compare every output that the framework reported; replay only if the cheap bound is not enough."""
        for output in self.expected:
            error, bound = self.error(output), self.cheap_bound(output)
            yield Compared(self.name, output, error, bound if error <= bound else self.bound(output))


def largest_size(values: Tensor) -> float:
    """Return the largest absolute value that is finite; 0 if there is none."""
    return max(values[values.isfinite()].abs().flatten().tolist(), default=0.0)


def replay(variant: FrameworkVariant, inputs: Mapping[str, Any]) -> Replayed:
    """Replay one case. Raises ValueError for what the framework refuses."""
    return load_framework(variant.framework).replays[variant.function](variant.options, inputs)


def read_outputs(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what the framework reported, by the output's name."""
    outputs = {"loss": case["loss"]} if "loss" in case else {}
    if outputs and case.get("grad_logprobs") is not None:
        outputs["gradient"] = case["grad_logprobs"]
    outputs |= {f"metric {name}": value for name, value in (case.get("metrics") or {}).items()}
    outputs |= {name: case[name] for name in sorted(case.keys() - NOT_TENSORS)}
    return {name: to_float64(value) for name, value in outputs.items()}


def find_float32_outputs(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the outputs that are float32 numbers in every case of a variant; short fractions are no evidence."""
    numbers: dict[str, list[Tensor]] = {}
    for case in cases:
        for output, value in read_outputs(case).items():
            numbers.setdefault(output, []).append(value[value.isfinite()].flatten())

    def are_float32(values_N: Tensor) -> bool:
        return values_N.equal(values_N.float().double()) and bool((values_N.frexp().mantissa * 2**12 % 1).any())

    return {output for output, values in numbers.items() if are_float32(torch.cat(values))}


def to_float64(value: Any) -> Tensor:
    """Return numbers, or a tensor of them, as a tensor without gradient."""
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


def replay_archive(path: Path) -> Iterator[VariantVerdict]:
    """Replay every variant. Raises RequestError if the archive cannot be read."""
    return map(replay_variant, read_variants(path))


def replay_variant(variant: FrameworkVariant) -> VariantVerdict:
    """Replay every case of a variant, or say why not; what the framework refused must be refused here too."""
    name = variant.full_name
    if reason := explain_no_replay(variant):
        return VariantVerdict(name, unsupported=reason)
    refused = [case for case in variant.cases if "error" in case]
    try:
        compared = [compare_refusal(variant, case) for case in refused]
        compared += [output for case in replay_cases(variant) for output in case.compare()]
    except (ValueError, KeyError) as unknown:
        return VariantVerdict(name, unsupported=f"its options are not carried here: {unknown}")
    except MALFORMED as error:
        text = str(error).partition("\n")[0]
        return VariantVerdict(name, unsupported=f"its cases are not in the format: {type(error).__name__}: {text}")
    return VariantVerdict(name, len(variant.cases) - len(refused), len(refused), compared)


def explain_no_replay(variant: FrameworkVariant) -> str | None:
    """Return why the variant is not replayed; None if it is."""
    if variant.framework not in FRAMEWORKS:
        return f"framework {variant.framework} is unknown here"
    framework = load_framework(variant.framework)
    unknown = None if variant.function in framework.replays else f"function {variant.function} is unknown here"
    reasons = framework.not_reproduced.items()
    return next((reason for pattern, reason in reasons if fnmatch.fnmatchcase(variant.name, pattern)), unknown)


def compare_refusal(variant: FrameworkVariant, case: Mapping[str, Any]) -> Compared:
    """Replay a case that the framework refused: an error of 0 if it is refused here too."""
    try:
        replay(variant, make_inputs(case))
    except ValueError:
        return Compared(case["name"], "refusal", 0.0, 0)
    return Compared(case["name"], "refusal", torch.inf, 0)


def replay_cases(variant: FrameworkVariant) -> Iterator[Case]:
    """Replay the cases that the framework did not refuse."""
    stored = find_float32_outputs(variant.cases)
    return (Case(variant, case, stored) for case in variant.cases if "error" not in case)


def verdicts_to_json(verdicts: Sequence[VariantVerdict]) -> dict[str, Any]:
    """Return the counts, and every variant with its worst errors and its misses."""
    answers, rows = [verdict.agrees for verdict in verdicts], []
    for verdict in verdicts:
        row = {"variant": verdict.variant, "cases": verdict.cases, "refused": verdict.refused, "agrees": verdict.agrees}
        row |= {"worst": {kind: verdict.worst(kind) for kind in KINDS}, "misses": list(map(asdict, verdict.misses))}
        rows.append({**row, "unsupported": verdict.unsupported})
    unsupported = answers.count(None)
    counts = {"replayed": len(rows) - unsupported, "agree": answers.count(True), "unsupported": unsupported}
    return {**counts, "variants": rows}


def format_verdicts(verdicts: Sequence[VariantVerdict], each: bool = False) -> Iterator[str]:
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
    yield from (f"not replayed: {one.variant}: {one.unsupported}" for one in verdicts if one.unsupported)
    agreeing, cases = sum(verdict.agrees is True for verdict in replayed), sum(verdict.cases for verdict in replayed)
    yield (
        f"{len(verdicts)} variants: {len(replayed)} replayed with {cases} cases, {agreeing} agree,"
        f" {len(replayed) - agreeing} miss; {len(verdicts) - len(replayed)} not replayed"
    )
