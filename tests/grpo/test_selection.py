"""Which samples train: groups that are sampled again or dropped, against the frameworks and papers that do it."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import gradient_of, records, run_folder, teach, tiny_parts, tiny_settings

from grpolab.frameworks.rewards import group_range, linear, pass_rate
from grpolab.grpo.advantages import Scored, advantages
from grpolab.grpo.aggregation import aggregate
from grpolab.grpo.batch import Rollout
from grpolab.grpo.prompts import PromptStream, differs, most_varied, overlong, pool_weights, prompt_index
from grpolab.paths import Results
from grpolab.run.assembly import RunParts, assemble
from grpolab.run.train import run
from grpolab.settings.selection import DifficultyPool
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
    stream = parts.state.stream
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
    return gradient_of(parts.state.policy)


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


def test_soft_overlong_punishment_has_the_numbers_of_trl_and_verl() -> None:
    lengths_PG = torch.tensor([[50, 80, 85], [90, 100, 110]])
    assert overlong(lengths_PG, 100, 20).tolist() == [[0, 0, -0.25], [-0.5, -1, -1]]  # TRL's tests: 50, 90 and 110
    verl_PG = [[min(-(length - (100 - 20)) / 20 * 1.0, 0) for length in row] for row in lengths_PG.tolist()]
    assert overlong(lengths_PG.clamp(max=100), 100, 20).tolist() == [verl_PG[0], [-0.5, -1, -1]]


def test_length_penalties_are_those_of_their_papers() -> None:
    """Kimi k1.5's by its formula; prime-rl's by the advantages that its own code gives for weight .25."""
    lengths_PG, right_PG = torch.tensor([[10, 20, 30], [7, 7, 7]]), torch.tensor([[True, False, True]] * 2)
    arguments = lengths_PG, right_PG, right_PG.float(), 40
    torch.testing.assert_close(linear(*arguments), torch.tensor([[-0.25, -0.5, -0.75], [-0.175] * 3]))
    assert group_range(*arguments).tolist() == [[0.5, 0, -0.5], [0, 0, 0]]
    assert group_range(lengths_PG, ~right_PG, right_PG.float(), 40)[0].tolist() == [0, 0, -0.5]
    shaped_P3 = right_PG.float() + 0.25 * pass_rate(*arguments)
    penalty_fraction = 0.25 * (lengths_PG[0] / lengths_PG[0].max())
    prime_rl = right_PG[0].float() - right_PG[0].float().mean() * penalty_fraction
    torch.testing.assert_close(shaped_P3[0], prime_rl)
    advantages_P3 = shaped_P3 - shaped_P3.mean(1, keepdim=True)
    torch.testing.assert_close(advantages_P3[1], right_PG[1].float() - 2 / 3)  # equal lengths: plain GRPO


def test_a_run_adds_the_parts_of_length_to_its_reward() -> None:
    weights = {"correct": 2.0, "overlong": 1.0, "length": 0.5}
    reward = {"weights": weights, "overlong_buffer": 0.5, "length_penalty": "pass_rate"}
    parts = taught(reward=reward, max_completion_length=4)
    rollout = parts.learner.collector.rollout(parts.state.policy, 0)
    lengths_PG = rollout.completions.mask_BT.sum(1).view(4, 3)
    right_PG = rollout.parts["correct"].view(4, 3)
    before_PG = 2 * right_PG + overlong(lengths_PG, 4, 2)
    length_PG = pass_rate(lengths_PG, right_PG > 0.5, before_PG, 4)
    assert rollout.parts["length"].equal(length_PG.flatten())
    torch.testing.assert_close(rollout.rewards_B, (before_PG + 0.5 * length_PG).flatten())
    assert rollout.parts["overlong"].min() < 0


def test_truncated_completions_count_in_the_advantages_and_not_in_the_loss() -> None:
    """TRL's mask_truncated_completions: the gradient is that of the others, over the same number of sequences."""
    axes = {"max_completion_length": 2, "aggregation": "sequence_mean", "max_grad_norm": math.inf}
    masked, plain = taught(mask_truncated_completions=True, **axes), taught(**axes)
    some, all_rows = (parts.learner.collector.rollout(parts.state.policy, 0) for parts in (masked, plain))
    assert some.batch.advantages_B.equal(all_rows.batch.advantages_B)
    cut_B = some.truncated_B
    assert 0 < cut_B.sum() < 12
    assert not some.batch.mask_BT[cut_B].any()
    assert some.batch.mask_BT[~cut_B].equal(all_rows.batch.mask_BT[~cut_B])
    others = replace(all_rows, batch=all_rows.batch.rows((~cut_B).nonzero().squeeze(1)))
    expected = gradient(plain, others) * float((~cut_B).double().mean())
    torch.testing.assert_close(gradient(masked, some), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_batch_whose_completions_are_all_cut_off_changes_nothing(minibatches: int, results: Results) -> None:
    axes: dict[str, Any] = {
        "max_completion_length": 1,
        "num_minibatches": minibatches,
        "entropy_coef": 0.1,
        "num_iterations": 2,
    }
    axes |= {"prompts_per_step": 2, "num_generations": 2, "beta": 0.1}
    settings = tiny_settings(mask_truncated_completions=True, rollout_steps=2, **axes)
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    updates = records(run_folder(settings, results), "update")
    assert any(update["grad_norm"] == 0 and "clip/active" not in update for update in updates)
    assert all(math.isfinite(update["loss"]) for update in updates)


def test_prompt_mean_weighs_every_prompt_alike_however_the_minibatch_is_cut() -> None:
    axes = {"aggregation": "prompt_mean", "num_minibatches": 2, "prompts_per_step": 4, "num_generations": 4}
    parts, cut = (
        tiny_parts(**axes, max_grad_norm=math.inf),
        tiny_parts(**axes, micro_batch_size=2, max_grad_norm=math.inf),
    )
    batch = parts.learner.collector.rollout(parts.state.policy, 0).batch
    whole = parts.learner.minibatches(parts.state.policy, batch, 0)[0]
    totals = parts.learner._totals(whole, 1)
    per_token_BT = torch.rand(whole.mask_BT.shape)
    tokens_B1 = whole.with_prompt_tokens().prompt_tokens_B[:, None]  # type: ignore[index]
    found = aggregate("prompt_mean", per_token_BT, whole.mask_BT, replace(totals, prompt_tokens_B1=tokens_B1))
    of_prompt = [whole.prompt_of_B == prompt for prompt in whole.prompt_of_B.unique()]
    expected = torch.stack([per_token_BT[rows_B][whole.mask_BT[rows_B]].mean() for rows_B in of_prompt]).mean()
    torch.testing.assert_close(found, expected)
    pieces = cut.learner.minibatches(cut.state.policy, batch, 0)[0]
    gradients = []
    for one, minibatch in ((parts, whole), (cut, pieces)):
        one.learner.update(one.state, minibatch, 1)
        gradients.append(gradient_of(one.state.policy))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_down_sampling_keeps_the_most_varied_rewards() -> None:
    """PODS: no other choice has a larger variance, and of rewards of 0 or 1 half are right where that can be."""
    rewards_PG = torch.from_numpy(np.random.default_rng(1).normal(size=(20, 6)))
    kept_PG = most_varied(rewards_PG, 3)
    assert (kept_PG.sum(1) == 3).all()
    for rewards_G, kept_G in zip(rewards_PG.numpy(), kept_PG.numpy(), strict=True):
        most = max(rewards_G[list(choice)].var() for choice in itertools.combinations(range(6), 3))
        assert rewards_G[kept_G].var() == pytest.approx(most)
    binary_PG = torch.tensor([[1.0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0] * 6, [math.nan, 0, 0, 1, 0, 0]])
    assert [row[kept].nansum() for row, kept in zip(binary_PG, most_varied(binary_PG, 4), strict=True)] == [3, 2, 0, 1]


def test_a_down_sampled_group_compares_its_kept_completions_alone() -> None:
    parts = taught(train_generations=2, num_minibatches=4, scale_rewards="none")
    rollout = parts.learner.collector.rollout(parts.state.policy, 0)
    assert (len(rollout.batch), len(rollout.texts_B), parts.settings.minibatch_size) == (8, 12, 2)
    kept_PG, all_PG = rollout.batch.rewards_B.view(4, 2), rollout.rewards_B.view(4, 3)
    torch.testing.assert_close(rollout.batch.advantages_B.view(4, 2), kept_PG - kept_PG.mean(1, keepdim=True))
    assert (kept_PG.amax(1) - kept_PG.amin(1)).equal(all_PG.amax(1) - all_PG.amin(1))
    assert (rollout.batch.rows_B // 3).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(parts.learner.minibatches(parts.state.policy, rollout.batch, 0)) == 4


def next_places(seen: dict[int, float], steps: int = 50, **rule: Any) -> tuple[list[int], int]:
    """The prompts of some rollout steps, by index, if that was seen of them; and how many places that took."""
    settings, size = tiny_settings(**rule), len(tiny_parts().learner.collector.examples)
    stream = PromptStream(settings, size, seen=seen)
    places = [place for _ in range(steps) for place in stream.next_places()]
    return [prompt_index(settings.seed, size, place) for place in places], stream.place


def test_a_prompt_that_is_nearly_always_right_is_not_sampled_again() -> None:
    """ScaleRL's no-positive-resampling; where no other prompt is left, all count again."""
    size = len(tiny_parts().learner.collector.examples)
    assert size > 20
    indices, places = next_places({index: 0.9 if index % 2 else 0.89 for index in range(size)}, pass_rate_cap=0.9)
    assert {index % 2 for index in indices} == {0}
    assert places > 1.5 * len(indices)
    assert next_places(dict.fromkeys(range(size), 1.0), pass_rate_cap=0.9)[1] == 200


def test_a_prompt_whose_groups_were_equal_is_sampled_again_by_chance() -> None:
    """GRESO: with probability p to the power of how many groups in a row were equal."""
    size = len(tiny_parts().learner.collector.examples)
    indices, places = next_places({index: float(index % 3) for index in range(size)}, 100, revisit_equal_groups=0.4)
    shares = np.bincount([index % 3 for index in indices]) / len(indices)
    assert shares == pytest.approx(np.array([1, 0.4, 0.16]) / 1.56, abs=0.06)
    assert len(indices) / places == pytest.approx(1.56 / 3, abs=0.06)
    parts = tiny_parts(revisit_equal_groups=0.4)
    stream = PromptStream(parts.settings, size, seen=dict.fromkeys(range(size), 2.0))
    rollout = parts.learner.collector.rollout(parts.state.policy, 0, stream)
    counts = [stream.seen[prompt_index(parts.settings.seed, size, place)] for place in rollout.places]
    assert counts == [0.0 if differ else 3.0 for differ in differs(rollout.rewards_B.view(4, 4))]


def test_chance_passes_over_an_epoch_of_prompts_and_no_more() -> None:
    size = len(tiny_parts().learner.collector.examples)
    hopeless = dict.fromkeys(range(size), 1e6)  # a probability of 0 for every prompt
    assert next_places(hopeless, 1, revisit_equal_groups=0.5)[1] == size + 4
    some_left = hopeless | dict.fromkeys(range(0, size, 4), 0.0)
    indices, _ = next_places(some_left, 50, revisit_equal_groups=0.5)
    assert {index % 4 for index in indices} == {0}  # a batch that finds its prompts in time takes no other


def test_a_run_counts_the_prompts_that_it_leaves_out(results: Results) -> None:
    settings = tiny_settings(pass_rate_cap=0.01, warm_start={"max_steps": 40}, rollout_steps=4)
    assert run(settings, results)["outcome"] == "completed"
    rollouts = records(run_folder(settings, results), "rollout")
    assert [record["prompts/seen"] for record in rollouts] == sorted({record["prompts/seen"] for record in rollouts})
    assert 0 < rollouts[-1]["prompts/left_out"] < rollouts[-1]["prompts/seen"]


def test_difficulty_pools_are_those_of_prime_rl() -> None:
    pools = [DifficultyPool(at_most=end, weight=weight) for end, weight in ((0.25, 0.2), (0.75, 1.0), (1.0, 0.2))]
    scores = [None, 0.0, 0.25, 0.26, 0.75, 0.76, 1.0, 1.5]
    assert pool_weights(scores, pools).tolist() == [1, 0.2, 0.2, 1, 1, 0.2, 0.2, 0.2]
    size = len(tiny_parts().learner.collector.examples)
    seen = {index: (index % 2) / 2 for index in range(size)}  # hard, normal, hard, ...
    indices, _ = next_places(seen, 200, difficulty_pools=[pool.model_dump() for pool in pools])
    assert np.mean([index % 2 for index in indices]) == pytest.approx(1 / 1.2, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"filter_groups": {"metric": "acc", "max_batches": 1}}, "metric=acc must be one of reward, correct, format"),
        ({"num_generations": 1, "advantage_estimator": "none", "scale_rewards": "none", **DROP}, "drop every group"),
        ({"data_parallel": 2, **DROP}, "data_parallel=2: filter_groups makes batches of no fixed size"),
        ({"filter_groups": {"metric": "correct", "max_batches": 0}}, "greater than or equal to 1"),
        ({"train_generations": 4}, "train_generations=4 must be less than num_generations=4"),
        ({"train_generations": 3, "num_minibatches": 8}, "must divide prompts_per_step [*] train_generations = 12"),
        ({"pass_rate_cap": 0.9, "revisit_equal_groups": 0.5}, "pass_rate_cap and revisit_equal_groups choose prompts"),
        ({"difficulty_pools": [{"at_most": 1.0, "weight": 0.0}]}, "one weight above 0"),
        ({"reward": {"overlong_buffer": 0.2}}, "overlong_buffer needs reward.weights.overlong"),
        ({"reward": {"length_penalty": "linear"}}, "length_penalty needs reward.weights.length"),
    ],
)
def test_a_filter_that_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny_settings(**changes)
