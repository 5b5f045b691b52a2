"""Check what would be released: `make release-check`, or `python requirements/release_check.py [3.11 3.12 ...]`.

Builds sdist and wheel of the last commit into dist/, the wheel from the sdist, with the licences of all locked packages
and a bill of materials (CycloneDX) beside them. Then, for each Python, a bare environment and an empty folder: the
wheel alone and what it does without extras, then torch as requirements/setup.sh chooses it (TORCH_BACKEND), all that
trains, the study `smoke` and a diagnosis of one of its runs. As there, uv installs if UV or PATH has it, else pip. Exit
code 1 if anything fails, a Python is missing, or one was tried without torch because there is no such build for it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
BACKEND = "from setuptools import build_meta; print(build_meta.build_{kind}({folder!r}))"
# Every module is compiled and imported, up to a package that an extra brings.
IMPORT_ALL = """
import importlib, pkgutil, grpolab
from grpolab.cli import EXTRA_OF
for module in pkgutil.walk_packages(grpolab.__path__, "grpolab."):
    try:
        module.name == "grpolab.__main__" or importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA_OF:
            raise
"""
LOG = [{"step": step, "reward": 0.5, "clip_ratio/region_mean": 0.0, "loss": 0.0} for step in range(9)]
LIGHT = ["diagnose log.jsonl", "lint clip_range", "report --from trl ."]
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


def run(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """Return what a command prints; raise CalledProcessError, with its output, if it fails.

    It does not see PYTHONPATH, which would put a checkout before what is installed.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return subprocess.run(command, cwd=folder, env=environment, check=True, text=True, capture_output=True).stdout


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
        environment, folder = Path(place) / "env", Path(place) / "empty"
        python, grpolab = environment / "bin" / "python", environment / "bin" / "grpolab"
        folder.mkdir()
        try:
            run([program, "-m", "venv", environment], folder)
            install(environment, f"{wheel}")
            said = run([grpolab, "--version"], folder)
            if f"grpolab {version}," not in said:
                return f"--version says {said.strip()}, not {version}"
            run([python, "-c", IMPORT_ALL], folder)
            (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in LOG))
            for words in LIGHT:
                run([grpolab, *words.split()], folder)
            if problem := install_torch(environment):
                return f"light only, nothing was trained: {problem}"
            install(environment, f"{wheel}[train,track]")
            run([grpolab, "sweep", "smoke"], folder)
            runs = sorted((folder / "results" / "runs").iterdir())
            run([grpolab, "diagnose", runs[0].name], folder)
        except subprocess.CalledProcessError as error:
            return f"{' '.join(map(str, error.cmd))} failed: {(error.stderr or error.stdout).strip()[-500:]}"
    return ""


def install(environment: Path, package: str) -> None:
    """Install a package in an environment; print the seconds that it takes, and how large the environment is then."""
    started, python, uv = time.monotonic(), environment / "bin" / "python", os.environ.get("UV", shutil.which("uv"))
    command = [uv, "pip", "install", "-q", "--python", python] if uv else [python, "-m", "pip", "install", "-qq"]
    run([*command, package], environment)
    size = sum(file.lstat().st_size for file in environment.rglob("*") if file.is_file()) / 1e6
    print(f"{package}: {time.monotonic() - started:.0f} s, then {size:.0f} MB", flush=True)


def install_torch(environment: Path) -> str:
    """Install torch as requirements/setup.sh chooses it; return why it does not install."""
    try:
        run([ROOT / "requirements" / "setup.sh"], ROOT, VENV=str(environment), ONLY_TORCH="1")
    except subprocess.CalledProcessError as error:
        backend = os.environ.get("TORCH_BACKEND", "auto")
        return f"{torch()} with TORCH_BACKEND={backend} does not install here:\n{error.stderr.strip()[-1000:]}"
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
