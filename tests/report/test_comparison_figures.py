"""Figures that compare arms: their numbers against values computed by hand, and what they say where data lack."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from report_results import series_of, texts_of, write_study
from scipy import stats

from grpolab.report.figures import comparison, draw
from grpolab.report.figures.settings import scale_axis
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import pool_tasks
from grpolab.report.text import estimate

STEPS = (0, 3, 6, 9, 12)
START = 0.2
RULES = {"rule": ["token", "cispo", "no_clip"], "task": ["addition", "sorting", "filler"]}


def with_curves(study: StudyRuns, accuracy) -> StudyRuns:
    """The study with other evaluations: `accuracy(cell)` is a run's curve over STEPS; None: it has not run."""
    curves = {cell.Index: accuracy(cell) for cell in study.cells.itertuples()}
    outcomes = ["missing" if curve is None else "completed" for curve in curves.values()]
    cells = study.cells.assign(outcome=outcomes, evaluation_items=2000)
    rows = [
        study.cells.loc[[index] * len(STEPS)].assign(
            rollout_step=STEPS, completions=[128 * step for step in STEPS], carried=False, **{study.metric: curve}
        )
        for index, curve in curves.items()
        if curve is not None
    ]
    return dataclasses.replace(study, cells=cells, evaluations=pd.concat(rows, ignore_index=True))


def final(value: float) -> list[float]:
    return [START, START, START, START, value]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Three arms on three tasks with ten seeds."""
    return load(write_study(tmp_path_factory.mktemp("rules"), "rules", RULES, seeds=10, trained=False), "rules")[-1]


@pytest.fixture(scope="module")
def scores():
    """Final accuracy by (arm, task): ten seeds, with ties and gaps of every size."""
    rng = np.random.default_rng(1)
    return {pair: np.round(rng.uniform(0.3, 0.9, 10), 1) for pair in itertools.product(*RULES.values())}


@pytest.fixture(scope="module")
def study(planned, scores):
    return with_curves(planned, lambda cell: final(scores[cell.arm, cell.facet][cell.seed]))


def few(study: StudyRuns, seeds: int, tasks: int) -> StudyRuns:
    """The same with fewer seeds and tasks in its plan."""
    kept = study.cells[(study.cells["seed"] < seeds) & study.cells["facet"].isin(RULES["task"][:tasks])]
    return dataclasses.replace(study, cells=kept)


def normalised(scores, arm, runs=10):
    return np.array([(scores[arm, task][:runs] - START) / (1 - START) for task in RULES["task"]])


def test_pools_hold_the_seeds_that_every_arm_has(planned, scores):
    lost = {("no_clip", "sorting", 4)}

    def accuracy(cell):
        gone = cell.arm == "cispo" or (cell.arm, cell.facet, cell.seed) in lost
        return None if gone else final(scores[cell.arm, cell.facet][cell.seed])

    (pool,) = pool_tasks(with_curves(planned, accuracy))
    assert pool.arms == ["token", "no_clip"]
    assert pool.seeds == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert pool.scores_ATS[1] == pytest.approx(np.delete(normalised(scores, "no_clip"), 4, axis=1))


def test_aggregates_are_those_of_the_pooled_runs(study, scores):
    _, manifest = draw(study, "F21")
    own = np.sort(normalised(scores, "cispo").ravel())
    expected = {
        "interquartile mean": own[7:-7].mean(),
        "mean": own.mean(),
        "median": (own[14] + own[15]) / 2,
        "optimality gap\n(less is better)": np.mean(1 - own),
    }
    for metric, value in expected.items():
        found = series_of(manifest, metric=metric, arm="cispo")
        assert found["mean"] == pytest.approx(value), metric
        assert found["low"] < found["mean"] < found["high"]
        assert found["n"] == 10
    iqm = series_of(manifest, metric="interquartile mean", arm="cispo")
    assert f"`cispo` {estimate(iqm['mean'], iqm['low'], iqm['high'])}" in manifest.caption


def test_intervals_need_ten_runs_and_pooling_three_tasks_with_five(study, scores):
    picture, manifest = draw(few(study, seeds=5, tasks=3), "F21")
    found = series_of(manifest, metric="mean", arm="no_clip")
    assert found["mean"] == pytest.approx(normalised(scores, "no_clip", runs=5).mean())
    assert np.isnan([found["low"], found["high"]]).all()
    for figure in ("F21",):
        picture, manifest = draw(few(study, seeds=5, tasks=2), figure)
        needs = "needs 3 tasks with 5 seeds that every arm has on every task; has 2 tasks with 5 such seeds"
        assert " ".join(texts_of(picture)) == f"{figure}: {needs}"
        assert manifest.caption == f"Not drawn: {needs}."


def test_forest_shows_differences_paired_by_seed_and_decides_nothing(study, scores):
    picture, manifest = draw(study, "F27")
    for task, arm in itertools.product(RULES["task"], ["cispo", "no_clip"]):
        found = series_of(manifest, facet=task, arm=arm)
        apart = scores[arm, task] - scores["token", task]
        assert found["mean"] == pytest.approx(np.mean(apart), abs=1e-6)
        reach = stats.t.interval(0.95, 9, np.mean(apart), stats.sem(apart))
        assert (found["low"], found["high"]) == pytest.approx(reach)
        panel = picture.axes[RULES["task"].index(task)]
        assert panel.get_xlim()[0] < found["low"] < found["high"] < panel.get_xlim()[1]
    assert texts_of(picture) == []
    assert "a description, not corrected" in manifest.statistic


def test_time_to_threshold_is_read_off_the_curves_and_counts_who_never_gets_there(planned):
    curves = {
        "token": [0.2, 0.3, 0.5, 0.6, 0.6],
        "cispo": [0.2, 0.45, 0.6, 0.6, 0.6],
        "no_clip": [0.2, 0.2, 0.1, 0.1, 0.1],
    }
    late = [0.2, 0.2, 0.2, 0.2, 0.41]
    cells = few(planned, 3, 1)
    study = with_curves(cells, lambda c: late if (c.arm, c.seed) == ("no_clip", 0) else curves[c.arm])
    picture, manifest = draw(study, "F25")
    assert {s["by"] for s in manifest.numbers} == {"completions"}  # seconds measure the machine's load, not the arms
    assert not [panel for panel in picture.axes if "(s)" in panel.get_xlabel()]
    found = {s["arm"]: s for s in manifest.numbers}
    assert found["token"]["threshold"] == pytest.approx(0.2)  # half of the way from 0.2 to 0.6
    assert (found["token"]["x"], found["token"]["mean"]) == ([0, 6 * 128, 6 * 128], [0, 1, 1])
    assert found["cispo"]["median"] == 3 * 128
    assert (found["no_clip"]["median"], found["no_clip"]["censored"]) == (np.inf, 2)
    assert found["no_clip"]["mean"][-1] == pytest.approx(1 / 3)


def test_ladder_compares_each_rung_with_the_one_that_it_changes(tmp_path):
    arms = ["base", "+a", "+b", "full", "-a", "-b"]
    rungs = {"+a": "base", "+b": "+a", "full": "+b", "-a": "full", "-b": "full"}
    assert comparison.ladder_of(arms, "base") == rungs
    assert comparison.ladder_of(["token", "no_clip"], "token") == {}
    results = write_study(tmp_path, "ladder", {"rung": arms, "task": ["addition"]}, trained=False)
    heights = dict(zip(arms, (0.3, 0.4, 0.45, 0.6, 0.5, 0.55), strict=True))
    study = with_curves(load(results, "ladder")[-1], lambda cell: final(heights[cell.arm] + 0.01 * cell.seed))
    picture, manifest = draw(study, "F28")
    assert {s["arm"]: s["minus"] for s in manifest.numbers} == rungs
    assert [s["mean"] for s in manifest.numbers] == pytest.approx([0.1, 0.05, 0.15, -0.1, -0.05])
    (panel,) = picture.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == list(rungs)
    assert [line.get_ydata()[0] for line in panel.lines if line.get_marker() == "None"][1:] == [2.5]  # above: added


def test_the_ladder_says_what_it_needs(study):
    assert "F28: needs arms that are named +x" in " ".join(texts_of(draw(study, "F28")[0]))


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """Two arms at three staleness values."""
    factors = {"old": ["trainer", "sampler"], "stale": ["s0", "s2", "s8"], "task": ["addition"]}
    study = load(write_study(tmp_path_factory.mktemp("stale"), "stale", factors), "stale")[-1]
    cells = study.cells.assign(**{"setting/staleness": study.cells["factor/stale"].str[1:].astype(int)})
    height = {"trainer": 0.02, "sampler": 0.01}
    return with_curves(
        dataclasses.replace(study, cells=cells),
        lambda cell: final(0.5 + 0.01 * cell.seed**2 - height[cell.arm] * int(cell.facet.split("/")[0][1:])),
    )


def test_sensitivity_has_each_arms_own_values_on_a_log_scale_and_shows_seeds_and_interval(stale):
    values = {"s0": 1e-4, "s2": 1e-2, "s8": np.inf}
    scale = stale.cells["arm"].map({"trainer": 1, "sampler": 5})
    own = {"setting/staleness": 0, "setting/epsilon": stale.cells["factor/stale"].map(values) * scale}
    picture, manifest = draw(dataclasses.replace(stale, cells=stale.cells.assign(**own)), "F24")
    found = series_of(manifest, arm="sampler")
    assert (found["setting"], found["x"]) == ("setting/epsilon", pytest.approx([5e-4, 5e-2, np.inf]))
    assert [panel.get_xscale() for panel in picture.axes] == ["log"]
    panel = picture.axes[0]
    assert scale_axis(panel, [1e-4, 1e-2, np.inf], "epsilon") == pytest.approx({1e-4: 1e-4, 1e-2: 1e-2, np.inf: 4e-2})
    assert scale_axis(panel, [1, 2, 4], "mu") == {1: 0, 2: 1, 4: 2}
    ends = {line.get_transform().transform((1e-3, 0.5))[0] for line in panel.lines}
    assert len(ends) == 2, "two arms hide each other"


def test_lengths_of_right_and_wrong_have_one_scale_and_are_compared_within_the_batch(stale):
    rollouts = stale.rollouts.assign(**{"length/right_mean": 4.0 + stale.rollouts["seed"]})
    rollouts["length/wrong_mean"] = rollouts["length/right_mean"] + 0.5
    picture, manifest = draw(dataclasses.replace(stale, rollouts=rollouts), "F17")
    found = series_of(manifest, metric="wrong minus right", facet="s8/addition", arm="trainer")
    assert (found["mean"], found["low"]) == (pytest.approx([0.5] * 12), pytest.approx([0.5] * 12))
    limits = {panel.get_ylim() for panel in picture.axes[: 2 * len(stale.facets)]}
    assert len(limits) == 1


def test_reuse_is_judged_against_the_baseline_with_the_same_seed(tmp_path):
    results = write_study(tmp_path, "mu", {"mu": ["1", "2", "4"], "task": ["addition"]}, baseline="2", trained=False)
    gain = {"1": -0.1, "2": 0.0, "4": 0.2}
    study = with_curves(load(results, "mu")[-1], lambda cell: final(0.5 + 0.1 * cell.seed + gain[cell.arm]))
    _, manifest = draw(study, "F18")
    found = series_of(manifest, metric="final_score")
    assert (found["x"], found["mean"]) == ([1, 2, 4], pytest.approx([-0.1, 0, 0.2]))
    assert found["high"] == pytest.approx(found["mean"])  # seeds differ, their differences do not
