"""The table behind the analytic figures: objective and gradient weight against the ratio, from our own kernels."""

from __future__ import annotations

import math

import torch

from grpolab.learn.kernels.parts import KernelInputs
from grpolab.registry import KERNELS, resolve

# Curve name -> (kernel, epsilon, epsilon_high, delta).
CURVES: dict[str, tuple[str, float, float, float | None]] = {
    "no clip": ("ratio", 0.2, 0.2, None),
    "clip 0.2 / 0.2": ("clipped", 0.2, 0.2, None),
    "clip 0.2 / 0.28": ("clipped", 0.2, 0.28, None),
    "lower clip only": ("clipped", 0.2, math.inf, None),
    "clip 0.2 / 0.2, delta 2": ("clipped", 0.2, 0.2, 2.0),
    "cispo, cap 1.28": ("cispo", 1.0, 0.28, None),
}


def table(points: int = 301, largest: float = 3.0) -> list[dict[str, str | float]]:
    """One row per curve, advantage (+1, -1) and ratio: the objective (minus the loss) of a token whose old probability
    is .25, and its weight, d objective / d log-prob.
    """
    rows: list[dict[str, str | float]] = []
    ratios_N = torch.linspace(0.01, largest, points, dtype=torch.double)
    for curve, (kernel, epsilon, epsilon_high, delta) in CURVES.items():
        for advantage in (1.0, -1.0):
            log_probs_1N = (ratios_N[None].log() + math.log(0.25)).requires_grad_()
            inputs = KernelInputs(
                ratio=(log_probs_1N - math.log(0.25)).exp(),
                log_ratio_BT=log_probs_1N - math.log(0.25),
                log_probs_BT=log_probs_1N,
                old_log_probs_BT=torch.full_like(log_probs_1N, math.log(0.25)),
                advantages=torch.full((1, 1), advantage, dtype=torch.double),
                mask_BT=torch.ones_like(log_probs_1N, dtype=torch.bool),
                epsilon=epsilon,
                epsilon_high=epsilon_high,
                delta=delta,
                loss_form="min_positive",
            )
            objective_1N = -resolve(KERNELS[kernel])(inputs).loss
            (weight_1N,) = torch.autograd.grad(objective_1N.sum(), log_probs_1N)
            rows += [
                {"curve": curve, "advantage": advantage, "ratio": r, "objective": o, "weight": w}
                for r, o, w in zip(ratios_N.tolist(), objective_1N[0].tolist(), weight_1N[0].tolist(), strict=True)
            ]
    return rows
