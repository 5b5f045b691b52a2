"""Which installed packages lack a file, or have one of another size, by what their installer wrote down (RECORD).

A line for each, `NAME: FILE`, with the first of its files, and exit code 1; nothing and 0 where all is whole. It takes
a second, and imports nothing of what it looks at: a damaged package may be any.
"""

from __future__ import annotations

import csv
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath


def damaged(places: list[str]) -> Iterator[tuple[str, str]]:
    """Names of the packages below some folders that are not as they were installed, each with a file."""
    for package in distributions(path=places):
        if file := _damaged_file(package):
            yield package.name, file


def _damaged_file(package: Distribution) -> str | None:
    record = package.read_text("RECORD")  # `package.files` leaves out what is not there
    if not record:
        return "RECORD"
    for name, _, size in csv.reader(record.splitlines()):
        file = PurePosixPath(name)
        if file.suffix == ".pyc":  # Python's own, made again when it is missed
            continue
        try:
            found = Path(str(package.locate_file(file))).stat().st_size
        except OSError:
            return name
        # Those that name a folder are rewritten where an environment is moved: scripts, and what says where we are.
        names_a_folder = file.parts[0] == ".." or file.suffix == ".pth" or file.parent.suffix == ".dist-info"
        if size and int(size) != found and not names_a_folder:
            return name
    return None


if __name__ == "__main__":
    found = list(damaged(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})))
    for name, file in found:
        print(f"{name}: {file}")
    sys.exit(bool(found))
