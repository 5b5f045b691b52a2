"""F5, F6, F8 and F15: ratios and KL, each against numbers computed here by hand."""

import dataclasses

import numpy as np
import pytest
from report_results import series_of, write_run, write_study

from grpolab.report.figures import draw
from grpolab.report.journals import at_quarters
from grpolab.report.load import load

FACET = "addition/healthy"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results"))


@pytest.fixture
def study(results):
    return load(results, "clip_range")[-1]


def test_quarters_end_where_the_run_ends(tmp_path):
    results = write_study(tmp_path)
    short = load(results, "clip_range")[-1].plan["cells"][0]
    write_run(results, short, outcome="stopped", last_step=6)
    ends = at_quarters(load(results, "clip_range")[-1].updates)
    assert set(ends["iteration"]) == {1}
    by_run = ends.groupby("signature")["rollout_step"].apply(list)
    assert by_run.pop(short["signature"]) == [1, 2, 4, 5]
    assert set(map(tuple, by_run)) == {(2, 5, 8, 11)}
    assert ends["quarter"].tolist() == [1, 2, 3, 4] * len(load(results, "clip_range")[-1].cells)


def test_f5_shows_the_median_quantile_of_each_quarter(study):
    wider = 1 + (study.updates["seed"] == 2)  # of three seeds one is wider: the median is not the mean
    updates = study.updates.assign(**{"ratio/token_p99_neg": study.updates["ratio/token_p99_neg"] ** wider})
    picture, manifest = draw(dataclasses.replace(study, updates=updates), "F5")
    series = series_of(manifest, level="token", sign="neg", facet=FACET, arm="no_clip")
    assert series["x"] == [1, 2, 3, 4]
    width = 0.1 * np.array([3, 6, 9, 12])  # the second pass of rollout steps 2, 5, 8, 11
    assert series["p99"] == pytest.approx(0.98 * width, rel=1e-5)
    assert series["p001"] == pytest.approx(-0.998 * width, rel=1e-5)
    bars = [c for c in picture.axes[0].collections if c.get_linewidth()[0] > 1]
    tops = [segment[1, 1] for bar in bars for segment in bar.get_segments()]
    assert sorted(tops) == pytest.approx(sorted(np.tile(0.98 * width, 3)), rel=1e-5)


def test_f6_takes_the_extreme_of_the_step_then_the_geometric_mean_of_the_seeds(study):
    least = study.updates["ratio/token_min"] * (1 + study.updates["seed"])  # .5, 1, 1.5 after the first pass
    picture, manifest = draw(
        dataclasses.replace(study, updates=study.updates.assign(**{"ratio/token_min": least})), "F6"
    )
    low = series_of(manifest, metric="ratio/token_min", facet=FACET, arm="no_clip")
    assert low["mean"] == pytest.approx([0.75 ** (1 / 3)] * 12)
    assert low["seeds"][2] == pytest.approx([1.5] * 12)
    high = series_of(manifest, metric="ratio/token_max", facet=FACET, arm="no_clip")
    assert high["mean"] == pytest.approx([2.0] * 12)
    assert {panel.get_yscale() for panel in picture.axes} == {"log"}


def test_f8_leaves_out_the_first_update_of_a_batch(study, results):
    _, manifest = draw(study, "F8")
    above = series_of(manifest, metric="ratio/sequence_mean_pos", facet=FACET, arm="symmetric")
    steps = np.array([*range(1, 12), 11.5])  # smoothed: the last one with the one before
    assert above["mean"] == pytest.approx(1 + 0.1 * steps, rel=1e-5)
    below = series_of(manifest, metric="ratio/sequence_mean_neg", facet=FACET, arm="symmetric")
    assert below["mean"] == pytest.approx(1 - 0.025 * steps, rel=1e-5)
    once = dataclasses.replace(study, updates=study.updates[study.updates["iteration"] == 0])
    assert draw(once, "F8")[1].caption == "Not drawn: no batch here has a second update."


def test_f15_has_the_geometric_mean_and_joins_what_is_measured_now_and_then(study):
    factor = 10.0 ** (study.updates["seed"] - 1)
    updates = study.updates.assign(**{"kl_old/k3": 0.01 * factor})
    _, manifest = draw(dataclasses.replace(study, updates=updates), "F15")
    old = series_of(manifest, metric="kl_old/k3", facet=FACET, arm="no_clip")
    assert old["mean"] == pytest.approx([0.01] * 12, rel=1e-5)  # of .001, .01, .1: the plain mean is .037
    spread = 4.3027 / np.sqrt(3)  # t of 95% with 2 degrees of freedom; the decades' standard deviation is 1
    assert old["high"] == pytest.approx([0.01 * 10**spread] * 12, rel=1e-3)
    reference = series_of(manifest, metric="kl_ref/exact", facet=FACET, arm="no_clip")
    assert reference["x"] == [3, 7, 11]
    assert reference["mean"] == pytest.approx([0.04, 0.08, 0.12], rel=1e-5)
