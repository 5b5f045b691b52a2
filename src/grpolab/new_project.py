"""`grpolab init FOLDER` copies `template/`: a project with tasks, a study and the files around them."""

from __future__ import annotations

import shutil
from pathlib import Path

from grpolab.errors import RequestError
from grpolab.paths import git

TEMPLATE = Path(__file__).parent / "template"
PLACES = {"gitignore": ".gitignore", "ci.yml": ".github/workflows/ci.yml"}  # hidden files are no package data


def make_project(folder: Path) -> list[Path]:
    """Write a new project into a folder that is absent or empty; return its files. Raises RequestError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise RequestError(f"init {folder}: the folder cannot be made: {error.strerror}") from error
    if not is_empty:
        raise RequestError(f"init {folder}: the folder must be new or empty")
    files = []
    for source in sorted(file for file in TEMPLATE.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
        name = source.relative_to(TEMPLATE).as_posix()
        files.append(folder / PLACES.get(name, name))
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, files[-1])
    if git(folder, "rev-parse", "--git-dir") is None:
        git(folder, "init", "--quiet")
    return files
