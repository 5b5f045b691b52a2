"""A lower bound of a run's memory, computed from the model's config; and the machine's cores and memory.

`studies/peak_memory.py` estimates the peak.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.paths import read_json
from grpolab.settings.run import RunSettings, device_here
from grpolab.settings.task import ModelSettings, PretrainedModel, TinyModel

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
FLOAT32 = 4  # bytes; weights, gradients and AdamW's moments are float32 at any precision of the forward pass
CHUNK = 2**24  # logits that exist at once (`grpo.model.MOST_LOGITS`)
SAMPLED = 16  # bytes of a sampled token, at least: its id and two log-probs
LOGITS = 3  # tensors of this size: logits, their log-softmax and its gradient
FIXED = ("weights", "gradients", "optimiser", "reference", "sampler")  # parts that do not depend on the micro-batch


@dataclass(frozen=True)
class Sizes:
    """The sizes in a model's config that decide its memory."""

    vocabulary: int
    hidden: int
    layers: int
    intermediate: int
    queries: int  # width of a token's queries, and of its keys, over all heads
    keys: int
    tied: bool

    @staticmethod
    def of(config: dict[str, Any]) -> Sizes | None:
        """Read the sizes of a model with gated MLPs, as Llama has; None if the config is of another kind."""
        config = config.get("text_config", config)
        try:
            names = "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"
            vocabulary, hidden, layers, intermediate, heads = (int(config[name]) for name in names)
            width = int(config.get("head_dim") or hidden // heads)
            keys = int(config.get("num_key_value_heads") or heads) * width
            tied = bool(config.get("tie_word_embeddings", True))
            return Sizes(vocabulary, hidden, layers, intermediate, heads * width, keys, tied)
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def parameters(self) -> int:
        """Weights, without norms and biases."""
        layer = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def adapters(self, rank: int) -> int:
        """Weights of adapters of a rank, if every linear layer but the head has them."""
        widths = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        return self.layers * rank * (widths + 3 * (self.hidden + self.intermediate))


def shares(settings: RunSettings) -> int:
    """Return among how many processes gradients and moments are shared; embeddings, which are not, count as if."""
    return settings.processes if settings.shard_weights else 1


def count_bytes(sizes: Sizes, settings: RunSettings, sequences: int) -> dict[str, int]:
    """Return the bytes of each part of a run whose micro-batches have `sequences` full completions, without prompts."""
    weights, tokens = FLOAT32 * sizes.parameters, sequences * settings.max_completion_length
    number = 2 if settings.dtype == "bfloat16" else FLOAT32
    trained = FLOAT32 * sizes.adapters(settings.lora.rank) if settings.lora else weights
    own_weights = weights * (settings.sampler_dtype == "int8" or settings.sampler_refresh is not None)
    # A layer keeps of each token: its norms, projections, rotations and attention, and the gated MLP.
    layer = 14 * sizes.hidden + 4 * sizes.intermediate
    kept = sizes.layers * (sizes.hidden if settings.gradient_checkpointing else layer)
    reference = settings.beta > 0 or settings.diagnostics.kl_ref_every > 0
    return {
        "weights": weights + (trained if settings.lora else 0),
        "gradients": trained // shares(settings),
        "optimiser": 2 * trained // shares(settings),
        "reference": weights if reference and not settings.lora else 0,
        "sampler": own_weights or number * sizes.parameters * (settings.sampler_engine == "continuous" and number == 2),
        "activations": number * tokens * (kept + layer * bool(settings.gradient_checkpointing)),
        "logits": LOGITS * FLOAT32 * min(tokens * sizes.vocabulary, CHUNK),
    }


def find_problems(settings: RunSettings) -> list[str]:
    """Return a sentence if a batch, or a pretrained model's update with one completion, certainly does not fit."""
    length = settings.max_completion_length
    batch, machine = SAMPLED * settings.batch_size * length, memory_of("cpu")
    if batch > machine:
        return [
            f"prompts_per_step={settings.prompts_per_step} * num_generations={settings.num_generations} completions of"
            f" max_completion_length={length} do not fit into the {gib(machine)} GiB of this machine: they need"
            f" {gib(batch)} GiB"
        ]
    sizes = sizes_of(settings.model)
    if sizes is None or not isinstance(settings.model, PretrainedModel):
        return []
    device = device_here(settings.device)
    bytes_of, available = count_bytes(sizes, settings, 1), memory_of(device)
    # A lower bound: prompts, logits, the sampler's cache and the program itself are not counted.
    needed = {name: bytes_of[name] for name in (*FIXED, "activations")}
    if device == "cpu":  # each GPU has one process
        needed = {name: size * (settings.data_parallel or 1) for name, size in needed.items()}
    if sum(needed.values()) <= available:
        return []
    return [
        f"model.path={settings.model.path} does not fit into the {gib(available)} GiB of device={device}, even with"
        f" micro_batch_size=1: it needs {gib(sum(needed.values()))} GiB ({listed(needed)})"
    ]


def with_micro_batches(settings: RunSettings) -> RunSettings:
    """Replace `micro_batch_size=auto` by a number.

    It is the largest divisor of the minibatch whose activations and logits fit into half of the memory that weights,
    gradients and optimiser leave; the other half is for what is not counted. A model from scratch, whose updates are
    small, takes the minibatch whole, and so does a loss that depends on the micro-batches.
    """
    pieces = range(settings.data_parallel or 1, settings.minibatch_size + 1)  # at least one for each process
    fitting = [settings.minibatch_size // count for count in pieces if settings.minibatch_size % count == 0]
    sizes = sizes_of(settings.model)
    if sizes and not (settings.compares_tokens or settings.aggregation == "token_mean_microbatch"):
        bytes_of = {size: count_bytes(sizes, settings, size) for size in fitting}
        left = worker_memory(settings) - sum(bytes_of[fitting[0]][name] for name in FIXED)
        smallest = fitting[-1:]
        fitting = [size for size, of in bytes_of.items() if of["activations"] + of["logits"] <= left / 2] or smallest
    return settings.model_copy(update={"micro_batch_size": fitting[0]})


def worker_memory(settings: RunSettings) -> int:
    """Return a worker's bytes: its GPU's, or the share of `machine.threads` cores; at most `machine.memory_mib`."""
    device = device_here(settings.device)
    workers = settings.data_parallel or max(1, cores() // settings.machine.threads)
    share = memory_of(device) // (workers if device == "cpu" else 1)
    limit = settings.machine.memory_mib
    return share if limit is None else min(share, limit * 2**20)


def sizes_of(model: ModelSettings) -> Sizes | None:
    """Return the sizes of a pretrained model whose config is in a folder or in the local cache of the hub."""
    if not isinstance(model, PretrainedModel):
        return None
    config = model.config_file()
    return Sizes.of(read_json(config) or {}) if config else None


def parameters(model: ModelSettings) -> int:
    """Return a model's number of weights from its config, without a tiny model's few embeddings; 0: unknown."""
    if isinstance(model, TinyModel):
        width = model.hidden_size
        sizes: Sizes | None = Sizes(0, width, model.layers, model.intermediate_size, width, width, tied=True)
    else:
        sizes = sizes_of(model)
    return sizes.parameters if sizes else 0


def listed(bytes_of: dict[str, int]) -> str:
    """Write `weights 0.5, optimiser 1.0`, in GiB."""
    return ", ".join(f"{name} {gib(size)}" for name, size in bytes_of.items() if size)


def gib(size: int) -> str:
    """Write bytes in GiB."""
    return f"{size / 2**30:.1f}"


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and a container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or no limit (`max`)
        return allowed


def memory_of(device: str) -> int:
    """Return the bytes of the machine's memory, or of its GPU's, 0 if it has none; imports torch only for a GPU."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else 0
