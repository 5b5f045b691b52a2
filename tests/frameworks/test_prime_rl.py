"""prime-rl's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_batches import ByOptions, batch

from grpolab.frameworks.prime_rl import FRAMEWORK

PRIME = ByOptions(FRAMEWORK)
# Probabilities of the sampler are 1/e = .37; the changes are +.24, -.22, +.04.
MOVED = batch([[0.5, -0.9, 0.1]], [[1, 1, 1]], [[1.0]])


def test_dropped_tokens_keep_the_square_of_their_log_ratio() -> None:
    squares = 1e-3 * (0.25 + 0.81 + 0.01)
    up = -(math.exp(-0.9) + math.exp(0.1)) + squares
    assert PRIME.loss({}, MOVED).item() == pytest.approx(up / 3, rel=1e-12)
    down = math.exp(0.5) + math.exp(0.1) + squares
    negative = replace(MOVED, advantages=-MOVED.advantages)
    assert PRIME.loss({}, negative).item() == pytest.approx(down / 3, rel=1e-12)
    assert PRIME.gradient({}, MOVED)[0, 0].item() == pytest.approx(2e-3 * 0.5 / 3, rel=1e-12)


def test_ipo_drops_whatever_the_sign_is() -> None:
    expected = -0.5 * math.exp(0.1) + 0.01 * (0.25 + 0.81 + 0.01)
    found = PRIME.loss({"type": "ipo", "adv_tau": 0.5, "kl_tau": 0.01}, MOVED).item()
    assert found == pytest.approx(expected / 3, rel=1e-12)
    assert "is_masked_low" not in PRIME.metrics({"type": "ipo"}, MOVED)


def test_an_advantage_of_zero_is_dropped_as_a_negative_one_but_not_counted_as_low() -> None:
    zero = replace(MOVED, advantages=0 * MOVED.advantages)
    found = PRIME.metrics({}, zero)
    assert (found["is_masked"], found["is_masked_low"], found["is_masked_high"]) == (pytest.approx(1 / 3), 0, 0)


def test_metrics_are_means_over_sequences() -> None:
    rows = batch([[0.5, 0.0, 0.0], [0.5, 9.0, 9.0]], [[1, 1, 1], [1, 0, 0]], [[1], [1]])
    assert PRIME.metrics({}, rows)["is_masked"] == pytest.approx((1 / 3 + 1) / 2)  # over tokens it were 1/2


def test_what_is_not_finite_poisons_the_loss() -> None:
    dirty = batch([[0.1, math.nan]], [[1, 0]], [[1]])
    assert PRIME.loss({}, dirty).isnan()
    assert PRIME.core_loss({}, dirty).isfinite()
    infinite = batch([[800.0]], [[1]], [[1]])  # dropped: its probability rose, its ratio is infinite
    assert PRIME.loss({}, infinite).isnan()
    assert PRIME.core_loss({}, infinite).isfinite()
    assert torch.equal(PRIME.loss({}, MOVED), PRIME.core_loss({}, MOVED))
