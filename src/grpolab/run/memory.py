"""What the machine has, and the memory that a language model's run takes: from its config, before it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.paths import read_json
from grpolab.settings.run import RunSettings, device_here
from grpolab.settings.task import ModelSettings, PretrainedModel, TinyModel

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
FLOAT32 = 4  # bytes of a number: weights, gradients and AdamW's means are float32 whatever the forward pass is
CHUNK = 2**24  # logits that are there at once (`grpo.places.LARGEST`)
SAMPLED = 16  # bytes of a sampled token, at least: its id and two log-probs
LOGITS = 3  # times: themselves, their log-softmax and its gradient
FIXED = ("weights", "gradients", "optimiser", "reference")  # whatever the micro-batch


@dataclass(frozen=True)
class Sizes:
    """What of a model's config decides its memory."""

    vocabulary: int
    hidden: int
    layers: int
    intermediate: int
    queries: int  # width of a token's queries, and of its keys, over all heads
    keys: int
    tied: bool

    @staticmethod
    def of(config: dict[str, Any]) -> Sizes | None:
        """Those of a model with gated layers, as Llama has them; None where the config names others."""
        config = config.get("text_config", config)
        try:
            heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
            width = int(config.get("head_dim") or hidden // heads)
            return Sizes(
                vocabulary=int(config["vocab_size"]),
                hidden=hidden,
                layers=int(config["num_hidden_layers"]),
                intermediate=int(config["intermediate_size"]),
                queries=heads * width,
                keys=int(config.get("num_key_value_heads") or heads) * width,
                tied=bool(config.get("tie_word_embeddings", True)),
            )
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def parameters(self) -> int:
        """Weights, norms and biases left out."""
        layer = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden


def parts(sizes: Sizes, settings: RunSettings, sequences: int) -> dict[str, int]:
    """Bytes of each part of a run whose micro-batches have so many completions of full length; prompts are left out."""
    weights, tokens = FLOAT32 * sizes.parameters, sequences * settings.max_completion_length
    number, sampled = (2 if dtype == "bfloat16" else FLOAT32 for dtype in (settings.dtype, _sampler_dtype(settings)))
    # What a layer keeps of each token: its norms, projections, rotations and attention, and the gated MLP.
    layer = 14 * sizes.hidden + 4 * sizes.intermediate
    kept = sizes.layers * (sizes.hidden if settings.gradient_checkpointing else layer)
    reference = settings.beta > 0 or settings.diagnostics.kl_ref_every > 0
    return {
        "weights": weights,
        "gradients": weights,
        "optimiser": 2 * weights,
        "reference": weights if reference else 0,
        "activations": number * tokens * (kept + layer * bool(settings.gradient_checkpointing)),
        "logits": LOGITS * FLOAT32 * min(tokens * sizes.vocabulary, CHUNK),
        "cache": sampled * settings.batch_size * settings.max_completion_length * sizes.layers * 2 * sizes.keys,
    }


def problems(settings: RunSettings) -> list[str]:
    """Why a batch cannot fit, or a pretrained model's updates, even with one completion in a micro-batch; empty where
    they may.

    A lower bound: prompts are not counted, nor logits, the sampler's cache or the program itself.
    """
    most = settings.max_completion_length
    batch, machine = SAMPLED * settings.batch_size * most, memory_of("cpu")
    if batch > machine:
        return [
            f"prompts_per_step={settings.prompts_per_step} * num_generations={settings.num_generations} completions of"
            f" max_completion_length={most} do not fit into the {_gib(machine)} GiB of this machine: they need"
            f" {_gib(batch)} GiB"
        ]
    sizes = sizes_of(settings.model)
    if sizes is None or not isinstance(settings.model, PretrainedModel):
        return []
    device = device_here(settings.device)
    taken, there = parts(sizes, settings, 1), memory_of(device)
    needed = {name: taken[name] for name in (*FIXED, "activations")}
    if device == "cpu":  # each GPU has one process
        needed = {name: size * (settings.data_parallel or 1) for name, size in needed.items()}
    if sum(needed.values()) <= there:
        return []
    return [
        f"model.path={settings.model.path} does not fit into the {_gib(there)} GiB of device={device}, even with"
        f" micro_batch_size=1: it needs {_gib(sum(needed.values()))} GiB ({_named(needed)})"
    ]


def with_micro_batches(settings: RunSettings) -> RunSettings:
    """The run with a number for its `micro_batch_size=auto`.

    It is the largest that divides the minibatch and fits into half of what a worker's memory has left beside weights,
    gradients and optimiser; the other half is for what is not counted. A model from scratch, whose updates are small,
    takes the minibatch whole, and so does a loss whose value depends on the micro-batches. A worker's memory is the
    same however many of them a sweep is given: that of its GPU, or its share of a machine with one worker for each
    `machine.threads` cores.
    """
    pieces = range(settings.data_parallel or 1, settings.minibatch_size + 1)  # at least one for each process
    dividing = [settings.minibatch_size // count for count in pieces if settings.minibatch_size % count == 0]
    sizes = sizes_of(settings.model)
    whole = settings.compares_tokens or settings.aggregation == "token_mean_microbatch"
    fitting = dividing
    if sizes and not whole:
        of_size = {size: parts(sizes, settings, size) for size in dividing}
        left = worker_memory(settings) - sum(of_size[dividing[0]][name] for name in FIXED)
        fitting = [size for size, taken in of_size.items() if taken["activations"] + taken["logits"] <= left / 2]
        fitting = fitting or dividing[-1:]
    return settings.model_copy(update={"micro_batch_size": fitting[0]})


def lines(every: Iterable[RunSettings]) -> list[str]:
    """What each different run of a pretrained model takes, in words; nothing of one whose GPU is not there."""
    said = []
    for settings in every:
        sizes = sizes_of(settings.model)
        if sizes and isinstance(settings.model, PretrainedModel) and (there := worker_memory(settings)):
            micro = settings.forward_size
            said.append(
                f"model.path={settings.model.path}: {_named(parts(sizes, settings, micro))} GiB with"
                f" micro_batch_size={micro}, prompts not counted; a worker has {_gib(there)} GiB"
                f" of device={device_here(settings.device)}"
            )
    return list(dict.fromkeys(said))


def worker_memory(settings: RunSettings) -> int:
    """Bytes that a worker has for a run, as `with_micro_batches` says; `machine.memory_mib` may be less."""
    device = device_here(settings.device)
    workers = settings.data_parallel or max(1, cores() // settings.machine.threads)
    share = memory_of(device) // (workers if device == "cpu" else 1)
    limit = settings.machine.memory_mib
    return share if limit is None else min(share, limit * 2**20)


def sizes_of(model: ModelSettings) -> Sizes | None:
    """Those of a pretrained model whose config is at hand, in a folder or the local cache of the hub."""
    if not isinstance(model, PretrainedModel):
        return None
    config = model.config_file()
    return Sizes.of(read_json(config) or {}) if config else None


def parameters(model: ModelSettings) -> int:
    """Weights of a model from its config alone, a model from scratch's without its few embeddings; 0: unknown."""
    if isinstance(model, TinyModel):
        width = model.hidden_size
        sizes: Sizes | None = Sizes(0, width, model.layers, model.intermediate_size, width, width, tied=True)
    else:
        sizes = sizes_of(model)
    return sizes.parameters if sizes else 0


def _sampler_dtype(settings: RunSettings) -> str:
    return settings.sampler_dtype or settings.dtype


def _named(taken: dict[str, int]) -> str:
    return ", ".join(f"{name} {_gib(size)}" for name, size in taken.items() if size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def cores() -> int:
    """Cores that this process may use: its affinity, and a container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or no limit (`max`)
        return allowed


def memory_of(device: str) -> int:
    """Bytes of the machine's memory, or of its GPU's, 0 where it has none; torch is imported only to ask that."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else 0
