"""A run whose weights are in shards is the run without: the same numbers, and checkpoints that fit both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from tiny import records, run_folder, tiny_settings

from grpolab.paths import Results
from grpolab.run.train import Interrupted, run
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.sweep.compose import compose

BOUND = 1e-5  # of float32 sums in another order, after 12 optimiser steps of AdamW at a rate of .01
KEYS = [
    *("task.digits=1", "model.hidden_size=16", "model.layers=2", "model.heads=2", "model.intermediate_size=33"),
    *("reward.weights={correct: 1.0, format: 1.0}", "warm_start.max_steps=0", "learning_rate=0.01", "rollout_steps=3"),
    *("prompts_per_step=4", "num_generations=4", "num_minibatches=2", "micro_batch_size=2", "num_iterations=2"),
    *("evaluation.items=20", "evaluation.batch_size=8", "evaluation.every=2", "beta=0.1", "device=cpu"),
    *("max_grad_norm=0.05", "machine.checkpoint_seconds=0", "machine.tracking_uri=null", "data_parallel=2"),
]


def go_on(settings: Resolved, results: Results, until: int) -> None:
    """Do the run up to a rollout step."""
    finished: list[int] = []
    with pytest.raises(Interrupted):
        run(settings, results, on_step=finished.append, stop=lambda: finished[-1] == until)


def test_two_processes_in_shards_train_as_one_and_checkpoints_fit_any_number(tmp_path: Path) -> None:
    whole, shared = Results.open(tmp_path / "whole"), Results.open(tmp_path / "shared")
    alone = resolve_run(compose([*KEYS, "machine.processes=1"]))
    assert run(alone, whole)["outcome"] == "completed"
    sharded = [*KEYS, "shard_weights=true"]
    one, two = (resolve_run(compose([*sharded, f"machine.processes={count}"])) for count in (1, 2))
    assert one.signature == two.signature
    assert one.signature != alone.signature
    go_on(one, shared, until=1)  # a whole checkpoint becomes shards
    go_on(two, shared, until=2)  # and shards become a whole one
    assert run(one, shared)["outcome"] == "completed"
    folders = run_folder(one, shared), run_folder(alone, whole)
    ours, theirs = (load_file(folder / "policy.safetensors") for folder in folders)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=BOUND) for name in theirs)
    for ours, theirs in zip(*map(records, folders), strict=True):
        assert ours["kind"] == theirs["kind"]
        one_of, whole_of = ({n: v for n, v in record.items() if isinstance(v, float)} for record in (ours, theirs))
        assert one_of == pytest.approx(whole_of, rel=1e-3, abs=BOUND)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_parallel": None}, "shard_weights=true shares the weights among processes: it needs data_parallel=2"),
        ({"data_parallel": 3, "micro_batch_size": 4}, "3 processes must divide the 4 micro-batches of a minibatch"),
        ({"sampler_refresh": 2}, "shard_weights=true with sampler_refresh is not supported"),
        ({"diagnostics": {"gradient_cosine": True}}, "no process has the whole gradient"),
        ({"machine": {"processes": 3}}, "machine.processes=3 must be at most data_parallel=2"),
    ],
)
def test_what_shards_cannot_do_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        tiny_settings(**{"data_parallel": 2, "shard_weights": True, **changes})


def test_without_shards_a_run_is_what_it_always_was() -> None:
    assert tiny_settings(data_parallel=2, shard_weights=False).identity() == tiny_settings(data_parallel=2).identity()
