"""F10, F13 and F14: maps over settings and probabilities, and the exchange of entropy for accuracy."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle
from report_results import series_of, texts_of, write_study

from grpolab.report.figures import draw
from grpolab.report.figures.learning import LEAST_RANGE, fit, paired
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
            shades = np.array([patch.get_facecolor() for patch in panel.patches])
            assert shades == pytest.approx(np.array([below, below, above, above]), abs=0.02)


def test_f13_says_no_error_of_what_is_exactly_0_in_every_seed(mapped):
    """The KL of one pass over a batch: what its difference to the mean of all has of spread is the others'."""
    entropy = np.where(mapped.rollouts["arm"] == "2", 0.1 * (1 + mapped.rollouts["seed"]) ** 2, 0.0)
    rollouts = mapped.rollouts.assign(**{"entropy/behaviour": entropy})
    picture, _ = draw(dataclasses.replace(mapped, rollouts=rollouts), "F13")
    first = texts_of(picture)[:4]
    assert first[:2] == ["0", "0"]
    assert all("±" in text for text in first[2:])


def test_f13_says_which_cells_are_missing_and_which_lack_seeds(mapped):
    cells = mapped.cells
    whole = (cells["variant"] == "1/stressed/sorting") | (
        (cells["variant"] == "2/healthy/sorting") & (cells["seed"] == 2)
    )
    picture, manifest = draw(lose(mapped, whole), "F13")
    assert texts_of(picture).count("missing") == 3  # once for each quantity
    assert sum(word.endswith(" n = 2") for word in texts_of(picture)) == 3
    hatched = [
        patch for panel in picture.axes for patch in panel.patches if isinstance(patch, Rectangle) and patch.get_hatch()
    ]
    assert len(hatched) == 3
    (series,) = (s for s in manifest.numbers if (s["metric"], s["facet"]) == ("final_score", "sorting"))
    assert series["n"] == [[3, 0], [2, 3]]
    assert np.isnan(series["mean"][0][1])


def test_f13_says_what_a_study_lacks(results):
    picture, manifest = draw(load(results, "clip_range")[-1], "F13")
    assert set(texts_of(picture)) == {"F13: two factors must move a number each; here: regime"}
    assert manifest.numbers == []


def test_f14_finds_the_exchange_that_is_there():
    entropy = np.array([0.9, 0.7, 0.5, 0.3])
    points = pd.DataFrame({"entropy": entropy, "accuracy": 1.2 - 0.3 * np.exp(entropy)})
    assert fit(points) == pytest.approx((0.3, 1.2, 1.0))
    assert np.isnan(fit(points.iloc[:3])).all()
    assert np.isnan(fit(points.assign(entropy=0.5 + LEAST_RANGE * np.array([0, 0.3, 0.6, 0.99])))).all()


def test_f14_pairs_an_evaluation_with_the_entropy_of_its_policy():
    evaluations = pd.DataFrame(
        {"seed": 1, "rollout_step": [0, 2, 4, 9], "accuracy": [0.1, 0.2, 0.3, 0.4], "carried": [False] * 3 + [True]}
    )
    rollouts = pd.DataFrame({"seed": 1, "rollout_step": [0, 1, 2, 3], "entropy/behaviour": [0.9, 0.8, 0.7, 0.6]})
    points = paired(evaluations, rollouts, "accuracy")
    assert points[["entropy", "accuracy"]].to_numpy() == pytest.approx(np.array([[0.9, 0.1], [0.7, 0.2], [0.6, 0.3]]))


def test_f14_has_an_interval_over_seeds_and_marks_what_does_not_hold(results):
    study = load(results, "clip_range")[-1]
    at = study.evaluations["rollout_step"].clip(upper=11)
    exact = (1 + study.evaluations["seed"]) - 0.5 * np.exp(0.5 - 0.01 * at)
    noise = np.where(study.evaluations["rollout_step"] % 2, 0.2, -0.2)
    accuracy = exact + np.where(study.evaluations["arm"] == "no_clip", noise, 0.0)
    study = dataclasses.replace(study, evaluations=study.evaluations.assign(**{study.metric: accuracy}))
    picture, manifest = draw(study, "F14")
    series = series_of(manifest, facet="addition/healthy", arm="symmetric")
    assert series["points"] == 15
    assert series["a"]["mean"] == pytest.approx(0.5, rel=1e-3)
    b_of_seeds = [b for _, b, _ in series["a_b_r2_of_seeds"].values()]
    assert b_of_seeds == pytest.approx([1, 2, 3], rel=1e-3)
    assert series["mean"][0] == pytest.approx(2 - 0.5 * np.exp(0.5))  # of the three seeds
    assert {s["arm"] for s in manifest.numbers if not s["holds"]} == {"no_clip"}
    hollow = [line for panel in picture.axes for line in panel.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 2  # one in each facet
    still = study.rollouts.assign(**{"entropy/behaviour": 0.5})
    picture, _ = draw(dataclasses.replace(study, rollouts=still), "F14")
    assert set(texts_of(picture)) == {"entropy hardly varies, or too few evaluations"}


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
