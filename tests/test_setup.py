"""The environment: every package has the hash that is written down, and one that has lost a file is noticed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from grpolab.run.provenance import hash_lock

ROOT = Path(__file__).parents[1]
LISTS = [file for file in sorted((ROOT / "requirements").glob("*.txt")) if file.name != "peers.txt"]  # not exact


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_package_has_an_exact_version_and_hashes(file: Path) -> None:
    text = file.read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert packages
    for line in packages:
        assert re.match(r"[a-z0-9.-]+==\S+( ; .*?)?\s+--hash=sha256:[0-9a-f]{64}\b", line), line


def test_setup_asks_for_the_hashes() -> None:
    assert "--require-hashes" in (ROOT / "requirements" / "setup.sh").read_text()
    assert "--require-hashes" in (ROOT / "requirements" / "smollm2.py").read_text()


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with an installed package, of which its installer wrote down three files."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "mine" / "data.bin").write_bytes(b"123")
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    record = "mine/__init__.py,sha256=x,6\nmine/data.bin,sha256=x,3\nmine/__pycache__/__init__.cpython-311.pyc,,\n"
    (info / "RECORD").write_text(record)
    return tmp_path


@pytest.fixture
def damaged() -> Callable[[list[str]], Iterator[tuple[str, str]]]:
    return runpy.run_path(str(ROOT / "requirements" / "whole.py"))["damaged"]


def test_a_whole_package_is_left_alone(packages: Path, damaged: Callable[..., Iterator[tuple[str, str]]]) -> None:
    assert list(damaged([str(packages)])) == []


@pytest.mark.parametrize("file", ["mine/__init__.py", "mine/data.bin", "mine-1.dist-info/RECORD"])
def test_a_file_that_is_gone_names_its_package(
    packages: Path, damaged: Callable[..., Iterator[tuple[str, str]]], file: str
) -> None:
    (packages / file).unlink()
    [(name, lost)] = damaged([str(packages)])
    assert (name, lost) == ("mine", file.rpartition("dist-info/")[2])


def test_a_file_cut_short_names_its_package(packages: Path, damaged: Callable[..., Iterator[tuple[str, str]]]) -> None:
    (packages / "mine" / "data.bin").write_bytes(b"1")
    assert list(damaged([str(packages)])) == [("mine", "mine/data.bin")]


def test_this_environment_is_whole() -> None:
    command = [sys.executable, "-I", str(ROOT / "requirements" / "whole.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_lock_is_known_by_its_versions_and_not_by_the_hashes_of_their_files(tmp_path: Path) -> None:
    """Else runs before and after a new list of hashes would be of two programs, and no report would compare them."""
    lock = ROOT / "requirements" / "lock.txt"
    committed = pd.read_parquet(ROOT / "results" / "reference" / "outcomes.parquet", columns=["lock_sha256"])
    assert {hash_lock(lock)} == {*committed["lock_sha256"]}
    text, copy = lock.read_text(), tmp_path / "lock.txt"
    copy.write_text(re.sub(r"sha256:\w+", "sha256:0", text))
    assert hash_lock(copy) == hash_lock(lock)
    copy.write_text(text.replace("numpy==", "numpy==9.", 1))
    assert hash_lock(copy) != hash_lock(lock)
