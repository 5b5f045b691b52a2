"""A PostgreSQL and an MLflow server on it. `make test-all WHAT=server` installs the driver and runs this folder."""

import shutil
import sys
from pathlib import Path

import pytest
from mlflow_server import MlflowServer
from postgres import PASSWORD, PROGRAMS, postgres

from grpolab.paths import Results
from grpolab.run.tracking import ENVIRONMENT

sys.path.append(str(Path(__file__).parents[1] / "sweep" / "tuning"))  # its project serves here too


@pytest.fixture(scope="session")
def cluster():
    """The server, whose password is in the environment."""
    assert PROGRAMS, "no PostgreSQL here: apt-get install postgresql"
    with postgres() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "PGPASSWORD": PASSWORD}.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="session")
def template(cluster, tmp_path_factory):
    """A database with MLflow's empty tables, whose copies take a second instead of ten."""
    from grpolab.run.tracking.store import Store

    Store(cluster.database("template_mlflow"), Results(tmp_path_factory.mktemp("results")))
    return "template_mlflow"


@pytest.fixture
def database(cluster, template, request):
    """The URI of a database of the test's own, with MLflow's tables."""
    name = f"db_{abs(hash(request.node.name))}"
    cluster.query(f"create database {name} template {template}")
    return f"postgresql://lab@{cluster.address}/{name}"


@pytest.fixture
def server(database, tmp_path):
    """A server on the test's database."""
    running = MlflowServer(database, tmp_path)
    yield running
    running.kill()
    shutil.rmtree(tmp_path / "remote", ignore_errors=True)


@pytest.fixture
def results(tmp_path):
    """An empty results folder."""
    return Results.open(tmp_path / "results")
