"""Which installed packages lack a file, or have one of another size, by what their installer wrote down (RECORD).

A line for each, `NAME: FILE`, with the first of its files, and exit code 1; nothing and 0 where the environment is whole.
It takes a second, and imports nothing of what it looks at: a damaged package may be any.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions


def damaged(places: list[str]) -> Iterator[tuple[str, str]]:
    """Names of the packages below some folders that are not as they were installed, each with a file."""
    for package in distributions(path=places):
        if file := _damaged_file(package):
            yield package.name, file


def _damaged_file(package: Distribution) -> str | None:
    if package.files is None:
        return "RECORD"
    for file in package.files:
        if file.suffix == ".pyc":  # Python's own, made again when it is missed
            continue
        try:
            size = package.locate_file(file).stat().st_size  # type: ignore[attr-defined]
        except OSError:
            return str(file)
        # Those that name a folder are rewritten where an environment is moved: scripts, and what says where we are.
        names_a_folder = file.parts[0] == ".." or file.suffix == ".pth" or file.parent.suffix == ".dist-info"
        if file.size not in (None, size) and not names_a_folder:
            return str(file)
    return None


if __name__ == "__main__":
    found = list(damaged(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})))
    for name, file in found:
        print(f"{name}: {file}")
    sys.exit(bool(found))
