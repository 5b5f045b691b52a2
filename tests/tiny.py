"""The smallest run that still learns something: a Llama of a few thousand weights on one-digit addition.

It starts from random weights (no warm start) and is also paid for answers made of digits alone, so that rewards differ
within a group from the first rollout step on.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from grpolab.identity import signature
from grpolab.learn.policy import Policy, make_policy
from grpolab.learn.supervised import demonstrations, make_supervised_optimizer, supervised_step
from grpolab.learn.tasks import Task, make_task
from grpolab.paths import Results
from grpolab.run.assembly import Parts, assemble
from grpolab.run.warm_start import WarmStart
from grpolab.settings import RunSettings

VALUES: dict[str, Any] = {
    "seed": 0,
    "task": {"name": "addition", "digits": 1},
    "reward": {"function": None, "weights": {"correct": 1.0, "format": 1.0}},
    "model": {"name": "tiny", "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32},
    "warm_start": {
        "seed": None,
        "max_steps": 0,
        "batch_size": 32,
        "learning_rate": 0.01,
        "target_accuracy": 0.3,
        "check_every": 2,
        "check_items": 50,
    },
    "rollout_steps": 3,
    "max_completions": None,
    "max_optimizer_steps": None,
    "max_seconds": None,
    "early_stop": None,
    "prompts_per_step": 4,
    "num_generations": 4,
    "max_completion_length": 3,
    "temperature": 1.0,
    "importance_sampling_level": "token",
    "kernel": "clipped",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "loss_form": "min_positive",
    "aggregation": "sequence_mean",
    "beta": 0.0,
    "scale_rewards": "group",
    "scale_epsilon": 1e-4,
    "num_iterations": 3,
    "num_minibatches": 1,
    "micro_batch_size": None,
    "learning_rate": 0.01,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "evaluation": {"every": 2, "items": 20, "batch_size": 8, "samples": 2},
    "diagnostics": {
        "quantiles": True,
        "counterfactual": True,
        "histogram_every": 2,
        "samples_every": 2,
        "step_norm": True,
        "kl_ref_every": 2,
    },
    "device": "cpu",
    "dtype": "float32",
    "machine": {
        **{"results": "results", "tracking_uri": None, "threads": 1, "checkpoint_seconds": 3600.0},
        **{"cell_timeout_seconds": None, "hang_seconds": None, "memory_mib": None},
    },
}


def tiny_settings(**changes: Any) -> RunSettings:
    """The tiny run with some keys changed; a mapping changes the keys that it names, and a new `name` replaces all."""
    values = copy.deepcopy(VALUES)
    for key, value in changes.items():
        group = isinstance(value, dict) and "name" not in value
        values[key] = {**(values[key] or {}), **value} if group else value
    return RunSettings.model_validate(values).resolved()


def tiny_policy(**changes: Any) -> Policy:
    """The untrained policy of a tiny run."""
    settings = tiny_settings(**changes)
    return make_policy(settings, make_task(settings.task))


def tiny_parts(**changes: Any) -> Parts:
    """A tiny run put together, before its first rollout step; nothing is on disk."""
    return assemble(tiny_settings(**changes), WarmStart(Path(), "", "", None, steps=0, seconds=0.0))


def teach(policy: Policy, task: Task, steps: int, learning_rate: float = 0.01) -> None:
    """Supervised steps, so that some of the policy's answers are right."""
    optimizer = make_supervised_optimizer(policy, learning_rate)
    examples = task.examples("train", 0)
    for step in range(steps):
        supervised_step(policy, optimizer, *demonstrations(task, examples, 0, step, 64), chat=False)


def run_folder(settings: RunSettings, results: Results) -> Path:
    """Where that run writes."""
    return results.run(signature(settings.identity()))


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """A run's journal, all of it or the records of one kind."""
    found = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [record for record in found if kind in (None, record["kind"])]
