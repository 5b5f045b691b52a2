"""F10 and F13: maps over settings and probabilities."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from report_results import series_of, texts_of, write_study

from grpolab.report.figures import draw
from grpolab.report.load import load

FACTORS = {"mu": ["1", "2"], "regime": ["healthy", "stressed"], "task": ["addition", "sorting"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    results = write_study(tmp_path_factory.mktemp("results"))
    write_study(results.root, "map", FACTORS)
    return results


@pytest.fixture
def mapped(results):
    return load(results, "map")[-1]


def lose(study, lost):
    """The study without the results of some cells."""
    kept = {table: getattr(study, table) for table in ("updates", "rollouts", "evaluations")}
    gone = set(study.cells.loc[lost, "signature"])
    kept = {table: frame[~frame["signature"].isin(gone)] for table, frame in kept.items()}
    return dataclasses.replace(
        study, cells=study.cells.assign(outcome=study.cells["outcome"].mask(lost, "missing")), **kept
    )


def test_f13_colours_what_differs_within_seeds_and_leaves_noise_pale(mapped):
    """How far seeds lie apart is no noise where a setting does the same to each of them; what befalls one alone is."""
    seed, is_second = mapped.rollouts["seed"], mapped.rollouts["arm"] == "2"
    for effect, apart, error, strength in (
        (0.02 * is_second, 0.01, 0.0, 1.0),
        (0.3 * (is_second & (seed == 2)), 0.05, 0.05, 0.5),
    ):
        rollouts = mapped.rollouts.assign(**{"entropy/behaviour": 0.1 * (1 + seed) ** 2 + effect})
        picture, manifest = draw(dataclasses.replace(mapped, rollouts=rollouts), "F13")
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
    whole = (cells["variant"] == "1/stressed/sorting") | (
        (cells["variant"] == "2/healthy/sorting") & (cells["seed"] == 2)
    )
    picture, manifest = draw(lose(mapped, whole), "F13")
    assert texts_of(picture).count("missing") == 3  # once for each quantity
    assert sum(word.endswith(" n = 2") for word in texts_of(picture)) == 3
    assert all(panel.patch.get_hatch() for panel in picture.axes)  # seen where a square is missing
    (series,) = (s for s in manifest.numbers if (s["metric"], s["facet"]) == ("final_score", "sorting"))
    assert series["n"] == [[3, 0], [2, 3]]
    assert np.isnan(series["mean"][0][1])


def test_f10_draws_the_table_and_says_where_it_is_not(results):
    study = load(results, "clip_range")[-1]
    assert draw(study, "F10")[1].caption == "Not drawn: geometry_surface.csv is not there: run `grpolab geometry`."
    rows = [
        {"rule": "clip", "advantage": sign, "old": old, "new": new, "weight": sign * new / old if new < 0.6 else 0.0}
        for sign in (1, -1)
        for old in (0.25, 0.75)
        for new in (0.25, 0.75)
    ]
    pd.DataFrame(rows).to_csv(results.surface, index=False)
    picture, manifest = draw(study, "F10")
    drawn = [panel.images[0].get_array() for panel in picture.axes if panel.images]
    for image in drawn[:2]:
        assert image[0].tolist() == pytest.approx([1, 1 / 3])  # rows are new probabilities, columns old ones
        assert image.mask.tolist() == [[False, False], [True, True]]
    assert manifest.numbers[1]["value"][0] == pytest.approx([-1, -1 / 3])
    results.surface.unlink()
