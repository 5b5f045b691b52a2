"""A user's module is read without running it: packages without __init__.py, folders on sys.path, variables."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from grpolab.content import VARIABLE, environment_read, sources

FOLDERS = [
    "'lib'", "'{here}/lib'", "os.path.join(os.path.dirname(__file__), 'lib')", "str(Path(__file__).parent / 'lib')",
    "str(Path(__file__).resolve().parents[1] / 'project' / 'lib')", "f'{{os.path.dirname(__file__)}}/lib'",
    "os.path.abspath('lib')",
]  # fmt: skip
WRITTEN = [
    "os.environ['JUDGE']", "os.environ.get('JUDGE', '')", "os.getenv('JUDGE')", "environ['JUDGE']",
    "getenv('JUDGE', 'x')", "os.environ.setdefault('JUDGE', 'x')", "'JUDGE' in os.environ",
    "f'{os.environ[\"JUDGE\"]}/score'",
]  # fmt: skip


def test_variables_that_a_module_asks_for() -> None:
    for code in WRITTEN:
        assert VARIABLE.search(f"import os\nx = {code}\n".encode()), code
    assert not VARIABLE.search(b"import os\nx = {'JUDGE': 1}['JUDGE']; y = x.get('A'); os.environ[name]; env = 1")


def test_a_run_writes_down_what_was_asked_for_and_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards.py").write_text("import os, helping\nos.getenv('JUDGE_TOKEN'); os.getenv('GONE')\n")
    (tmp_path / "helping.py").write_text("import os\nos.environ['SIZE']; os.environ['PLACE']\n")
    monkeypatch.chdir(tmp_path)
    for name, value in {"JUDGE_TOKEN": "abc", "SIZE": "12", "PLACE": "https://lab:hunter2@host", "N": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GONE", raising=False)
    task = {"name": "custom", "path": "rewards.py:Task", "options": {"key": "${oc.env:N}"}}
    settings = {"task": task, "reward": {"function": "rewards.py:score"}}
    digest = {name: hashlib.sha256(value.encode()).hexdigest()[:8] for name, value in (("SIZE", "12"), ("N", "3"))}
    assert environment_read(settings) == {"GONE": None, "JUDGE_TOKEN": "set", "PLACE": "set"} | digest


LOADS = """
import sys
from grpolab.errors import RequestError
from grpolab.tasks.imports import load_object
for _ in range(2):
    try:
        print(load_object("reward.function", sys.argv[1])("", "", ""))
    except RequestError as error:
        print(error)
"""


def loaded(folder: Path, path: str, **files: str) -> list[str]:
    """What a user's reward scores, or why it is refused, the first time and the second, with files beside it."""
    write(folder, **files)
    done = subprocess.run([sys.executable, "-P", "-c", LOADS, path], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize("package", ["mine", "mine.deep.deeper"])
def test_packages_without_an_init_file(tmp_path: Path, package: str) -> None:
    rewards = f"from {package}.helper import one\nfrom . import other\ndef score(*given): return one\n"
    write(tmp_path.joinpath(*package.split(".")), rewards=rewards, helper="one = 0.5\n", other="")
    assert loaded(tmp_path, f"{package}.rewards:score") == ["0.5", "0.5"]
    names = {f"{package}.{name}" for name in ("rewards", "helper", "other")}
    assert sources(f"{package}.rewards", tmp_path).keys() == names


REWARDS = """
import sys
from pathlib import Path
sys.path.insert(0, {folder})
from helping import one
score = lambda *_: one
"""


@pytest.mark.parametrize("added", FOLDERS)
def test_a_folder_on_the_path_is_followed_and_its_content_counts(tmp_path: Path, added: str) -> None:
    write(tmp_path / "project" / "lib", helping="one = 0.5\n")
    rewards = "import os\n" + REWARDS.format(folder=added.format(here=tmp_path / "project"))
    assert loaded(tmp_path / "project", "rewards.py:score", rewards=rewards) == ["0.5", "0.5"]
    before = sources("rewards", tmp_path / "project")
    assert before.keys() == {"rewards", "helping"}
    write(tmp_path / "project" / "lib", helping="one = 0.25\n")
    assert sources("rewards", tmp_path / "project") != before


def test_a_module_that_python_takes_from_another_folder_than_was_read_is_refused(tmp_path: Path) -> None:
    """A change of the one that runs would not be noticed."""
    write(tmp_path / "lib", helping="one = 0.5\n")
    write(tmp_path / "old", helping="one = 0.25\n")
    rewards = "OLD = 'old'\n" + REWARDS.format(folder="str(Path(__file__).parent / 'lib')")
    first, second = loaded(tmp_path, "rewards.py:score", rewards=rewards)
    assert second.endswith("start the command again")
    assert f"takes helping from {tmp_path / 'lib' / 'helping.py'}" in first


def test_a_folder_that_only_running_could_find_is_refused_with_what_to_write(tmp_path: Path) -> None:
    write(tmp_path / "lib", helping="one = 0.5\n")
    first, second = loaded(tmp_path, "rewards.py:score", rewards=REWARDS.format(folder="''.join(['l', 'ib'])"))
    assert first == second
    assert "imports helping from a folder on sys.path that its source does not name" in first
    assert "sys.path.insert(0, str(Path(__file__).parent / 'FOLDER'))" in first
