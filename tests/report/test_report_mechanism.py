"""What runs show of how their objective works, on journals of a few records whose numbers were worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from grpolab.report.stability import jitter, mechanism_quantities, run_quantities
from grpolab.report.statistics.intervals import sd_interval, worst_mean

SETTINGS = {"num_iterations": 2, "num_minibatches": 1, "num_generations": 4, "max_grad_norm": 1.0}
# Two rollout steps of two updates each.
UPDATES = pd.DataFrame(
    {
        "rollout_step": [0, 0, 1, 1],
        "iteration": [0, 1, 0, 1],
        "minibatch": [0, 0, 0, 0],
        "clip/active": [0.0, 0.2, 0.0, 0.1],
        "clip/active_nz": [0.0, 0.4, 0.0, 0.2],
        "cf/sequence_0.2": [0.0, 0.02, 0.0, 0.02],
        "cf/token_0.2": [0.0, 0.1, 0.0, 0.06],
        "p_old/up_clipped": [np.nan, 0.3, np.nan, 0.5],
        "p_old/all": [0.9, 0.8, 0.9, 0.6],
        "ratio/token_min": [1.0, 0.5, 1.0, 0.2],
        "ratio/token_max": [1.0, 2.0, 1.0, 5.0],
        "ratio/sequence_mean_pos": [1.0, 1.1, 1.0, 1.3],
        "ratio/sequence_mean_neg": [1.0, 0.9, 1.0, 0.9],
        "grad_norm": [2.0, 0.5, 1.5, np.inf],
    }
)
ROLLOUTS = pd.DataFrame(
    {
        "rollout_step": [0, 1],
        "zero_variance/share": [0.3, 0.1],
        "zero_variance/all_right": [0.2, 0.05],
        "zero_variance/all_wrong": [0.1, 0.05],
        "reward/correct": [0.5, 1.0],
        "entropy/behaviour": [0.8, 0.5],
    }
)


@pytest.fixture
def found():
    return mechanism_quantities(UPDATES, ROLLOUTS, SETTINGS, tail=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_share", 0.6 / 4),
        ("clip_change", 0.05 - 0.1),
        ("ceiling_share", 0.075 / (0.8 * 0.5)),
        ("counterfactual_log_ratio", np.log(0.04 / 0.16)),
        ("up_clipped_gap", ((0.3 - 0.8) + (0.5 - 0.6)) / 2),
        ("zero_variance_gap", ((0.3 - 2 / 16) + (0.1 - 1)) / 2),
        ("sequence_sign_gap", (0.2 + 0.4) / 2),
        ("log_ratio_range", (np.log(4) + np.log(25)) / 2),
        ("clipped_gradients", 3 / 4),
        ("entropy_slope", -0.3),
        ("entropy_last20", 0.5),
    ],
)
def test_a_quantity_is_what_the_hand_computes(found, name, value):
    assert found[name] == pytest.approx(value)


def test_what_cannot_be_computed_is_not_a_number():
    nothing = mechanism_quantities(pd.DataFrame({"rollout_step": []}), pd.DataFrame({"rollout_step": []}), {}, 0.1)
    assert all(np.isnan(value) for value in nothing.values())
    once = mechanism_quantities(UPDATES, ROLLOUTS, SETTINGS | {"num_iterations": 1}, 0.1)
    assert np.isnan(once["ceiling_share"])  # one update per batch: nothing can be clipped
    unbounded = mechanism_quantities(UPDATES, ROLLOUTS, SETTINGS | {"max_grad_norm": np.inf}, 0.1)
    assert np.isnan(unbounded["clipped_gradients"])


def test_starvation_is_told_apart_by_its_cause():
    found = run_quantities(np.array([0.2, 0.3]), UPDATES, ROLLOUTS, "completed", 100, SETTINGS)
    assert (found["starved_right"], found["starved_wrong"]) == (0.05, 0.05)
    assert found["starvation"] == pytest.approx(0.1)


def test_a_sequence_ratio_that_never_clips_is_infinitely_quieter():
    quiet = UPDATES.assign(**{"cf/sequence_0.2": 0.0})
    assert mechanism_quantities(quiet, ROLLOUTS, SETTINGS, 0.1)["counterfactual_log_ratio"] == -np.inf


def test_jitter_is_free_of_the_trend():
    wiggle = np.array([0.0, 0.1, 0.0, 0.1, 0.0])  # differences +.1, -.1, +.1, -.1
    assert jitter(wiggle) == pytest.approx(0.2)
    assert jitter(wiggle + np.linspace(0, 4, 5)) == pytest.approx(0.2)
    assert jitter(np.linspace(0, 1, 9)) == pytest.approx(0)
    assert np.isnan(jitter(np.array([0.1, 0.2])))


def test_the_spread_over_runs_has_the_textbook_interval():
    # NIST/SEMATECH e-Handbook, 1.3.5.8 (GEAR.DAT): n = 100, sd .006279; chi² at 99: 128.4220 and 73.3611.
    rng = np.random.default_rng(0)
    values = rng.normal(size=100)
    interval = sd_interval(values * 0.006279 / values.std(ddof=1))
    assert interval.mean == pytest.approx(0.006279)
    assert interval.low == pytest.approx(0.006279 * np.sqrt(99 / 128.4220), rel=1e-5)
    assert interval.high == pytest.approx(0.006279 * np.sqrt(99 / 73.3611), rel=1e-5)
    assert np.isnan(sd_interval([1.0]).mean)


def test_the_worst_fifth_is_one_run_at_least():
    assert worst_mean([0.5, 0.1, 0.9]) == 0.1
    assert worst_mean(np.arange(10)) == 0.5
    assert np.isnan(worst_mean([]))
