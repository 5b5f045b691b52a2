"""What all tests share. Nothing reaches the network, and every process has one thread, as the workers of a sweep do.

`make test` runs them in as many processes as there are cores (pytest-xdist), each with a part of the list; one that has
nothing left takes over from the end of another's part. So tests of a file, and what they share, mostly stay together.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pytest
import yaml
from fake_sweep import FakeSweep

import grpolab.bounded  # noqa: F401  (before `yaml.SafeLoader` is another)
from grpolab import known_runs
from grpolab.paths import Results, write_atomic
from grpolab.run.memory import cores
from grpolab.sweep.compose import Composer

# Tests change a study's tables in memory, so nothing that was computed of a run's journal is kept here.
known_runs.SETTLED_SECONDS = math.inf

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

# Read when torch and the Hugging Face libraries are imported, so set before any test module is.
os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
# A shell without job control starts what stands before `&` deaf to Ctrl-C, and so is all that the tests would start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Containers like to set it: every process that a test starts would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
MOST_PROCESSES = 8  # each takes a gigabyte
# What is imported stays, so nothing of it is looked through for garbage: that would be a tenth of the tests' time.
gc.disable()
yaml.SafeLoader = yaml.CSafeLoader  # Hydra's files, in a tenth of the time; our own reader is made of PyYAML's


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`."""
    return min(cores(), MOST_PROCESSES)


@pytest.fixture(scope="session", autouse=True)
def composed_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Hydra takes a tenth of a second for each choice of groups, and the tests ask for the same ones again and again.

    Once for all tests, in a folder that the processes of xdist share, for each state of the files of conf/ when a
    composer first asks: a copy has the same sizes and times.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == "master" else folder.parent) / "composed"
    folder.mkdir(exist_ok=True)
    compose, states = Composer._base, WeakKeyDictionary[Composer, list[Any]]()

    def state_of(composer: Composer) -> list[Any]:
        confs = [*composer.own_confs, composer.conf.resolve()]
        files = [(file.relative_to(conf), file.stat()) for conf in confs for file in sorted(conf.rglob("*.yaml"))]
        return [(str(name), of.st_size, of.st_mtime_ns) for name, of in files]

    def base(composer: Composer, choices: dict[str, str]) -> bytes:
        key = tuple(sorted(choices.items()))
        if key not in composer._bases:
            state = states[composer] = states.get(composer) or state_of(composer)
            kept = folder / hashlib.sha256(repr((key, state)).encode()).hexdigest()
            if not kept.exists():
                write_atomic(kept, compose(composer, choices), durable=False)
            composer._bases[key] = kept.read_bytes()
        return composer._bases[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "_base", base)
        yield


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """An empty results folder."""
    return Results.open(tmp_path / "results")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """MLflow's tables take seconds to create: once for all tests; a store that a test makes gets a copy of them.

    MLflow also reads all its migrations to know the last of them, at each store that is opened: once, too.
    """
    from mlflow.store.db import utils

    from grpolab.run.tracking.store import Store

    create, tables = utils._initialize_tables, sqlite3.connect(":memory:", check_same_thread=False)

    def create_once(engine: Engine) -> None:
        with closing(engine.raw_connection()) as connection:
            if tables.execute("select count(*) from sqlite_master").fetchone() == (0,):
                create(engine)
                connection.driver_connection.backup(tables)
            else:
                tables.backup(connection.driver_connection)

    folder = tmp_path_factory.mktemp("store")
    with closing(tables), pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_initialize_tables", create_once)
        patch.setattr(utils, "_get_latest_schema_revision", cache(utils._get_latest_schema_revision))
        Store(f"sqlite:///{folder}/mlflow.db", Results(folder))
        yield folder / "mlflow.db"


@pytest.fixture
def tracked_results(tmp_path: Path, empty_store: Path) -> Results:
    """A results folder with an empty store."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Results.open(tmp_path)


@pytest.fixture
def fake_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSweep:
    """Sweeps with workers that cost nothing."""
    return FakeSweep(tmp_path, monkeypatch)
