"""F35, F36 and F44, of learning rates, stale batches and splits of a budget, against numbers computed here."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from report_results import CURVE, series_of, texts_of, with_curves, write_study

from grpolab.report.figures import draw
from grpolab.report.load import load
from grpolab.report.measures import reach
from grpolab.report.rates import best_rule, tables, workable_band

RATES = {"1e-4": 1e-4, "2e-4": 2e-4, "4e-4": 4e-4, "8e-4": 8e-4}
START = 0.2
# Final gain at each rate; half of the best is .1: `narrow` crosses it between two rates on both sides.
GAINS = {"wide": [0.12, 0.2, 0.18, 0.15], "narrow": [0.0, 0.05, 0.2, 0.0], "flat": [0.0, 0.0, 0.0, 0.0]}


def ending_at(value):
    return [START, START, START, START, START + value]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    factors = {"rule": [*GAINS], "rate": [*RATES], "task": ["addition"]}
    study = load(write_study(tmp_path_factory.mktemp("rates"), "rates", factors, trained=False), "rates")[-1]
    cells = study.cells.assign(**{"setting/learning_rate": study.cells["factor/rate"].map(RATES)})
    return dataclasses.replace(study, cells=cells)


def gain(cell):
    return GAINS[cell.arm][[*RATES].index(cell.facet.split("/")[0])] + 0.01 * (cell.seed - 1)


def test_a_band_ends_where_half_of_the_best_gain_is_left(planned):
    _, manifest = draw(with_curves(planned, lambda cell: ending_at(gain(cell))), "F35")
    band = {arm: series_of(manifest, metric="band", arm=arm) for arm in GAINS}
    # From .05 at 2e-4 to .2 at 4e-4 gain passes .1 after a third of the way, in logarithms; from .2 down to 0 in half.
    assert band["narrow"]["low"] == pytest.approx(2e-4 * 2 ** (1 / 3))
    assert band["narrow"]["high"] == pytest.approx(4e-4 * 2**0.5)
    assert band["narrow"]["width"] == pytest.approx(2 ** (2 / 3 + 0.5))
    assert band["narrow"]["least"] < band["narrow"]["width"] < band["narrow"]["most"]
    assert (band["wide"]["open_low"], band["wide"]["open_high"], band["wide"]["width"]) == (
        True,
        True,
        pytest.approx(8),
    )
    assert band["flat"]["lack"] == "no gain at any rate"
    curve = series_of(manifest, metric="final_score", arm="narrow")
    assert (curve["x"], curve["mean"]) == ([*RATES.values()], pytest.approx([START + g for g in GAINS["narrow"]]))


def test_a_bootstrap_draws_seeds_with_their_gains_at_all_rates():
    """Seeds that differ by a factor have the same band, so that its width is certain."""
    rate_X, gain_X = np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.2, 0.0])
    band = workable_band(rate_X, np.outer(gain_X, [0.9, 1.0, 1.1, 1.3]))
    assert (band.least, band.most) == (pytest.approx(band.width), pytest.approx(band.width))
    apart = workable_band(rate_X, np.column_stack([[0.0, 0.2, 0.0], [0.0, 0.2, 0.19], [0.0, 0.2, 0.01]]))
    assert apart.least < apart.width < apart.most


def test_missing_runs_have_no_band_and_lost_ones_a_cross(planned):
    def accuracy(cell):
        if (cell.arm, cell.facet, cell.seed) == ("narrow", "2e-4/addition", 0):
            return None
        falls = (cell.arm, cell.facet, cell.seed) == ("wide", "8e-4/addition", 2)
        return [START, START, 0.6, 0.6, 0.1] if falls else ending_at(gain(cell))

    picture, manifest = draw(with_curves(planned, accuracy), "F35")
    band = series_of(manifest, metric="band", arm="narrow")
    assert band["width"] == pytest.approx(2 ** (2 / 3 + 0.5), rel=0.2)  # of the two seeds that are whole
    (lost,) = (series for series in manifest.numbers if series["arm"] == "wide" and "lost" in series)
    assert lost["lost"] == [0, 0, 0, 1]
    crosses = [
        line for panel in picture.axes for line in panel.lines if line.get_marker() == "x" and len(line.get_xdata())
    ]
    assert [list(line.get_xdata()) for line in crosses] == [[8e-4]]
    nothing = draw(with_curves(planned, lambda cell: None if cell.facet.startswith("8e-4") else ending_at(0.1)), "F35")
    assert series_of(nothing[1], metric="band", arm="wide")["lack"] == "runs are missing"


def test_the_table_names_each_arms_best_rate_of_those_that_are_whole_and_where_the_grid_ends(planned):
    def accuracy(cell):  # the best rate of `narrow` lacks a seed
        lacks = (cell.arm, cell.facet, cell.seed) == ("narrow", "4e-4/addition", 0)
        return None if lacks else ending_at(gain(cell) + (0.3 if (cell.arm, cell.facet[0]) == ("flat", "8") else 0))

    (table,) = tables(with_curves(planned, accuracy))
    row = table.numbers.set_index("arm").to_dict("index")
    assert {arm: of["rate"] for arm, of in row.items()} == {"wide": 2e-4, "narrow": 2e-4, "flat": 8e-4}
    assert (row["narrow"]["whole"], row["narrow"]["rates"], row["narrow"]["score"]) == (3, 4, pytest.approx(0.25))
    assert (row["wide"]["lower_minus"], row["wide"]["higher_minus"]) == (pytest.approx(-0.08), pytest.approx(-0.02))
    assert table.shown.set_index("arm").at["flat", "next higher rate"] == "none: the grid ends"


def test_a_study_without_a_factor_of_rates_has_no_band(planned):
    cells = planned.cells.assign(**{"setting/learning_rate": 1e-4})
    study = with_curves(dataclasses.replace(planned, cells=cells), lambda cell: ending_at(0.1))
    assert tables(study) == []
    assert draw(study, "F35")[1].caption == "Not drawn: needs a factor that moves nothing but learning_rate."


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """Two rules on batches of two ages, used once or twice, at two rates each; one square is not planned."""
    factors = {"rule": ["none", "gspo"], "staleness": ["0", "8"], "mu": ["1", "2"], "rate": ["1e-4", "2e-4"]}
    study = load(write_study(tmp_path_factory.mktemp("stale"), "stale", factors, trained=False), "stale")[-1]
    cells = study.cells.assign(
        **{
            "setting/staleness": study.cells["factor/staleness"].astype(int),
            "setting/num_iterations": study.cells["factor/mu"].astype(int),
            "setting/learning_rate": study.cells["factor/rate"].map(RATES),
        }
    )
    cells = cells[~((cells["arm"] == "gspo") & (cells["facet"].str.startswith("0/1")))]
    return dataclasses.replace(study, cells=cells.reset_index(drop=True))


def test_a_map_has_each_square_at_its_best_rate_in_points_of_the_fresh_batch_used_once(stale):
    def accuracy(cell):
        staleness, mu, rate = cell.facet.split("/")
        of_rate = 0.05 if rate == ("2e-4" if cell.arm == "gspo" else "1e-4") else 0.0
        noise = 0.01 * cell.seed + (0.001 * cell.seed**2 if cell.arm == "gspo" else 0)
        return ending_at(of_rate + 0.1 * (mu == "2") - 0.2 * (staleness == "8" and cell.arm == "none") + noise)

    picture, manifest = draw(with_curves(stale, accuracy), "F36")
    old = series_of(manifest, arm="none", staleness=8, passes=2)
    assert (old["mean"], old["low"]) == (pytest.approx(-10), pytest.approx(-10))
    best = series_of(manifest, metric="best rule", staleness=8, passes=2)
    assert (best["rule"], best["over"], best["is_beyond"]) == ("gspo", "none", True)
    assert best["mean"] == pytest.approx(20 + 0.1 * 5 / 3)
    assert "its best learning rate" in manifest.caption
    assert texts_of(picture).count("missing") == 0
    half = with_curves(stale, lambda cell: None if cell.facet.startswith("8/2") else accuracy(cell))
    assert texts_of(draw(half, "F36")[0]).count("missing") == 2
    fresh = with_curves(stale, lambda cell: None if cell.facet.startswith("0/1") else accuracy(cell))
    assert "waits for none on fresh batches" in draw(fresh, "F36")[1].caption


def test_a_lead_is_sure_only_if_it_is_over_every_other_rule():
    index = pd.MultiIndex.from_tuples([(0, 1, rule) for rule in ("a", "b", "c")])
    noise = np.array([-0.5, 0.1, 0.4, -0.2, 0.2])
    scores = pd.DataFrame([3 + 0 * noise, 2.9 + noise, 1 + noise], index)
    lead = best_rule(scores, (0, 1))
    assert (lead.rule, lead.over, lead.is_beyond) == ("a", "b", False)
    assert best_rule(scores.drop((0, 1, "b")), (0, 1)).is_beyond
    assert best_rule(scores.iloc[:1], (0, 1)) is None


def test_a_split_of_a_budget_stands_at_its_best_rate_and_the_frontier_is_the_best_at_equal_compute(tmp_path):
    factors = {"split": ["4x4", "8x4"], "mu": ["1", "2"], "rate": ["1e-4", "2e-4"]}
    study = load(write_study(tmp_path, "splits", factors, trained=False), "splits")[-1]
    moved = {
        "setting/num_generations": study.cells["arm"].str[0].astype(int),
        "setting/prompts_per_step": 4,
        "setting/num_iterations": study.cells["factor/mu"].astype(int),
        "setting/learning_rate": study.cells["factor/rate"].map(RATES),
    }
    study = dataclasses.replace(study, cells=study.cells.assign(**moved))
    assert "needs factors that move" in draw(with_curves(study, lambda cell: ending_at(0.1)), "F44")[1].caption
    prompts = study.cells["arm"].map({"4x4": 4, "8x4": 8})
    study = dataclasses.replace(study, cells=study.cells.assign(**{"setting/prompts_per_step": prompts}))
    ends = {("4x4", "1"): [0.2, 0.3, 0.3, 0.3, 0.3], ("8x4", "2"): [0.2, 0.2, 0.6, 0.6, 0.6]}

    def accuracy(cell):
        mu, rate = cell.facet.split("/")
        curve = ends.get((cell.arm, mu), [0.2, 0.2, 0.2, 0.2, 0.2])
        return [start + 0.01 * cell.seed for start in curve] if rate == "2e-4" else [START] * 5

    _, manifest = draw(with_curves(study, accuracy), "F44")
    square = series_of(manifest, metric="final accuracy (%)", generations=8, passes=2)
    noise = 0.01 * study.cells["seed"].unique().mean()
    assert (square["mean"], square["rate"]) == (pytest.approx(100 * (0.6 + noise)), 2e-4)
    frontier = series_of(manifest, metric="frontier")
    assert dict(zip(frontier["x"], frontier["mean"], strict=True))[128 * 4 * CURVE[1]] == pytest.approx(0.3 + noise)
    assert frontier["x"][-1] == 128 * 4 * CURVE[-1]  # no further than the split with the least
    assert frontier["mean"][-1] == pytest.approx(0.6 + noise)
    assert "8 x 8, used 2 times" in manifest.caption
    json.dumps(manifest.numbers)


def test_rollouts_to_a_score_are_those_that_were_sampled(planned):
    """A run that samples again for groups without a difference pays for what it throws away."""
    study = with_curves(planned, lambda cell: ending_at(0.2))
    goals = pd.Series(START + 0.1, study.cells.index)
    sampled = study.evaluations.assign(completions=2 * study.evaluations["completions"])
    once, twice = (reach(of, goals) for of in (study, dataclasses.replace(study, evaluations=sampled)))
    assert once["completions"].iloc[0] == pytest.approx(128 * (CURVE[-2] + CURVE[-1]) / 2)
    assert (twice == once * [2, 2, 1]).all(axis=None)
