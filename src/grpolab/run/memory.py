"""The memory that a run of a language model takes, from its config alone, before anything is loaded. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.paths import read_json
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

FLOAT32 = 4  # bytes of a number: weights, gradients and AdamW's means are float32 whatever the forward pass is


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


def parts(sizes: Sizes, settings: RunSettings, tokens: int) -> dict[str, int]:
    """Bytes of each part of an update whose micro-batches have `tokens` tokens; logits in chunks are left out."""
    weights = FLOAT32 * sizes.parameters
    number = 2 if settings.dtype == "bfloat16" else FLOAT32
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
    }


def problems(settings: RunSettings) -> list[str]:
    """Why a pretrained model's updates cannot fit, even with one completion in a micro-batch; empty where they may.

    A lower bound: prompts are not counted, nor logits, the sampler's cache or the program itself.
    """
    config = Path(settings.model.path) / "config.json" if isinstance(settings.model, PretrainedModel) else None
    sizes = Sizes.of(read_json(config) or {}) if config else None
    if config is None or sizes is None:
        return []
    device = settings.resolved().device
    needed, there = parts(sizes, settings, settings.max_completion_length), memory_of(device)
    if device == "cpu":  # each GPU has one process
        needed = {name: size * (settings.data_parallel or 1) for name, size in needed.items()}
    if sum(needed.values()) <= there:
        return []
    named = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in needed.items() if size)
    return [
        f"model.path={config.parent} does not fit into the {there / 2**30:.1f} GiB of device={device}, even with"
        f" micro_batch_size=1: it needs {sum(needed.values()) / 2**30:.1f} GiB ({named})"
    ]


def memory_of(device: str) -> int:
    """Bytes of the machine's memory, or of its GPU's; torch is imported only to ask that."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)
