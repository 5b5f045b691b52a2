"""Wrong requests to tune: exit code 2, one sentence each, nothing started."""

import pytest
from tuning_project import STUDY, UNTUNED

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.sweep import engine
from grpolab.sweep.tuning.arms import TunedStudy, load_tuned

RATE = {"learning_rate": {"low": 1e-4, "high": 1e-3}}
POINTS = {"learning_rate": {"choices": [1e-4, 1e-3]}}
SCORE = {"metric": "final_score", "direction": "maximize"}
WRONG = [
    ({"space": {}}, "arm token has no key to tune"),
    ({"arms": {"token": {"learning_rate": None, "epsilon": None}}}, "arm token has no key to tune"),
    ({"arms": {"tokn": RATE}}, "tuning.arms=tokn is unknown (did you mean token?)"),
    ({"space": {"learning_rat": RATE["learning_rate"]}}, "learning_rat is unknown (did you mean learning_rate"),
    ({"space": {"seed": {"choices": [1, 2]}}}, "seed cannot be tuned"),
    ({"space": {"evaluation.items": {"choices": [1, 2]}}}, "evaluation.items cannot be tuned"),
    ({"space": {"learning_rate": {"low": 1e-3, "high": 1e-4}}}, "low=0.001 must be less than high=0.0001"),
    ({"space": {"learning_rate": {"low": 0.0, "high": 1e-4, "log": True}}}, "low=0 must be > 0 where log is true"),
    ({"space": {"learning_rate": {"low": 1e-4}}}, "needs `low` and `high`, or `choices`"),
    ({"space": {"learning_rate": {"low": 1e-4, "high": 1e-3, "choices": [1]}}}, "never both"),
    ({"space": {"learning_rate": {"choices": [1e-3]}}}, "two or more different values"),
    ({"space": {"learning_rate": {"low": -1.0, "high": 1.0}}}, "learning_rate=-1.0 is not allowed"),
    ({"space": {"num_iterations": {"low": 1.5, "high": 4.5}}}, "num_iterations=1.5 is not allowed"),
    ({"arms": {"no_clip": {"epsilon": {"low": 0.1, "high": 0.3}}}}, "arm no_clip makes no use of epsilon"),
    ({"where": {"task": "addition"}}, "tuning.where=task is unknown"),
    ({"sampler": "bayes"}, "tuning.sampler=bayes is not allowed"),
    ({"sampler": "grid"}, "sampler=grid needs choices for each key"),
    ({"sampler": "grid", "space": POINTS, "trials": 3}, "tuning.trials=3 is more than the 2 points"),
    ({"sampler": "cmaes", "space": POINTS}, "sampler=cmaes needs two or more keys with low and high"),
    ({"trials": 0}, "tuning.trials=0 is not allowed"),
    ({"trials": None}, "tuning.trials is missing"),
    ({"trails": 3}, "tuning.trails is unknown (did you mean tuning.trials"),
    ({"seeds": []}, "tuning.seeds=[] is not allowed"),
    ({"seeds": [7, 7]}, "7 stands twice"),
    ({"seeds": [1, 100]}, "tuning.seeds=[1] are seeds of the study too"),
    ({"objectives": [{"metric": "final_scor", "direction": "maximize"}]}, "final_scor is unknown (did you mean"),
    ({"objectives": [{"metric": "final_score", "direction": "up"}]}, "direction=up is not allowed"),
    ({"objectives": [SCORE, SCORE | {"metric": "drawdown"}]}, "tuning.objectives="),
    ({"pruner": {"name": "medium"}}, "tuning.pruner.name=medium is not allowed"),
]


def refused(capsys, *arguments: str) -> str:
    assert main(["tune", *arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture
def nothing_starts(project, monkeypatch):
    """The project with a third arm, whose workers must not start."""
    monkeypatch.setattr(engine.WorkerProcess, "__init__", lambda *_: pytest.fail("a worker was started"))
    return project


@pytest.mark.parametrize(("tuning", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_wrong_tuning_is_refused(nothing_starts, capsys, tuning, sentence):
    arms = {"no_clip": {"epsilon": None}, **tuning.get("arms", {})}
    clips = {**STUDY["factors"]["clip"], "no_clip": ["kernel=ratio"]}
    nothing_starts.write(study={**STUDY, "factors": {"clip": clips}}, **{**tuning, "arms": arms})
    assert sentence in refused(capsys, "mine", f"machine.results={nothing_starts.root}")
    assert not nothing_starts.trials_file.exists()


def test_a_study_without_a_tuning_is_refused(nothing_starts, capsys):
    nothing_starts.write(study=UNTUNED)
    assert "experiments/mine.yaml has no `tuning:`" in refused(capsys, "mine")
    assert "study min is unknown (did you mean mine?)" in refused(capsys, "min")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--storage", "redis://x"], "--storage redis://x is no storage"),
        (["--storage", "journal:/tmp/x"], "--storage journal:/tmp/x is no storage"),
        (["--storage", "postgresql+nothing://me@host/db"], "SQLAlchemy does not know it"),
        (["--storage", "sqlite:////no/such/folder/x.db"], "cannot be opened"),
        (["seed=3"], "seed=3: a tuning sets its seeds itself"),
        (["machine.tracking_uri=ftp://x"], "ftp://x"),
    ],
)
def test_wrong_options_are_refused(nothing_starts, capsys, options, sentence):
    assert sentence in refused(capsys, "mine", f"machine.results={nothing_starts.root}", *options)


def test_a_storage_of_another_tuning_is_refused(project, capsys):
    project.write(trials=1)
    assert project.tune() == 0
    trials, storage = project.trials_file.read_text(), f"sqlite:///{project.trials_file.parent}/trials.db"
    results = f"machine.results={project.root}"
    project.write(trials=2, space={"learning_rate": {"low": 1e-5, "high": 1e-2}})
    assert "holds another tuning under the name mine/gspo: space changed" in refused(capsys, "mine", results)
    project.write(trials=2, sampler_seed=1)
    assert "sampler_seed changed" in refused(capsys, "mine", results)
    project.write(trials=2)
    assert "settings changed" in refused(capsys, "mine", results, "rollout_steps=6")
    project.write("other")
    assert "holds the tuning of mine: name another one" in refused(capsys, "other", results, "--storage", storage)
    assert project.trials_file.read_text() == trials


def test_trials_of_changed_data_are_not_mixed_with_those_before(project):
    """Nor when the command is repeated: the storage is claimed by the content too."""
    file = project.folder / "tuned_reward.py"
    file.write_text("def score(prompt, answer, completion):\n    return 1.0\n")
    overrides = [f"reward.function={file}:score", f"machine.results={project.root}"]
    arms = TunedStudy(load_tuned("mine"), overrides)
    before = arms.identity("token")
    arms.cells("token", 0, {"epsilon": 0.1})
    file.write_text("def score(prompt, answer, completion):\n    return 0.5\n")
    with pytest.raises(RequestError, match=r"what reward.function names has changed since the tuning began"):
        arms.cells("token", 1, {"epsilon": 0.2})
    assert arms.identity("token") != before
    assert TunedStudy(load_tuned("mine"), overrides).cells("token", 1, {"epsilon": 0.2}), "another tuning may"
