"""What a tuning found, from a made trials.json: the tables add its numbers up, and Optuna's plots get them."""

import json

import matplotlib
import pytest
from matplotlib import pyplot
from optuna.trial import TrialState
from report_results import change
from tuning_results import BEST_RATES, write_trials

from grpolab.errors import RequestError
from grpolab.report import tuning as page
from grpolab.report.style import png
from grpolab.report.tuning import load_trials


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_trials(tmp_path_factory.mktemp("results"))


@pytest.fixture
def tuning(results):
    return load_trials(results, "ratio")


@pytest.fixture
def made(results):
    """{arm: its trials}, as they stand in the file."""
    return {arm: [trial for trial in trials_of(results) if trial["arm"] == arm] for arm in BEST_RATES}


def trials_of(results):
    return json.loads(results.trials("ratio").read_text())["trials"]


def complete(trials):
    return [trial for trial in trials if trial["state"] == "complete"]


def score(trial):
    return trial["scores"]["final_score"]["mean"]


def test_optuna_draws_what_the_file_says(tuning, made):
    """The studies that its plots get have each trial's values, score and state; the manifests name all of them."""
    for arm, trials in made.items():
        found = tuning.optuna_study(arm).trials
        assert [trial.params for trial in found] == [trial["values"] for trial in trials]
        assert [trial.value for trial in found if trial.state == TrialState.COMPLETE] == pytest.approx(
            [score(trial) for trial in complete(trials)]
        )
        assert [trial.state == TrialState.PRUNED for trial in found] == [t["state"] == "pruned" for t in trials]
    style = dict(matplotlib.rcParams)
    names = set()
    for figure, manifest in page.draw_trials(tuning):
        names.add(manifest.figure)
        assert png(figure)
        assert {numbers["arm"] for numbers in manifest.numbers} <= set(made)
    assert names == {"trial_history", *(f"{arm}_key_slices" for arm in made)}
    assert dict(matplotlib.rcParams) == style, "Optuna's style must not stay"
    assert not pyplot.get_fignums()


def test_a_tuning_of_one_key_is_drawn(tmp_path):
    """Its colour bar could not be laid out, and `tune` ended in a ZeroDivisionError after its last trial."""
    results = write_trials(tmp_path)
    trials, arms = trials_of(results), json.loads(results.trials("ratio").read_text())["arms"]
    for trial in trials:
        trial["values"] = {"learning_rate": trial["values"]["learning_rate"]}
    for arm in arms.values():
        arm["space"] = {"learning_rate": arm["space"]["learning_rate"]}
    change(results.trials("ratio"), trials=trials, arms=arms)
    pictures = {manifest.figure: png(figure) for figure, manifest in page.draw_trials(load_trials(results, "ratio"))}
    assert pictures["token_key_slices"]


def test_the_budget_adds_up(tuning, made):
    table = page.budget(tuning)
    for row, trials in zip(table.numbers.itertuples(), made.values(), strict=True):
        assert (row.trials, row.asked, row.complete, row.pruned, row.diverged, row.failed) == (12, 12, 8, 3, 1, 0)
        assert row.full == 12 * 320
        assert row.decided == 8 * 320 + 3 * 80 + 32
        assert row.saved == pytest.approx(1 - row.decided / row.full)
        assert row.best == max(complete(trials), key=score)["number"]
        assert row.final_score == pytest.approx(max(map(score, complete(trials))))
    assert "Every arm had exactly its budget." in list(page.sentences(tuning))


def test_the_table_of_trials_has_every_trial_with_its_reason(tuning, tmp_path):
    table = page.every_trial(tuning)
    assert len(table.numbers) == 36
    assert table.numbers["epsilon_high"].notna().sum() == 12  # cispo's
    assert table.shown.loc[2, ["state", "reason"]].tolist() == ["pruned", "median: behind at step 20"]
    table.write(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".md", ".tex"}


@pytest.mark.parametrize(
    ("bounds", "inside", "edges"),
    [
        ({"low": 1e-4, "high": 1e-2, "log": True}, [2e-4, 1e-3, 7e-3], [1e-4, 1.2e-4, 8.5e-3, 1e-2]),
        ({"low": 0.0, "high": 1.0, "log": False}, [0.06, 0.5], [0.0, 0.04, 0.96, 1.0]),
        ({"choices": [1, 2, 4, 8]}, [2, 4], [1, 8]),
        ({"choices": ["a", "b", None]}, ["a", None], []),
    ],
)
def test_a_chosen_value_at_an_edge_of_its_space_is_flagged(tmp_path, bounds, inside, edges):
    assert [value for value in (*inside, *edges) if page.is_at_edge(bounds, value)] == edges
    if bounds.get("log"):
        results = write_trials(tmp_path)
        trials = trials_of(results)
        best = json.loads(results.trials("ratio").read_text())["best"]["token"][0]
        for trial in trials:
            if (trial["arm"], trial["number"]) == ("token", best):
                trial["values"] = {"learning_rate": 1e-2, "epsilon": 0.3}
        change(results.trials("ratio"), trials=trials)
        row = page.budget(load_trials(results, "ratio")).shown.iloc[0]
        assert (row["values"], row["at an edge"]) == ("learning_rate=0.010, epsilon=0.300", "learning_rate")


def test_the_sentences_say_what_was_tried_and_what_went_wrong(tmp_path):
    results = write_trials(tmp_path)
    trials = trials_of(results)
    trials[0].update(state="failed", reason="OutOfMemoryError: no", scores={})
    change(results.trials("ratio"), trials=trials)
    tuning = load_trials(results, "ratio")
    assert page.budget(tuning).numbers.loc[0, ["trials", "failed", "full"]].tolist() == [11, 1, 11 * 320]
    said = "\n".join(page.sentences(tuning))
    assert "each judged by seeds 1000, 1001, which no evaluation may use" in said
    assert "The budget is not spent yet: `token` 11." in said
    assert "1 trial failed: `token` trial 0 (OutOfMemoryError: no)." in said
    assert "3 trials diverged: `token` trial 11 (the loss is nan)" in said


@pytest.mark.slow
def test_a_tuning_has_a_page_of_its_own(results):
    path = page.write(results, "ratio")
    assert path == results.studies / "ratio.tuning" / "report.md"
    text = path.read_text()
    png, pdf, manifests = ({file.stem for file in path.parent.glob(f"figures/*.{of}")} for of in ("png", "pdf", "json"))
    assert len(png) == 4
    assert png == pdf == manifests
    assert all(f"](figures/{figure}.png)" in text for figure in png)
    assert {file.name for file in (path.parent / "tables").glob("*.csv")} == {"tuning_budget.csv", "tuning_trials.csv"}


def test_trials_before_the_first_one_ended_are_drawn(tmp_path):
    tuning = load_trials(write_trials(tmp_path, trials=0), "ratio")
    assert list(page.draw_trials(tuning)) == []
    assert len(page.budget(tuning).shown) == 3
    assert page.every_trial(tuning).shown.empty


def test_a_trial_that_runs_is_not_there_yet(tmp_path):
    results = write_trials(tmp_path)
    running = {"arm": "token", "number": 12, "state": "running", "values": {"learning_rate": 1e-3, "epsilon": 0.2}}
    empty = {"reason": None, "scores": {}, "intermediate": {}, "signatures": {}, "timing": {}}
    change(results.trials("ratio"), trials=[*trials_of(results), running | empty])
    assert len(load_trials(results, "ratio").trials) == 36


def test_what_is_not_there_or_of_another_format_is_one_sentence(results, tmp_path):
    with pytest.raises(RequestError, match=r"study=clip_range has no trials in .* run `grpolab tune clip_range` first"):
        page.write(results, "clip_range")
    with pytest.raises(RequestError, match="has format 2, this program reads format 1"):
        page.write(write_trials(tmp_path, format=2), "ratio")
