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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpolab.errors import RequestError
from grpolab.frameworks.base import Dialect
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.kl import kl_penalty, own_gradient
from grpolab.grpo.loss import LossInputs, Objective, policy_loss

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


# ----------------------------------------------------------------------------------------------------------------------
# Steps that the replays of several frameworks share.


def loss_inputs(inputs: Mapping[str, Any], max_completion_length: int | None = None, **changed: Tensor) -> LossInputs:
    """A case's inputs as the loss takes them, the whole batch in one micro-batch; `changed` replaces fields."""
    fields: dict[str, Any] = {
        "log_probs_BT": inputs["logprobs"],
        "old_log_probs_BT": inputs.get("old_logprobs"),
        "advantages": inputs.get("advantages"),
        "mask_BT": inputs["mask"],
        "totals": Totals.of(inputs["mask"], max_completion_length),
        "reference_log_probs_BT": inputs.get("ref_logprobs"),
        "sampler_log_probs_BT": inputs.get("rollout_logprobs"),
        "entropy_BT": inputs.get("entropies"),
    }
    return LossInputs(**{**fields, **changed})


def replay_loss(dialect: Dialect, objective: Objective, inputs: LossInputs, kept_BT: Tensor | None = None) -> Replayed:
    """Loss and metrics of a dialect, as training computes them; `kept_BT`: tokens that a rejection left in the loss."""
    learnt_from = inputs if kept_BT is None else replace(inputs, mask_BT=kept_BT)
    loss = policy_loss(objective, learnt_from, dialect.recipe)
    with torch.no_grad():
        prepared = dialect.recipe.prepare(objective, learnt_from)
        scale = float(dialect.recipe.average(objective, prepared, loss.per_token.abs()))
        metrics = dialect.metrics(objective, inputs, loss)
    return Replayed(loss.total, scale, metrics)


def replay_kl(
    inputs: Mapping[str, Any],
    estimator: str,
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    dtype: torch.dtype = torch.double,
    masked: bool = False,
) -> Replayed:
    """A KL estimate at each position (`masked`: 0 at padding) and its sum over the tokens as the loss, in `dtype`."""
    log_probs_BT, mask_BT = inputs["logprobs"].to(dtype), inputs["mask"]
    log_ratio_BT = inputs["ref_logprobs"].to(dtype) - log_probs_BT
    own = own_gradient(log_probs_BT)
    values_BT = kl_penalty(log_ratio_BT, estimator, "plain", input_clamp, output_clamp, own, own)
    masked_BT = torch.where(mask_BT, values_BT, 0.0)
    scale = float(masked_BT.detach().abs().sum())
    return Replayed(masked_BT.sum(), scale, tensors={"per_token": masked_BT if masked else values_BT})


def at_last_token(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The values at each row's last token, 0 elsewhere and for a row without tokens, (B, T)."""
    last_B1 = mask_BT.shape[1] - 1 - mask_BT.flip(1).int().argmax(1, keepdim=True)
    return values_B.new_zeros(mask_BT.shape).scatter(1, last_B1, values_B[:, None]) * mask_BT


def groups_of(rewards_B: Tensor, size: int) -> Tensor:
    """Group numbers of rows that stand together in groups of one size, (B,)."""
    return torch.arange(len(rewards_B)) // size


def masked_whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(value - mean) / std over the tokens, as verl, ROLL and SkyRL have it; padding too, (B, T).

    Its Bessel factor N / (N - 1), a quotient of two counts, is float32.
    """
    tokens = mask_BT.sum()
    mean = (values_BT * mask_BT).sum() / tokens
    variance = ((values_BT - mean).square() * mask_BT).sum() / tokens * (tokens / (tokens - 1))
    return (values_BT - mean) * (variance + 1e-8).rsqrt()
