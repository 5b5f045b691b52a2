"""Small examples that tutorials compute by hand. No number comes from this package: all are written out here."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from grpolab.frameworks.framework import clip_conventions, compute_metrics
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.grpo.metrics import UpdateTensors, update_metrics
from grpolab.settings.objective import Objective
from grpolab.settings.run import DiagnosticsSettings

PPO = Objective.of("token", "clipped", 0.2, 0.2, None, "min_positive", "token_mean_minibatch", 0.0)
QUIET = DiagnosticsSettings(
    **dict.fromkeys(("quantiles", "counterfactual", "clip_conventions", "step_norm"), False),
    **dict.fromkeys(("histogram_every", "samples_every", "kl_ref_every"), 0),
)
RATIOS = [[1.10, 0.95, 1.25, 1.05], [0.75, 1.15, 0.82, 0.99]]  # at epsilon 0.2, 1.25 is too high and 0.75 too low


def inputs_of(ratios: list[list[float]], A: list[float], mask: list[list[int]] | None = None) -> LossInputs:
    """Old log-probs of -2, and the ones that give these ratios."""
    ratio_BT = torch.tensor(ratios, dtype=torch.double)
    mask_BT = torch.ones_like(ratio_BT, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    old_BT = torch.full_like(ratio_BT, -2.0)
    log_probs_BT = (old_BT + ratio_BT.log()).requires_grad_()
    return LossInputs(log_probs_BT, old_BT, torch.tensor(A, dtype=torch.double)[:, None], mask_BT, Totals.of(mask_BT))


def clip_metrics(inputs: LossInputs) -> dict[str, float]:
    loss = policy_loss(PPO, inputs).detached()
    inputs = replace(inputs, entropy_BT=torch.zeros_like(inputs.old_log_probs_BT))
    return update_metrics(UpdateTensors(inputs, loss.log_ratio_BT, loss.surrogate), QUIET)


@pytest.mark.parametrize(
    ("A", "low", "high"),
    [
        ([1.0, -1.0], 1, 1),  # 1.25 with A>0 and 0.75 with A<0: both are clipped
        ([1.0, 1.0], 0, 1),  # 0.75 with A>0 is outside, but the minimum takes it: not clipped
        ([-1.0, -1.0], 1, 0),
        ([-1.0, 1.0], 0, 0),  # both on the side where clipping does not act
        ([0.0, -1.0], 1, 0),  # without an advantage there is nothing to clip
    ],
)
@torch.no_grad()
def test_clip_fraction(A: list[float], low: int, high: int) -> None:
    inputs = inputs_of(RATIOS, A)
    found, shares = clip_metrics(inputs), clip_conventions(PPO, inputs)
    assert found["clip/out_of_range"] == 2 / 8  # whatever the advantages
    assert (found["clip/active_low"], found["clip/active_high"]) == (low / 8, high / 8)
    assert len(shares) == 10
    assert shares == dict.fromkeys(shares, pytest.approx((low + high) / 8, abs=1e-12))
    assert compute_metrics("roll", PPO, inputs)["actor/ppo_ratio_clipfrac@sum"] == pytest.approx(2 / 8)


@torch.no_grad()
def test_clip_fraction_of_a_masked_batch_is_another_number_in_every_convention() -> None:
    """Four tokens and one: means over tokens and over sequences part, and padding makes a third number."""
    inputs = inputs_of(RATIOS, [1.0, -1.0], [[1, 1, 1, 1], [1, 0, 0, 0]])
    found, shares = clip_metrics(inputs), clip_conventions(PPO, inputs)
    padded = compute_metrics("roll", PPO, replace(inputs, log_probs_BT=inputs.log_probs_BT * inputs.mask_BT))
    assert [found["clip/active"], shares["trl"], shares["verl"]] == [pytest.approx(2 / 5)] * 3
    assert [found["clip/active_sequences"], shares["prime_rl"]] == [pytest.approx((1 / 4 + 1) / 2)] * 2
    assert padded["actor/ppo_ratio_clipfrac"] == pytest.approx(2 / 8)  # ROLL's base worker: over all positions


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        # Padding has ratio 1, whatever it holds.
        ("token", [[math.exp(0.2), math.exp(-0.1), math.exp(0.3)], [math.exp(-0.4), math.exp(0.3), 1.0]]),
        ("sequence", [[math.exp(0.4 / 3)], [math.exp(-0.1 / 2)]]),  # the geometric mean over the tokens
    ],
)
def test_ratios(level: str, expected: list[list[float]]) -> None:
    ratios = torch.tensor([[0.2, -0.1, 0.3], [-0.4, 0.3, -8.9]]).exp().tolist()
    inputs = inputs_of(ratios, [1.0, 1.0], [[1, 1, 1], [1, 1, 0]])
    found = policy_loss(PPO.but(importance_sampling_level=level), inputs).ratio
    assert found.tolist() == [pytest.approx(row, rel=1e-6) for row in expected]


@pytest.mark.parametrize("form", ["min_positive", "max_negative"])
def test_masked_mean_of_the_clipped_loss(form: str) -> None:
    """A=2: -2.2, -2.4 for 1.5 (clipped to 1.2), -1.4 for 0.7 (not clipped); A=-1: 1.3 (not clipped), 0.8 for 0.6."""
    inputs = inputs_of([[1.1, 1.5, 0.7], [1.3, 0.6, 5.0]], [2.0, -1.0], [[1, 1, 1], [1, 1, 0]])
    loss = policy_loss(PPO.but(loss_form=form), inputs)
    (gradient_BT,) = torch.autograd.grad(loss.total, inputs.log_probs_BT)
    assert loss.surrogate.loss[inputs.mask_BT].tolist() == pytest.approx([-2.2, -2.4, -1.4, 1.3, 0.8])
    assert loss.total.item() == pytest.approx((-2.2 - 2.4 - 1.4 + 1.3 + 0.8) / 5)
    # -A r of the tokens that are not clipped, over the five tokens
    assert gradient_BT.tolist() == [pytest.approx([-2.2 / 5, 0, -1.4 / 5]), pytest.approx([1.3 / 5, 0, 0])]
