"""kill -9 of the command at any moment: it ends with the trials of the straight one, and leaves nothing behind."""

import signal
import subprocess
from functools import partial

import psutil
import pytest
from fake_sweep import wait_for
from tuning_project import TuningProject

from grpolab.sweep.tuning.storage import Owner

PATIENCE = 120.0
TRIALS = 4


def kill(command: subprocess.Popen) -> None:
    """With -9; its workers must die with it."""
    workers = psutil.Process(command.pid).children(recursive=True)
    command.send_signal(signal.SIGKILL)
    command.wait()
    _, alive = psutil.wait_procs(workers, timeout=90)
    assert not alive


def far_enough(project: TuningProject, command: subprocess.Popen, steps: int) -> bool:
    return command.poll() is not None or len(project.steps()) >= steps


def interrupted(project: TuningProject, *options: str, moments: list[int]) -> int:
    """The exit code of the last command, the others having been killed after so many steps in all."""
    for steps in moments:
        command = project.start(*options)
        wait_for(partial(far_enough, project, command, steps), PATIENCE)
        if command.poll() is None:
            kill(command)
    return project.start(*options).wait(PATIENCE)


@pytest.mark.slow
def test_a_killed_tuning_ends_with_the_trials_of_the_straight_one(project, tmp_path):
    project.write(trials=TRIALS, sampler_seed=1, pruner={"name": "median", "after": 3, "startup_trials": 1})
    assert project.tune() == 0
    straight, steps = project.trials(), project.steps()
    assert {trial["state"] for trial in straight} == {"complete", "pruned"}
    project.root, project.log, project.seconds = tmp_path / "killed", tmp_path / "killed.txt", 0.02
    assert interrupted(project, "--jobs=1", moments=[5, 40, 100]) == 0
    assert project.trials() == straight
    assert {name for name, _ in project.steps()} == {name for name, _ in steps}
    assert not Owner(project.trials_file.parent).others()
    assert list((project.trials_file.parent / "commands").iterdir()) == []


@pytest.mark.slow
def test_two_workers_and_a_kill_keep_the_budget(project):
    project.write(trials=TRIALS)
    project.seconds = 0.02
    assert interrupted(project, "--jobs=2", moments=[30, 90]) == 0
    numbers = [(trial["arm"], trial["number"]) for trial in project.trials()]
    assert sorted(numbers) == [(arm, number) for arm in ("gspo", "token") for number in range(TRIALS)]
    assert {trial["state"] for trial in project.trials()} <= {"complete", "pruned"}
    values = [str(trial["values"]) for trial in project.trials() if trial["arm"] == "token"]
    assert len(set(values)) == TRIALS, "no suggestion comes twice"


@pytest.mark.slow
def test_two_commands_share_a_budget(project):
    project.write(trials=TRIALS)
    project.seconds = 0.02
    commands = [project.start("--jobs=1") for _ in range(2)]
    assert [command.wait(PATIENCE) for command in commands] == [0, 0]
    numbers = [(trial["arm"], trial["number"]) for trial in project.trials()]
    assert sorted(numbers) == [(arm, number) for arm in ("gspo", "token") for number in range(TRIALS)]
    assert len(project.steps()) == len(set(project.steps()))


@pytest.mark.parametrize("journal", [b'{"op_code":0,"worker_id":"x","study_na', b""])
def test_half_a_line_at_the_end_of_the_journal_is_cut(project, journal):
    project.write(trials=2)
    assert project.tune() == 0
    trials = project.trials()
    with (project.trials_file.parent / "storage.journal").open("ab") as file:
        file.write(journal)
    project.write(trials=3)
    assert project.tune() == 0
    assert [trial for trial in project.trials() if trial["number"] < 2] == trials
