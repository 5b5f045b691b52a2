"""The smallest run that still learns something: a Llama of a few thousand weights on one-digit addition.

It starts from random weights (no warm start) and is also paid for answers made of digits alone, so that rewards differ
within a group from the first rollout step on.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from grpolab.grpo.loading import make_policy
from grpolab.grpo.model import Policy
from grpolab.paths import Results, project_root
from grpolab.run.assembly import RunParts, assemble
from grpolab.run.warm_start import demonstrations, make_supervised_optimizer, supervised_step
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.settings.run import RunSettings
from grpolab.tasks import make_task
from grpolab.tasks.base import Task

# Laid over conf/run.yaml: a key that is not named here is as a user finds it.
VALUES: dict[str, Any] = {
    "task": {"name": "addition", "digits": 1},
    "reward": {"function": None, "weights": {"correct": 1.0, "format": 1.0}},
    "model": {"name": "tiny", "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 32},
    "warm_start": {
        **{"seed": None, "max_steps": 0, "batch_size": 32, "learning_rate": 0.01},
        **{"target_accuracy": 0.3, "check_every": 2, "check_items": 50},
    },
    **dict.fromkeys(("max_completions", "max_optimizer_steps", "max_seconds", "early_stop")),
    **{"rollout_steps": 3, "prompts_per_step": 4, "num_generations": 4, "max_completion_length": 3},
    **{"num_iterations": 3, "learning_rate": 0.01},
    "evaluation": {"every": 2, "items": 20, "batch_size": 8, "samples": 2},
    "diagnostics": {"histogram_every": 2, "samples_every": 2, "kl_ref_every": 2},
    "device": "cpu",
    "machine": {"tracking_uri": None, "checkpoint_seconds": 3600.0},
}


def _over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with changes; a mapping changes the keys that it names, and a new `name` replaces all."""
    values = copy.deepcopy(base)
    for key, value in changes.items():
        group = isinstance(value, dict) and "name" not in value
        values[key] = {**(values.get(key) or {}), **value} if group else value
    return values


CONF = yaml.safe_load((project_root() / "conf" / "run.yaml").read_text())
VALUES = _over({key: value for key, value in CONF.items() if key not in ("defaults", "hydra")}, VALUES)


def tiny_settings(**changes: Any) -> Resolved:
    """The tiny run with some keys changed; a mapping changes the keys that it names, and a new `name` replaces all."""
    return resolve_run(RunSettings.model_validate(_over(VALUES, changes)))


def tiny_policy(**changes: Any) -> Policy:
    """The untrained policy of a tiny run."""
    settings = tiny_settings(**changes)
    return make_policy(settings, make_task(settings.task))


def tiny_parts(**changes: Any) -> RunParts:
    """A tiny run put together, before its first rollout step; nothing is on disk."""
    return assemble(tiny_settings(**changes))


def gradient_of(policy: Policy) -> Tensor:
    """The gradients of all weights in one vector."""
    return torch.cat([weight.grad.flatten() for weight in policy.weights().values() if weight.grad is not None])


def pretrained(path: Path | str) -> dict[str, Any]:
    """A model in a folder, as settings name it."""
    return {"name": "pretrained", "path": str(path), "revision": None}


def teach(policy: Policy, task: Task, steps: int, learning_rate: float = 0.01) -> None:
    """Supervised steps, so that some of the policy's answers are right."""
    optimizer = make_supervised_optimizer(policy, learning_rate)
    examples = task.examples("train", 0)
    for step in range(steps):
        supervised_step(policy, optimizer, *demonstrations(task, examples, 0, step, 64), chat=False)


def run_folder(settings: Resolved, results: Results) -> Path:
    """Where that run writes."""
    return results.run(settings.signature)


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """A run's journal, all of it or the records of one kind."""
    found = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [record for record in found if kind in (None, record["kind"])]
