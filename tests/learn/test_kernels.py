"""Kernels: both written forms of the clip are one function (O3), and gradients vanish where they should (O10)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from grpolab.learn.kernels.clipped import clipped
from grpolab.learn.kernels.parts import KernelInputs, KernelParts
from grpolab.registry import KERNELS, resolve


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("epsilon_high", "delta"), [(0.2, None), (0.28, None), (math.inf, None), (0.2, 2.0)])
def test_min_and_max_form_are_equal_bit_for_bit(dtype: torch.dtype, epsilon_high: float, delta: float | None) -> None:
    edges = torch.tensor([0.8, 1.0, 1.2, 1.28, 2.0], dtype=dtype)
    neighbours = [edges, torch.nextafter(edges, edges * 0), torch.nextafter(edges, edges * 9)]
    special = torch.tensor([0.0, 1e-30, 0.5, 3.0, 1e30, math.inf, math.nan], dtype=dtype)
    ratios_N = torch.cat([*neighbours, special])
    advantages_A = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-8, -1e8, 0.3, -0.7, math.inf, math.nan], dtype=dtype)
    forms: Any = ("min_positive", "max_negative")
    found = []
    for form in forms:
        ratio_AN = ratios_N.expand(len(advantages_A), -1).clone().requires_grad_()
        inputs = KernelInputs(ratio_AN, ratio_AN, advantages_A[:, None], 0.2, epsilon_high, delta, form)
        loss_AN = clipped(inputs).loss
        (gradient_AN,) = torch.autograd.grad(loss_AN.sum(), ratio_AN)
        found.append((loss_AN.detach(), gradient_AN))
    for of_min, of_max in zip(*found, strict=True):
        assert ((of_min == of_max) | (of_min.isnan() & of_max.isnan())).all()


RATIOS = {"below": 0.5, "lower end": 0.8, "inside": 1.1, "upper end": 1.2, "above": 1.5, "beyond delta": 2.5}


def gradient_table(kernel: str, delta: float | None) -> dict[tuple[str, str], tuple[float, list[str]]]:
    """(place of the ratio, sign of the advantage) -> weight of the log-prob's gradient, names of the masks set."""
    found = {}
    for (place, value), (sign, A) in itertools.product(RATIOS.items(), (("A>0", 1.0), ("A<0", -1.0))):
        log_prob_11 = torch.zeros(1, 1, dtype=torch.double, requires_grad=True)
        ratio_11 = log_prob_11.exp() * value  # the value itself, bit for bit
        parts = resolve(KERNELS[kernel])(
            KernelInputs(
                ratio_11, log_prob_11, torch.tensor([[A]], dtype=torch.double), 0.2, 0.2, delta, "min_positive"
            )
        )
        (gradient_11,) = torch.autograd.grad(parts.loss.sum(), log_prob_11)
        masks = [name for name in KernelParts.__annotations__ if name != "loss" and getattr(parts, name).all()]
        found[place, sign] = (-gradient_11.item(), masks)
    return found


def test_dead_zones_of_the_clip() -> None:
    table = gradient_table("clipped", None)
    dead = {cell for cell, (weight, _) in table.items() if weight == 0}
    assert dead == {("below", "A<0"), ("above", "A>0"), ("beyond delta", "A>0")}
    for (place, sign), (weight, masks) in table.items():
        if (place, sign) not in dead:  # both ends of the range have the full gradient
            assert weight == (RATIOS[place] if sign == "A>0" else -RATIOS[place])
        assert masks == ([] if (place, sign) not in dead else ["active_low" if place == "below" else "active_high"])


def test_the_outer_cap_adds_the_third_dead_zone() -> None:
    without, table = gradient_table("clipped", None), gradient_table("clipped", 2.0)
    changed = {cell for cell in table if table[cell] != without[cell]}
    assert changed == {("beyond delta", "A<0")}
    assert table["beyond delta", "A<0"] == (0.0, ["outer"])


def test_no_clip_and_cispo_have_no_dead_zone() -> None:
    for (place, sign), (weight, masks) in gradient_table("ratio", None).items():
        assert (abs(weight), masks) == (RATIOS[place], [])
        assert (weight > 0) == (sign == "A>0")
    for (place, sign), (weight, masks) in gradient_table("cispo", None).items():
        assert abs(weight) == min(RATIOS[place], 1.2)
        assert (weight > 0) == (sign == "A>0")
        assert masks == (["capped"] if RATIOS[place] > 1.2 else [])
