"""The tables behind the analytic figures F9 and F10, computed with our own surrogates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, surrogate
from grpolab.settings.objective import Objective

Rows = list[dict[str, str | float]]
SIGNS = (1.0, -1.0)


CURVES = {
    "no clip": make_objective("token", "ratio"),
    "clip 0.2 / 0.2": make_objective("token", "clipped", 0.2, 0.2),
    "clip 0.2 / 0.28": make_objective("token", "clipped", 0.2, 0.28),
    "lower clip only": make_objective("token", "clipped", 0.2, math.inf),
    "clip 0.2 / 0.2, delta 2": make_objective("token", "clipped", 0.2, 0.2, delta=2.0),
    "cispo, cap 1.28": make_objective("token", "cispo", 1.0, 0.28),
    "sapo": make_objective("token", "sapo", kernel_options={"temperature_positive": 1.0, "temperature_negative": 1.05}),
    "gmpo, one token": make_objective("token", "gmpo", 0.4, 0.4),
}
# Rules that depend on the old probability itself, and rules that depend only on the ratio.
SURFACES = {
    **{name: CURVES[name] for name in ("no clip", "clip 0.2 / 0.2", "cispo, cap 1.28")},
    "aspo, cap 3": make_objective("token", "aspo", kernel_options={"cap": 3.0}),
    "sapo": CURVES["sapo"],
    "dppo, TV 0.2": make_objective("token", "dppo_tv", kernel_options={"cap": math.inf}),
}


def curve_table(points: int = 301, largest: float = 3.0) -> Rows:
    """Return the table of F9: a row per curve, advantage (+1, -1) and ratio.

    It has the objective (minus the loss) of a token whose old probability is .25, and its weight, d objective / d
    log-prob.
    """
    ratios_N = torch.linspace(0.01, largest, points, dtype=torch.double)
    old_N = torch.full_like(ratios_N, 0.25)
    return [
        {"curve": curve, "advantage": advantage, "ratio": ratio, "objective": value, "weight": weight}
        for curve, objective in CURVES.items()
        for advantage in SIGNS
        for ratio, value, weight in _points(ratios_N, objective, advantage, old_N, ratios_N * old_N)
    ]


def surface_table(points: int = 40) -> Rows:
    """Return the table of F10: a row per rule, advantage (+1, -1), old and new probability, with the weight.

    The probabilities are the middles of `points` equal parts of (0, 1); weights have six digits.
    """
    middles_N = (torch.arange(points, dtype=torch.double) + 0.5) / points
    places_N2 = torch.cartesian_prod(middles_N, middles_N)
    return [
        {"rule": name, "advantage": advantage, "old": old, "new": new, "weight": float(f"{weight:.6g}")}
        for name, objective in SURFACES.items()
        for advantage in SIGNS
        for (old, new), _, weight in _points(places_N2, objective, advantage, *places_N2.T)
    ]


def _points(places_N: Tensor, objective: Objective, advantage: float, old_N: Tensor, new_N: Tensor) -> Iterator[Any]:
    """Yield each place (ratio or probability) with the objective and its weight there; (N,) each."""
    columns = places_N, *objective_and_weight(objective, advantage, old_N.log(), new_N.log())
    yield from zip(*(column_N.tolist() for column_N in columns), strict=True)


def objective_and_weight(objective: Objective, advantage: float, old_N: Tensor, new_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the objective and its derivative by the log-prob for sequences of one token, from log-probs; (N,) each."""
    new_N1, old_N1 = new_N[:, None].requires_grad_(), old_N[:, None]
    mask_N1 = torch.ones_like(old_N1, dtype=torch.bool)
    inputs = LossInputs(new_N1, old_N1, torch.full_like(old_N1, advantage), mask_N1, Totals.of(mask_N1))
    log_ratio_N1 = new_N1 - old_N1
    objective_N1 = -surrogate(objective, inputs, log_ratio_N1, log_ratio_N1.exp()).loss
    (weight_N1,) = torch.autograd.grad(objective_N1.sum(), new_N1)
    return objective_N1.detach()[:, 0], weight_N1[:, 0]
