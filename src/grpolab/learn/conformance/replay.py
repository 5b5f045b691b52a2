"""Every variant of an archive through our code: what agrees, by how much, what misses, what we do not support."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grpolab.learn.conformance.compare import Bounds, Compared, compare
from grpolab.learn.conformance.vectors import Replayed, Variant, inputs_of, read_variants
from grpolab.registry import CONFORMANCE, resolve

# A function of a framework: its options and a case's inputs (`logprobs` takes a gradient) -> what our code gives.
Replay = Callable[[Mapping[str, Any], Mapping[str, Any]], Replayed]


@dataclass(frozen=True)
class Peer:
    """What of a framework can be replayed."""

    functions: Mapping[str, Replay]  # by the name behind the path of the vector file's `function`
    bounds: Mapping[str, Bounds] = field(default_factory=dict)  # by function, where it drops to float32
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
        return max((one.error for one in self.compared if one.kind == kind), default=0.0)


def replay_archive(path: Path) -> Iterator[Verdict]:
    """A verdict for every variant. Raises RequestError where the archive cannot be read."""
    for variant in read_variants(path):
        yield replay_variant(variant)


def replay_variant(variant: Variant) -> Verdict:
    """Replay every case of a variant, or say why not."""
    peer: Peer | None = resolve(CONFORMANCE[variant.framework]) if variant.framework in CONFORMANCE else None
    reason = f"framework {variant.framework} is unknown here" if peer is None else peer.reason_against(variant)
    if peer is None or reason:
        return Verdict(variant.full_name, 0, 0, [], reason)
    function, bounds = peer.functions[variant.function], peer.bounds.get(variant.function, Bounds())
    compared: list[Compared] = []
    refused = 0
    for case in variant.cases:
        inputs = inputs_of(case)
        for leaf in ("logprobs", "entropies")[: 1 if "logprobs" in inputs else 2]:
            if leaf in inputs:
                inputs[leaf].requires_grad_()
        if "error" in case:
            refused += 1
            compared.append(
                Compared(case["name"], "refusal", 0.0 if _refuses(function, variant, inputs) else torch.inf, 0)
            )
            continue
        try:
            ours = function(variant.options, inputs)
        except (ValueError, KeyError) as unknown:
            return Verdict(variant.full_name, 0, 0, [], f"its options are not carried here: {unknown}")
        compared += compare(case, inputs, ours, bounds)
    return Verdict(variant.full_name, len(variant.cases) - refused, refused, compared)


def _refuses(function: Replay, variant: Variant, inputs: Mapping[str, Any]) -> bool:
    try:
        function(variant.options, inputs)
    except ValueError:
        return True
    return False
