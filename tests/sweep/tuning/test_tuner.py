"""Equal budgets, each run once, the same trials again; what lags is pruned, what diverges is bad, the best is named."""

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import optuna
import pytest
import yaml
from tuning_project import STUDY, UNTUNED

from grpolab.paths import Results
from grpolab.report import tuning as page
from grpolab.report.tuning import load_trials
from grpolab.studies.progress import json_lines
from grpolab.studies.status import status
from grpolab.sweep.plan import plans
from grpolab.sweep.tuning.arms import ArmTrials
from grpolab.sweep.tuning.settings import Pruner
from grpolab.vocabulary import COMPLETE

GRID = {"learning_rate": {"choices": [1.0e-4, 3.0e-4, 1.0e-3, 2.0e-3, 2.0e-2]}}


def median(**changed):
    return {"name": "median", "window": 2, **changed}


def grid(**changed):
    """A good value, three mediocre ones, and one that rises and collapses."""
    return {"space": GRID, "sampler": "grid", "sampler_seed": 6, "trials": 5, **changed}


def finished(project):
    """Trials by arm that are neither failed nor on their way."""
    trials = [trial for trial in project.trials() if trial["state"] in ("complete", "pruned", "diverged")]
    return Counter(trial["arm"] for trial in trials)


def test_every_arm_has_its_budget_and_nothing_is_trained_twice(project):
    project.write(trials=3)
    assert project.tune(jobs=2) == 0
    assert finished(project) == {"token": 3, "gspo": 3}
    steps = project.steps()
    assert len(steps) == len(set(steps)) > 0
    assert project.tune(jobs=2) == 0
    assert project.steps() == steps
    assert finished(project) == {"token": 3, "gspo": 3}


def test_a_program_reads_each_trial_and_the_best_as_events(project, capsys):
    project.write(trials=2)
    with json_lines():
        assert project.tune() == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    trials = [event for event in events if event["event"] == "trial"]
    assert [trial["left"] for trial in trials] == [3, 2, 1, 0]
    best = {event["arm"]: event["trial"] for event in events if event["event"] == "best"}
    assert best == {arm: numbers[0] for arm, numbers in project.document()["best"].items()}
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("end", 0)
    assert sum(events[-1]["counts"].values()) == 4


@pytest.mark.slow
def test_a_repeated_tuning_has_the_same_trials_and_takes_its_runs_from_the_cache(project):
    """Anew in another folder, and again over the runs that are there: values, scores, states and reasons."""
    project.write(sampler_seed=1, pruner=median(after=3, startup_trials=1))
    assert project.tune() == 0
    first, steps = project.trials(), project.steps()
    shutil.rmtree(project.trials_file.parent)
    assert project.tune() == 0
    assert project.trials() == first
    assert project.steps() == steps
    project.root = project.root.with_name("anew")
    assert project.tune() == 0
    assert project.trials() == first
    assert {trial["state"] for trial in first} >= {"complete", "pruned"}


@pytest.mark.slow
def test_a_collapsing_run_is_given_up_and_can_be_trained_to_its_end_later(project):
    project.write(**grid(seeds=[100], pruner=median(after=3, startup_trials=1)))
    project.seconds = 0.05
    assert project.tune() == 0
    (given_up,) = (trial for trial in project.trials() if trial["arm"] == "token" and rate(trial) == 2e-2)
    assert given_up["state"] == "pruned"
    assert "median: accuracy" in given_up["reason"]
    name = given_up["signatures"]["100"]
    assert not (project.root / "runs" / name / "outcome.json").exists()
    last = max(step for run, step in project.steps() if run == name)
    assert 7 <= last < 12, "it rises for half of its twelve steps, and falls"
    assert given_up["optimizer_steps"]["decided"] <= 4 * last < given_up["optimizer_steps"]["full"] == 48

    state = status(Results(project.root), "mine.tuning", 0.0)["mine.tuning"]
    assert state["states"]["missing"] >= 1
    assert next(cell for cell in state["cells"] if cell["signature"] == name)["interrupted_at_step"] == last

    project.write(**grid(seeds=[100], pruner={"name": "none"}))
    assert project.tune(storage=f"sqlite:///{project.folder}/unpruned.db") == 0
    assert json.loads((project.root / "runs" / name / "outcome.json").read_text())["outcome"] == "completed"
    steps = [step for run, step in project.steps() if run == name]
    assert steps == list(range(1, 13)), "it went on where it was left"


def rate(trial) -> float:
    return trial["values"]["learning_rate"]


def test_the_median_of_the_best_so_far_would_never_give_up_a_run_that_collapses():
    """Optuna's own pruner, on the same reports."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(1, 0))
    arm = ArmTrials.__new__(ArmTrials)
    arm.study, arm.tuning = study, SimpleNamespace(pruner=Pruner(name="median", startup_trials=1))
    good = study.ask()
    for step, value in enumerate([0.3, 0.4, 0.5, 0.6, 0.7]):
        good.report(value, step)
    study.tell(good, 0.7)
    bad, behind = study.ask(), []
    for step, value in enumerate([0.3, 0.5, 0.75, 0.2, 0.1]):
        bad.report(value, step)
        behind += [step] if arm.is_behind(value, step) else []
        assert not bad.should_prune()
    assert behind == [3, 4]


def test_divergence_is_the_worst_score_with_its_reason(project):
    wild = {"learning_rate": {"choices": [1.0e-3, 0.2]}}
    project.write(space=wild, sampler="grid", trials=2, pruner={"name": "none"})
    assert project.tune() == 0
    assert finished(project) == {"token": 2, "gspo": 2}
    (bad,) = (trial for trial in project.trials() if trial["arm"] == "gspo" and rate(trial) == 0.2)
    assert (bad["state"], bad["reason"]) == ("diverged", "seed 100: the loss is nan")
    assert bad["scores"] == {"final_score": {"mean": "-inf", "seeds": {"100": "-inf"}}}
    assert bad["optimizer_steps"]["decided"] == 8
    assert all(numbers and numbers != [bad["number"]] for numbers in project.document()["best"].values())


def of(document, arm):
    return [trial for trial in document["trials"] if trial["arm"] == arm]


def score(trial, metric: str) -> float:
    return trial["scores"][metric]["mean"]


POINTS = {"learning_rate": {"choices": [1e-4, 1e-3, 2e-3]}, "num_iterations": {"choices": [2, 4, 8]}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "space"), [("grid", POINTS), ("random", POINTS), ("cmaes", STUDY["tuning"]["space"])]
)
def test_other_samplers(project, sampler, space):
    project.write(sampler=sampler, space=space, trials=9)
    assert project.tune(jobs=2) == 0
    assert finished(project) == {"token": 9, "gspo": 9}
    if sampler == "grid":
        assert len({str(trial["values"]) for trial in of(project.document(), "token")}) == 9


def test_arms_with_the_same_space_begin_with_the_same_values(project):
    project.write(trials=2)
    assert project.tune() == 0
    values = {arm: [trial["values"] for trial in of(project.document(), arm)] for arm in ("token", "gspo")}
    assert values["token"] == values["gspo"]
    assert values["token"][0] != values["token"][1]


@pytest.mark.slow
def test_a_quantity_that_cannot_be_computed_fails_the_trial_and_is_made_up_for(project):
    project.write(objectives=[{"metric": "ess_min", "direction": "maximize"}], trials=2)
    assert project.tune() == 1
    assert project.states() == {("token", "failed"): 2, ("gspo", "failed"): 2}
    assert project.trials()[0]["reason"] == "seed 100: nothing to compute ess_min from"
    assert project.tune() == 1
    assert project.states() == {("token", "failed"): 4, ("gspo", "failed"): 4}
    assert not (project.folder / "conf" / "tuned" / "mine.yaml").exists()


@pytest.mark.slow
def test_tuned_values_have_their_provenance(project):
    assert project.tune() == 0
    text = (project.folder / "conf" / "tuned" / "mine.yaml").read_text()
    found = yaml.safe_load(text)
    best = project.document()["best"]
    for arm, entry in found["arms"].items():
        (trial,) = (one for one in of(project.document(), arm) if one["number"] == best[arm][0])
        assert entry["trial"] == trial["number"]
        assert entry["scores"] == trial["scores"]
        assert entry["overrides"] == [f"{key}={value}" for key, value in trial["values"].items()]
    assert found["seeds"] == [100, 101]
    assert found["trials_per_arm"] == 6


@pytest.mark.slow
def test_values_of_the_best_trials_reach_the_study_that_names_them(project):
    factors = {**STUDY["factors"], "values": {"common": [], "tuned": ["tuned=mine"]}}
    project.write(study={**STUDY, "factors": factors}, trials=6, where={"values": "common"})
    project.write("judged", study={**UNTUNED, "factors": factors})
    assert project.tune() == 0
    tuning = load_trials(Results.open(project.root), "mine")
    budget = page.budget(tuning).numbers
    assert budget["trials"].tolist() == [6, 6]
    assert "Every arm had exactly its budget." in list(page.sentences(tuning))
    for name in ("judged", "mine"):  # the study that was tuned may itself name its values
        (plan,) = plans(name)
        cells = {cell.variant: cell.settings for cell in plan.cells}
        for row in budget.itertuples():
            trials = tuning.of(row.arm, COMPLETE).set_index("number")
            values = trials.loc[row.best, "values"]
            assert cells[f"{row.arm}/tuned"].learning_rate == values["learning_rate"]
            assert cells[f"{row.arm}/tuned"].epsilon == values["epsilon"]
            assert cells[f"{row.arm}/common"].learning_rate == 3e-4
            assert trials["score"][row.best] == trials["score"].max() == row.final_score
