"""Every variant of an archive through our code: what agrees, by how much, what misses, what we do not support."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpolab.learn.conformance.compare import Case, Compared, Planted, kind_of, stored_as_float32
from grpolab.learn.conformance.vectors import Replayed, Variant, inputs_of, read_variants
from grpolab.registry import CONFORMANCE, resolve

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
