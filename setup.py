"""Puts what lies beside the package into it when it is built: conf/, experiments/ and the committed outcome.

`grpolab.paths.shipped_root` finds the copy; a checkout, editable or not, is its own.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("conf", "experiments", "docs/lint.md", "results/reference", "CITATION.cff")


class WithShipped(build_py):
    """Copies the files of the repository that an installed program needs."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "grpolab" / "shipped"
        shutil.rmtree(target, ignore_errors=True)
        for name in SHIPPED:
            source, place = Path(name), target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, place) if source.is_dir() else shutil.copy2(source, place)


setup(cmdclass={"build_py": WithShipped})
