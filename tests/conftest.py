"""What all tests share. Nothing reaches the network, and every process has one thread, as the workers of a sweep do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpolab.paths import Results

# Read when torch and the Hugging Face libraries are imported, so set before any test module is.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    return Results.open(tmp_path / "results")
