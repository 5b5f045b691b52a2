"""What all tests share. Nothing reaches the network, and every process has one thread, as the workers of a sweep do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fake_sweep import FakeSweep

from grpolab.paths import Results

# Read when torch and the Hugging Face libraries are imported, so set before any test module is.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    return Results.open(tmp_path / "results")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables take seconds to create: once for all tests."""
    from grpolab.run.tracking.store import Store

    folder = tmp_path_factory.mktemp("store")
    Store(f"sqlite:///{folder}/mlflow.db", folder / "artifacts").settle()
    return folder / "mlflow.db"


@pytest.fixture
def tracked_results(tmp_path: Path, empty_store: Path) -> Results:
    """A results folder with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Results.open(tmp_path)


@pytest.fixture
def fake_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSweep:
    """Sweeps with workers that cost nothing."""
    return FakeSweep(tmp_path, monkeypatch)
