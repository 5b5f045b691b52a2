"""What lies in the working directory is imported by no process that a command starts, unless a run names it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from fake_runs import wait_for_server
from tiny import tiny_settings

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.report.page import _safe_path
from grpolab.run import parallel
from grpolab.run.tracking import check_answer, synchronise
from grpolab.studies import ui

SOURCE = Path(__file__).parents[2] / "src" / "grpolab"
# Of the standard library, and installed: each is imported by one of the processes.
NAMES = ("random", "heapq", "mlflow", "numpy", "yaml", "sqlalchemy", "uvicorn", "uuid", "signal", "selectors", "torch")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of somebody who names them badly; each leaves a mark when it runs."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in NAMES:
        mark = f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')"
        (folder / f"{name}.py").write_text(f"{mark}\nraise SystemExit('{name} of the working directory')\n")
    monkeypatch.chdir(folder)
    return tmp_path / "ran"


def test_the_decoys_work(here: Path) -> None:
    subprocess.run([sys.executable, "-c", "import heapq"], check=False, capture_output=True)
    assert here.read_text() == "heapq "


def mirror(results: Results) -> None:
    assert synchronise(results, f"sqlite:///{results.store}", []) is None


def check_store(results: Results) -> None:
    with pytest.raises(RequestError, match=r"cannot be used: .*refused"):
        check_answer("http://127.0.0.1:9")


def show_pages_of_mlflow(results: Results) -> None:
    port = ui.free_port(41_000)
    with ui.start_server(f"sqlite:///{results.store}", port) as server:
        wait_for_server(server, port)


def start_other_processes_of_a_run(results: Results) -> None:
    with parallel.start_processes(tiny_settings(data_parallel=2), results):
        pass


def draw(results: Results) -> None:
    with _safe_path(), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(abs, -1).result() == 1


SLOW = [check_store, show_pages_of_mlflow, start_other_processes_of_a_run, draw]
STARTS = [mirror, *(pytest.param(start, marks=pytest.mark.slow) for start in SLOW)]


@pytest.mark.parametrize("start", STARTS)
def test_what_a_command_starts_imports_nothing_from_here(
    start: Callable[[Results], None], here: Path, tracked_results: Results
) -> None:
    start(tracked_results)
    assert not here.exists()


def test_no_process_is_started_otherwise() -> None:
    """`sys.executable` without -P is nowhere but in `paths.PYTHON`."""
    named = {file.name: len(re.findall(r"sys\.executable", file.read_text())) for file in SOURCE.rglob("*.py")}
    assert {name: count for name, count in named.items() if count} == {"paths.py": 1}
