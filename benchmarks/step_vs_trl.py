"""CPU time of an optimiser step: GRPO Lab against TRL's GRPOTrainer. What is counted, and why so: README.md here.

.venv-bench/bin/python benchmarks/step_vs_trl.py [--steps 80] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import logging
import math
import multiprocessing
import os
import platform
import string
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from grpolab.sweep.jobs import Request

PROMPTS, GENERATIONS, PROMPT_TOKENS, NEW_TOKENS = 4, 8, 4, 16
MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
WARM_UP, STEPS = 8, 80  # optimiser steps: before the clock starts, and on the clock
TRACKED = 2.5  # times as many for GRPO Lab with its mirror, whose work once for a run they share: a short run
PACKAGES = ("grpolab", "trl", "torch", "transformers", "mlflow")
LEARNING_RATE, BETA2, MAX_GRAD_NORM = 1.5e-4, 0.95, 1.0
DIAGNOSTICS_OFF = [
    *(f"diagnostics.{switch}=false" for switch in ("quantiles", "counterfactual", "step_norm")),
    *(f"diagnostics.{interval}=0" for interval in ("histogram_every", "samples_every", "kl_ref_every")),
]
# TRL's settings of every run here: float32 on the CPU, nothing saved, no bar.
ON_CPU: dict[str, Any] = {
    "save_strategy": "no",
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "disable_tqdm": True,
}
ENVIRONMENT = {  # read when torch, transformers and mlflow are imported; inherited by the processes started here
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_EXPERIMENT_NAME": "benchmark",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
}


class Case(NamedTuple):
    """One line of the table."""

    name: str
    mu: int  # num_iterations
    tracking: bool = False
    overrides: tuple[str, ...] = ()  # of GRPO Lab's settings; TRL is not run again for them
    steps: int = STEPS  # a multiple of mu


CASES = [
    *(Case("bare", mu) for mu in (1, 4)),
    *(Case("bare, diagnostics off", mu, overrides=tuple(DIAGNOSTICS_OFF)) for mu in (1, 4)),
    *(Case("tracking", mu, tracking=True) for mu in (1, 4)),
]


def share_of_a(prompt: str, answer: str, completion: str) -> float:
    """The reward, as GRPO Lab calls it."""
    return completion.count("a") / NEW_TOKENS


def shares_of_a(completions: list[str], **columns: Any) -> list[float]:
    """The reward, as TRL calls it."""
    return [share_of_a("", "", completion) for completion in completions]


def begin() -> None:
    """What a process of either system does first: one torch thread, no chatter."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")


def prepare(folder: Path) -> int:
    """Write the model, the tokenizer and the prompts that both systems read; returns the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from grpolab.grpo.loading import character_tokenizer

    tokenizer = character_tokenizer(string.ascii_letters[:46])
    config = LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, bos_token_id=None, **MODEL)
    tokenizer.add_special_tokens({"eos_token": "<never>"})  # an id that the model does not have: no completion ends
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for split, letters in (("train", "abcdefgh"), ("evaluation", "ij")):
        words = map("".join, itertools.product(letters, repeat=PROMPT_TOKENS))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"prompt": w, "answer": ""}) + "\n" for w in words))
    return model.num_parameters()


def trl_seconds(folder: Path, case: Case, number: int) -> float:
    """CPU seconds of one optimiser step of TRL; `number` is the seed."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    clock: dict[int, float] = {}

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock[state.global_step] = time.process_time()

    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/trl.db"
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model"),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        reward_funcs=shares_of_a,
        train_dataset=load_dataset("json", data_files=str(folder / "train.jsonl"), split="train"),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            seed=number,
            per_device_train_batch_size=PROMPTS * GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=NEW_TOKENS,
            num_iterations=case.mu,
            max_steps=WARM_UP + case.steps,
            loss_type="grpo",
            beta=0.0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            adam_beta2=BETA2,
            max_grad_norm=MAX_GRAD_NORM,
            logging_steps=case.mu,  # once for a rollout step, as often as GRPO Lab draws a point
            report_to="mlflow" if case.tracking else "none",
            **ON_CPU,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return (clock[WARM_UP + case.steps] - clock[WARM_UP]) / case.steps


def plan_ours(folder: Path, case: Case, number: int) -> Request:
    """The same as one run of GRPO Lab, checked, with the plan that its mirror reads."""
    from grpolab.sweep.jobs import Request
    from grpolab.sweep.multirun import expand_multirun

    overrides = [
        f"seed={number}",
        "task=jsonl",
        "task.prompt_key=prompt",
        f"task.train_file={folder}/train.jsonl",
        f"task.evaluation_file={folder}/evaluation.jsonl",
        "model=pretrained",
        f"model.path={folder}/model",
        "reward.function=step_vs_trl:share_of_a",
        f"prompts_per_step={PROMPTS}",
        f"num_generations={GENERATIONS}",
        f"max_completion_length={NEW_TOKENS}",
        f"num_iterations={case.mu}",
        f"rollout_steps={(WARM_UP + our_steps(case)) // case.mu + 1}",
        "loss_type=grpo",
        "beta=0",
        f"learning_rate={LEARNING_RATE}",
        f"adam_beta2={BETA2}",
        f"max_grad_norm={MAX_GRAD_NORM}",
        "evaluation.every=1000000",  # TRL has none: none on the clock
        "device=cpu",
        f"machine.results={folder}/results",
        f"machine.tracking_uri={f'sqlite:///{folder}/ours.db' if case.tracking else 'null'}",
        *case.overrides,
    ]
    request = Request([expand_multirun(overrides, f"benchmark{number}")])
    request.write_plans()
    return request


def our_steps(case: Case) -> int:
    """Optimiser steps on the clock."""
    return int(TRACKED * case.steps) if case.tracking else case.steps


def our_seconds(request: Request, case: Case) -> float:
    """CPU seconds of one optimiser step of GRPO Lab, without its mirror."""
    from grpolab.run.train import run

    (cell,) = request.cells.values()
    clock: dict[int, float] = {}
    outcome = run(cell.settings, request.results, on_step=lambda step: clock.update({step: time.process_time()}))
    if outcome["outcome"] != "completed":
        raise RuntimeError(f"GRPO Lab's run {outcome['outcome']}: {outcome['reason']}")
    steps = our_steps(case)
    return (clock[(WARM_UP + steps) // case.mu] - clock[WARM_UP // case.mu]) / steps


def mirror_seconds(request: Request) -> float:
    """CPU seconds that mirroring a run into MLflow takes, from its beginning to its end; imports are not counted.

    What `python -m grpolab.run.tracking` does, which cannot be asked for its CPU time.
    """
    from grpolab.run.tracking import ENVIRONMENT as MIRROR_ENVIRONMENT
    from grpolab.run.tracking.__main__ import POLL_SECONDS

    os.environ.update(MIRROR_ENVIRONMENT)
    from grpolab.run.tracking.mirror import StudyMirror

    outcome = request.results.run(next(iter(request.cells))) / "outcome.json"
    begun = time.process_time()
    mirror = StudyMirror(request.results, str(request.tracking_uri), [request.name])
    while not outcome.exists():
        mirror.attempt()
        polled = time.monotonic()
        while not outcome.exists() and time.monotonic() < polled + POLL_SECONDS:
            time.sleep(0.1)
    if problem := mirror.attempt(last=True):
        raise RuntimeError(f"tracking: {problem}")
    return time.process_time() - begun


def measure(folder: Path, cases: list[Case], rounds: int) -> tuple[int, dict[tuple[str, Case], float]]:
    """Parameters of the model, and the best CPU seconds of an optimiser step of either system in each case."""
    best: dict[tuple[str, Case], float] = {}
    fresh = partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"), begin)
    with fresh() as trl, fresh() as ours, fresh() as mirror:
        parameters = ours.submit(prepare, folder).result()
        for number, case in enumerate(cases * rounds):
            request = plan_ours(folder, case, number)
            mirrored = mirror.submit(mirror_seconds, request) if case.tracking else None
            seconds = {"ours": ours.submit(our_seconds, request, case).result()}
            if mirrored:
                seconds["ours"] += mirrored.result() / (WARM_UP + our_steps(case))
            if not case.overrides:
                seconds["trl"] = trl.submit(trl_seconds, folder, case, number).result()
            for system, value in seconds.items():
                best[system, case] = min(value, best.get((system, case), math.inf))
    return parameters, best


def main() -> None:
    """Measure, and print the table; the last line ends in the tracked ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="on the clock, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    cases = [case._replace(steps=given.steps) for case in CASES]
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as name:
        parameters, best = measure(Path(name), cases, given.rounds)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"CPU time of an optimiser step, one torch thread, best of {given.rounds} rounds in turns")
    print(f"{processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}")
    print(
        f"LlamaForCausalLM, {parameters:,} parameters, float32;"
        f" {PROMPTS} prompts of {PROMPT_TOKENS} tokens x {GENERATIONS} completions of {NEW_TOKENS}"
    )
    print(f"\n{'':24}{'mu':>4}{'TRL':>12}{'GRPO Lab':>12}{'ratio':>9}")
    ratios = {}
    for case in cases:
        theirs, own = best["trl", case._replace(name=case.name.split(",")[0], overrides=())], best["ours", case]
        ratios[case] = theirs / own
        print(f"{case.name:24}{case.mu:4}{1e3 * theirs:9.1f} ms{1e3 * own:9.1f} ms{ratios[case]:8.2f}x")
    tracked = min(ratio for case, ratio in ratios.items() if case.tracking)
    print(f"\nBoth tracking to MLflow (SQLite), the smaller ratio: {tracked:.1f}x")


def processor() -> str:
    """What the machine calls its processor."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
