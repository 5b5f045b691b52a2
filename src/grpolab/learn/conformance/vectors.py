"""The vector format: one JSON file per framework and variant, loose in a folder or packed in a tar archive.

{framework, version, function: "path:name", options, variant, notes, torch, dtype, cases: [{name, inputs, ...outputs}]},
with NaN and Infinity as Python's `json` writes them. Outputs: `loss` with `grad_logprobs` (by inputs.logprobs; by
inputs.entropies where there are no log-probs), `metrics`, and tensors by name (`advantages`, `per_token`, ...);
a case that the framework refused has `error` instead.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpolab.errors import RequestError

KEYS = {"framework", "function", "options", "variant", "cases"}
NOT_TENSORS = {"tags", "group_size", "group_ids", "prompt_boundaries", "kept_lengths"}


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

    Raises RequestError where nothing is there or a file is not in the format.
    """
    texts = dict(_texts(path))
    if not texts:
        raise RequestError(f"{path} holds no .json file with vectors")
    for name in sorted(texts):
        yield _parse(name, texts[name])


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from ((file.name, file.read_bytes()) for file in path.rglob("*.json"))
    elif path.suffix == ".json" and path.is_file():
        yield path.name, path.read_bytes()
    elif path.is_file():
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.name.endswith(".json") else None
                    if file is not None:
                        yield Path(member.name).name, file.read()
        except tarfile.TarError as error:
            raise RequestError(f"{path} is neither a folder, a .json file nor a tar archive: {error}") from error
    else:
        raise RequestError(f"{path} does not exist: give an archive, a folder or a .json file of vectors")


def _parse(name: str, text: bytes) -> Variant:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}") from error
    absent = KEYS - set(content) if isinstance(content, dict) else KEYS
    if absent:
        raise RequestError(f"{name} is not a file of vectors: it lacks {', '.join(sorted(absent))}")
    function = content["function"].rpartition(":")[2]
    return Variant(content["framework"], content["variant"], function, content["options"], content["cases"])


def inputs_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case's inputs: float64 tensors, `mask` bool; group ids, sizes, boundaries and tags as they are."""
    found: dict[str, Any] = {}
    for name, value in case["inputs"].items():
        if name in NOT_TENSORS or value is None:
            found[name] = value
        else:
            tensor = torch.tensor(value, dtype=torch.double)
            found[name] = tensor.bool() if name == "mask" else tensor
    return found


@dataclass(frozen=True)
class Replayed:
    """What our code gave for a case's inputs."""

    loss: Tensor | None = None
    scale: float = 0.0  # sum of the absolute weighted per-token terms of the loss: what rounding is measured against
    metrics: Mapping[str, Any] | None = None  # numbers, or lists of them; the framework's names
    tensors: Mapping[str, Tensor] | None = None
