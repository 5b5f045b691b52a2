"""AReaL's dialect: each of its own ways matters."""

from __future__ import annotations

import math

import pytest
import torch
from small_batches import ByOptions, batch

from grpolab.frameworks.areal import FRAMEWORK

AREAL = ByOptions(FRAMEWORK)
SAMPLED = batch([[0.1, 0.2], [0.0, 0.1]], [[1, 1], [1, 1]], [[1], [1]], sampler=[[-1.0, -3.0], [-1.0, -1.5]])


def test_rejected_tokens_leave_the_loss_but_not_its_denominator() -> None:
    options = {"rejection_sampling": {"upper": 5.0}}  # the weights are 1, e^2, 1, e^.5
    expected = -(math.exp(0.1) + 1 + math.exp(0.5) * math.exp(0.1)) / 4
    assert AREAL.loss(options, SAMPLED).item() == pytest.approx(expected, rel=1e-7)  # a float32 weight
    found = AREAL.metrics(options, SAMPLED)
    assert found["rs_filtered_fraction"] == 0.25
    assert found["importance_weight"] == pytest.approx((math.exp(0.1) + 1 + math.exp(0.1)) / 4)  # 0 where rejected


def test_a_bounded_weight_counts_as_filtered() -> None:
    options = {"rejection_sampling": {"action": "clamp", "upper": 1.2}}
    assert AREAL.metrics(options, SAMPLED)["rs_filtered_fraction"] == 0.5
    expected = -(math.exp(0.1) + 1.2 * 1.2 + 1 + 1.2 * math.exp(0.1)) / 4  # the ratio e^.2 is cut at 1.2
    assert AREAL.loss(options, SAMPLED).item() == pytest.approx(expected, rel=1e-7)


def test_a_sequence_ratio_comes_with_the_mean_of_the_rows_advantages() -> None:
    tokens = batch([[0.1, 0.3], [0.0, 9.0]], [[1, 1], [1, 0]], [[1, 0], [2, 7]])
    options = {"importance_sampling_level": "sequence", "eps_clip": 1.0}
    expected = -(2 * math.exp(0.2) * 0.5 + 2) / 3
    assert AREAL.loss(options, tokens).item() == pytest.approx(expected, rel=1e-12)
    gradient_BT = AREAL.gradient(options, tokens)
    assert gradient_BT[0, 0] == gradient_BT[0, 1] != 0  # in the core the token of advantage 0 pulls less
    assert gradient_BT[1, 1] == 0


def test_metrics_are_gated_and_over_tokens() -> None:
    rows = batch([[1.0, -1.0], [2.0, 9.0]], [[1, 1], [1, 0]], [[1], [-1]])
    found = AREAL.metrics({"c_clip": 3.0}, rows)
    assert found["clip_ratio"] == pytest.approx(1 / 3)  # r = e with A > 0; neither 1/e with A > 0 nor e^2 with A < 0
    assert found["dual_clip_ratio"] == pytest.approx(1 / 3)
    assert found["approx_kl"] == pytest.approx(2 / 3)  # +mean of the log ratio


def test_the_weight_is_float32_and_nothing_where_tokens_were_rejected() -> None:
    one = batch([[0.0]], [[1]], [[1]], sampler=[[-0.5]])
    options = {"rejection_sampling": {}}
    assert AREAL.loss(options, one).item() == -torch.tensor(-0.5).exp().double().item() != -math.exp(-0.5)
    negative = batch([[0.0, 0.0]], [[1, 1]], [[-1]], sampler=[[-1.0, -3.0]])  # a ratio of 0 is clipped to .8
    assert AREAL.metrics(options, negative)["actor_loss"] == AREAL.loss(options, negative).item() == 0.5


def test_padding_is_invisible_to_the_loss() -> None:
    dirty = batch([[0.1, math.nan], [0.2, 0.3]], [[1, 0], [1, 1]], [[1], [-1]])
    clean = batch([[0.1, 0.0], [0.2, 0.3]], [[1, 0], [1, 1]], [[1], [-1]])
    assert torch.equal(AREAL.loss({}, dirty), AREAL.loss({}, clean))
    assert AREAL.gradient({}, dirty)[0, 1].isnan()  # 0 times the exponential's
    assert AREAL.gradient({"importance_sampling_level": "sequence"}, dirty).isfinite().all()
