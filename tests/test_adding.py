"""The README's examples of adding things, done to a copy of the project as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"```(?:python|yaml)\n# ([\w/]+\.(?:py|yaml))[^\n]*\n(.*?)```", re.DOTALL)
TINY = [
    "rollout_steps=1",
    "warm_start.max_steps=2",
    "warm_start.batch_size=8",
    "warm_start.check_items=8",
    "evaluation.items=8",
    "prompts_per_step=2",
    "num_generations=2",
    "num_iterations=2",
    "machine.tracking_uri=null",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with every example of the README written to the file that it names."""
    copy = tmp_path_factory.mktemp("project")
    for folder in ("src", "conf", "experiments"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name, text in BLOCK.findall((ROOT / "README.md").read_text()):
        with (copy / name).open("a") as file:
            file.write(text)
    return copy


def grpolab(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{project / 'src'}{os.pathsep}{project}"}
    command = [sys.executable, "-m", "grpolab", *arguments]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def test_an_objective_and_a_task_are_added_as_the_readme_says(project: Path) -> None:
    done = grpolab(project, "train", "loss_type=upper", "task=custom", "task.path=my_tasks:Parity", *TINY)
    assert done.returncode == 0, done.stderr
    (settings,) = project.glob("results/runs/*/settings.yaml")
    assert "kernel: upper" in settings.read_text()
    assert (settings.parent / "policy.safetensors").exists()


def test_a_study_is_added_as_the_readme_says(project: Path) -> None:
    """Every cell is composed and checked; only the tracking store that is named here is refused."""
    done = grpolab(project, "sweep", "group_size", "machine.tracking_uri=nowhere")
    assert done.returncode == 2
    (problem,) = done.stderr.splitlines()
    assert "machine.tracking_uri=nowhere is no MLflow store" in problem
