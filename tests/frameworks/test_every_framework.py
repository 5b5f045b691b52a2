"""What holds for all frameworks: a key that is set acts, and metrics are there at every point that can be trained."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from tiny import VALUES

from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.frameworks.framework import clip_conventions, compute_metrics
from grpolab.frameworks.objectives import make_correction, make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.registry import FRAMEWORKS, RATIOS, SURROGATES
from grpolab.run.assembly import loss_recipe
from grpolab.settings.objective import Objective

OPTIONS = VALUES["kernel_options"]
PLAIN = make_objective("token", "clipped", 0.2, 0.2, None, "min_positive", "token_mean_minibatch", beta=0.5)
AXES: dict[str, Any] = {
    "log_ratio_clamp": 0.1,
    "dual_clip": 1.1,
    "aggregation": "token_sum_constant",
    "kl_estimator": "k2",
    "kl_gradient": "straight_through",
    "kl_input_clamp": 0.1,
    "kl_output_clamp": 0.01,
    "top_entropy_quantile": 0.3,
    "off_policy_mask_threshold": -0.2,
    "sampler_correction": make_correction("token", "mask", 0.9, 1.1),
}
# A framework's own KL, which has no room for these.
FIXED = {
    "nemo_rl": {"kl_gradient"},
    "openrlhf": {"kl_gradient", "kl_input_clamp", "kl_output_clamp"},
    "slime": {"kl_gradient", "kl_input_clamp"},
    "torchtune": {"kl_estimator", "kl_gradient", "kl_input_clamp", "kl_output_clamp"},
}


def batch() -> LossInputs:
    draw = torch.Generator().manual_seed(0)
    old_BT = -torch.rand(8, 6, generator=draw, dtype=torch.double) * 2 - 0.1
    given = {
        f"{name}_BT": old_BT + spread * torch.randn(8, 6, generator=draw, dtype=torch.double)
        for name, spread in (("log_probs", 0.4), ("reference_log_probs", 0.3), ("sampler_log_probs", 0.1))
    }
    mask_BT = torch.arange(6) < torch.tensor([6, 4, 1, 3, 2, 5, 2, 6])[:, None]
    A_B1 = torch.tensor([0.9, -1.3, 0.6, -0.4, 1.0, 0.0, -0.8, 0.5], dtype=torch.double)[:, None]
    random_BT = torch.rand(8, 6, generator=draw, dtype=torch.double)
    return LossInputs(
        old_log_probs_BT=old_BT,
        advantages=A_B1,
        mask_BT=mask_BT,
        totals=Totals.of(mask_BT, 16),
        entropy_BT=random_BT,
        rewards_B1=A_B1,
        group_B=torch.arange(len(A_B1)) // 2,
        noise_BT=random_BT,
        **given,
    )


def gradient(framework: str | None, objective: Objective) -> torch.Tensor:
    inputs = batch()
    inputs.log_probs_BT.requires_grad_()
    return torch.autograd.grad(policy_loss(objective, inputs, loss_recipe(framework)).total, inputs.log_probs_BT)[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_key_that_is_set_acts_in_a_dialect_too(framework: str) -> None:
    plain_BT = gradient(framework, PLAIN)
    silent = {axis for axis, value in AXES.items() if gradient(framework, PLAIN.but(**{axis: value})).equal(plain_BT)}
    assert silent == FIXED.get(framework, set())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@torch.no_grad()
def test_every_metric_that_is_logged_where_one_can_train_has_a_definition(framework: str) -> None:
    points = [PLAIN.but(beta=0.0, kl_estimator=None, kl_gradient=None), PLAIN.but(kl_gradient="score_function")]
    for level in ("sequence", "geometric"):
        points.append(PLAIN.but(sampler_correction=make_correction(level, "mask", 0.9, 1.1)))
    for kernel, level in product(SURROGATES, RATIOS):
        points.append(PLAIN.but(importance_sampling_level=level, kernel=kernel, kernel_options=OPTIONS))
    for point in points:
        assert compute_metrics(framework, point, batch()).keys() <= FRAMEWORK_METRICS[framework].keys(), point


@torch.no_grad()
def test_every_framework_can_say_what_it_would_count() -> None:
    for kernel, level in product(("clipped", "cispo"), RATIOS):
        assert clip_conventions(PLAIN.but(kernel=kernel, importance_sampling_level=level), batch())
