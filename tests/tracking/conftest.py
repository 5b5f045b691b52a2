"""A results folder with an empty MLflow store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpolab.paths import Results
from grpolab.run.tracking.store import Store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables take seconds to create: once for all tests."""
    folder = tmp_path_factory.mktemp("store")
    Store(f"sqlite:///{folder}/mlflow.db", folder / "artifacts").settle()
    return folder / "mlflow.db"


@pytest.fixture
def results(tmp_path: Path, empty_store: Path) -> Results:
    """A results folder with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Results(tmp_path)
