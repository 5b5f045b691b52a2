"""Which samples train: groups that are sampled again or dropped, against the frameworks and papers that do it."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny import records, run_folder, teach, tiny_parts, tiny_settings

from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.batch import Rollout
from grpolab.grpo.rollout import PromptStream
from grpolab.grpo.selection import differs
from grpolab.paths import Results
from grpolab.run.assembly import RunParts, assemble
from grpolab.run.train import run
from grpolab.tasks import make_task

DROP = {"filter_groups": {"metric": "correct", "max_batches": 1}}
REFILL = {"filter_groups": {"metric": "correct", "max_batches": 8}}


@functools.cache
def taught_weights() -> dict[str, torch.Tensor]:
    parts = tiny_parts()
    teach(parts.state.policy, make_task(parts.settings.task), 60)
    return parts.state.policy.weights()


def taught(**changes: Any) -> RunParts:
    """A tiny run that answers some prompts always right, some never, and some now and then."""
    return assemble(tiny_settings(num_generations=3, **changes), taught_weights())


def test_a_group_differs_where_verl_finds_a_deviation() -> None:
    values_PG = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (64, 4)) * 1.0)
    assert differs(values_PG).tolist() == [np.std(row) > 0 for row in values_PG.numpy()]
    assert 0 < differs(values_PG).sum() < 64
    odd_PG = torch.tensor([[math.nan, 1, 1], [math.nan, 1, 0], [math.nan] * 3, [0.1] * 3])
    assert differs(odd_PG).tolist() == [False, True, False, False]


def verls_batch(metric_NPG: list[np.ndarray], wanted: int) -> tuple[int, list[int]]:
    """How verl's DAPO trainer fills its batch: how many batches it generates, and the groups that it trains on."""
    kept: list[int] = []
    for number, metric_PG in enumerate(metric_NPG, start=1):
        kept += [len(metric_PG) * (number - 1) + group for group, row in enumerate(metric_PG) if np.std(row) > 0]
        if len(kept) >= wanted:
            return number, kept[:wanted]
    raise AssertionError("verl raises ValueError here")


def test_a_refilled_batch_is_the_one_of_verls_trainer() -> None:
    """The same prompts and noise as verl would be given, batch after batch; the rest of the last batch is lost."""
    parts, plain = taught(**REFILL), taught(prompts_per_step=32)
    stream = PromptStream()
    rollout = parts.learner.collector.rollout(parts.state.policy, 0, stream)
    all_sampled = plain.learner.collector.rollout(plain.state.policy, 0)  # 32 prompts at once: the 8 batches of 4
    right_NPG = list(all_sampled.parts["correct"].view(8, 4, 3).numpy())
    batches, groups = verls_batch(right_NPG, 4)
    assert 1 < batches < 8
    assert (stream.place, rollout.places, len(rollout.texts_B)) == (4 * batches, [*range(4 * batches)], 12 * batches)
    assert rollout.texts_B == all_sampled.texts_B[: 12 * batches]
    rows = [3 * group + sample for group in groups for sample in range(3)]
    batch = rollout.batch
    assert batch.rows_B.tolist() == rows
    assert batch.rewards_B.tolist() == all_sampled.rewards_B[rows].tolist()
    width = batch.tokens_BT.shape[1]
    assert batch.tokens_BT.equal(rollout.completions.tokens_BT[rows])
    assert batch.tokens_BT.equal(all_sampled.batch.tokens_BT[rows][:, :width])
    torch.testing.assert_close(batch.advantages_B, advantages(Scored(batch.rewards_B, torch.arange(12) // 3)))
    assert parts.learner.collector.rollout(parts.state.policy, 1, stream).places[0] == 4 * batches


def gradient(parts: RunParts, rollout: Rollout) -> torch.Tensor:
    """The gradient of one update on a rollout's batch."""
    parts.learner.update(parts.state, rollout.batch, int(rollout.batch.mask_BT.sum()))
    return torch.cat([weight.grad.flatten() for weight in parts.state.policy.weights().values()])  # type: ignore[union-attr]


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean_rollout"])
def test_dropped_groups_only_leave_the_denominator(aggregation: str) -> None:
    """prime-rl's filter, ScaleRL's effective batch: equal groups have no gradient, but count in a mean."""
    axes = {"reward": {"weights": {"correct": 1.0}}, "aggregation": aggregation}
    kept, whole = (taught(prompts_per_step=8, max_grad_norm=math.inf, **axes, **filtered) for filtered in (DROP, {}))
    few, all_groups = (parts.learner.collector.rollout(parts.state.policy, 0) for parts in (kept, whole))
    assert few.texts_B == all_groups.texts_B
    assert few.differ_P is not None
    assert 0 < len(few.batch) == 3 * few.differ_P.sum() < 24
    counts = [float(r.batch.mask_BT.sum()) if "token" in aggregation else len(r.batch) for r in (few, all_groups)]
    expected = gradient(whole, all_groups) * counts[1] / counts[0]
    torch.testing.assert_close(gradient(kept, few), expected, rtol=1e-3, atol=1e-6)


def test_where_no_group_differs_a_batch_without_signal_stands_in(results: Results) -> None:
    settings = tiny_settings(reward={"weights": {"correct": 1.0}}, num_minibatches=2, rollout_steps=2, **REFILL)
    outcome = run(settings, results)  # from random weights nothing is right
    assert (outcome["outcome"], outcome["completions"]) == ("completed", 2 * 8 * 16)
    rollouts, updates = (records(run_folder(settings, results), kind) for kind in ("rollout", "update"))
    assert [record["filter/groups"] for record in rollouts] == [0, 0]
    assert {record["grad_norm"] for record in updates} == {0.0}


def test_a_filtered_run_counts_what_it_samples_and_ends_at_its_budget(results: Results) -> None:
    axes = {"rollout_steps": None, "max_completions": 100, "filter_groups": {"metric": "reward", "max_batches": 3}}
    settings = tiny_settings(**axes)
    assert (settings.planned_steps, settings.max_completions) == (6, 100)
    outcome = run(settings, results)
    rollouts = records(run_folder(settings, results), "rollout")
    sampled = np.cumsum([record["filter/sampled"] for record in rollouts])
    assert [record["completions"] for record in rollouts] == sampled.tolist()
    assert sampled[-2] < 100 <= sampled[-1] == outcome["completions"]
    assert outcome["reason"] == f"max_completions=100 ended it after {len(rollouts)} of 6 rollout steps"
    assert records(run_folder(settings, results), "evaluation")[-1]["completions"] == sampled[-1]
    assert all(record["filter/passed"] == 1 - record["zero_variance/share"] for record in rollouts)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"filter_groups": {"metric": "acc", "max_batches": 1}}, "metric=acc must be one of reward, correct, format"),
        ({"num_generations": 1, "advantage_estimator": "none", "scale_rewards": "none", **DROP}, "drop every group"),
        ({"data_parallel": 2, **DROP}, "data_parallel=2: filter_groups makes batches of no fixed size"),
        ({"filter_groups": {"metric": "correct", "max_batches": 0}}, "greater than or equal to 1"),
    ],
)
def test_a_filter_that_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny_settings(**changes)
