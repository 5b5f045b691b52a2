"""How much there is to read, as numbers that may only fall: what a module pulls in, files, rooms, circles, names."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from test_structure import FILES, ROOT, SOURCE, imported, parsed

MODULES = {
    ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES
}

# Lines that a module pulls in by its imports, those inside functions too, but not what it loads by name.
# Of report.page 180 are for kinds and rollouts, 380 for the tables of how many seeds a claim needs, 210 for the
# statistics of learning rates and their table, 165 for what is kept of runs that were read (the engine lost 440 by it).
# Of run.train 120 are for data sets, stop strings and system prompts, 35 for weights in shards. Of all of them
# 35 are for a program that is installed, and finds its files and the user's, 40 to 90 for plugins and code that
# settings name by its path, 35 for the names of the API.
PULLED_IN = {"run.train": 7440, "sweep.engine": 7831, "report.page": 7630, "doctor.page": 6031}
LONGEST_FILE = 450
# With the page of a study (look/), which came after the house was rebuilt: 1,000 lines of source, 1,030 of tests.
# Then how many seeds a claim needs (grpolab power and two tables): 740 of source.
# Then the files of every framework, logs as people paste them, and a doctor that says what is normal: 3,500 of source.
# The benchmarks with a self-check of the rule on residuals of committed runs (90 lines), and ten of tests.
# A note on scores of few evaluations: 20 of source, 20 of tests.
# Then a table of each arm's best rate, and a verifier that errs, the cosine of gradients: 130 of source, 50 of tests.
# The sampler as another policy: 480 of source, 490 of tests, 350 of the core and of run.train.
# Presets as of today beside those of the vectors, and what drifts from them: 460 of source, 110 of tests.
# Six losses of 2025 and 2026 and the weights of advantages: 190 of source, 220 of tests.
# Which samples train: 390 of source, 270 of tests, 370 of the core and of run.train.
# The same as other people's files say it: 240 of source, 370 of tests.
# Advantages among all rewards that a prompt has had: 60 of source, 90 of tests.
# Adapters, and a policy as a folder that others read: 240 of source, 220 of tests, 40 of the core.
# Data sets, what counts as an answer and who judges it, stop strings, votes: 550 of source, 480 of tests.
# The peak of a run's memory, and a benchmark of what is said of it: 15 of source, 90 of benchmarks.
# What was read of finished runs and copied of them is kept: 250 of source, 260 of tests; 175 for the benchmark of many
# runs.
# vLLM as the sampler: 150 of source, 190 of tests.
# Weights in shards: 185 of source, 75 of tests, 35 of the core, from which a task of another package has gone.
# Answers that a unit or a factor changes, a hub that does not answer: 130 of source, 200 of tests.
# Adapters in other people's files, the peak of each device: 200 of source, 240 of tests.
# What prompts share, and a language model beside TRL part by part: 60 of source, 145 of tests, 130 of benchmarks.
# Continuous batching as the sampler: 170 of source, 200 of tests; the check of a GPU: 260 of benchmarks.
# Installed, and projects of one's own: 100 of source, 95 of tests.
# Plugins: 245 of source, 190 of tests. JSON from every command and a paper's appendix: 560 of source, 310 of tests. The
# API: 480 of source, 190 of tests. A site and a release that are checked: 220 of tests.
# Where a score lies: 20 and 12. What a newcomer met, and what a journal decides, kept: 125 of source, 140 of tests.
# A stop that waits as long as a step takes, a results folder named from where one stands: 22 and 44.
# What the doctor found in a run, kept, and the file of what is kept read once by a command, a sweep of the only study,
# the learning rate of a pretrained model, what a newcomer met: 58 and 70.
ALL_SOURCE, ALL_TESTS, BENCHMARKS = 44_824, 33_650, 2_359
# The core, which `docs/architecture.md` reads in an afternoon: sweep without its engines and without tuning.
CORE_ROOMS = ("grpo/", "tasks/", "settings/", "run/", "sweep/")
BESIDE_THE_CORE = ("sweep/tuning", "sweep/cluster")
CORE = 9_923


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the package that a module imports, with the packages that they stand in."""
    if module == "grpolab":  # the names of its API, which type checkers alone import there
        return frozenset()
    names = set(imported(parsed(MODULES[module])))
    return frozenset((names | {name.rpartition(".")[0] for name in names}) & MODULES.keys())


@cache
def reached_from(module: str, with_packages: bool = False) -> frozenset[str]:
    """The modules that a module leads to by imports; with packages also those that are loaded around them."""
    seen: set[str] = set()
    waiting = {module} if with_packages else imports(module)
    while waiting := waiting - seen:
        seen |= waiting
        packages = {name.rpartition(".")[0] for name in waiting if with_packages} & MODULES.keys()
        waiting = packages.union(*map(imports, waiting))
    return frozenset(seen)


@pytest.mark.parametrize("module", PULLED_IN)
def test_what_a_module_pulls_in(module: str) -> None:
    total = sum(lines(MODULES[name]) for name in reached_from(f"grpolab.{module}", with_packages=True))
    assert total <= PULLED_IN[module]


def test_no_circle_of_imports() -> None:
    """Of modules; a package's own file counts only as far as it imports."""
    circles = [name for name in MODULES for other in imports(name) if other != name and name in reached_from(other)]
    assert circles == []


def test_no_file_is_too_long() -> None:
    assert {str(file.relative_to(SOURCE)): lines(file) for file in MODULES.values() if lines(file) > LONGEST_FILE} == {}


def test_the_whole_and_the_core() -> None:
    def total(folder: str) -> int:
        return sum(map(lines, (ROOT / folder).rglob("*.py")))

    assert total("src") <= ALL_SOURCE
    assert total("tests") <= ALL_TESTS
    assert total("benchmarks") <= BENCHMARKS
    names = {file: str(file.relative_to(SOURCE)) for file in MODULES.values()}
    core = [
        file for file, name in names.items() if name.startswith(CORE_ROOMS) and not name.startswith(BESIDE_THE_CORE)
    ]
    assert sum(map(lines, core)) <= CORE


def test_a_class_has_one_owner() -> None:
    classes = Counter(
        node.name
        for file in MODULES.values()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in classes.items() if count > 1} == set()
