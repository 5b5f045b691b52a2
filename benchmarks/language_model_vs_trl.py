"""Sampling, training and memory of a real language model: GRPO Lab against TRL's GRPOTrainer. See README.md here.

.venv-bench/bin/python benchmarks/language_model_vs_trl.py FOLDER [--prompts 4] [--tokens 48] [--steps 2] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peer_trl import ENVIRONMENT, Cost, clock, fresh_process, make_trainer, plan_ours, print_versions

GENERATIONS = 8
LEARNING_RATE = 1e-6
DIAGNOSTICS_OFF = [
    *(f"diagnostics.{switch}=false" for switch in ("quantiles", "counterfactual", "step_norm")),
    *(f"diagnostics.{interval}=0" for interval in ("histogram_every", "samples_every", "kl_ref_every")),
]
WORDS = ("banana", "cabbage", "concert", "daffodil", "elephant", "fluffy", "giggle", "hitchhike", "igloo", "jujube")
Side = Callable[[Path, argparse.Namespace], tuple[list[Cost], list[Cost]]]


def share_of_a(prompt: str, answer: str, completion: str) -> float:
    """Return the reward, as GRPO Lab calls it."""
    return completion.count("a") / max(1, len(completion))


def shares_of_a(completions: list[Any], **columns: Any) -> list[float]:
    """Return the rewards, as TRL calls them."""
    return [share_of_a("", "", completion[0]["content"]) for completion in completions]


def prepare(folder: Path, model: Path) -> None:
    """Write the prompts, and the model under an end token that it lacks: every completion has all its tokens."""
    from transformers import AutoTokenizer

    (folder / "model").mkdir()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config = json.loads((model / "config.json").read_text())
    tokenizer.add_special_tokens({"eos_token": "<never>"})
    if tokenizer.eos_token_id < config["vocab_size"]:
        raise SystemExit(f"{model}: its vocabulary has room for another token, so its completions cannot be kept long")
    config |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    (folder / "model" / "model.safetensors").symlink_to((model / "model.safetensors").resolve())
    tokenizer.save_pretrained(folder / "model")
    prompts = [f"How many times is the letter {letter} in the word {word}?" for letter in "abcdefgh" for word in WORDS]
    for split, part in (("train", prompts[8:]), ("evaluation", prompts[:8])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": ""}) + "\n" for p in part))


def timed(costs: list[Cost], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which adds its cost to `costs` at each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        begun = clock()
        result = function(*args, **kwargs)
        costs.append(clock() - begun)
        return result

    return call


def trl_costs(folder: Path, options: argparse.Namespace) -> tuple[list[Cost], list[Cost]]:
    """Return the costs of each step's sampling and of its updates in TRL."""
    from datasets import Dataset

    prompts = [json.loads(line)["prompt"] for line in (folder / "train.jsonl").read_text().splitlines()]
    trainer = make_trainer(
        *(folder, folder / "model", shares_of_a),
        {"train_dataset": Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in prompts])},
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.prompts * GENERATIONS // options.micro,
        num_generations=GENERATIONS,
        max_completion_length=options.tokens,
        max_steps=1 + options.steps,
        learning_rate=LEARNING_RATE,
        report_to="none",
        logging_steps=1,
    )
    sampling: list[Cost] = []
    trainer._generate_and_score_completions = timed(sampling, trainer._generate_and_score_completions)
    trainer.train()
    lengths = {log["completions/mean_length"] for log in trainer.state.log_history if "completions/mean_length" in log}
    assert lengths == {options.tokens}, lengths
    # A step samples inside; the rest is its updates.
    steps = zip(trainer.marks[::2], trainer.marks[1::2], sampling, strict=True)
    return sampling, [end - begun - drawn for begun, end, drawn in steps]


def our_costs(folder: Path, options: argparse.Namespace) -> tuple[list[Cost], list[Cost]]:
    """Return the costs of each step's sampling, and of its minibatches, updates and metrics, in GRPO Lab."""
    from grpolab.run import warm_start
    from grpolab.run.provenance import set_up_torch
    from grpolab.run.train import assemble

    overrides = [
        *("task=jsonl", "task.prompt_key=prompt", "task.chat=true", f"task.train_file={folder}/train.jsonl"),
        *(f"task.evaluation_file={folder}/evaluation.jsonl", "model=pretrained", f"model.path={folder}/model"),
        *("reward.function=language_model_vs_trl:share_of_a", "warm_start.max_steps=0", "beta=0"),
        *(f"prompts_per_step={options.prompts}", f"num_generations={GENERATIONS}", "num_iterations=1"),
        *(f"max_completion_length={options.tokens}", f"micro_batch_size={options.micro}"),
        *(f"rollout_steps={1 + options.steps}", f"learning_rate={LEARNING_RATE}"),
        *DIAGNOSTICS_OFF,
        *options.override,
    ]
    request = plan_ours(folder, "benchmark", overrides)
    settings = next(iter(request.cells.values())).settings
    set_up_torch(settings)
    parts = assemble(settings, warm_start.ensure(settings, request.results).weights())
    state, learner = parts.state, parts.learner
    sampling, training = list[Cost](), list[Cost]()
    collect = timed(sampling, learner.collect)

    def train(rollout: Any) -> None:
        for minibatch in learner.minibatches(state.policy, rollout.batch, state.rollout_step):
            learner.metrics(learner.update(state, minibatch, int(rollout.batch.mask_BT.sum())))

    for step in range(1 + options.steps):
        rollout = collect(state)
        assert rollout.batch.mask_BT.all()
        assert rollout.batch.tokens_BT.shape[1] == options.tokens
        timed(training, train)(rollout)
        state.rollout_step = step + 1
    return sampling, training


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model with safetensors and a chat template")
    parser.add_argument("--prompts", type=int, default=4, help=f"in a step, each with {GENERATIONS} completions")
    parser.add_argument("--tokens", type=int, default=48, help="of every completion")
    parser.add_argument("--micro", type=int, default=GENERATIONS, help="sequences in one forward and backward")
    parser.add_argument("--steps", type=int, default=2, help="on the clock, behind one that is not")
    parser.add_argument("--rounds", type=int, default=2, help="in turns; the least counts")
    parser.add_argument("--override", nargs="*", default=[], help="of GRPO Lab's settings")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    sides: dict[str, list[dict[str, Any]]] = {"TRL": [], "GRPO Lab": []}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), options.model)
        for _ in range(options.rounds):
            for side, rounds in zip((trl_costs, our_costs), sides.values(), strict=True):
                with fresh_process() as process:
                    rounds.append(process.submit(measure, side, Path(name), options).result())
    report(sides, options)


def measure(side: Side, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return one round of one system: the costs of the steps on the clock, and the process's peak memory in MiB."""
    sampling, training = side(folder, options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"sampling": sampling[1:], "training": training[1:], "peak": peak}


def report(sides: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Print tokens a second and peak memory, and their ratios."""
    print_versions()
    print(
        f"{options.model}: {options.prompts} prompts x {GENERATIONS} completions of {options.tokens} tokens,"
        f" micro-batches of {options.micro}; best of {options.rounds} rounds of {options.steps} steps"
    )
    tokens = options.prompts * GENERATIONS * options.tokens
    print(f"\n{'completion tokens per CPU second':36}{'TRL':>10}{'GRPO Lab':>10}{'ratio':>8}{'of wall time':>14}")
    for part in ("sampling", "training"):
        # (CPU, wall) seconds of a step in each round, and the least of each
        steps = {system: [np.mean(round_[part], axis=0) for round_ in rounds] for system, rounds in sides.items()}
        trl, ours = (tokens / np.min(steps[system], axis=0) for system in sides)
        print(f"{part:36}{trl[0]:10.1f}{ours[0]:10.1f}{ours[0] / trl[0]:7.2f}x{ours[1] / trl[1]:13.2f}x")
    trl, ours = (max(round_["peak"] for round_ in rounds) for rounds in sides.values())
    print(f"{'peak memory of the process, MiB':36}{trl:10.0f}{ours:10.0f}{ours / trl:7.2f}x")


if __name__ == "__main__":
    main()
