"""Surrogates: both written forms of the clip are one function (O3), and gradients vanish where they should (O10)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import VALUES
from torch import Tensor

from grpolab.frameworks.kernels import clip_cov, kl_cov
from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, SurrogateParts, surrogate
from grpolab.grpo.surrogates import clipped
from grpolab.settings.objective import Objective

GRPO = make_objective("token", "clipped", 0.2, 0.2, None, "min_positive", "sequence_mean", 0.0)


def inputs_of(log_probs_BT: Tensor, old_log_probs_BT: Tensor, advantages: Tensor, **also: Tensor) -> LossInputs:
    """A micro-batch in which every place is a token."""
    mask_BT = torch.ones_like(log_probs_BT, dtype=torch.bool)
    return LossInputs(log_probs_BT, old_log_probs_BT, advantages, mask_BT, Totals.of(mask_BT), **also)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("cap", "at"), [("delta", None), ("delta", 2.0), ("dual_clip", 2.0), ("dual_clip", 3.0)])
@pytest.mark.parametrize("epsilon_high", [0.2, 0.28, math.inf])
def test_min_and_max_form_are_equal_bit_for_bit(
    dtype: torch.dtype, epsilon_high: float, cap: str, at: float | None
) -> None:
    edges = torch.tensor([0.8, 1.0, 1.2, 1.28, 2.0], dtype=dtype)
    neighbours = [edges, torch.nextafter(edges, edges * 0), torch.nextafter(edges, edges * 9)]
    special = torch.tensor([0.0, 1e-30, 0.5, 3.0, 1e30, math.inf, math.nan], dtype=dtype)
    ratios_N = torch.cat([*neighbours, special])
    advantages_A = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-8, -1e8, 0.3, -0.7, math.inf, math.nan], dtype=dtype)
    forms: Any = ("min_positive", "max_negative")
    found = []
    for form in forms:
        ratio_AN = ratios_N.expand(len(advantages_A), -1).clone().requires_grad_()
        objective = GRPO.but(epsilon_high=epsilon_high, loss_form=form, **{cap: at})
        inputs = inputs_of(ratio_AN, ratio_AN, advantages_A[:, None])  # of these only the advantages count
        loss_AN = clipped(objective, inputs, ratio_AN.log(), ratio_AN).loss
        (gradient_AN,) = torch.autograd.grad(loss_AN.sum(), ratio_AN)
        found.append((loss_AN.detach(), gradient_AN))
    for of_min, of_max in zip(*found, strict=True):
        assert ((of_min == of_max) | (of_min.isnan() & of_max.isnan())).all()


RATIOS = {"below": 0.5, "lower end": 0.8, "inside": 1.1, "upper end": 1.2, "above": 1.5, "beyond cap": 2.5}
OLD = -1.5  # log-prob of the sampled token before the update: probability .22
OPTIONS = VALUES["kernel_options"]
Table = dict[tuple[str, str], tuple[float, list[str]]]


def gradient_table(kernel: str, **axes: Any) -> Table:
    """(place of the ratio, sign of the advantage) -> weight of the log-prob's gradient, names of the masks set.

    The weight is d(objective) / d(log-prob): A times the ratio where nothing acts.
    """
    found = {}
    for (place, value), (sign, A) in itertools.product(RATIOS.items(), (("A>0", 1.0), ("A<0", -1.0))):
        move_11 = torch.zeros(1, 1, dtype=torch.double, requires_grad=True)
        log_ratio_11, A_11 = move_11 + math.log(value), torch.tensor([[A]], dtype=torch.double)
        objective = GRPO.but(kernel=kernel, kernel_options=OPTIONS, **axes)
        old_11, noise_11 = torch.full_like(move_11, OLD), torch.zeros(1, 1)
        inputs = inputs_of(log_ratio_11 + OLD, old_11, A_11, rewards_B1=A_11, noise_BT=noise_11)
        parts = surrogate(objective, inputs, log_ratio_11, move_11.exp() * value)  # the value, bit for bit
        (gradient_11,) = torch.autograd.grad(parts.loss.sum(), move_11)
        masks = [name for name in SurrogateParts.__annotations__ if name != "loss" and getattr(parts, name).all()]
        found[place, sign] = (-gradient_11.item(), [name for name in masks if name != "out_of_range"])
    return found


def dead_zones(table: Table) -> set[tuple[str, str]]:
    return {cell for cell, (weight, _) in table.items() if weight == 0}


def test_dead_zones_of_the_clip() -> None:
    table = gradient_table("clipped")
    dead = dead_zones(table)
    assert dead == {("below", "A<0"), ("above", "A>0"), ("beyond cap", "A>0")}
    for (place, sign), (weight, masks) in table.items():
        if (place, sign) not in dead:  # both ends of the range have the full gradient
            assert weight == (RATIOS[place] if sign == "A>0" else -RATIOS[place])
        assert masks == ([] if (place, sign) not in dead else ["active_low" if place == "below" else "active_high"])


@pytest.mark.parametrize("cap", ["delta", "dual_clip"])
def test_the_outer_cap_adds_the_third_dead_zone(cap: str) -> None:
    without, table = gradient_table("clipped"), gradient_table("clipped", **{cap: 2.0})
    changed = {cell for cell in table if table[cell] != without[cell]}
    assert changed == {("beyond cap", "A<0")}
    assert table["beyond cap", "A<0"] == (0.0, ["outer"])


def test_delta_and_dual_clip_differ_at_the_tie_and_below_the_upper_end() -> None:
    at_the_tie = {cap: gradient_table("clipped", **{cap: 1.5})["above", "A<0"][0] for cap in ("delta", "dual_clip")}
    assert at_the_tie == {"delta": -1.5, "dual_clip": -0.75}  # a clamp keeps the gradient, a minimum halves it
    low = {cap: gradient_table("clipped", **{cap: 1.1})["upper end", "A>0"][0] for cap in ("delta", "dual_clip")}
    assert low == {"delta": 0.0, "dual_clip": 1.2}  # delta below 1 + epsilon_high also caps A > 0


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gamma(w: float, k: float, lam: float) -> float:
    return math.exp(lam) * w**k * math.exp(-lam * w)


# Gradient weight of a single token as its papers have it: r the ratio, A = 1 or -1.
WEIGHTS: dict[str, Callable[[float, float], float]] = {
    "policy_gradient": lambda r, A: A,
    "policy_gradient_masked": lambda r, A: 0.0 if (A > 0 and r > 1.2) or (A < 0 and r < 0.8) else A,
    "band": lambda r, A: A * r if 0.8 < r < 1.2 else 0.0,
    "aspo": lambda r, A: 0.0 if (A > 0 and r > 1.2) or (A < 0 and r < 0.8) else A * min(r**-A, 3.0),
    "topr": lambda r, A: A if A > 0 else A * min(r, 1.0),
    "vespo": lambda r, A: A * (gamma(r, 2.0, 3.0) if A > 0 else gamma(r, 3.0, 2.0)),
    "dro": lambda r, A: A - 0.1 * math.log(r),
    "sapo": lambda r, A: (
        A * r * 4 * sigmoid((1.0 if A > 0 else 1.05) * (r - 1)) * sigmoid(-(1.0 if A > 0 else 1.05) * (r - 1))
    ),
    "gmpo": lambda r, A: 0.0 if (A > 0 and math.log(r) > 0.2) or (A < 0 and math.log(r) < -0.2) else A * r,
    "kl_cov": lambda r, A: A * r - math.copysign(1.0, math.log(r)),  # the only token has the largest covariance
    "clip_cov": lambda r, A: 0.0 if (A > 0 and r > 1.2) or (A < 0 and r < 0.8) else A * r,  # covariance 0: not drawn
    "dppo_tv": lambda r, A: 0.0 if abs(r - 1) * math.exp(OLD) > 0.2 and (r > 1) == (A > 0) else A * r,
    "dppo_ratio": lambda r, A: (
        (0.0 if abs(r - 1) * math.exp(OLD) > 0.2 and (r > 1) == (A > 0) else A * r) - 2e-3 * math.log(r)
    ),
    # q = .22: bounds 1/2 (from sqrt(0)) and 1.57 for epsilon .2
    "dcpo": lambda r, A: 0.0 if A > 0 and r > (1 + math.sqrt(1 + 0.8 / math.exp(OLD))) / 2 else A * r,
    "fipo": lambda r, A: (0.0 if (A > 0 and r > 1.2) or (A < 0 and r < 0.8) else A * r) * min(max(r, 1.0), 1.2),
    "oapl": lambda r, A: 2e-3 * (A - 1e-3 * math.log(r)),
    "ipo_capped": lambda r, A: 0.0 if abs(r - 1) * math.exp(OLD) > 0.2 else A * r,
    "icepop": lambda r, A: A * r if 0.8 <= r <= 1.2 else 0.0,
    "ipo": lambda r, A: (0.0 if abs(r - 1) * math.exp(OLD) > 0.2 else A * r) - 2e-3 * math.log(r),
}


@pytest.mark.parametrize("kernel", WEIGHTS)
def test_gradient_weights_are_those_of_the_papers(kernel: str) -> None:
    for (place, sign), (weight, _) in gradient_table(kernel).items():
        A = 1.0 if sign == "A>0" else -1.0
        assert weight == pytest.approx(WEIGHTS[kernel](RATIOS[place], A), rel=1e-12), (place, sign)


def test_dppo_drops_what_moved_too_far_the_harmful_way() -> None:
    for kernel, bound in (("dppo_tv", 0.05), ("dppo_kl", 0.02)):
        table = gradient_table(kernel, epsilon=bound, epsilon_high=bound)
        assert dead_zones(table) == {("below", "A<0"), ("above", "A>0"), ("beyond cap", "A>0")}
        assert table["below", "A<0"][1] == ["active_low"]
        assert table["above", "A>0"][1] == ["active_high"]


# --- surrogates that compare tokens with each other -------------------------------------------------------------------


def spread(**options: float) -> tuple[Objective, LossInputs, Tensor, Tensor]:
    """Two sequences of four tokens with ratios near 1; the covariance is largest at the first token of the first."""
    log_probs_BT = torch.tensor([[-0.1, -1.0, -2.0, -3.0], [-0.2, -0.9, -2.1, -2.9]], dtype=torch.double)
    old_BT = log_probs_BT + torch.tensor([[0.05, -0.04, 0.03, 0.02], [-0.01, 0.02, -0.03, 0.04]], dtype=torch.double)
    log_probs_BT.requires_grad_()
    log_ratio_BT = log_probs_BT - old_BT
    A_B1 = torch.tensor([[1.0], [-1.0]], dtype=torch.double)
    noise_BT = torch.tensor([[0.9, 0.8, 0.1, 0.2], [0.3, 0.4, 0.5, 0.6]])
    inputs = inputs_of(log_probs_BT, old_BT, A_B1, noise_BT=noise_BT)
    return GRPO.but(kernel_options={GRPO.kernel: options}), inputs, log_ratio_BT, log_ratio_BT.exp()


def test_clip_cov_leaves_out_the_eligible_tokens_with_the_smallest_noise() -> None:
    objective, inputs, log_ratio_BT, ratio_BT = spread(share=0.25, lower=0.5, upper=10.0)
    covariance_BT = (inputs.log_probs_BT - inputs.log_probs_BT.mean()) * inputs.advantages
    eligible = [tuple(place) for place in (covariance_BT > 0.5).nonzero().tolist()]
    assert len(eligible) > 2
    drawn = sorted(eligible, key=lambda place: inputs.noise_BT[place].item())[:2]  # a quarter of eight tokens
    parts = clip_cov(objective, inputs, log_ratio_BT, ratio_BT)
    assert sorted(tuple(place) for place in parts.dropped.nonzero().tolist()) == sorted(drawn)
    (gradient_BT,) = torch.autograd.grad(parts.loss.sum(), inputs.log_probs_BT)
    assert sorted(tuple(place) for place in (gradient_BT == 0).nonzero().tolist()) == sorted(drawn)


def test_kl_cov_penalises_the_tokens_of_highest_covariance() -> None:
    objective, inputs, log_ratio_BT, ratio_BT = spread(share=0.25, coefficient=0.7)
    covariance_BT = (inputs.log_probs_BT - inputs.log_probs_BT.mean()) * inputs.advantages
    highest = covariance_BT.flatten().argsort(descending=True)[:2]
    parts = kl_cov(objective, inputs, log_ratio_BT, ratio_BT)
    plain_BT = -ratio_BT * inputs.advantages
    expected_N = torch.zeros(8, dtype=torch.double).index_fill(0, highest, 0.7) * log_ratio_BT.abs().flatten()
    torch.testing.assert_close((parts.loss - plain_BT).flatten(), expected_N)
    assert parts.capped.flatten().nonzero().flatten().tolist() == sorted(highest.tolist())
