"""Optuna on the PostgreSQL that MLflow uses: the same values as from a journal, through kill -9 of the command."""

from functools import partial

import pytest
from fake_sweep import wait_for
from tuning_project import TuningProject, kill

from grpolab.errors import RequestError
from grpolab.run.tracking.store import find_problem
from grpolab.sweep.tuning.arms import SCHEMA, open_storage

pytestmark = pytest.mark.optional
GRID = {"learning_rate": {"choices": [1.0e-4, 1.0e-3]}, "epsilon": {"choices": [0.1, 0.3]}}
PATIENCE = 300.0


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose study tries four points of a grid."""
    made = TuningProject(tmp_path, monkeypatch)
    made.write(space=GRID, sampler="grid", trials=4, pruner={"name": "none"})
    return made


def test_a_killed_tuning_on_postgresql_finds_what_a_journal_finds(project, cluster, database, tmp_path):
    def trials():
        """Without their numbers: one that a killed command left is retried under another."""
        return [{key: value for key, value in trial.items() if key != "number"} for trial in project.trials()]

    assert project.tune() == 0
    straight = trials()
    project.root, project.log, project.seconds = tmp_path / "killed", tmp_path / "killed.txt", 0.05
    for steps in (20, 60):
        command = project.start("--jobs=1", f"--storage={database}")
        wait_for(partial(project.far_enough, command, steps), PATIENCE)
        kill(command)
    assert project.tune(storage=database) == 0
    assert trials() == straight
    name = database.rpartition("/")[2]
    complete = cluster.query(f"select count(*) from {SCHEMA}.trials where state = 'COMPLETE'", name)
    assert complete == str(len(straight))
    assert find_problem(database) is None, "MLflow's tables are beside it"


def test_a_storage_that_refuses_is_one_sentence(cluster, database):
    wrong = {
        database.replace("/db_", "/none_"): "does not exist",
        database.replace(cluster.address, "127.0.0.1:9"): "Connection refused",
    }
    for uri, said in wrong.items():
        with pytest.raises(RequestError, match=said) as refusal:
            open_storage(uri, "mine")
        assert len(refusal.value.problems) == 1
    open_storage(database, "mine")
    cluster.query(f"update {SCHEMA}.alembic_version set version_num = 'v99.0.0'", database.rpartition("/")[2])
    with pytest.raises(RequestError, match=r"cannot be opened: The runtime optuna version .* is no longer compatible"):
        open_storage(database, "mine")


def test_a_storage_that_is_lost_ends_the_command_with_one_sentence(project, cluster, database):
    project.seconds = 0.1
    command = project.start("--jobs=1", f"--storage={database}")
    wait_for(partial(project.far_enough, command, 20), PATIENCE)
    cluster.kill()
    try:
        assert command.wait(PATIENCE) == 1
    finally:
        cluster.start()
    said = (project.folder / "said.txt").read_text()
    assert "was lost (" in said
    assert "Traceback" not in said
    assert project.tune(storage=database) == 0
