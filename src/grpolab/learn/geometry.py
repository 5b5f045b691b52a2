"""The tables behind the analytic figures, from our own kernels: the objective against the ratio (F9), and its weight on
the gradient over old and new probability (F10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from grpolab.learn.kernels.parts import KernelInputs
from grpolab.registry import KERNELS, resolve

Rows = list[dict[str, str | float]]
SIGNS = (1.0, -1.0)


class Rule(NamedTuple):
    """A kernel with its range and its own numbers."""

    kernel: str
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    options: Mapping[str, float] = {}


CURVES = {
    "no clip": Rule("ratio"),
    "clip 0.2 / 0.2": Rule("clipped"),
    "clip 0.2 / 0.28": Rule("clipped", 0.2, 0.28),
    "lower clip only": Rule("clipped", 0.2, math.inf),
    "clip 0.2 / 0.2, delta 2": Rule("clipped", delta=2.0),
    "cispo, cap 1.28": Rule("cispo", 1.0, 0.28),
    "sapo": Rule("sapo", options={"temperature_positive": 1.0, "temperature_negative": 1.05}),
    "gmpo, one token": Rule("gmpo", 0.4, 0.4),
}
# What tells the old probability apart from the ratio, beside what does not.
SURFACES = {
    **{name: CURVES[name] for name in ("no clip", "clip 0.2 / 0.2", "cispo, cap 1.28")},
    "aspo, cap 3": Rule("aspo", options={"cap": 3.0}),
    "sapo": CURVES["sapo"],
    "dppo, TV 0.2": Rule("dppo_tv", options={"cap": math.inf}),
}


def table(points: int = 301, largest: float = 3.0) -> Rows:
    """One row per curve, advantage (+1, -1) and ratio: the objective (minus the loss) of a token whose old probability
    is .25, and its weight, d objective / d log-prob.
    """
    rows: Rows = []
    ratios_N = torch.linspace(0.01, largest, points, dtype=torch.double)
    old_N = torch.full_like(ratios_N, 0.25)
    for curve, rule in CURVES.items():
        for advantage in SIGNS:
            objective_N, weight_N = objective_and_weight(rule, advantage, old_N.log(), (ratios_N * old_N).log())
            rows += [
                {"curve": curve, "advantage": advantage, "ratio": r, "objective": o, "weight": w}
                for r, o, w in zip(ratios_N.tolist(), objective_N.tolist(), weight_N.tolist(), strict=True)
            ]
    return rows


def surface(points: int = 40) -> Rows:
    """One row per rule, advantage (+1, -1), old and new probability: the weight, d objective / d log-prob.

    The probabilities are the middles of `points` equal parts of (0, 1); weights have six digits.
    """
    rows: Rows = []
    middles_N = (torch.arange(points, dtype=torch.double) + 0.5) / points
    old_N, new_N = torch.cartesian_prod(middles_N, middles_N).T
    for name, rule in SURFACES.items():
        for advantage in SIGNS:
            _, weight_N = objective_and_weight(rule, advantage, old_N.log(), new_N.log())
            rows += [
                {"rule": name, "advantage": advantage, "old": old, "new": new, "weight": float(f"{weight:.6g}")}
                for old, new, weight in zip(old_N.tolist(), new_N.tolist(), weight_N.tolist(), strict=True)
            ]
    return rows


def objective_and_weight(rule: Rule, advantage: float, old_N: Tensor, new_N: Tensor) -> tuple[Tensor, Tensor]:
    """Objective and its derivative by the log-prob for sequences of one token, from log-probs; (N,) each."""
    new_N1, old_N1 = new_N[:, None].requires_grad_(), old_N[:, None]
    inputs = KernelInputs(
        ratio=(new_N1 - old_N1).exp(),
        log_ratio_BT=new_N1 - old_N1,
        log_probs_BT=new_N1,
        old_log_probs_BT=old_N1,
        advantages=torch.full_like(old_N1, advantage),
        mask_BT=torch.ones_like(old_N1, dtype=torch.bool),
        epsilon=rule.epsilon,
        epsilon_high=rule.epsilon_high,
        delta=rule.delta,
        options=rule.options,
    )
    objective_N1 = -resolve(KERNELS[rule.kernel])(inputs).loss
    (weight_N1,) = torch.autograd.grad(objective_N1.sum(), new_N1)
    return objective_N1.detach()[:, 0], weight_N1[:, 0]
