"""The examples of docs/adding.md, as they stand there, with the installed command in a checkout of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding.md").read_text()
# A file's first line names it, and may say what it is used as.
BLOCK = re.compile(r"```(?:python|yaml)\n# ([\w/]+\.(?:py|yaml))(?:, used as: ([^\n]*))?\n(.*?)```", re.DOTALL)
EXAMPLES = {name: (command, text) for name, command, text in BLOCK.findall(PAGE)}
TINY = [
    *("rollout_steps=1", "warm_start.max_steps=2", "warm_start.batch_size=8", "warm_start.check_items=8"),
    *("evaluation.items=8", "prompts_per_step=2", "num_generations=2", "num_iterations=2", "machine.tracking_uri=null"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the page's files of it, and an environment with the console script, as installed."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("src", "conf", "experiments"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name, (_, text) in EXAMPLES.items():
        if "/" in name:
            with (copy / name).open("a") as file:
                file.write(text)
    environment = copy / ".venv"
    venv.create(environment, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    # An absolute path in a .pth file is an editable installation; the libraries are those of this environment.
    (packages / "editable.pth").write_text(f"{copy / 'src'}\n{sysconfig.get_path('purelib')}\n")
    script = environment / "bin" / "grpolab"
    installed = (Path(sys.executable).parent / "grpolab").read_text()
    script.write_text(f"#!{environment / 'bin' / 'python'}\n{installed.partition(chr(10))[2]}")
    script.chmod(0o755)
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user works: the page's files of their own, and files with names of modules that a command needs."""
    folder = tmp_path_factory.mktemp("mine")
    for name, (_, text) in EXAMPLES.items():
        if "/" not in name:
            (folder / name).write_text(text)
    for name in ("yaml.py", "random.py", "torch.py"):
        (folder / name).write_text("raise SystemExit('taken from the working directory')\n")
    return folder


def grpolab(checkout: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The console script, called in a folder; nothing but the installation says where modules are."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(checkout / ".venv" / "bin" / "grpolab"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_task_is_added_as_the_page_says(checkout: Path, folder: Path) -> None:
    program, *arguments = shlex.split(EXAMPLES["my_tasks.py"][0])
    assert program == "grpolab"
    done = grpolab(checkout, folder, *arguments, *TINY)
    assert done.returncode == 0, done.stderr
    (settings,) = checkout.glob("results/runs/*/settings.yaml")
    assert yaml.safe_load(settings.read_text())["task"]["path"] == "my_tasks:Parity"
    assert (settings.parent / "policy.safetensors").exists()


@pytest.mark.slow
def test_a_reward_and_an_objective_are_added_as_the_page_says_and_workers_see_them(checkout: Path, folder: Path):
    _, train, *arguments = shlex.split(EXAMPLES["my_rewards.py"][0])
    (folder / "below").mkdir()
    shutil.copy(folder / "my_tasks.py", folder / "below" / "parity.py")
    also = ["loss_type=upper", "task=custom", "task.path=below/parity.py:Parity", "seed=3,4", *TINY]
    done = grpolab(checkout, folder, train, "-m", "--jobs", "1", *arguments, *also)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [yaml.safe_load(file.read_text()) for file in checkout.glob("results/runs/*/settings.yaml")]
    mine = [settings for settings in found if settings["reward"]["function"] == "my_rewards:score"]
    assert {(settings["kernel"], settings["seed"]) for settings in mine} == {
        ("my_losses:upper", 3),
        ("my_losses:upper", 4),
    }


def test_a_study_is_added_as_the_page_says(checkout: Path) -> None:
    """Every cell is composed and checked; only the tracking store that is named here is refused."""
    done = grpolab(checkout, checkout, "sweep", "group_size", "machine.tracking_uri=nowhere")
    assert done.returncode == 2
    (problem,) = done.stderr.splitlines()
    assert "machine.tracking_uri=nowhere is no MLflow store" in problem


def test_a_module_with_the_name_of_an_installed_one_is_refused(checkout: Path, folder: Path) -> None:
    done = grpolab(checkout, folder, "train", "task=custom", "task.path=yaml:Parity", *TINY)
    assert done.returncode == 2
    assert "yaml is also the name of" in done.stderr.splitlines()[-1]
