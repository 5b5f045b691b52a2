"""Every path that a run takes on a GPU, tried in at most ten minutes: `make gpu-check`.

Each check trains some steps of a model with random weights and says in one line what it saw, or what was wrong. With
`--device cpu` the same checks rehearse on the CPU with a small model; what only a GPU has is then left out. The last
lines are the table for benchmarks/README.md. Exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from memory import SMOLLM2, make_model
from safetensors.torch import load_file

from grpolab.grpo.step import LearnerState
from grpolab.paths import Results
from grpolab.run.assembly import assemble
from grpolab.run.memory import sizes_of
from grpolab.run.train import Interrupted, run
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.studies.peak_memory import parts_of, peak_of
from grpolab.sweep.compose import compose

LIMIT = 570  # seconds; a check that has not begun by then is left out
SMALL = {
    **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}
KEYS = ["model=pretrained", "task=char_count", "task.chat=false", "warm_start.max_steps=0", "rollout_steps=3"]
KEYS += ["prompts_per_step=8", "num_generations=8", "num_minibatches=2", "micro_batch_size=8", "learning_rate=1e-5"]
KEYS += ["evaluation.items=16", "evaluation.every=3", "beta=0.04", "diagnostics.mismatch=true"]
KEYS += ["machine.checkpoint_seconds=0", "machine.tracking_uri=null"]
PORT = 8123
FILES = ("journal.jsonl", "policy.safetensors")


@dataclass(frozen=True)
class Place:
    """Where a check works: its device, the model's folder, and a folder for results."""

    device: str
    model: Path
    folder: Path

    def settings(self, *keys: str) -> Resolved:
        """Compose a run of the model."""
        length = 48 if self.device == "cuda" else 16
        at = [f"model.path={self.model}", f"max_completion_length={length}", f"device={self.device}"]
        return resolve_run(compose([*KEYS, *at, *keys]))

    def train(self, settings: Resolved, name: str, until: int | None = None) -> Path:
        """Train, until a rollout step if one is named; return the run's folder. Raises RuntimeError if it fails."""
        results, finished = Results.open(self.folder / name), list[int]()
        try:
            outcome = run(settings, results, on_step=finished.append, stop=lambda: finished[-1] == until)
            if outcome["outcome"] != "completed":
                raise RuntimeError(outcome["reason"])
        except Interrupted:
            pass
        return results.run(settings.signature)

    def first(self, settings: Resolved, *metrics: str) -> list[float]:
        """Train, and return metrics of the first rollout step."""
        lines = (self.train(settings, "first") / "journal.jsonl").read_text().splitlines()
        rollout = next(record for record in map(json.loads, lines) if record["kind"] == "rollout")
        return [float(rollout[metric]) for metric in metrics]


def repeats(place: Place) -> str:
    """The same run twice, and once stopped and resumed."""
    settings = place.settings()
    whole, again = (place.train(settings, name) for name in ("whole", "again"))
    place.train(settings, "resumed", until=2)
    resumed = place.train(settings, "resumed")
    equal = {
        kind: all((whole / name).read_bytes() == (other / name).read_bytes() for name in FILES)
        for kind, other in (("repeated", again), ("resumed", resumed))
    }
    expect(all(equal.values()), f"journal and weights are equal to the bit: {equal}")
    return "repeated and resumed, journal and weights are equal to the bit"


def agrees(place: Place) -> str:
    """Before the first optimiser step the ratio is 1, and the sampler's log-probs are the trainer's, in float32."""
    ratio, gap = place.first(place.settings(), "gap/first_pass", "gap/sampler_trainer")
    expect(ratio < 1e-3 and gap < 1e-2, f"log ratio {ratio:.1e}, sampler against trainer {gap:.1e} nat")
    return f"largest log ratio of a first pass {ratio:.1e}, sampler against trainer {gap:.1e} nat"


def bfloat16(place: Place) -> str:
    """bfloat16 with a float32 head."""
    (k3,) = place.first(place.settings("dtype=bfloat16", "head_dtype=float32"), "gap/k3")
    expect(k3 < 1e-2, f"k3 of the sampler to the trainer {k3:.1e} nat per token")
    return f"k3 of the sampler to the trainer {k3:.1e} nat per token"


def continuous(place: Place) -> str:
    """transformers' continuous batching as the sampler, beside our own: completion tokens per second."""
    more = ["num_generations=16", "dtype=bfloat16", "head_dtype=float32"] if place.device == "cuda" else []
    ours, theirs = (place.settings(*more, *keys) for keys in ([], ["sampler_engine=continuous"]))
    (k3,) = place.first(theirs, "gap/k3")
    rates = [sampled_per_second(settings) for settings in (ours, theirs)]
    expect(k3 < 1e-2, f"k3 of the engine to the trainer {k3:.1e} nat per token")
    return f"k3 {k3:.1e} nat per token; {rates[1]:,.0f} tokens/s, our own sampler {rates[0]:,.0f}"


def synchronisations(place: Place) -> str:
    """How often the program waits for the GPU while our sampler makes a batch, per token of a sequence."""
    if place.device == "cpu":
        return "left out: a GPU's alone"
    learner, state = parts(place.settings("dtype=bfloat16"))
    learner.collect(state)
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        batch = learner.collect(state).batch
        torch.cuda.set_sync_debug_mode("default")
    return f"{sum('synchroniz' in str(wait.message) for wait in waits) / batch.mask_BT.shape[1]:.2f} per token"


def adapters(place: Place) -> str:
    """Adapters by peft: they alone are trained."""
    if importlib.util.find_spec("peft") is None:
        return "left out: `make extras WHAT=lora` installs peft"
    folder = place.train(place.settings("lora={rank: 8, alpha: 16, targets: null}"), "lora")
    trained = sum(weight.numel() for weight in load_file(folder / "policy.safetensors").values())
    return f"completed, {trained:,} weights trained"


def shards(place: Place) -> str:
    """Two processes with their weights in shards, beside one process that does the work of both."""
    if place.device == "cuda" and torch.cuda.device_count() < 2:
        return "left out: it needs two GPUs"
    both, one = (
        place.settings("data_parallel=2", "shard_weights=true"),
        place.settings("data_parallel=2", "machine.processes=1"),
    )
    ours, theirs = (
        load_file(place.train(each, name) / "policy.safetensors") for each, name in ((both, "shards"), (one, "one"))
    )
    moved = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    expect(moved < 1e-4, f"weights differ by at most {moved:.1e}")
    return f"weights after {both.rollout_steps} steps differ by at most {moved:.1e}"


def says_its_memory(place: Place) -> str:
    """The memory that is said before a run, beside the allocator's peak."""
    if place.device == "cpu":
        return "left out: `make bench WHAT=memory` is the CPU's"
    settings = place.settings("dtype=bfloat16", "micro_batch_size=32")
    torch.cuda.reset_peak_memory_stats()
    place.train(settings, "memory")
    sizes, peak = sizes_of(settings.model), torch.cuda.max_memory_allocated() / 2**30
    assert sizes is not None
    said = peak_of(parts_of(sizes, settings), settings.device) / 2**30
    expect(0.75 <= said / peak <= 1.25, f"said {said:.2f} GiB, peak {peak:.2f} GiB")
    return f"said {said:.2f} GiB, peak {peak:.2f} GiB, a ratio of {said / peak:.2f}"


def vllm(place: Place) -> str:
    """A vLLM server as the sampler, if vllm is installed."""
    if importlib.util.find_spec("vllm") is None:
        return "left out: vllm is not installed"
    served, url = place.folder / "served", f"http://127.0.0.1:{PORT}"
    shutil.copytree(place.model, served)
    command = ["vllm", "serve", str(served), "--port", str(PORT), "--logprobs-mode", "processed_logprobs"]
    command += ["--gpu-memory-utilization", "0.3"]
    engine = f"machine.engine={{url: '{url}', folder: {served}, seconds: 120}}"
    server = subprocess.Popen(command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"}, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"{url}/health", server, seconds=180)
        (k3,) = place.first(place.settings("sampler_engine=vllm", engine, "dtype=bfloat16"), "gap/k3")
    finally:
        server.terminate()
        server.wait()
    expect(k3 < 1e-2, f"k3 of the engine to the trainer {k3:.1e} nat per token")
    return f"k3 of the engine to the trainer {k3:.1e} nat per token, weights renewed at each of the steps"


CHECKS: dict[str, Callable[[Place], str]] = {
    **{"repeats itself": repeats, "sampler and trainer agree": agrees, "bfloat16": bfloat16},
    **{"continuous batching": continuous, "waits for the GPU": synchronisations, "adapters": adapters},
    **{"weights in shards": shards, "memory": says_its_memory, "vLLM": vllm},
}


def wait_for(url: str, server: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a server answers. Raises RuntimeError if it ends, or does not answer in time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    raise RuntimeError(f"{url} did not answer within {seconds:.0f} s")


def expect(holds: bool, seen: str) -> None:
    """Raise AssertionError with what was seen unless it holds."""
    if not holds:
        raise AssertionError(seen)


def parts(settings: Resolved) -> tuple[Any, LearnerState]:
    """Return a run's learner and state, nothing on disk."""
    made = assemble(settings)  # random weights: there is no warm start
    return made.learner, made.state


def sampled_per_second(settings: Resolved) -> float:
    """Return completion tokens per second of a rollout step, the second one."""
    learner, state = parts(settings)
    learner.collect(state)
    begun = time.perf_counter()
    tokens = int(learner.collect(state).batch.mask_BT.sum())  # reading it waits for the GPU
    return tokens / (time.perf_counter() - begun)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the checks; print a line for each as it ends, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", choices=list(CHECKS), nargs="*", default=list(CHECKS))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use: `make gpu-check DEVICE=cpu` rehearses on the CPU")
        return 2
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    begun, rows, failed = time.perf_counter(), list[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", SMOLLM2 if options.device == "cuda" else SMALL)
        for name in options.only:
            start = time.perf_counter()
            try:
                late = start - begun > LIMIT
                seen = (
                    "left out: ten minutes are over"
                    if late
                    else CHECKS[name](Place(options.device, Path(folder) / "model", Path(folder) / name))
                )
            except Exception as error:
                failed += 1
                seen = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            rows.append(f"| {name} | {seen} | {time.perf_counter() - start:.0f} |")
            print(f"{name}: {seen}", flush=True)
    print(f"\n| on {where}, torch {torch.__version__} | seen | seconds |\n| --- | --- | --- |", *rows, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
