"""What all tests share. Nothing reaches the network, and every process has one thread, as the workers of a sweep do.

`make test` runs them in as many processes as there are cores (pytest-xdist), each with a part of the list; one that has
nothing left takes over from the end of another's part. So tests of a file, and what they share, mostly stay together.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_sweep import FakeSweep

from grpolab.paths import Results, project_root
from grpolab.run.memory import cores
from grpolab.sweep.compose import Composer

# Read when torch and the Hugging Face libraries are imported, so set before any test module is.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
# A shell without job control starts what stands before `&` deaf to Ctrl-C, and so is all that the tests would start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Containers like to set it: every process that a test starts would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
MOST_PROCESSES = 8  # each takes a gigabyte


def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`."""
    return min(cores(), MOST_PROCESSES)


@pytest.fixture(scope="session", autouse=True)
def composed_once() -> Iterator[None]:
    """Hydra takes a tenth of a second for each choice of groups, and the tests ask for the same ones again and again.

    Once for all tests of a process, from the project's own conf/ alone, which no test changes.
    """
    conf, compose, bases = project_root() / "conf", Composer._base, dict[tuple[tuple[str, str], ...], bytes]()

    def base(composer: Composer, choices: dict[str, str]) -> bytes:
        if composer.own_confs or composer.conf.resolve() != conf:
            return compose(composer, choices)
        key = tuple(sorted(choices.items()))
        if key not in bases:
            bases[key] = compose(composer, choices)
        return bases[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "_base", base)
        yield


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    return Results.open(tmp_path / "results")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables take seconds to create: once for all tests."""
    from grpolab.run.tracking.store import Store

    folder = tmp_path_factory.mktemp("store")
    Store(f"sqlite:///{folder}/mlflow.db", Results(folder))
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
