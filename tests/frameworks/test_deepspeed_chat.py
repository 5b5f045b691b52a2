"""DeepSpeed-Chat's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_batches import batch
from torch import Tensor

from grpolab.frameworks.deepspeed_chat import DEFAULTS, FRAMEWORK, token_rewards
from grpolab.grpo.loss import LossInputs, policy_loss

NUMBERS = torch.double


def two_rows(mask: list[list[float]]) -> LossInputs:
    """Ratios e^.1 and e^-.5, advantages 1 and -1."""
    return batch([[0.1, 0.1], [-0.5, -0.5]], mask, [[1.0], [-1.0]])


def loss_of(inputs: LossInputs) -> Tensor:
    return policy_loss(FRAMEWORK.objective({}), inputs, FRAMEWORK.recipe).total


def test_mean_over_the_tokens_of_the_larger_negated_surrogate() -> None:
    assert loss_of(two_rows([[1, 1], [1, 0]])).item() == pytest.approx((-2 * math.exp(0.1) + 0.8) / 3)


def test_the_loss_of_no_token_is_no_number_and_its_gradient_too() -> None:
    nothing = two_rows([[0, 0], [0, 0]])
    assert loss_of(nothing).isnan()
    assert torch.autograd.grad(loss_of(nothing), nothing.log_probs_BT)[0].isnan().all()
    assert policy_loss(FRAMEWORK.objective({}), nothing).total == 0


def test_padding_cannot_overflow_but_what_is_no_number_there_poisons() -> None:
    inputs = two_rows([[1, 1], [1, 0]])
    clean = loss_of(inputs).item()
    for dirt, same in ((-2000.0, True), (math.nan, False), (-math.inf, False)):
        old_BT = torch.where(inputs.mask_BT, inputs.old_log_probs_BT, dirt)
        found = loss_of(replace(inputs, old_log_probs_BT=old_BT))
        assert found.item() == clean if same else found.isnan()


def test_the_score_comes_one_past_the_last_token_where_there_is_room() -> None:
    """KL of -.1 (old - ref) at every position that is kept, 2 (old - ref = 1); scores 9 and -9 are cut to 5."""
    old_BT, mask_BT = torch.full((3, 3), -1.0, dtype=NUMBERS), torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    rewards_BT, kept_BT = token_rewards(
        old_BT, old_BT - 1, torch.tensor([9.0, -9.0, 2.0], dtype=NUMBERS), mask_BT, 0, DEFAULTS
    )
    expected_BT = torch.tensor([[-0.1, 4.9, 0], [-0.1, -0.1, -5.1], [1.9, 0, 0]], dtype=NUMBERS)
    torch.testing.assert_close(rewards_BT, expected_BT)
    assert kept_BT.sum(1).tolist() == [2, 3, 1]


def test_columns_of_the_prompt_have_the_kl_alone() -> None:
    old_BT, mask_BT = torch.full((1, 4), -1.0, dtype=NUMBERS), torch.tensor([[1, 1, 1, 0]]).bool()
    rewards_BT, _ = token_rewards(old_BT, old_BT - 1, torch.tensor([2.0], dtype=NUMBERS), mask_BT, 2, DEFAULTS)
    assert rewards_BT[0].tolist() == pytest.approx([-0.1, -0.1, -0.1, 1.9])


def test_advantages_of_given_values_by_hand() -> None:
    """No KL, a score of 2 past the first token. Errors: 2 - 1 = 1; 0 + 1 - 3 = -2; discounted by gamma lambda = .95."""
    log_probs_BT = torch.tensor([[-1.0, -1.0]], dtype=NUMBERS)
    inputs = {
        "old_logprobs": log_probs_BT,
        "ref_logprobs": log_probs_BT,
        "reward_score": torch.tensor([2.0], dtype=NUMBERS),
        "values": torch.tensor([[3.0, 1.0]], dtype=NUMBERS),
        "mask": torch.tensor([[True, False]]),
    }
    replayed = FRAMEWORK.replays["DeepSpeedPPOTrainer.compute_rewards + get_advantages_and_returns"]({}, inputs)
    assert replayed.tensors["rewards"][0].tolist() == [0, 2]
    assert replayed.tensors["advantages"][0].tolist() == pytest.approx([-2 + 0.95, 1])
    assert replayed.tensors["returns"][0].tolist() == pytest.approx([1.95, 2])
