"""SkyRL's dialect: each of its own ways matters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_batches import ByOptions, batch

from grpolab.frameworks.skyrl import FRAMEWORK

SKY = ByOptions(FRAMEWORK)
NO_KL = {"use_kl_loss": False}


def corrected(**options: Any) -> dict[str, Any]:
    return {"off_policy_correction": options}


def test_two_corrections_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="one correction"):
        FRAMEWORK.objective(corrected(tis_ratio_type="token", sequence_mask_metric="geometric"))


def test_the_ratio_is_a_float32_exponential() -> None:
    one = batch([[0.1]], [[1]], [[1]])
    assert SKY.loss(NO_KL, one).item() == -torch.tensor(0.1).exp().double().item() != -math.exp(0.1)
    float64 = SKY.loss({**NO_KL, "policy_loss_type": "importance_sampling"}, one).item()
    assert float64 == pytest.approx(-math.exp(0.1), rel=1e-14)
    far = batch([[21.0]], [[1]], [[-1]])
    assert SKY.loss(NO_KL, far).item() == pytest.approx(math.exp(20), rel=1e-6)
    assert SKY.gradient(NO_KL, far).item() == 0


def test_a_sequence_is_bounded_at_e_to_the_tenth() -> None:
    far = batch([[12.0, 14.0]], [[1, 1]], [[-1]])
    options = {**NO_KL, "policy_loss_type": "gspo"}
    assert SKY.loss(options, far).item() == pytest.approx(math.exp(10), rel=1e-12)
    assert SKY.gradient(options, far).count_nonzero() == 0


RAGGED = batch([[0.1, -0.1], [0.05, 9]], [[1, 1], [1, 0]], [[1], [-2]], reference=[[-0.9, -0.9], [-0.9, -0.9]])


def test_the_kl_is_the_mean_of_row_means_whatever_the_reduction() -> None:
    def k3(q: float) -> float:
        return math.exp(q) - q - 1

    expected = 0.001 * ((k3(0.0) + k3(0.2)) / 2 + k3(0.05)) / 2
    for reduction in ("token_mean", "sequence_mean", "seq_mean_token_sum_norm"):
        options = {"loss_reduction": reduction}
        found = SKY.loss(options, RAGGED) - SKY.loss({**options, **NO_KL}, RAGGED)
        assert found.item() == pytest.approx(expected, rel=1e-9)
    assert SKY.metrics({}, RAGGED)["policy_kl"] == pytest.approx(1000 * expected)


def test_the_reduction_in_the_advantages_keeps_the_loss_of_the_clip() -> None:
    for reduction in ("token_mean", "sequence_mean", "seq_mean_token_sum_norm"):
        options = {**NO_KL, "loss_reduction": reduction}
        assert SKY.loss(options, RAGGED).item() == pytest.approx(SKY.core_loss(options, RAGGED).item(), rel=1e-6)


def test_clip_cov_never_meets_its_window_and_kl_cov_adds_a_sum() -> None:
    spread = batch([[3.0, 0.0, 0.0, 0.0]], [[1, 1, 1, 1]], [[8.0, -1.0, -1.0, -1.0]])
    noise = replace(spread, noise_BT=torch.zeros(1, 4))
    window = {**NO_KL, "policy_loss_type": "clip_cov", "eps_clip_high": 99.0, "clip_cov": {"clip_cov_ub": 99.0}}
    assert SKY.metrics(window, noise)["clip_ratio"] == 0.25  # scaled, the covariance of the first is still above 1
    default = {**window, "clip_cov": {"clip_cov_lb": 6.0, "clip_cov_ub": 99.0}}
    assert SKY.metrics(default, noise)["clip_ratio"] == 0  # and 15, unscaled, were above 6
    plain = {**NO_KL, "policy_loss_type": "importance_sampling"}
    added = SKY.loss({**NO_KL, "policy_loss_type": "kl_cov"}, spread) - SKY.loss(plain, spread)
    assert added.item() == pytest.approx(3.0)  # |log r| of one token in four, not over four


def test_dppo_has_the_value_of_the_ratio() -> None:
    one = batch([[0.1, 0.9]], [[1, 1]], [[1]])  # the second rose by .54
    options = {**NO_KL, "policy_loss_type": "dppo"}
    assert SKY.loss(options, one).item() == pytest.approx(-math.exp(0.1) / 2, rel=1e-6)
    zero = replace(one, log_probs_BT=torch.tensor([[-3.0, -1.0]]).double(), advantages=torch.zeros(1, 1).double())
    assert SKY.metrics(options, zero)["clip_ratio"] == 0  # an advantage of 0 is not dropped


SAMPLED = batch([[0, 0], [0, 0]], [[1, 1], [1, 1]], [[1], [1]], sampler=[[-1.4, -0.6], [-1.2, -1.2]])


def test_a_mask_of_the_sampler_is_no_weight() -> None:
    geometric = {**NO_KL, **corrected(sequence_mask_metric="geometric")}  # means 1 and e^.2
    assert SKY.loss(geometric, SAMPLED).item() == -0.5
    assert SKY.metrics(geometric, SAMPLED)["geo_sequence_mask_over_high_ratio"] == 0.5
    outlier = {**NO_KL, **corrected(outlier_token_is_threshold_high=1.3)}  # e^.4 takes its whole row
    assert SKY.loss(outlier, SAMPLED).item() == -0.5
    tokens = {**NO_KL, **corrected(token_mask_is_threshold_low=0.9, token_mask_is_threshold_high=1.3)}
    assert SKY.loss(tokens, SAMPLED).item() == -0.5  # two tokens of four stay
    truncated = {**NO_KL, **corrected(tis_ratio_type="sequence", sequence_tis_ratio_clip_high=1.2)}
    assert SKY.loss(truncated, SAMPLED).item() == pytest.approx(-(1 + 1.2) / 2, rel=1e-6)


def test_clip_ratios_of_the_losses() -> None:
    rows = batch([[1.0, -1.0, 0.0]], [[1, 1, 1]], [[1]])
    found = {kind: SKY.metrics({"policy_loss_type": kind}, rows)["clip_ratio"] for kind in ("regular", "cispo", "sapo")}
    assert found == {"regular": pytest.approx(1 / 3), "cispo": 0, "sapo": 0}
    narrow = {"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_low": 0.2, "cispo_eps_clip_high": 0.2}}
    assert SKY.metrics(narrow, rows)["clip_ratio"] == pytest.approx(2 / 3)  # ratio-only
    band = SKY.metrics({"policy_loss_type": "rollout_is"}, rows)
    assert band["clip_ratio"] == pytest.approx(2 / 3)


def test_padding_that_is_not_finite_poisons_the_loss() -> None:
    dirty = batch([[0.1, math.nan]], [[1, 0]], [[1]])
    assert SKY.loss(NO_KL, dirty).isnan()
    assert SKY.core_loss(NO_KL, dirty).isfinite()
