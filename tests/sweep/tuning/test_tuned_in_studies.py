"""`tuned=STUDY` in a study: each arm gets its own values, last; what is not there or not fair is refused."""

import json

import pytest
import yaml

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.sweep.compose import Composer
from grpolab.sweep.jobs import Request
from grpolab.sweep.plan import plans
from grpolab.sweep.study import load

STUDY = """
question: What does tuning change?
factors:
  values: {common: [], tuned: [tuned=rates]}
  ratio: {token: [learning_rate=2.0e-4], gspo: [loss_type=gspo]}
compare: ratio
baseline: token
seeds: 3
primary_metric: eval/accuracy_expected
"""
VALUES = {
    **{"study": "rates", "commit": "c0ffee", "seeds": [1000, 1001], "trials_per_arm": 12},
    "arms": {
        "token": {"overrides": ["learning_rate=0.001"], "trial": 3, "scores": {"final_score": {"mean": 0.7}}},
        "gspo": {"overrides": ["learning_rate=0.002", "epsilon=0.0005"], "trial": 7},
    },
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with the real conf/ beside one file of tuned values, and the study above."""
    (tmp_path / "conf" / "tuned").mkdir(parents=True)
    for entry in Composer().conf.iterdir():
        if entry.name != "tuned":
            (tmp_path / "conf" / entry.name).symlink_to(entry)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    write_values(tmp_path, VALUES)
    return tmp_path


def write_values(project, values):
    (project / "conf" / "tuned" / "rates.yaml").write_text(yaml.safe_dump(values))


def refusal(*arguments):
    with pytest.raises(RequestError) as caught:
        plans("mine", *arguments)
    (problem,) = caught.value.problems
    return problem


def test_each_arm_gets_its_own_values_over_all_of_its_settings(project):
    (plan,) = plans("mine")
    cells = {cell.variant: cell.settings for cell in plan.cells}
    assert cells["common/token"].learning_rate == 2e-4
    assert cells["tuned/token"].learning_rate == 1e-3  # though the arm's own factor stands after `values`
    assert cells["tuned/gspo"].epsilon == 5e-4
    assert cells["tuned/gspo"].learning_rate == 2e-3
    assert load("mine").overrides_of({"values": "tuned", "ratio": "gspo"}) == [
        *("loss_type=gspo", "learning_rate=0.002", "epsilon=0.0005")
    ]


def test_the_plan_tells_the_report_which_values_they_are(project):
    results = Results.open(project / "results")
    request = Request(plans("mine", [f"machine.results={results.root}"]))
    request.write_plans()
    (named,) = json.loads(results.plan("mine").read_text())["tuned"]
    assert (named["factor"], named["level"], named["study"]) == ("values", "tuned", "rates")
    assert named["seeds"] == [1000, 1001]
    assert named["trials_per_arm"] == 12
    assert named["arms"]["gspo"] == {"overrides": ["learning_rate=0.002", "epsilon=0.0005"], "trial": 7}


def test_a_plan_without_tuned_values_is_as_it_was(project):
    study = project / "experiments" / "mine.yaml"
    study.write_text(STUDY.replace("tuned=rates", "warmup_steps=3"))
    (plan,) = plans("mine")
    assert "tuned" not in plan.document("now", None)


@pytest.mark.parametrize("seeds", [[0, 1001], [1000]])
def test_seeds_that_chose_the_values_do_not_judge_them(project, seeds):
    problem = refusal([], seeds)
    assert problem.startswith(f"seeds={seeds[-1]} chose the values of tuned=rates")


def test_values_that_are_not_there_are_refused(project):
    (project / "conf" / "tuned" / "rates.yaml").rename(project / "conf" / "tuned" / "rate.yaml")
    problem = refusal()
    assert "tuned=rates is unknown (did you mean rate?): have rate; run `grpolab tune STUDY` first" in problem


def test_an_arm_without_values_is_refused(project):
    write_values(project, {**VALUES, "arms": {"token": VALUES["arms"]["token"]}})
    assert "tuned=rates has no values for arm gspo: it has token" in refusal()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arms: [", "cannot be read"),
        ("study: rates", "seeds is missing"),
        ("just words", "rates.yaml"),
        ("", "rates.yaml"),
    ],
)
def test_a_file_that_is_no_file_of_tuned_values_is_refused(project, text, sentence):
    (project / "conf" / "tuned" / "rates.yaml").write_text(text)
    with pytest.raises(RequestError, match=sentence):
        plans("mine")


def test_the_values_are_judged_where_they_were_chosen():
    tuned, judged = load("tuning"), load("tuned_vs_common")
    assert judged.overrides == tuned.overrides
    assert judged.factors["ratio"] == tuned.factors["ratio"]
    assert not set(judged.seeds) & set(tuned.tuning.seeds)
