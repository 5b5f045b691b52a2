"""TRL's windows and slices are our passes and minibatches; what has no counterpart is said."""

from __future__ import annotations

from typing import Any

import pytest

from grpolab.readers import trl, verl
from grpolab.readers.given import Given

# mu, steps_per_generation, gradient_accumulation_steps -> prompts_per_step, num_iterations, num_minibatches
WINDOWS = [
    ((1, 4, 4), (4, 1, 1)),
    ((1, 8, 4), (8, 1, 2)),
    ((2, 4, 4), (4, 2, 1)),
    ((4, 4, 4), (4, 4, 1)),
    ((2, 1, 2), (1, 1, 1)),  # both passes in one window: counted twice in one step
    ((1, 2, 4), (4, 1, 1)),  # two generation batches in one step
    ((4, 2, 4), (2, 2, 1)),  # two passes in each step
]


@pytest.mark.parametrize(("theirs", "ours"), WINDOWS)
def test_optimiser_steps_per_batch_are_those_of_trl(theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    options = trl.resolve_options(Given(dict(zip(names, theirs, strict=True))))
    found = trl.convert_run(options)
    assert (found["prompts_per_step"], found["num_iterations"], found["num_minibatches"]) == ours
    assert not any("unevenly" in sentence for sentence in trl.explain_left_out(options))


LEFT_OUT: list[tuple[Any, dict[str, Any], str]] = [
    (trl, {"use_vllm": True}, "use_vllm=True"),
    (trl, {"mask_truncated_completions": True}, "truncated completions count"),
    (trl, {"reward_weights": [1.0, 0.5]}, "reward.weights"),
    (trl, {"top_p": 0.9}, "never truncated"),
    (trl, {"lr_scheduler_type": "polynomial"}, "lr_scheduler_type=polynomial"),
    (trl, {}, "num_train_epochs=3"),
    (trl, {"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "unevenly"),
    (verl, {"algorithm.adv_estimator": "gae"}, "adv_estimator=gae: here it is one of grpo"),
    (verl, {}, "adv_estimator is gae by default, which needs a critic"),
    (verl, {"algorithm.rollout_correction.rollout_rs": "token_k1"}, "rollout_rs=token_k1"),
    (verl, {"actor_rollout_ref.actor.loss_scale_factor": 1024}, "loss_scale_factor=1024"),
    (verl, {"algorithm.use_kl_in_reward": True, "actor_rollout_ref.actor.use_kl_loss": True}, "one in the reward"),
]


@pytest.mark.parametrize(("peer", "given", "says"), LEFT_OUT)
def test_what_cannot_be_carried_is_a_sentence(peer: Any, given: dict[str, Any], says: str) -> None:
    options = peer.resolve_options(Given(given))
    told = [*peer.explain_unread(Given(given), options), *peer.explain_left_out(options)]
    assert any(says in sentence for sentence in told)


def test_nothing_is_said_of_what_is_carried_and_a_length_in_steps_is() -> None:
    options = trl.resolve_options(Given({"max_steps": 10}, processes=1))
    assert list(trl.explain_left_out(options)) == []
    assert trl.convert_run(options)["max_optimizer_steps"] == 10
    given = {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 10, "actor_rollout_ref.rollout.n": 2}
    options = verl.resolve_options(Given(given))
    assert [*verl.explain_left_out(options), *verl.explain_unread(Given(given), options)] == []
    assert verl.convert_run(options)["rollout_steps"] == 10
