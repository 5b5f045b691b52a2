"""All tests of tracking have a store, and the mirror's own settings of MLflow."""

from __future__ import annotations

import pytest

from grpolab.paths import Results
from grpolab.run.tracking import ENVIRONMENT


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them MLflow keeps a connection to a file that was replaced."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def results(tracked_results: Results) -> Results:
    """A results folder with an empty store."""
    return tracked_results
