"""What a tuning found, from a made trials.json: the pictures show its numbers, the tables add them up."""

import json
import math

import matplotlib.text
import numpy as np
import pytest
from tuning_results import BEST_RATES, RANGE, RATE, SEEDS, STEPS, write_trials

from grpolab.errors import RequestError
from grpolab.report.style import QUIET, TEXT_WIDTH, arm_styles, png
from grpolab.report.tuning import page
from grpolab.report.tuning.figures import FIGURES, draw, importances
from grpolab.report.tuning.trials import load_trials

PAIR = [{"metric": "final_score", "direction": "maximize"}, {"metric": "drawdown", "direction": "minimize"}]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_trials(tmp_path_factory.mktemp("results"))


@pytest.fixture
def tuning(results):
    return load_trials(results, "ratio")


@pytest.fixture
def made(results):
    """{arm: its trials}, as they stand in the file."""
    trials = json.loads(results.trials("ratio").read_text())["trials"]
    return {arm: [trial for trial in trials if trial["arm"] == arm] for arm in BEST_RATES}


def complete(trials):
    return [trial for trial in trials if trial["state"] == "complete"]


def score(trial):
    return trial["scores"]["final_score"]["mean"]


def marked(panel, marker):
    """Coordinates of all points with a marker, as (x, y)."""
    return [tuple(point) for line in panel.lines if line.get_marker() == marker for point in line.get_xydata().tolist()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_readable_in_print(tuning, name):
    if name == "trial_front":
        assert draw(tuning, name) is None  # one objective
        return
    figure, manifest = draw(tuning, name)
    assert manifest.figure == name
    assert figure.get_figwidth() <= TEXT_WIDTH
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 7
    assert manifest.study == "ratio"
    assert manifest.seeds == list(SEEDS)
    assert manifest.diverged == ["token trial 11", "gspo trial 11", "cispo trial 11"]
    assert manifest.caption
    assert manifest.numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["key_contours", "key_importance"])
def test_drawing_again_gives_the_same_bytes(tuning, name):
    first, second = (draw(tuning, name)[0] for _ in range(2))
    assert png(first) == png(second)


def test_history_has_each_score_and_the_best_so_far(tuning, made):
    figure, manifest = draw(tuning, "trial_history")
    for panel, numbers, (arm, trials) in zip(figure.axes, manifest.numbers, made.items(), strict=True):
        points = [(trial["number"], score(trial)) for trial in complete(trials)]
        assert marked(panel, "o") == points
        best, so_far = -math.inf, []
        for _, value in points:
            best = max(best, value)
            so_far.append(best)
        assert panel.lines[0].get_ydata() == pytest.approx(so_far)
        assert numbers["best_so_far"] == pytest.approx(so_far)
        pruned = [trial["number"] for trial in trials if trial["state"] == "pruned"]
        assert [x for x, _ in marked(panel, "v")] == pruned == numbers["pruned"] != []
        assert [x for x, _ in marked(panel, "x")] == [11]
        assert panel.get_title() == arm


def test_less_is_better_where_the_study_says_so(tmp_path, made):
    results = write_trials(tmp_path, objectives=[{"metric": "final_score", "direction": "minimize"}])
    _, manifest = draw(load_trials(results, "ratio"), "trial_history")
    scores = [score(trial) for trial in complete(made["token"])]
    assert manifest.numbers[0]["best_so_far"] == pytest.approx(np.minimum.accumulate(scores).tolist())


def test_curves_of_pruned_trials_are_grey_and_end_in_their_mark(tuning, made):
    figure, manifest = draw(tuning, "trial_curves")
    for panel, (arm, trials) in zip(figure.axes, made.items(), strict=True):
        pruned = [trial for trial in trials if trial["state"] == "pruned"]
        ends = {tuple(curve[-1]) for trial in pruned for curve in trial["intermediate"].values()}
        assert set(marked(panel, "v")) == ends
        assert {step for step, _ in ends} == {STEPS / 2}
        curves = [line for line in panel.lines if len(line.get_xdata()) > 1]
        assert sum(line.get_color() == QUIET for line in curves) == len(pruned) + 1  # the one that diverged too
        colour = arm_styles(list(made))[arm].colour
        assert {line.get_color() for line in curves if line.get_xdata()[-1] == STEPS} == {colour}
        best = max(complete(trials), key=score)["number"]
        thick = [line for line in curves if line.get_linewidth() > 1]
        assert {float(line.get_ydata()[-1]) for line in thick} == {
            curve[-1][1] for curve in trials[best]["intermediate"].values()
        }
    token = next(n for n in manifest.numbers if (n["arm"], n["trial"]) == ("token", 2))
    assert token["state"] == "pruned"
    assert token["seeds"][1000]["value"][-1] == made["token"][2]["intermediate"]["1000"][-1][1]


def test_slices_stand_at_the_trials_values_with_their_seeds_range(tuning, made):
    figure, manifest = draw(tuning, "key_slices")
    assert [(n["arm"], n["key"]) for n in manifest.numbers][::2] == [(arm, "learning_rate") for arm in BEST_RATES]
    assert [n["key"] for n in manifest.numbers][1::2] == ["epsilon", "epsilon", "epsilon_high"]
    rates = manifest.numbers[0]
    assert rates["x"] == [trial["values"]["learning_rate"] for trial in complete(made["token"])]
    assert rates["score"] == pytest.approx([score(trial) for trial in complete(made["token"])])
    assert np.array(rates["high"]) - rates["low"] == pytest.approx(0.02)
    panel = figure.axes[0]
    bars = np.array([path.vertices[:, 1] for path in panel.collections[0].get_paths()])
    assert bars == pytest.approx(np.array([rates["low"], rates["high"]]).T)
    best = max(complete(made["token"]), key=score)
    assert marked(panel, "*") == [(best["values"]["learning_rate"], score(best))]
    common = [line for line in panel.lines if list(line.get_xdata()) == [3e-4, 3e-4]]
    assert len(common) == 1


def test_the_sensitivity_curve_goes_through_the_best_trial_of_each_sixth(tuning, made):
    figure, manifest = draw(tuning, "key_sensitivity")
    low, high = math.log10(RATE["low"]), math.log10(RATE["high"])
    for arm, trials in made.items():
        best: dict[int, dict] = {}
        for trial in complete(trials):
            place = math.floor(6 * (math.log10(trial["values"]["learning_rate"]) - low) / (high - low))
            best[place] = max(best.get(place, trial), trial, key=score)
        expected = [best[place] for place in sorted(best)]
        line = next(n for n in manifest.numbers if (n["arm"], n["key"]) == (arm, "learning_rate"))
        assert line["x"] == [trial["values"]["learning_rate"] for trial in expected]
        assert line["score"] == pytest.approx([score(trial) for trial in expected])
        assert line["low"] == pytest.approx([score(trial) - 0.01 for trial in expected])
        assert line["high"] == pytest.approx([score(trial) + 0.01 for trial in expected])
    rates, _, caps = figure.axes
    assert len(rates.collections) == 3  # one shaded range per arm
    assert len(caps.collections) == 1  # epsilon_high is cispo's alone
    rows = {y for _, y in marked(rates, "v")}
    assert len(rows) == 3


def test_the_contour_meets_the_trials_and_each_arm_has_its_own_keys(tuning, made):
    figure, manifest = draw(tuning, "key_contours")
    assert [n["y_key"] for n in manifest.numbers] == ["epsilon", "epsilon", "epsilon_high"]
    rates = [trial["values"]["learning_rate"] for trial in complete(made["token"])]
    assert manifest.numbers[0]["x"] == rates
    assert manifest.numbers[0]["score"] == pytest.approx([score(trial) for trial in complete(made["token"])])
    panel = figure.axes[0]
    assert [x for x, _ in marked(panel, "o")] == rates
    assert len(marked(panel, "v")) == 3
    assert marked(panel, "P") == [(3e-4, 0.2)]
    assert panel.collections, "no surface"


def test_a_contour_needs_two_keys_and_three_trials(tmp_path):
    few = load_trials(write_trials(tmp_path / "few", trials=3), "ratio")
    figure, _ = draw(few, "key_contours")
    assert "too few complete trials" in figure.axes[0].texts[0].get_text()
    one = {arm: {"space": {"learning_rate": RATE}, "common": {}} for arm in BEST_RATES}
    assert draw(load_trials(write_trials(tmp_path / "one", arms=one), "ratio"), "key_contours") is None


def test_parallel_lines_stand_between_the_bounds(tuning, made):
    figure, manifest = draw(tuning, "trial_paths")
    trial = made["gspo"][4]
    numbers = next(n for n in manifest.numbers if (n["arm"], n["trial"]) == ("gspo", 4))
    rate = (math.log10(trial["values"]["learning_rate"]) + 4) / 2
    epsilon = (trial["values"]["epsilon"] - RANGE["low"]) / (RANGE["high"] - RANGE["low"])
    assert numbers["places"] == pytest.approx([rate, epsilon])
    assert numbers["score"] == pytest.approx(score(trial))
    lengths = [len(line.get_xdata()) for line in figure.axes[1].lines if len(line.get_xdata()) > 2]
    assert len(lengths) == len(complete(made["gspo"]))  # a trial without a score ends at its last key
    texts = {text.get_text() for text in figure.axes[1].texts}
    assert {"0.0001", "0.01", "0.1", "0.5"} <= texts


def test_importance_names_the_key_that_the_score_is_made_of(tmp_path):
    _, manifest = draw(load_trials(write_trials(tmp_path / "many", trials=30), "ratio"), "key_importance")
    for numbers in manifest.numbers:
        shares = dict(zip(numbers["x"], numbers["importance"], strict=True))
        assert shares["learning_rate"] > 0.8
        assert sum(shares.values()) < 1 + 1e-9
        assert numbers["n"] == 20
    few = load_trials(write_trials(tmp_path / "few", trials=5), "ratio")
    figure, manifest = draw(few, "key_importance")
    assert manifest.numbers[0]["x"] == []
    assert " ".join(figure.axes[0].texts[0].get_text().split()) == "3 complete trials: 5 are needed"


def test_importance_is_even_on_a_log_axis(tmp_path):
    """Two keys that matter alike, each in half of its range; on a linear axis the lower decade is a tenth of it."""
    results = write_trials(tmp_path, trials=60)
    document = json.loads(results.trials("ratio").read_text())
    for trial in complete(document["trials"]):
        value = float(trial["values"]["learning_rate"] < 1e-3) + float([*trial["values"].values()][1] < 0.3)
        trial["scores"] = {"final_score": {"mean": value, "seeds": {"1000": value}}}
    results.trials("ratio").write_text(json.dumps(document))
    tuning = load_trials(results, "ratio")
    for arm in tuning.arms:
        assert list(importances(tuning, arm).values()) == pytest.approx([0.5, 0.5], abs=0.1)


def test_the_front_is_drawn_where_there_are_several_objectives(tmp_path):
    results = write_trials(tmp_path, objectives=PAIR, best={arm: [1, 3] for arm in BEST_RATES})
    document = json.loads(results.trials("ratio").read_text())
    for trial in complete(document["trials"]):
        by_seed = dict.fromkeys(trial["signatures"], 0.1 * trial["number"])
        trial["scores"]["drawdown"] = {"mean": 0.1 * trial["number"], "seeds": by_seed}
    results.trials("ratio").write_text(json.dumps(document))
    tuning = load_trials(results, "ratio")
    figure, manifest = draw(tuning, "trial_front")
    (panel,) = figure.axes
    trials = {trial["number"]: trial for trial in document["trials"] if trial["arm"] == "token"}
    front = sorted((score(trials[number]), 0.1 * number) for number in (1, 3))
    lines = [line for line in panel.lines if line.get_linestyle() != "None"]
    assert lines[0].get_xydata().tolist() == pytest.approx(np.array(front))
    assert marked(panel, "*")[0] == pytest.approx((score(trials[1]), 0.1))
    assert manifest.numbers[0]["front"] == [1, 3]
    assert "less is better" in panel.get_ylabel()
    assert len(draw(tuning, "trial_history")[0].axes) == 6  # a row for each objective


def test_the_budget_adds_up(tuning, made):
    table = page.budget(tuning)
    for row, trials in zip(table.numbers.itertuples(), made.values(), strict=True):
        assert (row.trials, row.asked, row.complete, row.pruned, row.diverged, row.failed) == (12, 12, 8, 3, 1, 0)
        assert row.full == 12 * 320
        assert row.decided == 8 * 320 + 3 * 80 + 32
        assert row.run == row.decided + 3 * 4
        assert row.saved == pytest.approx(1 - row.decided / row.full)
        assert row.pruned_share == pytest.approx(3 / 12)
        assert row.best == max(complete(trials), key=score)["number"]
        assert row.score == pytest.approx(max(map(score, complete(trials))))
    assert table.shown["trials"].tolist() == ["12 of 12"] * 3


def test_the_table_of_trials_has_every_trial_with_its_reason(tuning, tmp_path):
    table = page.trials(tuning)
    assert len(table.numbers) == 36
    assert table.numbers["epsilon_high"].notna().sum() == 12  # cispo's
    assert table.shown.loc[2, ["state", "reason"]].tolist() == ["pruned", "median: behind at step 20"]
    assert table.shown["state"].str.contains("(best)", regex=False).sum() == 3
    assert {path.suffix for path in table.write(tmp_path)} == {".csv", ".md", ".tex"}


def test_the_sentences_say_what_was_saved_and_what_went_wrong(tmp_path):
    results = write_trials(tmp_path)
    document = json.loads(results.trials("ratio").read_text())
    document["trials"][0].update(state="failed", reason="OutOfMemoryError: no", scores={})
    results.trials("ratio").write_text(json.dumps(document))
    tuning = load_trials(results, "ratio")
    assert page.budget(tuning).numbers.loc[0, ["trials", "failed", "full"]].tolist() == [11, 1, 11 * 320]
    said = "\n".join(page.sentences(tuning))
    assert "each judged by seeds 1000, 1001, which no evaluation may use" in said
    assert "The budget is not spent yet: `token` 11." in said
    assert "1 trial failed: `token` trial 0 (OutOfMemoryError: no)." in said
    assert "3 trials diverged: `token` trial 11 (the loss is nan)" in said
    full, decided = 35 * 320, 23 * 320 + 9 * 80 + 3 * 32
    assert f"{decided:,} of {full:,} optimiser steps (36 more were done before the runs stopped)" in said
    assert f"{100 * (1 - decided / full):.1f}% saved" in said


def test_a_budget_that_is_spent_is_said(tuning):
    assert "Every arm had exactly its budget." in list(page.sentences(tuning))


@pytest.mark.slow
def test_a_tuning_has_a_page_of_its_own(results):
    path = page.write(results, "ratio")
    assert path == results.studies / "ratio.tuning" / "report.md"
    text = path.read_text()
    figures = {file.stem for file in (path.parent / "figures").glob("*.png")}
    assert len(figures) == 7
    assert all(f"](figures/{figure}.png)" in text for figure in figures)
    assert figures == {file.stem for file in (path.parent / "figures").glob("*.pdf")}
    assert figures == {file.stem for file in (path.parent / "figures").glob("*.json")}
    assert {file.name for file in (path.parent / "tables").glob("*.csv")} == {"tuning_budget.csv", "tuning_trials.csv"}


def test_trials_before_the_first_one_ended_are_drawn(tmp_path):
    tuning = load_trials(write_trials(tmp_path, trials=0), "ratio")
    for name in FIGURES:
        draw(tuning, name)
    assert len(page.budget(tuning).shown) == 3
    assert page.trials(tuning).shown.empty


def test_a_trial_that_runs_is_not_there_yet(tmp_path):
    results = write_trials(tmp_path)
    document = json.loads(results.trials("ratio").read_text())
    running = {"arm": "token", "number": 12, "state": "running", "values": {"learning_rate": 1e-3, "epsilon": 0.2}}
    empty = {"reason": None, "scores": {}, "intermediate": {}, "signatures": {}, "timing": {}}
    results.trials("ratio").write_text(json.dumps({**document, "trials": [*document["trials"], {**running, **empty}]}))
    assert len(load_trials(results, "ratio").trials) == 36


def test_what_is_not_there_is_one_sentence(results):
    with pytest.raises(RequestError, match=r"study=clip_range has no trials in .* run `grpolab tune clip_range` first"):
        page.write(results, "clip_range")


def test_another_format_is_refused(tmp_path):
    results = write_trials(tmp_path, format=2)
    with pytest.raises(RequestError, match="has format 2, this program reads format 1"):
        page.write(results, "ratio")
