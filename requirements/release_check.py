"""Check what would be released: `make release-check`, or `python requirements/release_check.py [3.11 3.12 ...]`.

Builds sdist and wheel of the last commit into dist/, the wheel from the sdist, with the licences of all locked packages
and a bill of materials (CycloneDX) beside them. Then, for each Python: a bare environment, the wheel with all that
trains, the study `smoke` and a diagnosis of one of its runs, in an empty folder. Exit code 1 if anything fails or a
Python is missing.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
BACKEND = "from setuptools import build_meta; print(build_meta.build_{kind}({folder!r}))"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
UNKNOWN = "unknown"


def main(pythons: Sequence[str]) -> int:
    """Build, install and try; print a line for each step."""
    version, wrong = read_version(), []
    tag = run(["git", "tag", "--points-at", "HEAD", "--list", "v*"], ROOT).strip()
    if tag and f"v{version}" not in tag.split():
        wrong.append(f"the tag {tag} is not v{version}, the version in src/grpolab/__init__.py")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    wheel = build_both()
    print(f"built: {', '.join(sorted(file.name for file in DIST.iterdir()))}", flush=True)
    packages = describe(locked())
    (DIST / "licences.md").write_text(licence_table(packages))
    (DIST / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(packages, version), indent=1) + "\n")
    odd = ", ".join(name for name, (_, licence) in packages.items() if licence == UNKNOWN)
    print(f"licences of {len(packages)} packages; unknown: {odd or 'none'}", flush=True)
    for python in pythons:
        program = shutil.which(f"python{python}")
        problem = try_wheel(program, wheel, version) if program else f"python{python} is not on PATH"
        print(f"Python {python}: {problem or 'installed, smoke and diagnose done'}", flush=True)
        wrong += [f"Python {python}: {problem}"] if problem else []
    print(*wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong))


def read_version(root: Path = ROOT) -> str:
    """Return the version of the package, without importing it."""
    tree = ast.parse((root / "src" / "grpolab" / "__init__.py").read_text())
    values = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return str(ast.literal_eval(values["__version__"]))


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Return what a command prints; raise CalledProcessError, with its output, if it fails."""
    return subprocess.run(command, cwd=folder, check=True, text=True, capture_output=True).stdout


def build_both() -> Path:
    """Write the sdist of what is committed, and the wheel that is made of the sdist; return the wheel."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run(["git", "archive", "--output", folder / "source.tar", "HEAD"], ROOT)
        for archive, kind in (("source.tar", "sdist"), (None, "wheel")):
            source = folder / kind
            with tarfile.open(folder / archive if archive else next(DIST.glob("*.tar.gz"))) as tar:
                tar.extractall(source, filter="data")
            inner = source if archive else next(source.iterdir())
            run([sys.executable, "-c", BACKEND.format(kind=kind, folder=str(DIST))], inner)
    return next(DIST.glob("*.whl"))


def try_wheel(program: str, wheel: Path, version: str) -> str:
    """Install the wheel in a bare environment of one Python and use it in an empty folder; return what went wrong."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        grpolab, pip = folder / "env" / "bin" / "grpolab", [folder / "env" / "bin" / "python", "-m", "pip", "install"]
        (folder / "empty").mkdir()
        try:
            run([program, "-m", "venv", folder / "env"], folder)
            run(
                [*pip, "--quiet", "--index-url", CPU_TORCH, "--extra-index-url", "https://pypi.org/simple", torch()],
                folder,
            )
            run([*pip, "--quiet", f"{wheel}[train,track]"], folder)
            said = run([grpolab, "--version"], folder / "empty")
            if f"grpolab {version}," not in said:
                return f"--version says {said.strip()}, not {version}"
            run([grpolab, "sweep", "smoke"], folder / "empty")
            runs = sorted((folder / "empty" / "results" / "runs").iterdir())
            run([grpolab, "diagnose", runs[0].name], folder / "empty")
        except subprocess.CalledProcessError as error:
            return f"{' '.join(map(str, error.cmd))} failed: {(error.stderr or error.stdout).strip()[-500:]}"
    return ""


def locked() -> dict[str, str]:
    """Return name -> version of every package of lock.txt, and of torch, which has no hash there."""
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", f"{lock}\n{torch()}", re.MULTILINE))


def torch() -> str:
    """Return the requirement of torch, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(line for line in project["optional-dependencies"]["train"] if line.startswith("torch=="))


def describe(packages: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return name -> version and licence; the licence is unknown where the package is not installed here."""
    described = {}
    for name, version in packages.items():
        try:
            described[name] = version, licence_of(distribution(name))
        except PackageNotFoundError:
            described[name] = version, UNKNOWN
    return described


def licence_of(package: Distribution) -> str:
    """Return a package's licence as its metadata has it: the expression, else the classifiers, else a short text."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers: Iterable[str] = metadata.get_all("Classifier") or ()
    names = [line.rpartition(":: ")[2] for line in classifiers if line.startswith("License :: OSI Approved :: ")]
    text = str(metadata.get("License") or "").strip().splitlines()[:1]
    return " AND ".join(names) or (text[0] if text and len(text[0]) < 60 else "") or UNKNOWN


def licence_table(packages: dict[str, tuple[str, str]]) -> str:
    """Return the licences as a table, sorted by name."""
    rows = [f"| {name} | {version} | {licence} |" for name, (version, licence) in sorted(packages.items())]
    return "\n".join(["| package | version | licence |", "|---|---|---|", *rows]) + "\n"


def bill_of_materials(packages: dict[str, tuple[str, str]], version: str) -> dict[str, object]:
    """Return the locked packages as CycloneDX 1.6."""
    components = [
        {"type": "library", "name": name, "version": release, "purl": f"pkg:pypi/{name}@{release}"}
        | ({} if licence == UNKNOWN else {"licenses": [{"license": {"name": licence}}]})
        for name, (release, licence) in sorted(packages.items())
    ]
    product = {"type": "application", "name": "grpolab", "version": version, "purl": f"pkg:pypi/grpolab@{version}"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1} | {
        "metadata": {"component": product},
        "components": components,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PYTHONS))
