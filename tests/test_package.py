"""The program as pip installs it, in a folder that knows nothing of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from grpolab.cli import EXTRA_OF

ROOT = Path(__file__).parents[1]
TINY = ["model.hidden_size=16", "model.layers=1", "model.heads=2", "model.intermediate_size=32", "task.digits=1"]
TINY += ["warm_start.max_steps=0", "rollout_steps=1", "prompts_per_step=2", "num_generations=2", "evaluation.items=4"]
TINY += ["machine.tracking_uri=null"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of what git knows of this checkout."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "results/figures/", "docs/tour/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        "wheels",
        ".",
    ]
    subprocess.run(command, cwd=source, check=True)
    (wheel,) = (source / "wheels").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def grpolab(site: Path, folder: Path, *words: str, without: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the installed program in a folder; `without` has modules that say that they are absent."""
    path = os.pathsep.join(str(place) for place in (without, site) if place)
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", "import sys; from grpolab.cli import main; sys.exit(main())", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def absent(tmp_path: Path) -> Path:
    """As if only the light dependencies were there."""
    folder = tmp_path / "absent"
    folder.mkdir()
    for package in EXTRA_OF:
        (folder / f"{package}.py").write_text(f"raise ModuleNotFoundError('no {package}', name='{package}')\n")
    return folder


def test_a_run_and_a_study_of_ones_own_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = grpolab(installed, tmp_path, "train", *TINY)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "runs").is_dir()
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "experiments").mkdir()
    preset = (ROOT / "conf" / "task" / "addition.yaml").read_text().replace("digits: 2", "digits: 1")
    (tmp_path / "conf" / "task" / "mine.yaml").write_text(preset)
    study = {"question": "Which?", "overrides": ["task=mine", *TINY], "seeds": [0], "compare": "clip"}
    study |= {
        "factors": {"clip": {"narrow": ["epsilon=0.1"], "wide": []}},
        "baseline": "wide",
        "figures": [],
        "primary_metric": "eval/accuracy_expected",
    }
    (tmp_path / "experiments" / "own.yaml").write_text(yaml.safe_dump(study))
    linted = grpolab(installed, tmp_path, "lint", "own")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    (tmp_path / "conf" / "task" / "addition.yaml").write_text(preset)
    refused = grpolab(installed, tmp_path, "train", "task=addition")
    assert refused.returncode == 2
    assert "called like a preset of GRPO Lab: rename it" in refused.stderr


def test_light_commands_need_no_torch(installed: Path, tmp_path: Path, absent: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(f'{{"step": {s}, "reward": 0.5, "clip_ratio/region_mean": 0.0, "loss": 0.0}}\n' for s in range(9))
    )
    config = tmp_path / "grpo.yaml"
    config.write_text("num_iterations: 2\nepsilon_high: 0.28\nloss_type: dapo\n")
    for words in (
        ["diagnose", str(log)],
        ["import", str(config)],
        ["lint", "clip_range"],
        ["lint", "task=addition", "num_iterations=1"],
        ["report", "--from", "trl", str(tmp_path)],
        ["power", "--sd", "1", "--difference", "1"],
        ["--version"],
    ):
        done = grpolab(installed, tmp_path, *words, without=absent)
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr
        assert "needs" not in done.stderr, words
    refused = grpolab(installed, tmp_path, "train", without=absent)
    assert refused.returncode == 2
    assert refused.stderr == "grpolab: this command needs torch: `pip install 'grpolab[train]'` installs it\n"
