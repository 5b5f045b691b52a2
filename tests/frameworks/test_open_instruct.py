"""open-instruct's dialect: each of its own ways matters."""

from __future__ import annotations

import math

import pytest
from small_batches import ByOptions, batch

from grpolab.frameworks.open_instruct import FRAMEWORK

OPEN = ByOptions(FRAMEWORK)
# Weights 1, e^.3, e^2, e^-1 of the sampler; every ratio is 1.
SAMPLED = batch([[0, 0], [0, 0]], [[1, 1], [1, 1]], [[1], [1]], sampler=[[-1.0, -1.3], [-3.0, 0.0]])


def test_rho_is_cut_at_two() -> None:
    expected = -(1 + math.exp(0.3) + 2 + math.exp(-1)) / 4
    assert OPEN.loss({}, SAMPLED).item() == pytest.approx(expected, rel=1e-12)
    assert OPEN.metrics({}, SAMPLED)["val/rho_clipfrac"] == 0.25


def test_a_mask_of_rho_still_cuts_at_two() -> None:
    options = {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 10.0}
    expected = -(1 + math.exp(0.3) + 2) / 4  # the core's mask would leave e^2
    assert OPEN.loss(options, SAMPLED).item() == pytest.approx(expected, rel=1e-12)
    found = OPEN.metrics(options, SAMPLED)
    assert (found["val/rho_drop_low_frac"], found["val/rho_drop_high_frac"]) == (0.25, 0)


def test_the_log_of_rho_is_cut_at_ten() -> None:
    far = batch([[0]], [[1]], [[1]], sampler=[[-40]])
    unbounded = {"rho_clamp_upper_bound": 0.0}
    assert OPEN.loss(unbounded, far).item() == pytest.approx(-math.exp(10), rel=1e-12)


def test_rho_of_rows_is_their_geometric_mean() -> None:
    rows = batch([[0, 0]], [[1, 1]], [[1]], sampler=[[-1.4, -1.0]])
    options = {"rho_mask_sequence_level": True, "rho_mask_lower_bound": 0.9, "rho_mask_upper_bound": 1.3}
    assert OPEN.loss(options, rows).item() == pytest.approx(-math.exp(0.2), rel=1e-12)


def test_total_variation_drops_the_tokens_that_push_a_row_away() -> None:
    rows = batch([[0, 0]], [[1, 1]], [[1]], sampler=[[-1.4, -0.8]])
    options = {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 0.1}
    assert OPEN.loss(options, rows).item() == pytest.approx(-math.exp(-0.2) / 2, rel=1e-12)
    mild = {**options, "rho_mask_upper_bound": 0.5}
    assert OPEN.loss(mild, rows).item() == pytest.approx(-(math.exp(-0.2) + math.exp(0.4)) / 2, rel=1e-12)


def test_a_dropped_token_is_not_clipped() -> None:
    clipped = batch([[1.0, 1.0]], [[1, 1]], [[1]], sampler=[[-1.0, -9.0]])
    assert OPEN.metrics({}, clipped)["policy/clipfrac_avg"] == 1
    assert OPEN.metrics({"rho_mask_upper_bound": 5.0}, clipped)["policy/clipfrac_avg"] == 0.5


def test_the_clip_fraction_of_cispo_is_ratio_only() -> None:
    negative = batch([[1.0, -1.0]], [[1, 1]], [[-1]], sampler=[[-1, -1]])
    assert OPEN.metrics({}, negative)["policy/clipfrac_avg"] == 0.5  # 1/e with A < 0
    assert OPEN.metrics({"loss_fn": "cispo"}, negative)["policy/clipfrac_avg"] == 0.5  # e
    both = batch([[1.0, 2.0]], [[1, 1]], [[-1]], sampler=[[-1, -1]])
    assert [OPEN.metrics({"loss_fn": kind}, both)["policy/clipfrac_avg"] for kind in ("dapo", "cispo")] == [0, 1]


def test_the_four_estimates_of_the_kl() -> None:
    one = batch([[0.5]], [[1]], [[0]], reference=[[-0.8]], sampler=[[-1]])  # log(policy / reference) = .3
    expected = [0.3, 0.045, math.exp(-0.3) + 0.3 - 1, math.exp(0.5) * 0.3]
    found = OPEN.metrics({}, one)
    assert [found[f"objective/kl{number}_avg"] for number in range(4)] == pytest.approx(expected)
    for number, value in enumerate(expected):
        options = {"kl_estimator": number, "beta": 0.1}
        assert OPEN.loss(options, one).item() == pytest.approx(0.1 * value, rel=1e-12)
        assert OPEN.metrics(options, one)["loss/kl_avg"] == pytest.approx(0.1 * value)
