"""torchtune's dialect: each of its own ways matters."""

from __future__ import annotations

import math

import pytest
from small_batches import ByOptions, batch

from grpolab.frameworks.torchtune import FRAMEWORK

TUNE = ByOptions(FRAMEWORK)
WIDE = {"epsilon": 0.9, "kl_coeff": 0.5}
REFERENCE = [[-0.9, -0.9], [-0.9, -0.9], [-0.9, -0.9]]
RAGGED = batch([[0.1, 0.2], [-0.1, 9], [9, 9]], [[1, 1], [1, 0], [0, 0]], [[1], [-1], [4]], reference=REFERENCE)


def k3(q: float) -> float:
    return math.exp(q) - q - 1


def test_the_default_loss() -> None:
    policy = (math.exp(0.1) + math.exp(0.2) - math.exp(-0.1)) / 3
    kl = (k3(0.0) + k3(-0.1) + k3(0.2)) / 3
    assert TUNE.loss(WIDE, RAGGED).item() == pytest.approx(-policy + 0.5 * kl, rel=1e-12)
    found = TUNE.metrics(WIDE, RAGGED)
    assert (found["policy_loss"], found["kl_loss"]) == (pytest.approx(policy), pytest.approx(kl))
    assert TUNE.metrics({**WIDE, "kl_coeff": 0.0}, RAGGED)["kl_loss"] == pytest.approx(kl)


def test_the_completion_loss_has_one_ratio_and_one_kl() -> None:
    ratio, kl = math.exp(0.1 + 0.2 - 0.1), k3(0.0 - 0.1 + 0.2)
    policy = (1 - 1 + 4) * ratio / 3  # the empty row too
    found = TUNE.loss({**WIDE, "loss": "GRPOCompletionLoss"}, RAGGED).item()
    assert found == pytest.approx(-policy + 0.5 * kl, rel=1e-12)
    assert TUNE.metrics({**WIDE, "loss": "GRPOCompletionLoss"}, RAGGED)["ratios"] == pytest.approx(ratio)
    narrow = TUNE.metrics({"epsilon": 0.1, "loss": "GRPOCompletionLoss"}, RAGGED)
    assert narrow["clipfrac"] == pytest.approx(2 / 3)  # a share of rows


def test_the_metric_of_ratios_is_over_padding_too() -> None:
    everywhere = [0.1, 0.2, -0.1, 9, 9, 9]
    assert TUNE.metrics({}, RAGGED)["ratios"] == pytest.approx(sum(map(math.exp, everywhere)) / 6)
    simple = TUNE.metrics({"loss": "GRPOSimpleLoss"}, RAGGED)
    assert (simple["ratios"], simple["clipfrac"]) == (1, 0)


def test_padding_that_is_not_finite_poisons_the_loss() -> None:
    dirty = batch([[0.1, math.nan]], [[1, 0]], [[1]])
    assert TUNE.loss({}, dirty).isnan()
    assert TUNE.core_loss({}, dirty).isfinite()
