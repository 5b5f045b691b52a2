"""The frameworks' own outputs, replayed by our code: what agrees, by how much, what misses, what is not replayed.

The vectors: one JSON file per framework and variant, loose in a folder or packed in a tar archive,
{framework, version, function: "path:name", options, variant, notes, torch, dtype, cases: [{name, inputs, ...outputs}]},
with NaN and Infinity as Python's `json` writes them. Outputs: `loss` with `grad_logprobs` (by inputs.logprobs; by
inputs.entropies where there are no log-probs), `metrics`, and tensors by name (`advantages`, `per_token`, ...); a case
that the framework refused has `error` instead.

An error is relative to the size of what was added up, and NaN equals NaN. float64 explains 1e-9; more is allowed only
as far as replays with other last places differ from each other (`rounding.py`).
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.frameworks import vectors
from grpolab.frameworks.framework import framework
from grpolab.frameworks.rounding import deviation, spreads
from grpolab.registry import FRAMEWORKS

KEYS = {"framework", "function", "options", "variant", "cases"}
NOT_TENSORS = {"tags", "group_size", "group_ids", "prompt_boundaries", "kept_lengths"}
NOT_OUTPUTS = {"name", "inputs", "error"}

FLOAT64 = 1e-9  # largest relative error of what is computed in float64
# Of a number that the framework stores as float32: the sum or quotient before it was rounded to float32 too.
STORED = 2 * torch.finfo(torch.float32).eps
# What an observed spread is multiplied by: two libraries may each be a unit off, on opposite sides, and few replays see
# less than the largest deviation.
SAFETY = 4.0
LEAST_METRIC, LEAST_TENSOR = 1e-4, 1e-6  # metrics are shares, ratios and nats: smaller ones count as this large
KINDS = ("loss", "gradient", "metric", "tensor")
MISS = ("case", "output", "error", "bound")  # of a miss in the JSON
# What computing with values of other types and shapes than a framework's ends in.
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)
PLANTED = {True: 1e-6, False: 1e-8}  # by whether float32 has part in an output: the relative error it must show


@dataclass(frozen=True)
class Variant:
    """A framework's function with one choice of options, and what it returned."""

    framework: str
    name: str
    function: str  # the part behind the path
    options: Mapping[str, Any]
    cases: list[dict[str, Any]]

    @property
    def full_name(self) -> str:
        """`verl__vanilla__sym__c3.0__token-mean`."""
        return f"{self.framework}__{self.name}"


def read_variants(path: Path) -> Iterator[Variant]:
    """The variants of an archive, a folder or one JSON file, in order of their names.

    Raises RequestError where nothing is there, a file is not in the format, or there is more than can be.
    """
    texts = vectors.texts(path)
    for name in sorted(texts):
        content = vectors.parsed(name, texts.pop(name))
        absent = KEYS - set(content) if isinstance(content, dict) else KEYS
        if absent:
            raise RequestError(f"{name} is not a file of vectors: it lacks {', '.join(sorted(absent))}")
        wrong = [key for key in ("framework", "variant", "function") if not isinstance(content[key], str)]
        wrong += ["options"] * (not isinstance(content["options"], dict))
        if wrong or not isinstance(content["cases"], list) or not all(map(_is_case, content["cases"])):
            which = f"its {wrong[0]}" if wrong else "one of its cases"
            raise RequestError(f"{name} is not a file of vectors: {which} is not in the format")
        function = content["function"].rpartition(":")[2]
        yield Variant(content["framework"], content["variant"], function, content["options"], content["cases"])


def _is_case(case: Any) -> bool:
    return isinstance(case, dict) and isinstance(case.get("name"), str) and isinstance(case.get("inputs"), dict)


def inputs_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case's inputs: float64 tensors, `mask` bool; group ids, sizes, boundaries and tags as they are.

    The log-probs, or the entropies where there are none, take a gradient.
    """
    inputs: dict[str, Any] = {}
    for name, value in case["inputs"].items():
        plain = name in NOT_TENSORS or value is None
        inputs[name] = value if plain else torch.tensor(value, dtype=torch.bool if name == "mask" else torch.double)
    if (leaf := leaf_of(inputs)) is not None:
        leaf.requires_grad_()
    return inputs


def leaf_of(inputs: Mapping[str, Any]) -> Tensor | None:
    """What a loss is differentiated by."""
    leaf: Tensor | None = inputs.get("logprobs", inputs.get("entropies"))
    return leaf


@dataclass(frozen=True)
class Compared:
    """One output of one case: its relative error (infinite where it is missing or finite on one side only)."""

    case: str
    output: str  # `loss`, `gradient`, `metric <name>`, or the name of a tensor
    error: float
    bound: float
    planted: float = 0.0  # the part of the error that was planted in the output's largest number
    already: float = 0.0  # the error before that

    @property
    def agrees(self) -> bool:
        """Whether the error is within its bound; a planted one is then not seen."""
        return self.error <= self.bound

    @property
    def looser(self) -> bool:
        """Whether the output's own bound cannot show the planted error, should it be on the other side of ours."""
        return self.bound + self.already >= self.planted


class Case:
    """A case with our replay of it: errors of its outputs, and their bounds, which cost more replays."""

    def __init__(self, variant: Variant, case: Mapping[str, Any], stored: set[str]) -> None:
        self.variant, self.name, self.inputs, self.stored = variant, case["name"], inputs_of(case), stored
        self.expected = expected_outputs(case)
        self.ours, self.terms = self.outputs()

    def outputs(self) -> tuple[dict[str, Tensor], float]:
        """What our replay gives, by the output's name, and the sum of the absolute terms of its loss."""
        replayed = framework(self.variant.framework).replays[self.variant.function](self.variant.options, self.inputs)
        outputs = {f"metric {name}": as_float64(value) for name, value in replayed.metrics.items()}
        outputs |= {name: as_float64(value) for name, value in replayed.tensors.items()}
        if replayed.loss is not None:
            leaf = leaf_of(self.inputs)
            assert leaf is not None
            gradient = None
            if replayed.loss.requires_grad:
                (gradient,) = torch.autograd.grad(replayed.loss, leaf, retain_graph=True, allow_unused=True)
            outputs["loss"] = as_float64(replayed.loss)
            outputs["gradient"] = torch.zeros_like(leaf) if gradient is None else gradient
        return outputs, replayed.scale

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
    def spreads(self) -> tuple[dict[str, float], set[torch.dtype]]:
        """How far each output moves with other last places, and in which types they are (`rounding.py`)."""
        # Rewards of a group may be equal but for the last place: there float64 cancels too.
        dtypes = [torch.float32, torch.float64] if "rewards" in self.inputs else [torch.float32]
        return spreads(self.ours, lambda: self.outputs()[0], dtypes)

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
        spread = self.spreads[0].get(output, 0.0) / scale if scale else 0.0
        return self.cheap_bound(output) + SAFETY * spread

    def compared(self) -> Iterator[Compared]:
        """Every output that the framework reported against ours; replays only where the cheap bound is not enough."""
        for output in self.expected:
            error, bound = self.error(output), self.cheap_bound(output)
            yield Compared(self.name, output, error, bound if error <= bound else self.bound(output))

    def planted(self) -> Iterator[Compared]:
        """The same with an error planted in each output that has a finite number other than 0."""
        for output in self.expected:
            if self.scale(output) and self.expected[output].isfinite().any():
                bound = self.bound(output)
                float32 = output in self.stored or (bound > FLOAT64 and torch.float32 in self.spreads[1])
                error = PLANTED[float32]
                yield Compared(self.name, output, self.error(output, error), bound, error, self.error(output))


def kind_of(output: str) -> str:
    """loss, gradient, metric, or tensor for all else."""
    word = output.partition(" ")[0]
    return word if word in KINDS else "tensor"


def expected_outputs(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """What the framework reported, by the output's name."""
    named = {name: value for name, value in case.items() if name not in NOT_OUTPUTS}
    loss, gradient, metrics = (named.pop(name, None) for name in ("loss", "grad_logprobs", "metrics"))
    outputs = {"loss": as_float64(loss)} if "loss" in case else {}
    if "loss" in case and gradient is not None:
        outputs["gradient"] = as_float64(gradient)
    outputs |= {f"metric {name}": as_float64(value) for name, value in (metrics or {}).items()}
    return outputs | {name: as_float64(named[name]) for name in sorted(named)}


def stored_as_float32(cases: Sequence[Mapping[str, Any]]) -> set[str]:
    """Outputs whose numbers, in every case of a variant, are float32 numbers, and not all of them short fractions."""
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
    """Numbers, or a tensor of them, as a tensor without gradient."""
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


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
        return [output for output in self.compared if not output.agrees]

    @property
    def agrees(self) -> bool:
        """Whether every output is within its bound."""
        return not self.misses

    def worst(self, kind: str) -> float:
        """Largest relative error of the outputs of a kind (loss, gradient, metric, tensor); 0 where there is none."""
        return max((compared.error for compared in self.compared if kind_of(compared.output) == kind), default=0.0)


def replay_archive(path: Path) -> Iterator[Verdict]:
    """A verdict for every variant. Raises RequestError where the archive cannot be read."""
    return map(replay_variant, read_variants(path))


def replay_variant(variant: Variant) -> Verdict:
    """Replay every case of a variant, or say why not; what the framework refused must be refused here too."""
    if reason := reason_against(variant):
        return Verdict(variant.full_name, 0, 0, [], reason)
    refusals = [case for case in variant.cases if "error" in case]
    compared = []
    try:
        for case in refusals:
            try:
                framework(variant.framework).replays[variant.function](variant.options, inputs_of(case))
            except ValueError:
                compared.append(Compared(case["name"], "refusal", 0.0, 0))
            else:
                compared.append(Compared(case["name"], "refusal", torch.inf, 0))
        for replayed in replayed_cases(variant):
            compared += replayed.compared()
    except (ValueError, KeyError) as unknown:
        return Verdict(variant.full_name, 0, 0, [], f"its options are not carried here: {unknown}")
    except MALFORMED as error:
        reason = f"its cases are not in the format: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return Verdict(variant.full_name, 0, 0, [], reason)
    return Verdict(variant.full_name, len(variant.cases) - len(refusals), len(refusals), compared)


def reason_against(variant: Variant) -> str | None:
    """Why the variant is not replayed; None where it is."""
    if variant.framework not in FRAMEWORKS:
        return f"framework {variant.framework} is unknown here"
    chosen = framework(variant.framework)
    for pattern, reason in chosen.not_reproduced.items():
        if fnmatch.fnmatchcase(variant.name, pattern):
            return reason
    return None if variant.function in chosen.replays else f"function {variant.function} is unknown here"


def replayed_cases(variant: Variant) -> Iterator[Case]:
    """The cases that the framework did not refuse, with our replays of them."""
    stored = stored_as_float32(variant.cases)
    return (Case(variant, case, stored) for case in variant.cases if "error" not in case)


def plant_in_archive(path: Path) -> Iterator[tuple[Variant, list[Compared]]]:
    """Every variant that is replayed, with an error planted in each output of each case."""
    for variant in read_variants(path):
        if reason_against(variant) is None:
            with suppress(*MALFORMED, ValueError):  # it cannot be replayed, which the replay itself says
                yield variant, [planted for case in replayed_cases(variant) for planted in case.planted()]


# What a replayed archive comes to, as JSON, as text, and as the page of what is not reproduced.


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts, and every variant with its worst errors and its misses."""
    rows = [
        {
            "variant": verdict.variant,
            "cases": verdict.cases,
            "refused": verdict.refused,
            "agrees": verdict.agrees if verdict.unsupported is None else None,
            "worst": {kind: verdict.worst(kind) for kind in KINDS},
            "misses": [{name: asdict(miss)[name] for name in MISS} for miss in verdict.misses],
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


def lines(verdicts: Sequence[Verdict], each: bool = False) -> Iterator[str]:
    """A table of frameworks (`each`: of variants), every miss, every variant that is not replayed, and the counts."""
    titles = ("variants", "cases", *(f"worst {kind}" for kind in KINDS), "verdict")
    yield f"{'':<52}" + "".join(f"{title:>16}" for title in titles)
    replayed = [verdict for verdict in verdicts if verdict.unsupported is None]
    rows: dict[str, list[Verdict]] = {}
    for verdict in replayed:
        rows.setdefault(verdict.variant if each else verdict.variant.partition("__")[0], []).append(verdict)
    for name, row in rows.items():
        worst = "".join(f"{max(verdict.worst(kind) for verdict in row):>16.1e}" for kind in KINDS)
        agree = "agree" if all(verdict.agrees for verdict in row) else "MISS"
        yield f"{name:<52}{len(row):>16}{sum(verdict.cases for verdict in row):>16}{worst}{agree:>16}"
    for verdict in verdicts:
        if verdict.misses:
            most = max(verdict.misses, key=lambda miss: miss.error)
            where = f"{most.output} of case {most.case}: {most.error:.1e}"
            yield f"miss: {verdict.variant}: {len(verdict.misses)} outputs, the worst is {where}"
    for verdict in verdicts:
        if verdict.unsupported is not None:
            yield f"not replayed: {verdict.variant}: {verdict.unsupported}"
    agreeing = sum(verdict.agrees for verdict in replayed)
    yield (
        f"{len(verdicts)} variants: {len(replayed)} replayed with {sum(verdict.cases for verdict in replayed)} cases,"
        f" {agreeing} agree, {len(replayed) - agreeing} miss; {len(verdicts) - len(replayed)} not replayed"
    )


def sensitivity_lines(planted: Iterable[tuple[Variant, Sequence[Compared]]]) -> Iterator[str]:
    """What planted errors come to: by framework and kind, outputs and how many have a bound that is too loose."""
    count: Counter[tuple[str, str]] = Counter()
    looser: Counter[tuple[str, str]] = Counter()
    float32, unseen = 0, []
    for variant, outputs in planted:
        for output in outputs:
            key = variant.framework, kind_of(output.output)
            count[key] += 1
            looser[key] += output.looser
            float32 += output.planted == PLANTED[True]
            if output.agrees and not output.looser:
                where = f"{variant.full_name}: {output.output} of case {output.case}"
                unseen.append(f"not seen: {where}, bound {output.bound:.1e}")
    yield f"{'outputs, of them with a bound too loose':<42}" + "".join(f"{kind:>16}" for kind in KINDS)
    for name in dict.fromkeys(name for name, _ in count):
        cells = (f"{count[name, kind]}, {looser[name, kind]}" for kind in KINDS)
        yield f"{name:<42}" + "".join(f"{cell:>16}" for cell in cells)
    yield from unseen
    total, loose = count.total(), looser.total()
    yield (
        f"{total} planted errors, {PLANTED[True]:g} in the {float32} outputs that float32 has part in and"
        f" {PLANTED[False]:g} in the others: {total - loose - len(unseen)} seen, {len(unseen)} not seen though the"
        f" bound lies below, {loose} ({loose / max(total, 1):.2%}) with a looser bound"
    )


def sensitive(planted: Iterable[tuple[Variant, Sequence[Compared]]]) -> bool:
    """Whether every planted error is seen, but for 2% of them at most whose bound is looser."""
    outputs = [output for _, outputs in planted for output in outputs]
    looser = [output for output in outputs if output.looser]
    return len(looser) <= 0.02 * len(outputs) and all(output.looser or not output.agrees for output in outputs)


def not_reproduced_page() -> str:
    """docs/not_reproduced.md, from the reasons that stand beside the replays."""
    parts = [
        "# What is not reproduced, and why\n",
        "Written by `grpolab conformance --not-reproduced`. `grpolab conformance PATH` lists by name, and counts, each",
        "variant of an archive that these patterns leave out.\n",
        "| framework | variants | reason, and the size of the difference |",
        "| --- | --- | --- |",
    ]
    for name in FRAMEWORKS:
        parts += [f"| {name} | `{pattern}` | {reason} |" for pattern, reason in framework(name).not_reproduced.items()]
    parts += ["", "## As far as it goes", "", "| framework | what to know |", "| --- | --- |"]
    parts += [f"| {name} | {limit} |" for name in FRAMEWORKS for limit in framework(name).limits]
    return "\n".join(parts) + "\n"
