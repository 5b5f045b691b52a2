"""F5, F6, F8, F15, of ratios and KL, and F10, F13, maps over settings: each against numbers computed here by hand."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from report_results import series_of, texts_of, write_run, write_study

from grpolab.report.figures import draw
from grpolab.report.figures.clipping import clip_range
from grpolab.report.journals import at_quarters
from grpolab.report.load import load

HEALTHY = "addition/healthy"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = write_study(tmp_path_factory.mktemp("results"))
    write_study(
        results.root, "map", {"mu": ["1", "2"], "regime": ["healthy", "stressed"], "task": ["addition", "sorting"]}
    )
    return results


@pytest.fixture
def study(results):
    return load(results, "clip_range")[-1]


@pytest.fixture
def mapped(results):
    return load(results, "map")[-1]


def with_metrics(study, table, **columns):
    """The study with other values of some metrics."""
    return dataclasses.replace(study, **{table: getattr(study, table).assign(**columns)})


def test_quarters_end_where_the_run_ends(tmp_path):
    results = write_study(tmp_path)
    short = load(results, "clip_range")[-1].plan["cells"][0]
    write_run(results, short, outcome="stopped", last_step=6)
    study = load(results, "clip_range")[-1]
    ends = at_quarters(study.updates)
    assert set(ends["iteration"]) == {1}
    by_run = ends.groupby("signature")["rollout_step"].apply(list)
    assert by_run.pop(short["signature"]) == [1, 2, 4, 5]
    assert set(map(tuple, by_run)) == {(2, 5, 8, 11)}
    assert ends["quarter"].tolist() == [1, 2, 3, 4] * len(study.cells)


def test_f5_shows_how_far_ratios_are_from_1_and_the_range_of_the_arms_that_clip_them(study):
    wider = 1 + (study.updates["seed"] == 2)  # of three seeds one is wider: the median is not the mean
    other = with_metrics(study, "updates", **{"ratio/token_p99_neg": study.updates["ratio/token_p99_neg"] ** wider})
    picture, manifest = draw(other, "F5")
    series = series_of(manifest, level="token", sign="neg", facet=HEALTHY, arm="no_clip")
    width = 0.1 * np.median([3, 3, 3, 6, 6, 6, 9, 9, 9, 12, 12, 12])  # the second pass of rollout steps 2, 5, 8, 11
    assert series["p001"] == pytest.approx(-0.998 * width, rel=1e-5)
    assert series["p99"] == pytest.approx(0.98 * 0.1 * np.median([3, 3, 6, 6, 6, 9, 9, 12, 12, 12, 18, 24]), rel=1e-5)
    ends = [s.get_segments()[0][:, 0] for s in picture.axes[0].collections if "LineCollection" in type(s).__name__]
    assert np.max(ends) == pytest.approx(np.exp(series["p99"]), rel=1e-4)
    assert clip_range(study, HEALTHY, "clip_higher") == ("token", pytest.approx(0.8), pytest.approx(1.28))
    assert clip_range(study, HEALTHY, "no_clip") is None
    assert clip_range(study, HEALTHY, "symmetric") == ("token", pytest.approx(0.8), pytest.approx(1.2))


def test_f6_takes_the_extreme_of_the_step_then_the_geometric_mean_of_the_seeds(study):
    least = study.updates["ratio/token_min"] * (1 + study.updates["seed"])  # .5, 1, 1.5 after the first pass
    picture, manifest = draw(with_metrics(study, "updates", **{"ratio/token_min": least}), "F6")
    low = series_of(manifest, metric="ratio/token_min", facet=HEALTHY, arm="no_clip")
    assert low["mean"] == pytest.approx([0.75 ** (1 / 3)] * 12)
    assert low["seeds"][2] == pytest.approx([1.5] * 12)
    high = series_of(manifest, metric="ratio/token_max", facet=HEALTHY, arm="no_clip")
    assert high["mean"] == pytest.approx([2.0] * 12)
    assert {panel.get_yscale() for panel in picture.axes} == {"log"}


def test_f8_leaves_out_the_first_update_of_a_batch(study):
    _, manifest = draw(study, "F8")
    steps = np.array([*range(1, 12), 11.5])  # smoothed: the last one with the one before
    for sign, slope in (("pos", 0.1), ("neg", -0.025)):
        series = series_of(manifest, metric=f"ratio/sequence_mean_{sign}", facet=HEALTHY, arm="symmetric")
        assert series["mean"] == pytest.approx(1 + slope * steps, rel=1e-5)
    once = dataclasses.replace(study, updates=study.updates[study.updates["iteration"] == 0])
    assert draw(once, "F8")[1].caption == "Not drawn: no batch here has a second update."


def test_f15_has_the_geometric_mean_and_joins_what_is_measured_now_and_then(study):
    kl = 0.01 * 10.0 ** (study.updates["seed"] - 1)
    _, manifest = draw(with_metrics(study, "updates", **{"kl_old/k3": kl}), "F15")
    old = series_of(manifest, metric="kl_old/k3", facet=HEALTHY, arm="no_clip")
    assert old["mean"] == pytest.approx([0.01] * 12, rel=1e-5)  # of .001, .01, .1: the plain mean is .037
    spread = 4.3027 / np.sqrt(3)  # t of 95% with 2 degrees of freedom; the decades' standard deviation is 1
    assert old["high"] == pytest.approx([0.01 * 10**spread] * 12, rel=1e-3)
    reference = series_of(manifest, metric="kl_ref/exact", facet=HEALTHY, arm="no_clip")
    assert (reference["x"], reference["mean"]) == ([3, 7, 11], pytest.approx([0.04, 0.08, 0.12], rel=1e-5))


def test_f13_colours_what_differs_within_seeds_and_leaves_noise_pale(mapped):
    """How far seeds lie apart is no noise where a setting does the same to each of them; what befalls one alone is."""
    seed, is_second = mapped.rollouts["seed"], mapped.rollouts["arm"] == "2"
    for effect, apart, error, strength in (
        (0.02 * is_second, 0.01, 0.0, 1.0),
        (0.3 * (is_second & (seed == 2)), 0.05, 0.05, 0.5),
    ):
        other = with_metrics(mapped, "rollouts", **{"entropy/behaviour": 0.1 * (1 + seed) ** 2 + effect})
        picture, manifest = draw(other, "F13")
        for facet, panel in zip(("addition", "sorting"), picture.axes, strict=False):
            series = series_of(manifest, metric="entropy_last", facet=facet)
            assert (series["y"], series["x"]) == ([1, 2], [1.5e-4, 3e-4])
            assert np.ravel(series["mean"])[:2] == pytest.approx([1.4 / 3] * 2, rel=1e-5)
            assert np.ravel(series["apart"]) == pytest.approx([-apart, -apart, apart, apart], abs=1e-6)
            assert np.ravel(series["error"]) == pytest.approx([error] * 4, abs=1e-6)
            assert np.ravel(series["n"]).tolist() == [3] * 4
            below, above = (mpl.colormaps["RdBu_r"](0.5 + sign * 0.3 * strength) for sign in (-1, 1))
            shades = panel.collections[0].get_facecolors()
            assert shades == pytest.approx(np.array([below, below, above, above]), abs=0.02)


def test_f13_says_which_cells_are_missing_and_which_lack_seeds(mapped):
    cells = mapped.cells
    lost = (cells["variant"] == "1/stressed/sorting") | (
        (cells["variant"] == "2/healthy/sorting") & (cells["seed"] == 2)
    )
    tables = {table: getattr(mapped, table) for table in ("updates", "rollouts", "evaluations")}
    tables = {name: table[~table["signature"].isin(cells.loc[lost, "signature"])] for name, table in tables.items()}
    cells = cells.assign(outcome=cells["outcome"].mask(lost, "missing"))
    picture, manifest = draw(dataclasses.replace(mapped, cells=cells, **tables), "F13")
    assert texts_of(picture).count("missing") == 3  # once for each quantity
    assert sum(word.endswith(" n = 2") for word in texts_of(picture)) == 3
    assert all(panel.patch.get_hatch() for panel in picture.axes)  # seen where a square is missing
    series = series_of(manifest, metric="final_score", facet="sorting")
    assert series["n"] == [[3, 0], [2, 3]]
    assert np.isnan(series["mean"][0][1])


def test_f10_draws_the_table_and_says_where_it_is_not(study):
    surface = study.results.surface
    assert draw(study, "F10")[1].caption == "Not drawn: geometry_surface.csv is not there: run `grpolab geometry`."
    rows = [
        {"rule": "clip", "advantage": sign, "old": old, "new": new, "weight": sign * new / old if new < 0.6 else 0.0}
        for sign in (1, -1)
        for old in (0.25, 0.75)
        for new in (0.25, 0.75)
    ]
    pd.DataFrame(rows).to_csv(surface, index=False)
    picture, manifest = draw(study, "F10")
    surface.unlink()
    drawn = [panel.images[0].get_array() for panel in picture.axes if panel.images]
    for image in drawn[:2]:
        assert image[0].tolist() == pytest.approx([1, 1 / 3])  # rows are new probabilities, columns old ones
        assert image.mask.tolist() == [[False, False], [True, True]]
    assert manifest.numbers[1]["value"][0] == pytest.approx([-1, -1 / 3])
