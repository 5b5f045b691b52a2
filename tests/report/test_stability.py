"""A run's quantities and labels: stability on curves whose label is known, mechanisms on records worked out by hand."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from report_results import FACTORS, cells_of, write_run, write_study

from grpolab.quantities import Thresholds
from grpolab.report.load import load
from grpolab.report.measures import completions_to_reach, stability_table
from grpolab.report.stability import drawdown, final_score, gradient_spikes, has_collapsed, jitter, journal_quantities
from grpolab.report.stability import mechanism_quantities as mechanism
from grpolab.report.statistics.intervals import sd_interval, worst_mean


def test_final_score_is_the_mean_of_the_last_quarter_never_the_best():
    curve = np.r_[np.linspace(0.3, 0.9, 8), 0.6, 0.5, 0.4]
    assert final_score(curve) == pytest.approx(0.5)  # three of eleven
    assert final_score(curve[1:]) == pytest.approx(0.5)  # and of ten
    assert final_score(np.array([0.2, 0.7])) == 0.7


def test_drawdown_is_the_largest_fall_below_an_earlier_peak():
    assert drawdown(np.array([0.3, 0.5, 0.35, 0.6, 0.55])) == pytest.approx(0.15)
    assert drawdown(np.array([0.1, 0.2, 0.3])) == 0


@pytest.mark.parametrize(
    ("curve", "label"),
    [
        ([0.3, 0.5, 0.6, 0.3, 0.1], True),
        ([0.3, 0.2, 0.1, 0.05], True),  # never above its start
        ([0.3, 0.6, 0.2, 0.5, 0.6], False),  # recovered
        ([0.3, 0.38, 0.34, 0.30], False),  # the whole gain, but less than .10
        ([0.1, 0.8, 0.7, 0.68], False),  # .12, but less than half of the gain
        ([0.3, 0.4, 0.5, 0.6], False),
    ],
)
def test_collapse(curve, label):
    assert has_collapsed(np.array(curve), Thresholds()) is label


def test_spikes_are_counted_over_rollout_steps():
    """With reuse the norm falls within each batch: single updates would look like a spike at every new batch."""
    rng = np.random.default_rng(0)
    norms = (1 + 0.1 * rng.random((50, 1))) * np.array([[1.2, 0.5, 0.3, 0.2, 0.19, 0.19, 0.19, 0.19]])
    assert gradient_spikes(norms.max(axis=1), Thresholds()).sum() == 0
    assert gradient_spikes(norms.ravel(), Thresholds()).sum() > 20
    norms[30] *= 6
    assert np.flatnonzero(gradient_spikes(norms.max(axis=1), Thresholds())).tolist() == [30]
    norms[40, 0] = np.inf
    assert np.flatnonzero(gradient_spikes(norms.max(axis=1), Thresholds())).tolist() == [30, 40]


def test_table_labels_runs(tmp_path):
    results = write_study(tmp_path)
    first = {cell["variant"]: cell for cell in reversed(cells_of(results))}
    write_run(results, first["no_clip/addition/healthy"], outcome="diverged", last_step=6)
    write_run(results, first["symmetric/addition/healthy"], outcome="stopped", last_step=6)
    table = stability_table(load(results, "clip_range")[-1]).set_index(["arm", "facet", "seed"]).sort_index()
    assert len(table) == 18
    counts = {"collapsed": 3, "below_start": 3, "diverged": 1, "stopped": 1, "lost": 3 + 1 + 1}
    assert table[list(counts)].sum().to_dict() == counts
    assert table.loc[("no_clip", "addition/stressed"), ["collapsed", "below_start"]].all(axis=None)
    assert table.loc[("no_clip", "addition/healthy", 0), "diverged"]
    assert table.loc[("symmetric", "addition/healthy", 0), "stopped"]
    healthy = table.loc[("symmetric", "addition/healthy", 1)]
    assert healthy["entropy_drop"] == pytest.approx(0.11, abs=1e-6)
    assert (healthy["entropy_collapsed"], healthy["ratio_max"]) == (False, 2)
    assert healthy["gain"] == pytest.approx(healthy["final_score"] - healthy["start"])


def test_the_plans_thresholds_decide_the_labels(tmp_path):
    factors, labels = FACTORS | {"regime": ["healthy"]}, ["entropy_collapsed", "ratio_blow_up", "starved"]
    results = write_study(tmp_path, factors=factors, seeds=1)
    assert not stability_table(load(results, "clip_range")[-1])[labels].any(axis=None)
    strict = asdict(Thresholds(entropy_drop=0.1, ratio_max=1.5, starvation=0.1))
    results = write_study(tmp_path, factors=factors, seeds=1, stability=strict)
    assert stability_table(load(results, "clip_range")[-1])[labels].all(axis=None)


SETTINGS = {"num_iterations": 2, "num_minibatches": 1, "num_generations": 4, "max_grad_norm": 1.0}
# Two rollout steps of two updates each.
UPDATES = pd.DataFrame({
    **{"rollout_step": [0, 0, 1, 1], "iteration": [0, 1, 0, 1], "minibatch": [0, 0, 0, 0]},
    **{"clip/active": [0.0, 0.2, 0.0, 0.1], "clip/active_nz": [0.0, 0.4, 0.0, 0.2]},
    **{"cf/sequence_0.2": [0.0, 0.02, 0.0, 0.02], "cf/token_0.2": [0.0, 0.1, 0.0, 0.06]},
    **{"p_old/up_clipped": [np.nan, 0.3, np.nan, 0.5], "p_old/all": [0.9, 0.8, 0.9, 0.6]},
    **{"ratio/token_min": [1.0, 0.5, 1.0, 0.2], "ratio/token_max": [1.0, 2.0, 1.0, 5.0]},
    **{"ratio/sequence_mean_pos": [1.0, 1.1, 1.0, 1.3], "ratio/sequence_mean_neg": [1.0, 0.9, 1.0, 0.9]},
    "grad_norm": [2.0, 0.5, 1.5, np.inf],
})  # fmt: skip
ROLLOUTS = pd.DataFrame({
    **{"rollout_step": [0, 1], "reward/correct": [0.5, 1.0], "entropy/behaviour": [0.8, 0.5]},
    **{"zero_variance/share": [0.3, 0.1], "zero_variance/all_right": [0.2, 0.05]},
    "zero_variance/all_wrong": [0.1, 0.05],
})  # fmt: skip


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
def test_a_quantity_is_what_the_hand_computes(name, value):
    assert mechanism(UPDATES, ROLLOUTS, SETTINGS, tail=0.1)[name] == pytest.approx(value)


def test_what_cannot_be_computed_is_not_a_number():
    nothing = mechanism(pd.DataFrame({"rollout_step": []}), pd.DataFrame({"rollout_step": []}), {}, 0.1)
    assert all(np.isnan(value) for value in nothing.values())
    once = mechanism(UPDATES, ROLLOUTS, SETTINGS | {"num_iterations": 1}, 0.1)
    assert np.isnan(once["ceiling_share"])  # one update per batch: nothing can be clipped
    unbounded = mechanism(UPDATES, ROLLOUTS, SETTINGS | {"max_grad_norm": np.inf}, 0.1)
    assert np.isnan(unbounded["clipped_gradients"])
    quiet = mechanism(UPDATES.assign(**{"cf/sequence_0.2": 0.0}), ROLLOUTS, SETTINGS, 0.1)
    assert quiet["counterfactual_log_ratio"] == -np.inf, "it never clips"


def test_starvation_is_told_apart_by_its_cause():
    quantities = journal_quantities(UPDATES, ROLLOUTS, SETTINGS, Thresholds())
    assert (quantities["starved_right"], quantities["starved_wrong"]) == pytest.approx((0.05, 0.05))
    assert quantities["starvation"] == pytest.approx(0.1)


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


def test_rollouts_to_an_accuracy_are_read_off_straight_lines_between_evaluations() -> None:
    """The first time that the score is there; a run that begins there needs none, one that never is has no number."""
    completions_E, scores_E = np.array([0.0, 100.0, 200.0, 300.0]), np.array([0.3, 0.5, 0.4, 0.6])
    reached = [completions_to_reach(completions_E, scores_E, goal) for goal in (0.3, 0.4, 0.5, 0.55, 0.7)]
    assert reached == pytest.approx([0.0, 50.0, 100.0, 275.0, np.nan], nan_ok=True)
