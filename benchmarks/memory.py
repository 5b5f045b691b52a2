"""What a run of a language model is said to take, beside the peak of its process (the kernel's VmHWM).

Three shapes with random weights, each for two rollout steps in a process of its own: a model of SmolLM2's sizes, a
deep and narrow one with a small vocabulary and long completions, and one with adapters. Exit code 1 if an estimate is
off by more than a quarter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpolab.grpo.loading import character_tokenizer
from grpolab.paths import Results
from grpolab.run.memory import sizes_of
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.studies.peak_memory import parts_of, peak_of
from grpolab.sweep.compose import compose
from grpolab.tasks import make_task

SMOLLM2 = {
    **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
}
DEEP = {
    **{"vocab_size": 512, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 24},
    **{"num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
COMMON = ["model=pretrained", "task=char_count", "warm_start.max_steps=0", "rollout_steps=2", "num_iterations=1"]
COMMON += ["prompts_per_step=4", "num_generations=8", "evaluation.items=4", "evaluation.every=2"]
COMMON += ["machine.checkpoint_seconds=0.001", "task.chat=false"]
SHAPES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "135M, vocabulary of 49,152": (SMOLLM2, ["max_completion_length=48", "micro_batch_size=8"]),
    "101M, deep, long completions": (
        DEEP,
        ["max_completion_length=256", "micro_batch_size=8", "prompts_per_step=2", "beta=0.04"],
    ),
    "135M with adapters": (
        SMOLLM2,
        ["max_completion_length=48", "micro_batch_size=16", "lora={rank: 16, alpha: 32, targets: null}", "beta=0.04"],
    ),
}


def make_model(folder: Path, sizes: dict[str, Any]) -> None:
    """Write a Llama of some sizes with random weights, and a tokenizer of characters."""
    tokenizer = character_tokenizer(make_task(compose(["task=char_count"]).task).alphabet)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(max_position_embeddings=2048, **sizes, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def settings_of(name: str, folder: Path) -> Resolved:
    """Return the settings of a shape's run."""
    return resolve_run(compose([*COMMON, *SHAPES[name][1], f"model.path={folder}"]))


def measure(name: str, place: Path) -> dict[str, Any]:
    """Train in this process; return its peak and what was said of it, in bytes."""
    settings = settings_of(name, place / "model")
    outcome = run(settings, Results.open(place / "results"))
    assert outcome["outcome"] == "completed", outcome
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    sizes = sizes_of(settings.model)
    assert sizes is not None
    parts = parts_of(sizes, settings)
    return {"peak": int(peak.split()[1]) * 1024, "said": peak_of(parts, settings.device), "parts": parts}


def main() -> int:
    """Measure every shape, or the one that is named, in this process."""
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
        return 0
    off = 0
    print("| shape | said (GiB) | peak (GiB) | said / peak | parts |\n|---|---|---|---|---|")
    for name, (sizes, _) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder) / "model", sizes)
            done = subprocess.run([sys.executable, __file__, name, folder], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        seen = json.loads(done.stdout.splitlines()[-1])
        said, peak = seen["said"] / 2**30, seen["peak"] / 2**30
        off += not 0.75 <= said / peak <= 1.25
        parts = ", ".join(f"{part} {size / 2**30:.2f}" for part, size in seen["parts"].items() if size)
        print(f"| {name} | {said:.2f} | {peak:.2f} | {said / peak:.2f} | {parts} |", flush=True)
    return 1 if off else 0


if __name__ == "__main__":
    raise SystemExit(main())
