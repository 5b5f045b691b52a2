"""NeMo-RL's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_batches import ByOptions, batch

from grpolab.frameworks.nemo_rl import FRAMEWORK

NEMO = ByOptions(FRAMEWORK)
WEIGHTED = {"use_importance_sampling_correction": True}
NO_KL = {"reference_policy_kl_penalty": 0.0}
RAGGED = batch(
    [[0.1, -0.1, 9.0], [0.05, 9.0, 9.0], [9.0, 9.0, 9.0]], [[1, 1, 0], [1, 0, 0], [0, 0, 0]], [[1], [-2], [3]]
)


def test_every_divisor_has_1e_8() -> None:
    by_token = NEMO.loss(NO_KL, RAGGED).item() / NEMO.core_loss(NO_KL, RAGGED).item()
    assert by_token == pytest.approx(3 / (3 + 1e-8), rel=1e-12)
    first, second = (math.exp(0.1) + math.exp(-0.1)) / (2 + 1e-8), math.exp(0.05) / (1 + 1e-8)
    found = NEMO.loss({**NO_KL, "token_level_loss": False}, RAGGED).item()
    assert found == pytest.approx((-first + 2 * second) / (2 + 1e-8), rel=1e-12)
    one = batch([[0.1]], [[1]], [[1]])
    sequence = {**NO_KL, "token_level_loss": False, "sequence_level_importance_ratios": True}
    assert NEMO.metrics(sequence, one)["probs_ratio_max"] == pytest.approx(math.exp(0.1 / (1 + 1e-8)), rel=1e-12)


def kl_gradient(log_ratio: float, **options: Any) -> float:
    """Of the KL alone, by the log-prob of one token whose reference is this much likelier."""
    one = batch([[0.0]], [[1]], [[0.0]], reference=[[log_ratio - 1]], sampler=[[-1.5]])
    return NEMO.gradient({"reference_policy_kl_penalty": 1.0, **options}, one).item()


def test_the_weight_is_inside_the_clamps_of_the_kl() -> None:
    q = 0.5
    assert kl_gradient(q) == pytest.approx(-q, rel=1e-7)  # k3 with its score function: that of the reverse KL
    assert kl_gradient(q, use_on_policy_kl_approximation=True) == pytest.approx(-q * math.exp(0.5), rel=1e-7)
    assert kl_gradient(5.0) == 0  # k3 is more than 10: the core's score function would go on
    assert kl_gradient(25.0, kl_output_clamp_value=None) == 0  # beyond the input clamp


def test_seq_mask_tis_keeps_rows_by_their_mean_and_tokens_with_their_weight() -> None:
    rows = batch([[0.0, 0.0], [0.0, 0.0]], [[1, 1], [1, 1]], [[1], [1]], sampler=[[-1.4, -0.6], [-1.4, -1.0]])
    bounds = {"type": "seq-mask-tis", "ratio_min": 0.999, "ratio": 1.002}
    truncated = {f"truncated_importance_sampling_{name}": value for name, value in bounds.items()}
    options = {**NO_KL, **WEIGHTED, **truncated}
    expected = -(math.exp(0.4) + math.exp(-0.4)) / 4
    assert NEMO.loss(options, rows).item() == pytest.approx(expected, rel=1e-7)
    assert NEMO.metrics(options, rows)["is_oob_ratio"] == pytest.approx(0.5)


def test_an_infinite_weight_counts_as_zero() -> None:
    far = batch([[0.0, 0.0]], [[1, 1]], [[1]], sampler=[[-1.0, -2000.0]])
    assert NEMO.loss({**NO_KL, **WEIGHTED}, far).item() == pytest.approx(-0.5)
    assert NEMO.core_loss({**NO_KL, **WEIGHTED}, far).isinf()


def test_the_mean_weight_of_sequences_is_a_sum() -> None:
    sequence = {**NO_KL, "token_level_loss": False, "sequence_level_importance_ratios": True}
    assert NEMO.metrics(sequence, RAGGED)["sampling_importance_ratio"] == pytest.approx(3)  # the empty row too
    assert NEMO.metrics(NO_KL, RAGGED)["sampling_importance_ratio"] == pytest.approx(1)


def test_padding_that_is_not_finite_poisons_the_loss() -> None:
    dirty = batch([[0.1, math.nan]], [[1, 0]], [[1]])
    assert NEMO.loss(NO_KL, dirty).isnan()
    assert NEMO.core_loss(NO_KL, dirty).isfinite()


def test_without_a_ratio_its_metric_is_the_log_prob() -> None:
    found = NEMO.metrics({**NO_KL, "disable_ppo_ratio": True}, RAGGED)
    assert found["probs_ratio_max"] == found["probs_ratio_clamped_max"] == pytest.approx(-0.9)
    assert found["num_valid_samples"] == 2
    assert torch.tensor(list(found.values())).isfinite().all()
