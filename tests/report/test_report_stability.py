"""The stability definitions, on curves whose label is known."""

from dataclasses import asdict

import numpy as np
import pytest
from report_results import FACTORS, write_run, write_study

from grpolab.quantities import Thresholds
from grpolab.report.load import load
from grpolab.report.stability import collapsed, drawdown, final_score, gradient_spikes, stability_table


def test_final_score_is_the_mean_of_the_last_tenth_never_the_best():
    curve = np.r_[np.linspace(0.3, 0.9, 18), 0.5, 0.4]
    assert final_score(curve) == pytest.approx(0.45)
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
    assert collapsed(np.array(curve)) is label


def test_spikes_are_counted_over_rollout_steps():
    """With reuse the norm falls within each batch: single updates would look like a spike at every new batch."""
    rng = np.random.default_rng(0)
    norms = (1 + 0.1 * rng.random((50, 1))) * np.array([[1.2, 0.5, 0.3, 0.2, 0.19, 0.19, 0.19, 0.19]])
    assert gradient_spikes(norms.max(axis=1)).sum() == 0
    assert gradient_spikes(norms.ravel()).sum() > 20
    norms[30] *= 6
    assert np.flatnonzero(gradient_spikes(norms.max(axis=1))).tolist() == [30]
    norms[40, 0] = np.inf
    assert np.flatnonzero(gradient_spikes(norms.max(axis=1))).tolist() == [30, 40]


def test_table_labels_runs(tmp_path):
    results = write_study(tmp_path)
    cell = next(c for c in load(results, "clip_range")[-1].plan["cells"] if c["variant"] == "no_clip/addition/healthy")
    write_run(results, cell, outcome="diverged", last_step=6)
    cells = load(results, "clip_range")[-1].plan["cells"]
    hopeless = next(c for c in cells if c["variant"] == "symmetric/addition/healthy")
    write_run(results, hopeless, outcome="stopped", last_step=6)
    table = stability_table(load(results, "clip_range")[-1]).set_index(["arm", "facet", "seed"]).sort_index()
    assert len(table) == 18
    assert table["collapsed"].sum() == 3
    assert table.loc[("no_clip", "addition/stressed"), "collapsed"].all()
    assert table.loc[("no_clip", "addition/stressed"), "below_start"].all()
    assert table.loc[("no_clip", "addition/healthy", cell["seed"]), "diverged"]
    assert table["diverged"].sum() == 1
    assert table.loc[("symmetric", "addition/healthy", hopeless["seed"]), "stopped"]
    assert table["stopped"].sum() == 1
    assert table["lost"].sum() == 3 + 1 + 1
    healthy = table.loc[("symmetric", "addition/healthy", 1)]
    assert healthy["entropy_drop"] == pytest.approx(0.11, abs=1e-6)
    assert not healthy["entropy_collapsed"]
    assert healthy["ratio_max"] == 2
    assert healthy["gain"] == pytest.approx(healthy["final_score"] - healthy["start"])


def test_the_plans_thresholds_decide_the_labels(tmp_path):
    factors, labels = FACTORS | {"regime": ["healthy"]}, ["entropy_collapsed", "ratio_blow_up", "starved"]
    results = write_study(tmp_path, factors=factors, seeds=1)
    assert not stability_table(load(results, "clip_range")[-1])[labels].any(axis=None)
    strict = asdict(Thresholds(entropy_drop=0.1, ratio_max=1.5, starvation=0.1))
    results = write_study(tmp_path, factors=factors, seeds=1, stability=strict)
    assert stability_table(load(results, "clip_range")[-1])[labels].all(axis=None)
