"""A run over several processes is the run of one: the same completions, and sums that are rounded in another order."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import torch
from pydantic import ValidationError
from tiny import records, run_folder, tiny_settings
from torch import Tensor

from grpolab.grpo.batch import Rollout
from grpolab.grpo.processes import Processes, pack
from grpolab.grpo.step import Update
from grpolab.paths import Results
from grpolab.run.assembly import RunParts, assemble
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.sweep.compose import compose
from grpolab.sweep.ledger import set_failure_aside

T = TypeVar("T")
BOUND = 1e-6  # of float32 sums in another order, relative
# Five prompts and five micro-batches, which two processes cannot have equal shares of.
SHAPE: dict[str, Any] = {"prompts_per_step": 5, "num_minibatches": 2, "micro_batch_size": 2, "beta": 0.1}


@dataclass
class Table:
    """Where threads lay down what they would send."""

    barrier: threading.Barrier
    laid: dict[int, Any] = field(default_factory=dict)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.laid[rank] = value
        self.barrier.wait(60)
        found = [self.laid[place] for place in sorted(self.laid)]
        self.barrier.wait(60)
        return found


@dataclass(frozen=True)
class Threads(Processes):
    """Processes that are threads: quick to start, and dealt to in the same way."""

    table: Table = field(default_factory=lambda: Table(threading.Barrier(1)))

    def gather(self, computed: list[T]) -> list[T]:
        shares = self.table.exchange(self.rank, pickle.loads(pack(list(computed))))
        return [shares[index % self.size][index // self.size] for index in range(sum(map(len, shares)))]

    def add_up(self, weights: Any) -> None:
        gradients = [weight.grad for weight in weights]
        everyone = self.table.exchange(self.rank, [gradient.clone() for gradient in gradients])
        for gradient, *each in zip(gradients, *everyone, strict=True):
            gradient.copy_(sum(each))


@dataclass
class Seen:
    """A first rollout step, and the evaluation before it."""

    rollout: Rollout
    updates: list[Update]
    metrics: list[dict[str, float]]
    gradients: list[Tensor]  # of the first update, clipped
    evaluation: dict[str, float]
    kl: float


def first_step(parts: RunParts) -> Seen:
    state, learner = parts.state, parts.learner
    evaluation = parts.evaluator().metrics
    rollout = learner.collect(state)
    updates, gradients = [], list[Tensor]()
    for minibatch in learner.minibatches(state.policy, rollout.batch, 0):
        updates.append(learner.update(state, minibatch, int(rollout.batch.mask_BT.sum())))
        weights = state.policy.weights().values()
        gradients = gradients or [weight.grad.clone() for weight in weights if weight.grad is not None]
    learner.check(updates[0])
    metrics = [learner.metrics(update) for update in updates]
    return Seen(rollout, updates, metrics, gradients, evaluation, learner.kl_to_reference(state.policy, rollout.batch))


def by_threads(settings: Resolved, size: int) -> list[Seen]:
    table, seen = Table(threading.Barrier(size)), dict[int, Seen]()
    # One after the other: torch's generator is global.
    parts = [assemble(settings, processes=Threads(rank, size, table=table)) for rank in range(size)]

    def work(rank: int) -> None:
        try:
            seen[rank] = first_step(parts[rank])
        finally:
            if rank not in seen:
                table.barrier.abort()

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(work, range(size)))
    return [seen[rank] for rank in range(size)]


CORRUPTION = {"corruption_base": 0.0, "corruption_per_filler": 0.1}
FILLERS = {"name": "filler_sorting", "length": 2, "max_fillers": 2, **CORRUPTION}
ALL_CLIPS = {"clip_conventions": True}
REJECTION = {"policy": "old", "bounds": {"token": [0.6, 1.6]}, "m2_budget": None}
AXES: dict[str, dict[str, Any]] = {
    "sums": {**SHAPE, "aggregation": "token_mean_rollout"},
    "averages of a micro-batch": {**SHAPE, "aggregation": "token_mean_microbatch", "diagnostics": ALL_CLIPS},
    "one minibatch, an entropy bonus": {**SHAPE, "num_minibatches": 1, "entropy_coef": 0.1, "sort_by_length": True},
    "greedy baselines": {**SHAPE, "advantage_estimator": "given", "scale_rewards": "none", "staleness": 1},
    "a framework": {**SHAPE, "framework": "verl", "diagnostics": ALL_CLIPS},
    "another sampler": {**SHAPE, "sampler_dtype": "int8", "sampler_noise": 0.3, "sampler_rejection": REJECTION},
    "sampled evaluation": {**SHAPE, "task": FILLERS, "max_completion_length": 6},
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("axis", AXES)
def test_the_first_updates_are_those_of_one_process(axis: str, size: int) -> None:
    settings = tiny_settings(**AXES[axis])
    one = first_step(assemble(settings))
    every = by_threads(settings, size)
    assert sum(bool(update.loss) for update in one.updates), "nothing to compare"
    for other in every:
        assert other.rollout.texts_B == one.rollout.texts_B
        assert torch.equal(other.rollout.batch.tokens_BT, one.rollout.batch.tokens_BT)
        assert torch.equal(other.rollout.batch.advantages_B, one.rollout.batch.advantages_B)
        assert other.evaluation == pytest.approx(one.evaluation, rel=BOUND)
        assert other.kl == pytest.approx(one.kl, rel=1e-3)  # of weights after two updates
        largest = max(gradient.abs().max() for gradient in one.gradients)
        for ours, theirs in zip(other.gradients, one.gradients, strict=True):
            assert (ours - theirs).abs().max() <= BOUND * largest
        first, alone = other.updates[0], one.updates[0]
        scale = alone.inputs.advantages.abs().mean().item()  # terms of both signs cancel in the loss
        assert first.loss == pytest.approx(alone.loss, rel=BOUND, abs=BOUND * scale)
        assert first.grad_norm == pytest.approx(alone.grad_norm, rel=BOUND)
        assert other.metrics[0].keys() == one.metrics[0].keys()
        assert other.metrics[0] == pytest.approx(one.metrics[0], rel=BOUND, abs=1e-7)
        assert other.updates[-1].loss == every[0].updates[-1].loss  # all take the same steps


KEYS = [
    *("task.digits=1", "model.hidden_size=16", "model.layers=1", "model.heads=2", "model.intermediate_size=32"),
    *("reward.weights={correct: 1.0, format: 1.0}", "warm_start.max_steps=0", "learning_rate=0.01", "rollout_steps=4"),
    *("prompts_per_step=5", "num_generations=4", "num_minibatches=2", "micro_batch_size=2", "num_iterations=2"),
    *("evaluation.items=20", "evaluation.batch_size=8", "evaluation.every=2", "beta=0.1", "device=cpu"),
    *("machine.checkpoint_seconds=0", "machine.tracking_uri=null"),
]
FILES = ("journal.jsonl", "policy.safetensors", "evaluation_items.json", "samples/step_000000.parquet")


def other_processes() -> list[psutil.Process]:
    """The run's further processes; pytest's worker can have children of earlier tests besides."""
    return [child for child in psutil.Process().children() if "grpolab.run.parallel" in " ".join(child.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["shard_weights=true", "prompts_per_step=4"]], ids=["whole weights", "in shards"])
def test_a_run_of_two_processes_is_one_run_and_goes_on_exactly(more: list[str], tmp_path: Path) -> None:
    whole, broken, alone = (Results.open(tmp_path / name) for name in ("whole", "broken", "alone"))
    settings = resolve_run(compose([*KEYS, *more, "data_parallel=2"]))
    assert run(settings, whole)["outcome"] == "completed"
    failed = run(settings, broken, on_step=lambda step: other_processes()[0].kill() if step == 3 else None)
    assert (failed["outcome"], failed["rollout_steps"]) == ("failed", 3)
    assert "another of the 2 processes has ended" in failed["reason"]
    assert not other_processes()
    set_failure_aside(run_folder(settings, broken))  # as the same command does
    done: list[int] = []
    assert run(settings, broken, on_step=done.append)["outcome"] == "completed"
    assert done in ([3, 4], [4]), "it goes on from the last checkpoint"
    for name in FILES:
        files = (run_folder(settings, where) / name for where in (whole, broken))
        assert len({file.read_bytes() for file in files}) == 1, name

    run(single := resolve_run(compose([*KEYS, *more[1:]])), alone)
    two, one = records(run_folder(settings, whole)), records(run_folder(single, alone))
    assert [record.keys() for record in two] == [record.keys() for record in one]
    for ours, theirs in zip(two[:2], one[:2], strict=True):  # an evaluation and an update
        assert ours.pop("kind") == theirs.pop("kind")
        assert ours == pytest.approx(theirs, rel=BOUND, abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_parallel": 3}, "data_parallel=3 must divide the minibatch of 16"),
        ({"data_parallel": 4, "micro_batch_size": 8}, "data_parallel=4 is more than the 2 micro-batches"),
        ({"data_parallel": 8}, "data_parallel=8 must be at most 4"),
        ({"data_parallel": 2, "top_entropy_quantile": 0.5}, "data_parallel=2: top_entropy_quantile compares"),
        ({"data_parallel": 2, "fault": "dropout"}, "fault=dropout is planted in one process"),
        ({"data_parallel": 4, "num_minibatches": 8, "micro_batch_size": 1}, "data_parallel=4 must be at most 2"),
        ({"data_parallel": 0}, "data_parallel"),
    ],
)
def test_what_cannot_be_dealt_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        tiny_settings(**changes)


def test_one_process_is_the_run_that_it_always_was() -> None:
    assert tiny_settings(data_parallel=1).identity() == tiny_settings().identity()
    assert tiny_settings(data_parallel=2).identity() != tiny_settings(micro_batch_size=8).identity()


def test_weights_that_drift_apart_are_noticed() -> None:
    class Apart(Processes):
        def gather(self, computed: list[Any]) -> list[Any]:
            return [*computed, (computed[0][0] + 1, computed[0][1])]

    with pytest.raises(AssertionError, match="process 1 of 2 has other weights than the first at rollout step 7"):
        Apart(0, 2).check_equal([torch.ones(3)], 7)
