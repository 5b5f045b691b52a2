"""What the tests of the tuner share."""

import pytest
from tuning_project import TuningProject

from grpolab.sweep.compose import Composer
from grpolab.sweep.tuning import arms


@pytest.fixture(scope="session")
def composer():
    """What Hydra made of conf/ once: a tenth of a second for each choice of groups."""
    return Composer()


@pytest.fixture
def project(tmp_path, monkeypatch, composer):
    """A project with the study `mine`."""
    monkeypatch.setattr(arms, "Composer", lambda: composer)
    return TuningProject(tmp_path, monkeypatch)
