"""The environment: every package has the hash that is written down, and one that has lost a file is noticed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from grpolab.run.provenance import hash_lock

ROOT = Path(__file__).parents[1]
LISTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_package_has_an_exact_version_and_hashes(file: Path) -> None:
    for installer in ("setup.sh", "smollm2.py"):
        assert "--require-hashes" in (ROOT / "requirements" / installer).read_text()
    text = file.read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert packages
    for line in packages:
        assert re.match(r"[a-z0-9.-]+==\S+( ; .*?)?\s+--hash=sha256:[0-9a-f]{64}\b", line), line


def test_uv_lock_has_the_versions_of_the_other_lists_and_no_place_of_one_machine() -> None:
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"\w+://[^/]+", text)) == {"https://pypi.org", "https://files.pythonhosted.org"}
    locked: dict[str, set[str]] = {}
    for package in tomllib.loads(text)["package"]:
        locked.setdefault(package["name"], set()).add(package.get("version", ""))
    pinned: dict[str, set[str]] = {}
    for name in ("lock", "docs", "lora", "math"):
        for package, version in re.findall(
            r"^([\w.-]+)==([^\s;\\]+)", (LISTS[0].parent / f"{name}.txt").read_text(), re.M
        ):
            pinned.setdefault(package, set()).add(version)
    both = locked.keys() & pinned.keys()
    assert len(both) > 100
    assert {name: locked[name] for name in both} == {name: pinned[name] for name in both}


@pytest.mark.parametrize(
    ("file", "content"),
    [("mine/__init__.py", None), ("mine/data.bin", None), ("mine-1.dist-info/RECORD", None), ("mine/data.bin", b"1")],
)
def test_a_file_that_is_gone_or_cut_short_names_its_package(tmp_path: Path, file: str, content: bytes | None) -> None:
    """Of a package of which its installer wrote down three files."""
    info = "Metadata-Version: 2.1\nName: mine\nVersion: 1\n"
    record = "mine/__init__.py,sha256=x,6\nmine/data.bin,sha256=x,3\nmine/__pycache__/__init__.cpython-311.pyc,,\n"
    files = {"mine/__init__.py": "x = 1\n", "mine/data.bin": "123"}
    for name, text in (files | {"mine-1.dist-info/METADATA": info, "mine-1.dist-info/RECORD": record}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    damaged = runpy.run_path(str(ROOT / "requirements" / "whole.py"))["damaged"]
    assert list(damaged([str(tmp_path)])) == []
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    assert list(damaged([str(tmp_path)])) == [("mine", file.rpartition("dist-info/")[2])]


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
