"""Estimate the peak memory of a language model's run before it starts, on its device and in the machine's memory.

Some parts are in memory for the whole run, others only in one phase (sampling, an update, a checkpoint); the peak is
the largest phase. On a CPU malloc does not return small freed blocks, such as those of activations and of the sampler's
cache, so these count in every phase; and the gaps that peft's products leave between live blocks add about as much as
the activations. A GPU's allocator reuses freed blocks; program and checkpoints, which are in the machine's memory, do
not count there. `benchmarks/memory.py` compares the estimate with a measured peak.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpolab.run.memory import CHUNK, FIXED, FLOAT32, Sizes, count_bytes, gib, listed, shares, sizes_of, worker_memory
from grpolab.settings.run import RunSettings, device_here
from grpolab.settings.task import PretrainedModel

PROGRAM = 480 * 2**20  # Python, torch and transformers, once they are loaded
LOGITS = 5  # tensors of this size: logits, at the temperature, their log-softmax, its exponential, a gradient
ALWAYS = (*FIXED, "last gradient")
KEPT_BY_MALLOC = ("activations", "cache", "fragments")
HOST = ("program", "checkpoint", "fragments")  # in the machine's memory, whatever the device
PHASES = (
    ("cache", "earlier weights"),  # sampling
    ("activations", "casts", "logits", "earlier weights"),  # an update
    ("earlier weights", "difference"),  # what is measured behind it
    ("checkpoint",),
)


def parts_of(sizes: Sizes, settings: RunSettings) -> dict[str, int]:
    """Return the bytes of each part of a run, without prompts."""
    counted = count_bytes(sizes, settings, settings.forward_size)
    trained, diagnostics = counted["gradients"] * shares(settings), settings.diagnostics
    tokens = settings.forward_size * settings.max_completion_length
    is_half = settings.dtype == "bfloat16"
    half_sampled = (settings.sampler_dtype or settings.dtype) in ("bfloat16", "float16")
    cached = settings.batch_size * settings.max_completion_length * sizes.layers * 2 * sizes.keys
    has_sampler = settings.sampler_dtype == "int8" or settings.sampler_refresh is not None
    # Beside weights and the two means of AdamW a checkpoint has what the sampler has of the trained weights.
    saved = 3 + has_sampler + bool(diagnostics.gradient_cosine)
    return counted | {
        "sampler": counted["sampler"] + (trained if has_sampler and settings.lora else 0),
        "logits": LOGITS * FLOAT32 * min(tokens * sizes.vocabulary, CHUNK),
        "casts": 2 * sizes.parameters if is_half and not settings.gradient_checkpointing else 0,
        "fragments": counted["activations"] if settings.lora else 0,
        "cache": (2 if half_sampled else FLOAT32) * cached,
        "last gradient": trained if diagnostics.gradient_cosine else 0,
        "earlier weights": trained if diagnostics.step_norm else 0,
        "difference": trained if diagnostics.step_norm or diagnostics.gradient_cosine else 0,
        "checkpoint": saved * trained,
        "program": PROGRAM,
    }


def peak_of(parts: dict[str, int], device: str) -> int:
    """Return the most bytes of a device that are taken at once."""
    on_device = _parts_on(device, parts)
    always = (*ALWAYS, "program", *(KEPT_BY_MALLOC if device == "cpu" else ()))
    return sum(on_device.get(name, 0) for name in always) + max(
        sum(on_device.get(name, 0) for name in phase if name not in always) for phase in PHASES
    )


def _parts_on(device: str, parts: dict[str, int]) -> dict[str, int]:
    """Leave out the parts that are in the machine's memory, unless that is the device's."""
    return {name: size for name, size in parts.items() if device == "cpu" or name not in HOST}


def describe(runs: Iterable[RunSettings]) -> list[str]:
    """Describe the memory of each different run of a pretrained model, unless its GPU is not here."""
    sentences = []
    for settings in runs:
        sizes = sizes_of(settings.model)
        if sizes and isinstance(settings.model, PretrainedModel) and (available := worker_memory(settings)):
            device, parts = device_here(settings.device), parts_of(sizes, settings)
            of_device = listed(_parts_on(device, parts))
            beside = "" if device == "cpu" else f"; a checkpoint takes {gib(parts['checkpoint'])} GiB of the machine"
            sentences.append(
                f"model.path={settings.model.path}: {gib(peak_of(parts, device))} GiB at its peak with"
                f" micro_batch_size={settings.forward_size}, prompts not counted ({of_device}, not all at once);"
                f" a worker has {gib(available)} GiB of device={device}{beside}"
            )
    return list(dict.fromkeys(sentences))
