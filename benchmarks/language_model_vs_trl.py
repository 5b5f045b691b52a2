"""A SmolLM2 run on a real task, part by part: GRPO Lab against TRL's GRPOTrainer. See README.md here.

.venv-bench/bin/python benchmarks/language_model_vs_trl.py MODEL [--prompts 16] [--minibatches 4] [--steps 2]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_trl import ENVIRONMENT, clock, fresh_process, make_trainer, plan_ours, print_versions
from run_vs_trl import SAME

GENERATIONS = 8
DIAGNOSTICS_OFF = [
    *(f"diagnostics.{switch}=false" for switch in ("quantiles", "counterfactual", "step_norm")),
    *(f"diagnostics.{interval}=0" for interval in ("histogram_every", "samples_every", "kl_ref_every")),
]
# As docs/language_models.md trains it. A short supervised start: answers have their form, and end.
TASK = ("task=char_count", "task.min_length=3", "task.max_length=6", "model=smollm2", "max_completion_length=32")
START = ("warm_start.seed=0", "warm_start.batch_size=8", "warm_start.learning_rate=1e-4", "warm_start.check_items=1")
# As it is; the same updates; whole groups, and with larger micro-batches, which still take less memory than TRL's.
OURS = ("seed=0", "sort_by_prompt=true", "scale=cpu", "scale=cpu micro_batch_size=16")
KEPT = Path("results", "language_model_vs_trl")  # what the start made, for the next call
PARTS = ("sampling, rewards", "old log-probs", "all else: updates", "a rollout step", "an evaluation")


@dataclass
class Run:
    """What one system's rollout steps cost, CPU seconds by part, and what they did."""

    costs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens: float = 0.0  # of completions, a rollout step
    ended: float = 0.0  # share of completions
    updates: int = 0
    peak: float = 0.0  # MiB, of the process
    # How often so many rows went through the layers, as (rows, backward too?, is it the head?).
    rows: Counter[tuple[int, bool, bool]] = field(default_factory=Counter)

    def timed(self, part: str, function: Callable[..., Any], only: Callable[[], bool] = lambda: True) -> Any:
        """Return the function, which adds its CPU seconds to a part at each call that counts."""

        def call(*args: Any, **kwargs: Any) -> Any:
            counts, begun = only(), clock()
            result = function(*args, **kwargs)
            if counts:
                self.costs[part].append((clock() - begun).cpu)
            return result

        return call

    def watch(self, model: torch.nn.Module) -> None:
        """Count the rows of each forward pass."""
        head = model.get_output_embeddings()
        first = next(m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head)
        for module in (first, head):

            def count(_module: Any, inputs: Any, is_head: bool = module is head) -> None:
                self.rows[inputs[0].numel() // inputs[0].shape[-1], torch.is_grad_enabled(), is_head] += 1

            module.register_forward_pre_hook(count)


def overrides(options: argparse.Namespace) -> list[str]:
    """Return GRPO Lab's settings of the run."""
    return [
        *(*TASK, f"model.path={options.model}", "warm_start.max_steps=0", f"evaluation.items={options.items}"),
        *(f"prompts_per_step={options.prompts}", f"num_minibatches={options.minibatches}"),
        *(f"micro_batch_size={options.micro}", f"rollout_steps={options.steps + 1}", "evaluation.every=1000"),
        *DIAGNOSTICS_OFF,
    ]


def prepare(options: argparse.Namespace) -> Path:
    """Return the folder of the model behind its supervised start, made now if no earlier call has kept it."""
    from grpolab.grpo.loading import make_policy
    from grpolab.paths import Results
    from grpolab.run import warm_start
    from grpolab.tasks import make_task

    start = [*START, f"warm_start.max_steps={options.start}", f"model.path={options.model.resolve()}"]
    settings = next(iter(plan_ours(KEPT, "start", [*TASK, *start]).cells.values())).settings
    folder = KEPT.resolve() / settings.warm_start_signature
    if not folder.exists():
        policy = make_policy(settings, make_task(settings.task))
        weights = warm_start.ensure(settings, Results.open(KEPT)).weights()
        if weights is not None:
            policy.load_weights(weights)
        half_made = folder.with_suffix(".part")
        policy.model.save_pretrained(half_made)
        policy.tokenizer.save_pretrained(half_made)
        half_made.rename(folder)
    return folder


def run_trl(folder: Path, options: argparse.Namespace) -> Run:
    """Train the rollout steps, then evaluate once, as a user of TRL writes it."""
    from datasets import Dataset

    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose
    from grpolab.tasks import make_task
    from grpolab.tasks.base import Example

    ours = resolve_run(compose([*overrides(options), "device=cpu"]))
    task, run = make_task(ours.task), Run()

    def reward(completions: list[Any], question: list[str], answer: list[str], **columns: Any) -> list[float]:
        rows = zip(question, answer, completions, strict=True)
        return [task.score(Example(q, a), completion[0]["content"])["correct"] for q, a, completion in rows]

    def data(split: str, items: int) -> Dataset:
        rows = [
            {"prompt": [{"role": "user", "content": e.prompt}], "question": e.prompt, "answer": e.answer}
            for e in task.examples(split, items)
        ]
        return Dataset.from_list(rows)

    trainer = make_trainer(
        *(folder, options.model, reward),
        {"train_dataset": data("train", 10**9), "eval_dataset": data("evaluation", options.items)},
        per_device_train_batch_size=ours.forward_size,
        gradient_accumulation_steps=ours.minibatch_size // ours.forward_size,
        steps_per_generation=ours.batch_size // ours.forward_size,
        num_generations_eval=1,
        per_device_eval_batch_size=ours.evaluation.batch_size,
        max_steps=options.steps * ours.num_minibatches,
        report_to="none",
        logging_steps=ours.num_minibatches,
        **{name: getattr(ours, name) for name in SAME},
    )
    run.watch(trainer.model)
    evaluating = []
    sampled = run.timed(PARTS[0], trainer._generate_and_score_completions, lambda: not evaluating)
    trainer._generate_and_score_completions = sampled
    scored = trainer._get_per_token_logps_and_entropies
    is_old = lambda: not torch.is_grad_enabled() and not evaluating  # noqa: E731
    trainer._get_per_token_logps_and_entropies = run.timed(PARTS[1], scored, is_old)
    run.timed("run", trainer.train)()
    evaluating.append(True)
    rows, run.rows = run.rows, Counter()
    run.timed(PARTS[4], trainer.evaluate)()
    run.rows = rows
    logs = [log for log in trainer.state.log_history if "completions/mean_length" in log]
    run.tokens = ours.batch_size * float(np.mean([log["completions/mean_length"] for log in logs]))
    run.ended = 1 - float(np.mean([log["completions/clipped_ratio"] for log in logs]))
    run.updates = trainer.state.global_step
    # TRL times old log-probs inside of its sampling.
    run.costs[PARTS[0]] = [sum(run.costs[PARTS[0]]) - sum(run.costs[PARTS[1]])]
    return run


def run_ours(folder: Path, options: argparse.Namespace, ours: str) -> Run:
    """Train the same with the loop of `grpolab train`, journal included; it evaluates at its end.

    It begins at its second step, as the first alone computes the old log-probs of its first minibatch twice.
    """
    from grpolab.grpo.step import Learner
    from grpolab.run import train, warm_start
    from grpolab.run.assembly import assemble
    from grpolab.run.provenance import set_up_torch

    request = plan_ours(folder, f"run{time.monotonic_ns()}", [*overrides(options), *ours.split()])
    settings = next(iter(request.cells.values())).settings
    set_up_torch(settings)
    run, lengths, ended = Run(), list[int](), list[float]()
    parts = assemble(settings, warm_start.ensure(settings, request.results).weights())
    run.watch(parts.state.policy.model)
    Learner.collect = run.timed(PARTS[0], Learner.collect)
    Learner.minibatches = run.timed(PARTS[1], Learner.minibatches)
    evaluate = run.timed(PARTS[4], train.evaluate)

    def evaluate_apart(*args: Any) -> None:
        rows, run.rows = run.rows, Counter()
        evaluate(*args)
        run.rows = rows

    train.evaluate = evaluate_apart
    written_to = request.results.run(settings.signature)
    written_to.mkdir(parents=True)
    ending, recorder = train.resume(parts, written_to)
    parts.state.rollout_step = 1
    written = recorder.rollout

    def note(rollout: Any, *args: Any) -> None:
        lengths.append(int(rollout.completions.mask_BT.sum()))
        ended.append(1 - rollout.truncated_B.float().mean().item())
        written(rollout, *args)

    recorder.rollout = note
    run.timed("run", train.training_loop)(parts, ending, recorder, lambda step: None, lambda: False)
    run.costs["run"] = [run.costs["run"][0] - sum(run.costs[PARTS[4]])]
    run.tokens, run.ended = float(np.mean(lengths)), float(np.mean(ended))
    run.updates = parts.state.optimizer_step
    return run


def multiply(model: torch.nn.Module, rows: int, trains: bool, is_head: bool) -> tuple[float, float]:
    """Return GFLOP and CPU seconds of a pass through the linear layers, their products alone; the least of two."""
    head = model.get_output_embeddings()
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear) and (m is head) == is_head]
    states = {width: torch.randn(rows, width) for weight in weights for width in weight.shape}
    seconds = []
    for _ in range(2):
        begun = clock()
        for weight in weights:
            y, x = (states[width] for width in weight.shape)
            torch.nn.functional.linear(x, weight)
            if trains:
                torch.mm(y, weight), torch.mm(y.T, x)
        seconds.append((clock() - begun).cpu)
    return (3 if trains else 1) * 2e-9 * rows * sum(weight.numel() for weight in weights), min(seconds)


def measure(system: str, folder: Path, options: argparse.Namespace) -> Run:
    """Return one round of a system, in a process of its own."""
    run = run_trl(folder, options) if system == "TRL" else run_ours(folder, options, system)
    for part in (PARTS[0], PARTS[1], "run"):
        run.costs[part] = [sum(run.costs[part]) / options.steps]
    run.costs[PARTS[3]] = run.costs.pop("run")
    run.costs[PARTS[2]] = [run.costs[PARTS[3]][0] - run.costs[PARTS[0]][0] - run.costs[PARTS[1]][0]]
    run.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    parts = ", ".join(f"{part} {np.mean(run.costs[part]):.1f}" for part in PARTS)
    print(f"{system}: {parts}, peak {run.peak:.0f} MiB", flush=True)
    return run


@torch.no_grad()
def products(run: Run, options: argparse.Namespace) -> dict[str, tuple[float, float, float]]:
    """Return (GFLOP, CPU seconds of these products alone, and at the best rate seen) of a step's passes, by kind."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(options.model)
    once = {key: multiply(model, *key) for key in sorted(run.rows)}
    best = max(gflop / seconds for gflop, seconds in once.values())
    found: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    for (rows, trains, is_head), (gflop, seconds) in once.items():
        kind = f"{'with' if trains else 'without'} gradient, {'head' if is_head else 'layers'}"
        times = run.rows[rows, trains, is_head] / options.steps
        found[kind] += times * np.array([gflop, seconds, gflop / best])
    return {**found, "together": sum(found.values())}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of SmolLM2 (make extras WHAT=smollm2)")
    parser.add_argument("--prompts", type=int, default=16, help=f"in a rollout step, each with {GENERATIONS} answers")
    parser.add_argument("--minibatches", type=int, default=4, help="optimiser steps in a rollout step")
    parser.add_argument("--micro", type=int, default=GENERATIONS, help="sequences in one forward and backward")
    parser.add_argument("--steps", type=int, default=2, help="rollout steps")
    parser.add_argument("--items", type=int, default=128, help="held-out prompts of an evaluation")
    parser.add_argument("--every", type=int, default=3, help="rollout steps between two evaluations")
    parser.add_argument("--rounds", type=int, default=1, help="in turns; the median counts")
    parser.add_argument("--start", type=int, default=10, help="supervised steps of 8 before; they are kept in results/")
    parser.add_argument("--ours", nargs="*", default=OURS, help="GRPO Lab's further settings, a column for each")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    runs: dict[str, list[Run]] = {system: [] for system in ("TRL", *options.ours)}
    with tempfile.TemporaryDirectory() as name:
        with fresh_process() as process:
            options.model = process.submit(prepare, options).result()
        for _ in range(options.rounds):
            for system, rounds in runs.items():
                with fresh_process() as process:
                    rounds.append(process.submit(measure, system, Path(name), options).result())
        with fresh_process() as process:
            bound = process.submit(products, runs[options.ours[-1]][-1], options).result()
    report(runs, bound, options)


def report(
    runs: dict[str, list[Run]], bound: dict[str, tuple[float, float, float]], options: argparse.Namespace
) -> None:
    """Print CPU seconds by part, peak memory, their ratios, and what the products alone take."""
    print_versions()
    print(
        f"{options.prompts} prompts x {GENERATIONS} answers a rollout step, {options.minibatches} optimiser steps,"
        f" micro-batches of {options.micro}, evaluation on {options.items} prompts; {options.rounds} x {options.steps}"
        " rollout steps"
    )
    table = {part: [np.median([run.costs[part] for run in rounds]) for rounds in runs.values()] for part in PARTS}
    whole = f"a step with its share of an evaluation every {options.every}"
    table[whole] = np.add(table[PARTS[3]], np.divide(table[PARTS[4]], options.every))
    table["peak memory of the process, MiB"] = np.array([max(run.peak for run in rounds) for rounds in runs.values()])
    names = ["TRL", *(f"ours, {ours}" for ours in options.ours)]
    print(
        f"\n{'CPU seconds (times as fast as TRL; of memory its share)':58}" + "".join(f"{name:>36}" for name in names)
    )
    for row, values in table.items():
        ratios = [value / values[0] if "memory" in row else values[0] / value for value in values]
        cells = [f"{value:.1f} ({ratio:.2f})" for value, ratio in zip(values, ratios, strict=True)]
        print(f"{row:58}" + "".join(f"{cell:>36}" for cell in cells))
    for name, rounds in zip(names, runs.values(), strict=True):
        run = rounds[-1]
        places = sum(rows * times for (rows, trains, head), times in run.rows.items() if trains and not head)
        print(
            f"{name}: {run.tokens:.0f} completion tokens a step, {run.ended:.0%} ended, {run.updates} updates,"
            f" {places / options.steps:.0f} places with gradient"
        )
    print(f"\n{names[-1]}: GFLOP of the linear layers in a step, CPU s of these products alone, at the best rate seen")
    for kind, values in bound.items():
        print(f"{kind:58}" + "".join(f"{value:10.1f}" for value in values))


if __name__ == "__main__":
    main()
