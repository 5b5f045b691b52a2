"""The user's work in both systems: the same training run, and a whole ablation, TRL's GRPOTrainer against GRPO Lab.

.venv-bench/bin/python benchmarks/run_vs_trl.py [--rounds 2] [--full]

What is the same, what is counted, and why so: README.md here. All ratios are of CPU seconds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from step_vs_trl import ENVIRONMENT, ON_CPU, PACKAGES, begin, mirror_seconds, processor

if TYPE_CHECKING:
    from grpolab.sweep.jobs import Request

HERE = Path(__file__).parent
ROLLOUT_STEPS = {"addition": 80, "sorting": 24}
ABLATION_STEPS, ABLATION_SEEDS = 20, 5
EVALUATION_ITEMS = 2000
# Arm -> (GRPO Lab's settings, TRL's): the same function in both.
ARMS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "grpo": ([], {}),
    "clip_higher": (["epsilon_high=0.28"], {"epsilon_high": 0.28}),
    "outer_cap": (["delta=2.0"], {"delta": 2.0}),
    "sequence": (["importance_sampling_level=sequence"], {"importance_sampling_level": "sequence"}),
    "dr_grpo": (["loss_type=dr_grpo"], {"loss_type": "dr_grpo"}),
}
CURVES = ("reward", "clip fraction", "entropy")  # means over a run that both systems log


class Run(NamedTuple):
    """One training run: its cost in seconds, what it learnt, and means over its updates."""

    cpu: float
    wall: float
    accuracy: float  # expected, of the last weights on the held-out prompts
    means: dict[str, float]  # by name in CURVES
    extra: float = 0.0  # CPU seconds that the accuracy took, where they are not in `cpu`


# Both sides --------------------------------------------------------------------------------------------------------


def prepare(folder: Path, task_name: str) -> None:
    """Write the warm-started model with its tokenizer, and the prompts, as both systems read them."""
    from grpolab.grpo.loading import make_policy
    from grpolab.paths import Results
    from grpolab.run import warm_start
    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose
    from grpolab.tasks import make_task

    settings = resolve_run(compose([f"task={task_name}", "device=cpu"]))
    task = make_task(settings.task)
    policy = make_policy(settings, task)
    weights = warm_start.ensure(settings, Results.open(folder / "warm")).weights()
    assert weights is not None
    policy.load_weights(weights)
    policy.model.save_pretrained(folder / task_name)
    policy.tokenizer.save_pretrained(folder / task_name)
    for split, items in (("train", 10**9), ("evaluation", EVALUATION_ITEMS)):
        rows = [{"prompt": example.prompt, "answer": example.answer} for example in task.examples(split, items)]
        (folder / task_name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours_overrides(folder: Path, task: str, seed: int, steps: int) -> list[str]:
    """GRPO Lab's settings of a run from the warm-started model."""
    return [
        f"task={task}",
        f"seed={seed}",
        f"rollout_steps={steps}",
        f"evaluation.every={steps // 4}",
        "model=pretrained",
        f"model.path={folder / task}",
        "warm_start.max_steps=0",
        "device=cpu",
    ]


def expected_accuracy(model: Any, tokenizer: Any, task_name: str) -> float:
    """Exact expected accuracy of weights on the held-out prompts: one measure for both systems, no sampling."""
    from grpolab.grpo.evaluation import Evaluator
    from grpolab.grpo.model import Policy
    from grpolab.sweep.compose import compose
    from grpolab.tasks import make_task

    task = make_task(compose([f"task={task_name}"]).task)
    policy = Policy(model.eval(), tokenizer, temperature=1.0)
    examples = task.examples("evaluation", EVALUATION_ITEMS)
    evaluate = Evaluator(task, task.score, examples, tokenizer, policy.device, False, None, 128, 1, 0, 0)
    return evaluate(policy).metrics["eval/accuracy_expected"]


# GRPO Lab ----------------------------------------------------------------------------------------------------------


def plan_ours(folder: Path, task: str, seed: int, tracking: bool) -> Request:
    """A run, checked, with the plan that its mirror reads."""
    from grpolab.sweep.jobs import Request
    from grpolab.sweep.multirun import expand_multirun

    machine = [
        f"machine.results={folder}/{'tracked' if tracking else 'bare'}",
        f"machine.tracking_uri={f'sqlite:///{folder}/ours.db' if tracking else 'null'}",
    ]
    overrides = ours_overrides(folder, task, seed, ROLLOUT_STEPS[task])
    request = Request([expand_multirun([*overrides, *machine], f"{task}{seed}")])
    request.write_plans()
    return request


def run_ours(request: Request) -> Run:
    """Train it; the mirror's work is not counted here."""
    from grpolab.run.train import run

    (cell,) = request.cells.values()
    cpu, wall = time.process_time(), time.monotonic()
    outcome = run(cell.settings, request.results)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    if outcome["outcome"] != "completed":
        raise RuntimeError(f"GRPO Lab's run {outcome['outcome']}: {outcome['reason']}")
    lines = (request.results.run(cell.signature) / "journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    names = {"reward": "reward/mean", "clip fraction": "clip/active", "entropy": "entropy/current"}
    means = {
        curve: statistics.fmean(record[name] for record in records if name in record) for curve, name in names.items()
    }
    return Run(cpu, wall, outcome["final"]["eval/accuracy_expected"], means)


# TRL ---------------------------------------------------------------------------------------------------------------


def exact_answer(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """The reward: 1 for the right answer."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def run_trl(folder: Path, task: str, seed: int, steps: int, options: dict[str, Any], tracking: bool) -> Run:
    """The same run as a user of TRL writes it."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose

    ours = resolve_run(compose(ours_overrides(folder, task, seed, steps)))
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/trl.db"
    cpu, wall = time.process_time(), time.monotonic()
    data = {split: str(folder / task / f"{split}.jsonl") for split in ("train", "evaluation")}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / task),
        processing_class=AutoTokenizer.from_pretrained(folder / task),
        reward_funcs=exact_answer,
        train_dataset=load_dataset("json", data_files=data, split="train"),
        eval_dataset=load_dataset("json", data_files=data, split="evaluation"),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            seed=seed,
            per_device_train_batch_size=ours.batch_size,
            num_generations=ours.num_generations,
            num_generations_eval=1,
            per_device_eval_batch_size=250,
            eval_strategy="steps",
            eval_steps=ours.evaluation.every * ours.num_iterations,
            eval_on_start=True,
            max_completion_length=ours.max_completion_length,
            num_iterations=ours.num_iterations,
            max_steps=steps * ours.num_iterations,
            epsilon=ours.epsilon,
            beta=0.0,
            temperature=ours.temperature,
            learning_rate=ours.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=ours.adam_beta1,
            adam_beta2=ours.adam_beta2,
            adam_epsilon=ours.adam_epsilon,
            weight_decay=ours.weight_decay,
            max_grad_norm=ours.max_grad_norm,
            logging_steps=ours.num_iterations,  # once for a rollout step, as often as GRPO Lab draws a point
            report_to="mlflow" if tracking else "none",
            **ON_CPU,
            **{"loss_type": "grpo", **options},
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    history = trainer.state.log_history
    names = {"reward": "reward", "clip fraction": "clip_ratio/region_mean", "entropy": "entropy"}
    means = {curve: statistics.fmean(row[name] for row in history if name in row) for curve, name in names.items()}
    begun = time.process_time()
    accuracy = expected_accuracy(trainer.model, trainer.processing_class, task)
    return Run(cpu, wall, accuracy, means, time.process_time() - begun)


# What is measured --------------------------------------------------------------------------------------------------


def single_runs(folder: Path, rounds: int) -> dict[tuple[str, str, bool], list[Run]]:
    """Runs by (system, task, tracked), one in each round; the systems take turns, each in a process of its own."""
    runs: dict[tuple[str, str, bool], list[Run]] = {}
    fresh = partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"), begin)
    with fresh() as trl, fresh() as ours, fresh() as mirror:
        for task in ROLLOUT_STEPS:
            ours.submit(prepare, folder, task).result()
        for round_ in range(rounds):
            for task, steps in ROLLOUT_STEPS.items():
                for tracking in (False, True):
                    seed = 2 * round_ + tracking  # no seed twice: what is learnt is compared over all of them
                    request = plan_ours(folder, task, seed, tracking)
                    mirrored = mirror.submit(mirror_seconds, request) if tracking else None
                    own = ours.submit(run_ours, request).result()
                    own = own._replace(cpu=own.cpu + (mirrored.result() if mirrored else 0.0))
                    runs.setdefault(("GRPO Lab", task, tracking), []).append(own)
                    peer = trl.submit(run_trl, folder, task, seed, steps, {}, tracking).result()
                    runs.setdefault(("TRL", task, tracking), []).append(peer)
    return runs


def children_cost(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of a command with everything that it starts. Raises RuntimeError where it fails."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - begun
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


class Ablation(NamedTuple):
    """CPU and wall seconds of all arms and seeds, and the last expected accuracy of each run."""

    cpu: float
    wall: float
    accuracies: list[float]


def ablation(folder: Path, steps: int, seeds: int) -> dict[str, Ablation]:
    """Five arms of `addition`: TRL as a script in a loop, GRPO Lab as one tracked sweep."""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    costs, accuracies = [], []
    for name in ARMS:
        for seed in range(seeds):
            script = [sys.executable, __file__, "--one", str(folder), name, str(seed), str(steps)]
            cpu, wall = children_cost(script, environment)
            accuracy, extra = json.loads((folder / "one.json").read_text())
            costs.append((cpu - extra, wall - extra))
            accuracies.append(accuracy)
    trl = Ablation(*map(sum, zip(*costs, strict=True)), accuracies)
    study = {
        "question": "Five arms that TRL has too",
        "factors": {"arm": {name: overrides for name, (overrides, _) in ARMS.items()}},
        "compare": "arm",
        "baseline": "grpo",
        "overrides": ours_overrides(folder, "addition", 0, steps)[2:],
        "seeds": seeds,
        "primary_metric": "eval/accuracy_expected",
    }
    (folder / "ablation.yaml").write_text(json.dumps(study))
    sweep = [str(Path(sys.executable).parent / "grpolab"), "sweep", str(folder / "ablation.yaml")]
    every = [override for override in ours_overrides(folder, "addition", 0, steps) if not override.startswith("seed=")]
    results = [f"machine.results={folder}/ablation", f"machine.tracking_uri=sqlite:///{folder}/ablation.db"]
    cost = children_cost([*sweep, *every, *results], environment)
    outcomes = [json.loads(file.read_text()) for file in (folder / "ablation" / "runs").glob("*/outcome.json")]
    return {"TRL": trl, "GRPO Lab": Ablation(*cost, [o["final"]["eval/accuracy_expected"] for o in outcomes])}


def main() -> None:
    """Measure and print; the last line has the three ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="of the single runs, each with two seeds: bare, tracked")
    parser.add_argument("--full", action="store_true", help="the ablation at the full number of rollout steps")
    parser.add_argument("--one", nargs=4, metavar=("FOLDER", "ARM", "SEED", "STEPS"), help="one run of TRL's ablation")
    given = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if given.one:
        begin()
        folder, arm, seed, steps = Path(given.one[0]), given.one[1], int(given.one[2]), int(given.one[3])
        trained = run_trl(folder, "addition", seed, steps, ARMS[arm][1], True)
        (folder / "one.json").write_text(json.dumps([trained.accuracy, trained.extra]))
        return
    steps = ROLLOUT_STEPS["addition"] if given.full else ABLATION_STEPS
    with tempfile.TemporaryDirectory() as name:
        runs = single_runs(Path(name), given.rounds)
        costs = ablation(Path(name), steps, ABLATION_SEEDS)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    print(f"{processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}")
    report(runs, costs, steps)


def report(runs: dict[tuple[str, str, bool], list[Run]], costs: dict[str, Ablation], steps: int) -> None:
    """Print the table of costs, whether both learn the same, and the line of ratios."""
    smallest: dict[bool, float] = {}
    print(
        f"\nOne run: 32 prompts x 8 completions, num_iterations=4, evaluated on {EVALUATION_ITEMS} prompts five times"
    )
    print(f"{'':12}{'':10}{'TRL: CPU s':>12}{'wall s':>9}{'GRPO Lab: CPU s':>18}{'wall s':>9}{'ratio of CPU':>14}")
    for task in ROLLOUT_STEPS:
        for tracking in (False, True):
            peers, own = runs["TRL", task, tracking], runs["GRPO Lab", task, tracking]
            ratio = statistics.median(p.cpu / o.cpu for p, o in zip(peers, own, strict=True))
            smallest[tracking] = min(ratio, smallest.get(tracking, ratio))
            seconds = [
                statistics.median(values)
                for values in (*zip(*[p[:2] for p in peers], strict=True), *zip(*[o[:2] for o in own], strict=True))
            ]
            print(
                f"{task:12}{'tracked' if tracking else 'bare':10}{seconds[0]:12.1f}{seconds[1]:9.1f}"
                f"{seconds[2]:18.1f}{seconds[3]:9.1f}{ratio:13.2f}x"
            )
    print("\nThe same algorithm? TRL - GRPO Lab, mean over seeds, 95% interval (Welch)")
    for task in ROLLOUT_STEPS:
        sides = {
            system: [r for tracking in (False, True) for r in runs[system, task, tracking]]
            for system in ("TRL", "GRPO Lab")
        }
        for curve in ("accuracy", *CURVES):
            values = {
                system: [r.accuracy if curve == "accuracy" else r.means[curve] for r in side]
                for system, side in sides.items()
            }
            print(f"{task:12}{curve:16}{difference(values['TRL'], values['GRPO Lab'])}")
    ratio = costs["TRL"].cpu / costs["GRPO Lab"].cpu
    print(
        f"\nAblation of addition: {len(ARMS)} arms x {ABLATION_SEEDS} seeds, {steps} rollout steps, tracked;"
        " imports included"
    )
    for system, (cpu, wall, accuracies) in costs.items():
        print(f"{system:12}{cpu:10.0f} CPU s{wall:10.0f} s wall, mean accuracy {statistics.fmean(accuracies):.4f}")
    print(f"accuracy: {difference(costs['TRL'].accuracies, costs['GRPO Lab'].accuracies)} (arms and seeds together)")
    print(f"\nwhole run: bare {smallest[False]:.1f}x, tracked {smallest[True]:.1f}x; ablation {ratio:.1f}x")


def difference(first: list[float], second: list[float]) -> str:
    """Difference of two means with Welch's interval."""
    from scipy import stats

    if len(first) < 2 or len(second) < 2:
        return f"{statistics.fmean(first) - statistics.fmean(second):+.4f}  (one seed: no interval)"
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return f"{statistics.fmean(first) - statistics.fmean(second):+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


if __name__ == "__main__":
    main()
