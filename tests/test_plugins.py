"""Packages that add presets, studies and code by an entry point: docs/plugin/ as pip installs it, and bad ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny_settings

from grpolab import paths
from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.frameworks.framework import load_framework, try_steps
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs, policy_loss
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import compose

ROOT = Path(__file__).parents[1]
TINY = ["model.hidden_size=16", "model.layers=1", "model.heads=2", "model.intermediate_size=32"]
TINY += ["warm_start.max_steps=0", "rollout_steps=1", "prompts_per_step=2", "num_generations=2", "evaluation.items=4"]
TINY += ["machine.tracking_uri=null", "diagnostics.clip_conventions=true"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template package as pip installs it."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "plugin", source / "plugin", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source / "plugin")], check=True)
    return site


SIGNATURES = """
import json, sys
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import compose
print(*(resolve_run(compose(words)).signature for words in json.loads(sys.argv[1])))
"""
COMMANDS = "import json, sys; from grpolab.cli import main; sys.exit(max(map(main, json.loads(sys.argv[1]))))"


def done_with(site: Path, code: str, words: list[list[str]]) -> str:
    """What a process prints in which the package is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])}
    command = [sys.executable, "-P", "-c", code, json.dumps(words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SWEEP = ["sweep", "spo_or_clip", "--seeds", "1", "--jobs", "1"]  # in a worker process


@pytest.mark.parametrize(
    ("words", "count"),
    [(["train", "task=reversed", "loss_type=spo"], 1), pytest.param(SWEEP, 2, marks=pytest.mark.slow)],
    ids=["train", "sweep"],
)
def test_an_installed_package_adds_a_task_an_objective_and_a_study(
    site: Path, tmp_path: Path, words: list[str], count: int
) -> None:
    said = done_with(site, COMMANDS, [["plugins", "--json"], [*words, *TINY, f"machine.results={tmp_path}"]])
    (listed,), _ = json.JSONDecoder().raw_decode(said)
    assert (listed["package"], listed["entry_point"], listed["problems"]) == ("grpolab-example", "example", [])
    code = {"kernel": ["grpolab_example:spo"], "task.path": ["grpolab_example.tasks:Reversed"]}
    assert listed["adds"] == {"loss_type": ["spo"], "task": ["reversed"], "study": ["spo_or_clip"], **code}
    runs = [(tmp_path / "runs").glob(f"*/{name}.json") for name in ("outcome", "provenance")]
    outcomes, provenances = ([json.loads(file.read_text()) for file in files] for files in runs)
    assert [outcome["outcome"] for outcome in outcomes] == ["completed"] * count
    (content,) = (entry["content"]["kernel"] for entry in provenances if "kernel" in entry["content"])
    assert content["sources"].keys() == {"grpolab_example"}
    assert content["function"]["sources"].keys() == {"grpolab_example", "grpolab_example.losses"}


def test_the_code_of_a_packages_kernel_is_in_the_signatures_of_its_runs_alone(site: Path, tmp_path: Path) -> None:
    place = shutil.copytree(site, tmp_path / "site")
    words = [["seed=1"], ["loss_type=spo"], ["loss_type=spo", "kernel_options.spo.weight=1"]]
    plain, spo, other = done_with(place, SIGNATURES, words).split()
    assert plain == resolve_run(compose(["seed=1"])).signature  # where no package is installed
    with (place / "grpolab_example" / "losses.py").open("a") as file:
        file.write("# changed\n")
    plain_now, spo_now, other_now = done_with(place, SIGNATURES, words).split()
    assert plain_now == plain
    assert len({plain, spo, other, spo_now, other_now}) == 5


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two installed packages: one fails at its import, the other is not there."""
    for name in ("broken", "gone"):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[grpolab]\nmine = {name}_module\n")
    folder = tmp_path / "broken_module" / "conf" / "loss_type"
    folder.mkdir(parents=True)
    (tmp_path / "broken_module" / "__init__.py").write_text("import no_such_module\n")
    (folder / "broken_loss.yaml").write_text("# @package _global_\nkernel: broken_module:loss\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    paths.plugins.cache_clear()
    yield folder
    paths.plugins.cache_clear()


def test_what_is_wrong_with_a_package_stops_only_what_uses_it(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "loss_type=grpo"]) == 0
    capsys.readouterr()
    assert main(["plugins"]) == 1
    why = "kernel=broken_module:loss cannot be imported: No module named 'no_such_module'"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "broken 1.0, entry point mine = broken_module"
    assert lines[-1] == "  wrong: gone_module adds nothing: there is no package of that name"
    assert any(line.startswith(f"  wrong: {why}") for line in lines)
    assert main(["train", "loss_type=broken_loss"]) == 2
    assert capsys.readouterr().err.startswith(f"grpolab: {why}")


def test_a_name_that_two_have_is_refused_where_it_is_used(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (broken / "sapo.yaml").write_text("# @package _global_\nepsilon: 0.5\n")
    assert main(["lint", "loss_type=grpo"]) == 0
    assert main(["lint", "loss_type=sapo"]) == 2
    ours = ROOT / "conf" / "loss_type" / "sapo.yaml"
    assert f"{broken / 'sapo.yaml'} and {ours} have one name" in capsys.readouterr().err


def test_options_of_a_kernel_that_is_not_chosen_are_refused_in_one_sentence() -> None:
    with pytest.raises(RequestError) as refused:
        compose(["kernel_options.spo.weight=0.5", "kernel=gmpo"])  # loss_type=spo kernel=gmpo
    (sentence,) = refused.value.problems
    assert sentence.startswith("kernel_options.spo: with kernel=gmpo, only aspo, ")
    assert sentence.endswith(" have options: choose its kernel, or leave out what sets it")


STEPS = """
from grpolab.frameworks.framework import Framework
from grpolab.grpo.aggregation import token_sum
from grpolab.grpo.loss import SurrogateParts
from grpolab.registry import Surrogate
plain, sapo = Surrogate(f"{__name__}:compute"), Surrogate(f"{__name__}:compute")
absent, bare = Surrogate(f"{__name__}:nothing"), Surrogate(f"{__name__}:tensor")
def compute(objective, inputs, log_ratio_BT, ratio):
    return SurrogateParts.of(objective, ratio, -ratio * inputs.advantages)
def tensor(objective, inputs, log_ratio_BT, ratio):
    return ratio
def total(mask_BT, totals):
    return token_sum(mask_BT, totals)
def twice(objective, inputs, per_token):
    return 2 * (per_token * inputs.mask_BT).sum()
mine = Framework(objective=None, replays={}, average=twice, metrics=lambda objective, inputs, loss: {"all": 1.0})
trl = mine
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module with steps of a loss; one for each test, because it stays imported."""
    name = f"steps_of_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return name


def test_kernel_aggregation_and_framework_may_be_import_paths(steps: str) -> None:
    own = tiny_settings(kernel=f"{steps}:plain", aggregation=f"{steps}:total")
    assert try_steps(own) == []
    one_BT = torch.linspace(-2, -1, 4).reshape(2, 2)
    mask_BT = torch.ones(2, 2, dtype=torch.bool)
    inputs = LossInputs(one_BT, one_BT - 0.1, torch.tensor([[1.0], [-2.0]]), mask_BT, Totals.of(mask_BT))
    ours = policy_loss(tiny_settings(kernel="ratio", aggregation="token_sum").objective, inputs).total
    assert policy_loss(own.objective, inputs).total == ours
    framework = tiny_settings(kernel="ratio", framework=f"{steps}:mine")
    assert try_steps(framework) == []
    recipe = load_framework(f"{steps}:mine")
    assert policy_loss(framework.objective, inputs, recipe).total == 2 * ours
    assert len({settings.signature for settings in (own, framework, tiny_settings(kernel="ratio"))}) == 3


def test_a_step_that_cannot_be_one_is_refused_in_a_sentence(steps: str) -> None:
    wrong = [
        ("kernel", "compute", "is a function: it must be a grpolab.registry.Surrogate"),
        ("kernel", "sapo", "has the name of kernel=sapo of GRPO Lab: rename it"),
        ("kernel", "absent", "has no attribute 'nothing'"),
        ("kernel", "bare", "fails on two completions: AttributeError"),
        ("aggregation", "plain", "fails on two completions: TypeError"),
        ("framework", "trl", "has the name of framework=trl of GRPO Lab: rename it"),
        ("framework", "compute", "fails on two completions: AttributeError"),
        ("framework", "gone", "cannot be imported"),
    ]
    for key, name, sentence in wrong:
        try:
            (problem,) = try_steps(tiny_settings(**{key: f"{steps}:{name}"}))
        except RequestError as error:
            (problem,) = error.problems
        assert problem.startswith(f"{key}={steps}:")
        assert sentence in problem
