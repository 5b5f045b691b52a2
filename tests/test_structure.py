"""The rooms and their arrows, and the habits of a room: read from the source itself."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "grpolab"
# Without what `grpolab init` copies, which is the user's.
FILES = sorted(file for file in SOURCE.rglob("*.py") if "template" not in file.parts)

LEAVES = {
    *("bounded", "content", "credentials", "equalities", "errors", "framework_metrics", "framework_names", "identity"),
    *("hub", "known_runs", "meanings", "new_project"),
    *("paths", "quantities", "records", "registry", "run_files", "seeds", "settings", "study_names", "terminal"),
    "vocabulary",
}
ROOMS = {"grpo", "tasks", "data", "models", "frameworks", "readers", "run", "sweep", "report"}
ROOMS |= {"doctor", "lint", "look", "studies"}
# Room -> what of the package it may import, besides itself and `grpolab` (version numbers).
ARROWS = {
    "tasks": LEAVES - {"paths"},
    "data": LEAVES | {"tasks"},
    "grpo": LEAVES - {"paths"} | {"tasks"},
    "models": LEAVES | {"grpo", "tasks"},
    "run": LEAVES | {"grpo", "tasks", "frameworks"},
    "sweep": LEAVES | {"run"},
    "report": LEAVES - {"settings", "registry"},
    "doctor": LEAVES - {"settings", "registry"} | {"report", "readers"},
    "lint": LEAVES | {"sweep"},
    "look": LEAVES - {"settings", "registry"} | {"report", "doctor", "readers"},
    "studies": LEAVES | {"run", "sweep", "report", "doctor", "look"},
    "frameworks": LEAVES - {"paths"} | {"grpo"},
    "readers": LEAVES - {"paths"} | {"frameworks"},
    **dict.fromkeys(LEAVES, LEAVES),
    "cli": LEAVES | ROOMS,
    "api": LEAVES | ROOMS | {"cli"},
    "__main__": {"cli"},
    "__init__": {"api"},
}
# Files that only a training run loads, and what it needs of other rooms.
IN_TRAINING = {
    "doctor/faults.py": {"grpo", "tasks"},
    "readers/trl_callback.py": {"run", "paths"},
    # And `grpolab geometry`, which computes with our own losses.
    "report/surrogate_tables.py": {"grpo", "settings", "frameworks"},
}
HEAVY = {"torch", "transformers", "datasets", "mlflow", "tokenizers"}
NEVER = {
    "grpo": {"hydra", "omegaconf", "mlflow", "optuna", "random"},
    "run": {"hydra", "omegaconf", "optuna", "random"},
    "sweep": {*HEAVY, "random"},
    "lint": {*HEAVY, "random"},
    "readers": {*HEAVY, "random"},
    "doctor": {*HEAVY, "hydra", "omegaconf", "random"},
    "report": {*HEAVY, "hydra", "omegaconf", "random"},
    "look": {*HEAVY, "hydra", "omegaconf", "random"},
}


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of everything imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports_of(file: Path) -> tuple[str, ...]:
    return tuple(imported(parsed(file)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_arrows(file: Path) -> None:
    room, needed = room_of(file), IN_TRAINING.get(str(file.relative_to(SOURCE)))
    forbidden = (ROOMS | LEAVES | {"cli"}) - {room} - ARROWS[room] - (needed or set())
    for name in imports_of(file):
        package, *parts = name.split(".")
        if package == "grpolab":
            assert parts[0] not in forbidden, f"{room} must not import {name}"
        else:
            assert needed or package not in NEVER.get(room, set()), f"{room} must not import {package}"


def test_every_file_is_in_a_room_that_the_arrows_know() -> None:
    assert {room_of(file) for file in FILES} == set(ARROWS)


def loaded_by(*rooms: list[str]) -> list[set[str]]:
    """What a fresh process has loaded after importing some modules, and after some more."""
    code = "".join(f"import sys, {', '.join(modules)}; print(*sys.modules)\n" for modules in rooms)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [{name.partition(".")[0] for name in line.split()} for line in done.stdout.splitlines()]


def modules_of(*rooms: str) -> list[str]:
    files = [file for file in FILES if room_of(file) in rooms and str(file.relative_to(SOURCE)) not in IN_TRAINING]
    return [".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in files]


def test_report_parent_and_leaves_start_without_heavy_packages() -> None:
    """The parent of a sweep, and whoever only reads settings or another framework's config, must not wait for torch.

    The report needs no settings either.
    """
    modules = modules_of("cli", "sweep", "studies", "lint", "readers", *LEAVES - {"seeds"})
    modules.remove("grpolab.studies.stored_runs")  # of `track verify` and `report --from mlflow`, which ask MLflow
    report, all_of_them = loaded_by(modules_of("report", "doctor"), [*modules, "grpolab.frameworks.options"])
    assert not (HEAVY | {"hydra", "omegaconf"}) & report
    assert not HEAVY & all_of_them


WRITERS = {"write_text", "write_bytes", "mkdir", "save", "save_pretrained", "to_csv", "to_parquet", "touch", "unlink"}
GLOBAL_DRAWS = {f"torch.{name}" for name in ("manual_seed", "rand", "randn", "randperm", "multinomial")}
PURE = [file for file in FILES if room_of(file) in ("grpo", "tasks")]


@pytest.mark.parametrize("file", PURE, ids=lambda file: str(file.relative_to(SOURCE)))
def test_grpo_writes_nothing_and_draws_from_no_global_generator(file: Path) -> None:
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called.rpartition(".")[2] not in WRITERS, called
        assert called not in ("open", "torch.seed", "torch.set_rng_state"), called
        assert not called.startswith(("np.random.", "numpy.random.")), called
        if called in GLOBAL_DRAWS and not any(keyword.arg == "generator" for keyword in node.keywords):
            assert (file.name, called) == ("loading.py", "torch.manual_seed"), called  # inside torch.random.fork_rng


# Dependencies that no module of the package imports, and what needs them.
USED_OTHERWISE = {
    "cmaes": "Optuna imports it for the sampler cmaes",
    "ipykernel": "runs the notebooks' cells",
    "jupytext": "`make notebooks` and the tests of the notebooks call it",
    "nbclient": "jupytext executes notebooks with it",
    "nbconvert": "`make notebooks` writes HTML with it",
}


def distribution(name: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def all_distributions() -> dict[str, list[str]]:
    """The distributions of each module that is installed: their lists of files are read for it."""
    return dict(packages_distributions())


def distributions_of(files: list[Path]) -> dict[str, set[str]]:
    """The distributions that bring each module that these files import; several bring parts of one, as mlflow's do."""
    ours = [file.stem for part in ("tests", "benchmarks", "requirements") for file in (ROOT / part).rglob("*.py")]
    modules = {name.partition(".")[0] for file in files for name in imports_of(file)}
    brings, others = all_distributions(), modules - sys.stdlib_module_names - {"grpolab", *ours}
    return {name: set(map(distribution, brings.get(name, ()))) for name in others}


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    """Both ways: nothing comes only because something else happens to bring it, and nothing is installed for nobody."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    whole = re.findall(r"\w+", extras.pop("all")[0].partition("[")[2])
    lines = [*project["dependencies"], *(line for name in whole for line in extras.pop(name))]
    optional = {re.split(r"[\s<>=!~;\[]", line)[0] for extra in extras.values() for line in extra}
    declared = {distribution(re.split(r"[\s<>=!~;\[]", line)[0]) for line in lines}
    bring = distributions_of(FILES)
    assert {name for name in bring if not bring[name] & declared} - optional == set(), "imported, and not declared"
    assert declared - set().union(*bring.values()) == set(USED_OTHERWISE), "declared, and nothing imports it"
    more = (ROOT / "requirements" / "lock.in").read_text().splitlines()
    locked = declared | {distribution(re.split(r"[\s<>=!~;\[#]", line)[0]) for line in more}
    others = [file for name in ("tests", "benchmarks", "notebooks") for file in (ROOT / name).rglob("*.py")]
    missing = {name for name, brought in distributions_of(others).items() if not brought & locked}
    assert missing <= {"trl", "IPython"}, "trl: .venv-bench has it; IPython: ipykernel's"


SCRIPTS = [file for folder in ("requirements", "benchmarks", "notebooks") for file in (ROOT / folder).glob("*.py")]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_scripts_import_what_is_there(file: Path) -> None:
    """Nothing else runs most of these scripts in `make test`."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpolab"):
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}"), name
