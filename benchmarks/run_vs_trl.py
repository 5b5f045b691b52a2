"""TRL's GRPOTrainer against GRPO Lab: an optimiser step, the same training run, and a whole ablation.

.venv-bench/bin/python benchmarks/run_vs_trl.py [--rounds 2] [--full]

README.md here says what is the same, what is counted, and why. All ratios are of CPU seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import peer_trl
from peer_trl import Cost, clock

if TYPE_CHECKING:
    from grpolab.sweep.jobs import Request

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
SAME = (  # settings that have one name in both
    *("num_generations", "max_completion_length", "num_iterations", "epsilon", "temperature", "learning_rate"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm"),
)
CURVES = {  # that both systems log: (GRPO Lab's name, TRL's)
    "reward": ("reward/mean", "reward"),
    "clip fraction": ("clip/active", "clip_ratio/region_mean"),
    "entropy": ("entropy/current", "entropy"),
}


class Run(NamedTuple):
    """What one training run cost and learnt."""

    cpu: float
    wall: float
    step: float  # CPU seconds of an optimiser step: the median over rollout steps, most of which evaluate nothing
    learnt: dict[str, float]  # the expected accuracy of the last weights, and the mean of each curve
    extra: float = 0.0  # CPU seconds that measuring the accuracy took, which are not in `cpu`


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


def our_overrides(folder: Path, task: str, steps: int) -> list[str]:
    """Return GRPO Lab's settings of a run from the warm-started model."""
    model = ["model=pretrained", f"model.path={folder / task}", "warm_start.max_steps=0"]
    return [f"task={task}", f"rollout_steps={steps}", f"evaluation.every={steps // 4}", *model, "device=cpu"]


def run_ours(request: Request) -> Run:
    """Train it; the mirror's work is not counted here. Raises RuntimeError unless it is completed."""
    from grpolab.run.train import run

    (cell,) = request.cells.values()
    ends: list[float] = []
    begun = clock()
    outcome = run(cell.settings, request.results, on_step=lambda _step: ends.append(time.process_time()))
    cost = clock() - begun
    if outcome["outcome"] != "completed":
        raise RuntimeError(f"GRPO Lab's run {outcome['outcome']}: {outcome['reason']}")
    journal = request.results.run(cell.signature) / "journal.jsonl"
    curves = mean_curves([json.loads(line) for line in journal.read_text().splitlines()], 0)
    learnt = {"accuracy": outcome["final"]["eval/accuracy_expected"], **curves}
    return Run(*cost, median_step(ends, cell.settings.num_iterations), learnt)


def mirror_seconds(request: Request) -> float:
    """Return the CPU seconds that it takes to mirror a run into MLflow while it trains, imports left out.

    This is what `python -m grpolab.run.tracking` does, which cannot be asked for its CPU time.
    """
    from grpolab.run.tracking import ENVIRONMENT as MIRROR_ENVIRONMENT
    from grpolab.run.tracking.__main__ import POLL_SECONDS

    os.environ.update(MIRROR_ENVIRONMENT)
    from grpolab.run.tracking.mirror import StudyMirror

    outcome = request.results.run(next(iter(request.cells))) / "outcome.json"
    begun = clock()
    mirror = StudyMirror(request.results, str(request.tracking_uri), [request.name])
    while not outcome.exists():
        mirror.attempt()
        time.sleep(POLL_SECONDS)
    if problem := mirror.attempt(last=True):
        raise RuntimeError(f"tracking: {problem}")
    return (clock() - begun).cpu


def mean_curves(records: list[dict[str, Any]], system: int) -> dict[str, float]:
    """Return the mean of each curve over a system's records."""
    names = {curve: names[system] for curve, names in CURVES.items()}
    return {curve: statistics.fmean(row[name] for row in records if name in row) for curve, name in names.items()}


def median_step(clock: list[float], updates: int) -> float:
    """Return the CPU seconds of an optimiser step from the times at which rollout steps of `updates` ended."""
    return statistics.median(end - begun for begun, end in itertools.pairwise(clock)) / updates


def score_exactly(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Return TRL's rewards: 1 for the right answer."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def run_trl(folder: Path, task: str, seed: int, steps: int, options: dict[str, Any], is_tracked: bool) -> Run:
    """Train the same run as a user of TRL writes it."""
    import trl.trainer.grpo_trainer  # noqa: F401  # before the clock
    from datasets import load_dataset

    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose

    ours = resolve_run(compose(our_overrides(folder, task, steps)))
    begun = clock()
    files = {split: str(folder / task / f"{split}.jsonl") for split in ("train", "evaluation")}
    data = {
        f"{argument}_dataset": load_dataset("json", data_files=files, split=split)
        for argument, split in {"train": "train", "eval": "evaluation"}.items()
    }
    trainer = peer_trl.make_trainer(
        *(folder, folder / task, score_exactly, data),
        seed=seed,
        per_device_train_batch_size=ours.batch_size,
        num_generations_eval=1,
        per_device_eval_batch_size=250,
        eval_strategy="steps",
        eval_steps=ours.evaluation.every * ours.num_iterations,
        eval_on_start=True,
        max_steps=steps * ours.num_iterations,
        logging_steps=ours.num_iterations,  # once for a rollout step, as often as GRPO Lab draws a point
        report_to="mlflow" if is_tracked else "none",
        **{name: getattr(ours, name) for name in SAME} | options,
    )
    trainer.train()
    cost, begun = clock() - begun, clock()
    accuracy = expected_accuracy(trainer.model, trainer.processing_class, task)
    learnt = {"accuracy": accuracy, **mean_curves(trainer.state.log_history, 1)}
    ends = [end.cpu for end in trainer.marks[1::2]]
    step = median_step(ends[:: ours.num_iterations], ours.num_iterations)
    return Run(*cost, step, learnt, (clock() - begun).cpu)


def expected_accuracy(model: Any, tokenizer: Any, task_name: str) -> float:
    """Return the exact expected accuracy on the held-out prompts, as GRPO Lab measures its own."""
    from grpolab.grpo.evaluation import Evaluator
    from grpolab.grpo.model import Policy
    from grpolab.sweep.compose import compose
    from grpolab.tasks import make_task

    task = make_task(compose([f"task={task_name}"]).task)
    policy = Policy(model.eval(), tokenizer, temperature=1.0)
    examples = task.examples("evaluation", EVALUATION_ITEMS)
    return Evaluator(policy, task, task.score, examples, 128, 1, 0, 0)().metrics["eval/accuracy_expected"]


def measure_runs(folder: Path, rounds: int) -> dict[tuple[str, bool], list[tuple[Run, Run]]]:
    """Return pairs of runs, TRL's and ours, by task and tracking; the systems take turns in processes of their own."""
    runs: dict[tuple[str, bool], list[tuple[Run, Run]]] = defaultdict(list)
    with peer_trl.fresh_process() as trl, peer_trl.fresh_process() as ours, peer_trl.fresh_process() as mirror:
        for task in ROLLOUT_STEPS:
            ours.submit(prepare, folder, task).result()
        for round_, (task, steps), is_tracked in itertools.product(range(rounds), ROLLOUT_STEPS.items(), (False, True)):
            seed = 2 * round_ + is_tracked  # no seed twice: what is learnt is compared over all of them
            overrides = [*our_overrides(folder, task, steps), f"seed={seed}"]
            request = peer_trl.plan_ours(folder, f"{task}{seed}", overrides, is_tracked)
            mirrored = mirror.submit(mirror_seconds, request) if is_tracked else None
            own = ours.submit(run_ours, request).result()
            if mirrored:
                updates = next(iter(request.cells.values())).settings.num_iterations * steps
                own = own._replace(cpu=own.cpu + mirrored.result(), step=own.step + mirrored.result() / updates)
            peer = trl.submit(run_trl, folder, task, seed, steps, {}, is_tracked).result()
            runs[task, is_tracked].append((peer, own))
    return runs


def measure_ablation(folder: Path, steps: int) -> dict[str, tuple[Cost, list[float]]]:
    """Run five arms of `addition`: TRL as a script in a loop, GRPO Lab as one tracked sweep.

    Returns the cost of all arms and seeds, and the last expected accuracy of each run, by system.
    """
    costs, accuracies = [], []
    for arm, seed in itertools.product(ARMS, range(ABLATION_SEEDS)):
        last, cost = peer_trl.run_command([sys.executable, __file__, "--one", str(folder), arm, str(seed), str(steps)])
        accuracy, extra = json.loads(last)
        costs.append(cost - Cost(extra, extra))
        accuracies.append(accuracy)
    study = {
        **{"question": "Five arms that TRL has too", "compare": "arm", "baseline": "grpo"},
        "factors": {"arm": {name: overrides for name, (overrides, _) in ARMS.items()}},
        "overrides": our_overrides(folder, "addition", steps),
        **{"seeds": ABLATION_SEEDS, "primary_metric": "eval/accuracy_expected"},
    }
    (folder / "ablation.yaml").write_text(json.dumps(study))
    results = [f"machine.results={folder}/ablation", f"machine.tracking_uri=sqlite:///{folder}/ablation.db"]
    program = str(Path(sys.executable).parent / "grpolab")
    _, cost = peer_trl.run_command([program, "sweep", str(folder / "ablation.yaml"), *results])
    outcomes = [json.loads(file.read_text()) for file in (folder / "ablation" / "runs").glob("*/outcome.json")]
    return {
        "TRL": (Cost(*map(sum, zip(*costs, strict=True))), accuracies),
        "GRPO Lab": (cost, [outcome["final"]["eval/accuracy_expected"] for outcome in outcomes]),
    }


def main() -> None:
    """Measure and print; the last line has the three ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="of the single runs, each with two seeds: bare, tracked")
    parser.add_argument("--full", action="store_true", help="the ablation at the full number of rollout steps")
    parser.add_argument("--one", nargs=4, metavar=("FOLDER", "ARM", "SEED", "STEPS"), help="one run of TRL's ablation")
    arguments = parser.parse_args()
    os.environ.update(peer_trl.ENVIRONMENT)
    if arguments.one:
        peer_trl.begin()
        folder, arm, seed, steps = arguments.one
        trained = run_trl(Path(folder), "addition", int(seed), int(steps), ARMS[arm][1], is_tracked=True)
        print(json.dumps([trained.learnt["accuracy"], trained.extra]))
        return
    steps = ROLLOUT_STEPS["addition"] if arguments.full else ABLATION_STEPS
    with tempfile.TemporaryDirectory() as name:
        runs = measure_runs(Path(name), arguments.rounds)
        ablation = measure_ablation(Path(name), steps)
    peer_trl.print_versions()
    print(f"\nOne run: 32 prompts x 8 completions, num_iterations=4, five evaluations on {EVALUATION_ITEMS} prompts")
    print(f"{'':22}{'TRL: CPU s':>12}{'wall s':>8}{'a step':>10}{'GRPO Lab: CPU s':>18}{'wall s':>8}{'a step':>10}")
    for (task, is_tracked), pairs in runs.items():
        cells = f"{task:12}{'tracked' if is_tracked else 'bare':10}"
        for width, side in zip((12, 18), zip(*pairs, strict=True), strict=True):
            cpu, wall, step = (statistics.median(run[field] for run in side) for field in range(3))
            cells += f"{cpu:{width}.1f}{wall:8.1f}{1000 * step:7.1f} ms"
        print(cells)
    print("\nThe same algorithm? TRL - GRPO Lab, mean over seeds, 95% interval (Welch)")
    for task in ROLLOUT_STEPS:
        pairs = runs[task, False] + runs[task, True]
        for curve in ("accuracy", *CURVES):
            sides = zip(*[(peer.learnt[curve], own.learnt[curve]) for peer, own in pairs], strict=True)
            print(f"{task:12}{curve:16}{difference(*map(list, sides))}")
    print(f"\nAblation of addition: {len(ARMS)} arms x {ABLATION_SEEDS} seeds, {steps} rollout steps, tracked")
    for system, (cost, accuracies) in ablation.items():
        accuracy = f"mean accuracy {statistics.fmean(accuracies):.4f}"
        print(f"{system:12}{cost.cpu:10.0f} CPU s{cost.wall:10.0f} s wall, {accuracy}")
    (trl, trl_accuracies), (ours, our_accuracies) = ablation.values()
    print(f"accuracy: {difference(trl_accuracies, our_accuracies)} (arms and seeds together)")

    def ratio(field: str, is_tracked: bool) -> str:
        """Return the smaller one of the tasks' median ratios."""
        of_tasks = ([getattr(p, field) / getattr(o, field) for p, o in runs[t, is_tracked]] for t in ROLLOUT_STEPS)
        return f"{min(map(statistics.median, of_tasks)):.1f}x"

    step, whole = (f"bare {ratio(field, False)}, tracked {ratio(field, True)}" for field in ("step", "cpu"))
    print(f"\nstep: {step}; whole run: {whole}; ablation {trl.cpu / ours.cpu:.1f}x")


def difference(first: list[float], second: list[float]) -> str:
    """Return the difference of two means with Welch's interval, which needs two values of each."""
    from scipy import stats

    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return f"{statistics.fmean(first) - statistics.fmean(second):+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


if __name__ == "__main__":
    main()
