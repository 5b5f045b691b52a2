"""kill -9 of the command at any moment: it ends with the trials of the straight one, and leaves nothing behind."""

from collections import Counter
from functools import partial

import pytest
from fake_sweep import wait_for
from tuning_project import kill

from grpolab.errors import RequestError

PATIENCE = 120.0
TRIALS = 4


def interrupted(project, *options, moments):
    """The exit code of the last command, the others having been killed after so many steps in all."""
    for steps in moments:
        command = project.start(*options)
        wait_for(partial(project.far_enough, command, steps), PATIENCE)
        if command.poll() is None:
            kill(command)
    return project.start(*options).wait(PATIENCE)


def without_numbers(trials):
    """Trials without their numbers: one that a killed command left is retried under another."""
    return [{key: value for key, value in trial.items() if key != "number"} for trial in trials]


@pytest.mark.slow
def test_a_killed_tuning_ends_with_the_trials_of_the_straight_one(project, tmp_path):
    project.write(trials=TRIALS, sampler_seed=1, pruner={"name": "median", "after": 3, "startup_trials": 1})
    assert project.tune() == 0
    straight, steps = project.trials(), project.steps()
    assert {trial["state"] for trial in straight} == {"complete", "pruned"}
    project.root, project.log, project.seconds = tmp_path / "killed", tmp_path / "killed.txt", 0.02
    assert interrupted(project, "--jobs=1", moments=[5, 40, 100]) == 0
    assert without_numbers(project.trials()) == without_numbers(straight)
    assert {name for name, _ in project.steps()} == {name for name, _ in steps}


@pytest.mark.slow
def test_two_workers_and_a_kill_keep_the_budget(project):
    project.write(trials=TRIALS)
    project.seconds = 0.02
    assert interrupted(project, "--jobs=2", moments=[30, 90]) == 0
    assert Counter(trial["arm"] for trial in project.trials()) == {"token": TRIALS, "gspo": TRIALS}
    assert {trial["state"] for trial in project.trials()} <= {"complete", "pruned"}
    values = [str(trial["values"]) for trial in project.trials() if trial["arm"] == "token"]
    assert len(set(values)) == TRIALS, "no suggestion comes twice"


@pytest.mark.slow
def test_a_second_command_is_refused_while_the_first_tunes(project):
    project.write(trials=TRIALS)
    project.seconds = 0.05
    first = project.start("--jobs=1")
    wait_for(partial(project.far_enough, first, 3), PATIENCE)
    with pytest.raises(RequestError, match="another command tunes it"):
        project.tune()
    kill(first)
