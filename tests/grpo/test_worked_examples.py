"""The small examples that tutorials compute by hand, and which convention gives which of their numbers.

No number here comes from this package: all are fractions written out in the test.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from grpolab.frameworks.framework import clip_conventions, metrics_of
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import Loss, LossInputs, policy_loss
from grpolab.grpo.metrics import UpdateTensors, update_metrics
from grpolab.settings.objective import Objective
from grpolab.settings.run import DiagnosticsSettings

PPO = Objective.of("token", "clipped", 0.2, 0.2, None, "min_positive", "token_mean_minibatch", 0.0)
QUIET = DiagnosticsSettings(
    **dict.fromkeys(("quantiles", "counterfactual", "clip_conventions", "step_norm"), False),
    **dict.fromkeys(("histogram_every", "samples_every", "kl_ref_every"), 0),
)
RATIOS = [[1.10, 0.95, 1.25, 1.05], [0.75, 1.15, 0.82, 0.99]]


def inputs_of(ratios: list[list[float]], A: list[float], mask: list[list[int]] | None = None) -> LossInputs:
    """Old log-probs of -2, and the ones that give these ratios."""
    ratio_BT = torch.tensor(ratios, dtype=torch.double)
    mask_BT = torch.ones_like(ratio_BT, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    old_BT = torch.full_like(ratio_BT, -2.0)
    log_probs_BT = (old_BT + ratio_BT.log()).requires_grad_()
    advantages = torch.tensor(A, dtype=torch.double)[:, None]
    return LossInputs(log_probs_BT, old_BT, advantages, mask_BT, Totals.of(mask_BT))


def clip_metrics(inputs: LossInputs) -> dict[str, float]:
    """Our own."""
    loss = policy_loss(PPO, inputs).detached()
    update = UpdateTensors(
        mask_BT=inputs.mask_BT,
        advantages_B=inputs.advantages[:, 0],
        log_ratio_BT=loss.log_ratio_BT,
        old_log_probs_BT=inputs.old_log_probs_BT,
        entropy_BT=torch.zeros_like(inputs.old_log_probs_BT),
        surrogate=loss.surrogate,
        kl_ref_BT=None,
    )
    return update_metrics(update, QUIET)


# --- clip fraction of eight ratios at epsilon .2: 1.25 is too high, .75 too low, all others are inside ----------------


@pytest.mark.parametrize(
    ("A", "low", "high"),
    [
        ([1.0, -1.0], 1, 1),  # 1.25 with A>0 and .75 with A<0: both are clipped
        ([1.0, 1.0], 0, 1),  # .75 with A>0 is outside, but the minimum takes it: not clipped
        ([-1.0, -1.0], 1, 0),
        ([-1.0, 1.0], 0, 0),  # both on the side where clipping does not act
        ([0.0, -1.0], 1, 0),  # without an advantage there is nothing to clip
    ],
)
def test_clip_fraction(A: list[float], low: int, high: int) -> None:
    inputs = inputs_of(RATIOS, A)
    found = clip_metrics(inputs)
    assert found["clip/out_of_range"] == 2 / 8  # ratio-only: whatever the advantages
    assert (found["clip/active_low"], found["clip/active_high"]) == (low / 8, high / 8)
    assert found["clip/active"] == (low + high) / 8  # gated
    with torch.no_grad():
        assert clip_conventions(PPO, inputs) == dict.fromkeys(
            ("trl", "verl", "roll", "openrlhf", "slime", "areal", "open_instruct", "prime_rl", "skyrl", "torchtune"),
            pytest.approx((low + high) / 8, abs=1e-12),
        )
        assert metrics_of("roll", PPO, inputs)["actor/ppo_ratio_clipfrac@sum"] == pytest.approx(2 / 8)


def test_clip_fraction_of_a_masked_batch_is_another_number_in_every_convention() -> None:
    """Four tokens and one: means over tokens and over sequences part, and padding makes a third number."""
    inputs = inputs_of(RATIOS, [1.0, -1.0], [[1, 1, 1, 1], [1, 0, 0, 0]])
    found = clip_metrics(inputs)
    assert found["clip/active"] == 2 / 5
    assert found["clip/active_sequences"] == pytest.approx((1 / 4 + 1) / 2)
    with torch.no_grad():
        shares = clip_conventions(PPO, inputs)
        padded = metrics_of("roll", PPO, replace(inputs, log_probs_BT=inputs.log_probs_BT * inputs.mask_BT))
    assert (shares["trl"], shares["verl"]) == pytest.approx((2 / 5, 2 / 5))
    assert shares["prime_rl"] == pytest.approx((1 / 4 + 1) / 2)
    assert padded["actor/ppo_ratio_clipfrac"] == pytest.approx(2 / 8)  # ROLL's base worker: over all positions


# --- ratios of a masked batch -----------------------------------------------------------------------------------------

LOG_PROBS = [[-1.0, -2.0, -0.5], [-1.5, -1.0, -9.0]]
OLD_LOG_PROBS = [[-1.2, -1.9, -0.8], [-1.1, -1.3, -0.1]]
MASK = [[1, 1, 1], [1, 1, 0]]


def ratio_at(level: str) -> Tensor:
    mask_BT = torch.tensor(MASK, dtype=torch.bool)
    now_BT, old_BT = (torch.tensor(rows, dtype=torch.double) for rows in (LOG_PROBS, OLD_LOG_PROBS))
    inputs = LossInputs(now_BT, old_BT, torch.ones(2, 1, dtype=torch.double), mask_BT, Totals.of(mask_BT))
    return policy_loss(PPO.but(importance_sampling_level=level), inputs).ratio


def test_token_ratios() -> None:
    found_BT = ratio_at("token")
    assert found_BT[0].tolist() == pytest.approx([math.exp(0.2), math.exp(-0.1), math.exp(0.3)])
    assert found_BT[1].tolist() == pytest.approx([math.exp(-0.4), math.exp(0.3), 1.0])  # padding: 1, whatever it holds


def test_sequence_ratios() -> None:
    """The geometric mean over the tokens that there are: exp(.4 / 3) and exp(-.1 / 2)."""
    assert ratio_at("sequence")[:, 0].tolist() == pytest.approx([math.exp(0.4 / 3), math.exp(-0.1 / 2)])


# --- the masked mean of max(-A r, -A clip(r)) -------------------------------------------------------------------------


def loss_and_gradient(form: str, ratios: list[list[float]], A: list[float]) -> tuple[Loss, Tensor]:
    inputs = inputs_of(ratios, A, [[1, 1, 1], [1, 1, 0]])
    loss = policy_loss(PPO.but(loss_form=form), inputs)
    (gradient_BT,) = torch.autograd.grad(loss.total, inputs.log_probs_BT)
    return loss, gradient_BT


def test_masked_mean_of_the_clipped_loss() -> None:
    """A=2: -2.2, -2.4 for 1.5 (clipped to 1.2), -1.4 for .7 (not clipped); A=-1: 1.3 (not clipped), .8 for .6."""
    loss, gradient_BT = loss_and_gradient("max_negative", [[1.1, 1.5, 0.7], [1.3, 0.6, 5.0]], [2.0, -1.0])
    assert loss.surrogate.loss[0].tolist() == pytest.approx([-2.2, -2.4, -1.4])
    assert loss.surrogate.loss[1, :2].tolist() == pytest.approx([1.3, 0.8])
    assert float(loss.total) == pytest.approx((-2.2 - 2.4 - 1.4 + 1.3 + 0.8) / 5)
    # -A r of the tokens that are not clipped, over the five tokens
    assert gradient_BT.tolist() == [pytest.approx([-2.2 / 5, 0, -1.4 / 5]), pytest.approx([1.3 / 5, 0, 0])]


def test_both_forms_are_one_function() -> None:
    """Ties included: 1, 1.2 and .8 are exact where the log-probs are, and elsewhere as near as numbers come."""
    ratios, A = [[1.0, 1.2, 0.8], [1.5, 0.6, 5.0]], [2.0, -1.0]
    (first, first_BT), (second, second_BT) = (loss_and_gradient(form, ratios, A) for form in FORMS)
    assert torch.equal(first.total, second.total)
    assert torch.equal(first.surrogate.loss, second.surrogate.loss)
    assert torch.equal(first_BT, second_BT)


FORMS = ("min_positive", "max_negative")
