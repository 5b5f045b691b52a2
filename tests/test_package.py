"""The program as pip installs it, in a folder that knows nothing of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from grpolab.cli import common, main
from grpolab.cli.common import EXTRA_OF, install_command

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
    wheel = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", "wheels", "."]
    subprocess.run([sys.executable, *wheel], cwd=source, check=True)
    (wheel,) = (source / "wheels").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def grpolab(
    site: Path, folder: Path, *commands: list[str], without: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Do commands of the installed program in a folder, in one process; its code is the largest of theirs.

    `without` has modules that say that they are absent.
    """
    path = os.pathsep.join(str(place) for place in (without, site) if place)
    code = "import json, sys; from grpolab.cli import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", code, json.dumps(commands)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def absent(tmp_path: Path) -> Path:
    """As if only the light dependencies were there."""
    folder = tmp_path / "absent"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({[*EXTRA_OF]}))\n")
    return folder


def test_a_new_project_trains_its_own_tasks_beside_ours(installed: Path, tmp_path: Path) -> None:
    made = grpolab(installed, tmp_path, ["init", "own"], ["init", "own"])
    assert (made.returncode, made.stderr) == (2, "grpolab: init own: the folder must be new or empty\n")
    own = tmp_path / "own"
    assert {".gitignore", ".github", ".git", "Makefile", "README.md"} <= {file.name for file in own.iterdir()}
    keys = [key for key in TINY if not key.startswith("task")]
    register = subprocess.run(
        ["make", "--no-print-directory", "-n", "register"], capture_output=True, text=True, cwd=own, check=True
    ).stdout
    done = grpolab(
        *(installed, own, ["train", "task=largest", *keys], ["train", "task=sums", *keys], ["lint", "passes"]),
        register.split()[1:],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((own / "experiments" / "registrations.jsonl").read_text())["seeds"] == [*range(2000, 2020)]
    assert len([*(own / "results" / "runs").iterdir()]) == 2
    (own / "conf" / "task" / "addition.yaml").write_text((own / "conf" / "task" / "sums.yaml").read_text())
    refused = grpolab(installed, own, ["train", "task=addition"])
    assert refused.returncode == 2
    assert "addition.yaml have one name, which must mean one thing: rename one of them" in refused.stderr


WHEEL = {"url": "file:///my%20wheels/grpolab-1-py3-none-any.whl", "archive_info": {}}
CLONE = {"url": "https://host/grpolab.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
EDITABLE = {"url": "file:///my%20clone", "dir_info": {"editable": True}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'grpolab[train,track]'"),
        (WHEEL, "pip install 'grpolab[train,track] @ file:///my%20wheels/grpolab-1-py3-none-any.whl'"),
        (CLONE, "pip install 'grpolab[train,track] @ git+https://host/grpolab.git@c0ffee'"),
        (EDITABLE, "pip install -e '/my clone[train,track]'"),
    ],
)
def test_extras_come_from_where_the_program_came_from(origin, command, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "METADATA").write_text("Name: grpolab\n")
    if origin:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(common, "distribution", lambda _: PathDistribution(tmp_path))
    monkeypatch.setattr(common, "find_spec", lambda name: name == "pip")
    assert install_command("train", "track") == command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpolab.cli.keeping.find_spec", lambda _: None)
    assert main(["init", "my study"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"now: {command} && cd 'my study' && make sweep"


def test_light_commands_need_no_torch(installed: Path, tmp_path: Path, absent: Path) -> None:
    log, config = tmp_path / "log.jsonl", tmp_path / "grpo.yaml"
    rows = (f'{{"step": {step}, "reward": 0.5, "clip_ratio/region_mean": 0.0, "loss": 0.0}}\n' for step in range(9))
    log.write_text("".join(rows))
    config.write_text("num_iterations: 2\nepsilon_high: 0.28\nloss_type: dapo\n")
    commands = [["diagnose", str(log)], ["import", str(config)], ["lint", "clip_range"], ["lint", "num_iterations=1"]]
    commands += [["report", "--from", "trl", str(tmp_path)], ["power", "--sd", "1", "--difference", "1"]]
    done = grpolab(installed, tmp_path, *commands, without=absent)
    assert "Traceback" not in done.stderr, done.stderr
    assert " needs " not in done.stderr
    refused = grpolab(installed, tmp_path, ["train"], ["sweep", "smoke"], without=absent)
    assert refused.returncode == 2
    assert refused.stderr == 2 * "grpolab: this command needs torch: `pip install 'grpolab[train]'` installs it\n"
    assert not (tmp_path / "results" / "studies").exists(), "no worker and no plan"
