"""`grpolab lint`, and what a sweep says before it starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from grpolab.cli import main
from grpolab.cli.checking import warn
from grpolab.equalities import AT_EQUAL_LENGTHS, describe
from grpolab.errors import RequestError
from grpolab.lint.config_rules import FILE_RULES, KEY_RULES, TRL_RULES
from grpolab.lint.rules import RUN_RULES
from grpolab.lint.study_rules import STUDY_RULES, check_plans
from grpolab.studies import sweep
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import plans

STUDY = """
question: What?
factors:
  arm: {grpo: [loss_type=grpo], gspo: [loss_type=gspo], more: [loss_type=grpo, epsilon=0.3]}
  mu: {one: [num_iterations=1]}
compare: arm
baseline: grpo
seeds: 10
primary_metric: eval/accuracy_expected
hypotheses:
  - {id: H, says: Better., metric: final_score, contrast: {of: gspo, minus: grpo}, direction: greater,
     budget: rollouts, source: me}
"""


Printed: TypeAlias = pytest.CaptureFixture[str]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A project with one study, whose sweeps are only counted."""
    calls: list[Any] = []
    (tmp_path / "conf").symlink_to(Composer().conf)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "sweep", lambda plans, *_, **__: calls.append(plans) or 0)
    return calls


def test_a_sweep_says_warnings_and_starts(started: list[Any], capsys: Printed) -> None:
    assert main(["train", "-m", "epsilon=0.1,0.2"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["train", "-m", "num_generations=2", "epsilon=0.1,0.2"]) == 0
    assert len(started) == 2
    printed = capsys.readouterr()
    assert printed.out == ""  # which is for events, with --json-lines
    (line,) = printed.err.splitlines()
    assert line.startswith("warning zero-variance-groups: num_generations=2")


def test_an_error_stops_a_sweep(started: list[Any], capsys: Printed) -> None:
    assert main(["lint", "mine", "mu.x=1"]) == 2
    capsys.readouterr()
    assert main(["lint", "mine", "num_minibatches=1"]) == 2  # expand refuses: clipping can act in no cell
    assert "clipping can act in no cell" in capsys.readouterr().err
    study = Path("experiments/mine.yaml")
    study.write_text(STUDY.replace("mu: {one: [num_iterations=1]}", "mu: {one: [num_iterations=1], two: []}"))
    study.write_text(study.read_text().replace("budget: rollouts,", "budget: rollouts, where: {mu: one},"))
    assert main(["sweep", "mine"]) == 2
    assert started == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("grpolab: error claim-about-equals: hypothesis H claims that gspo and grpo differ")
    for given in ("mine", shutil.copy(study, "elsewhere.yaml")):  # a study is a study wherever its file is
        assert main(["lint", given]) == 1
        assert capsys.readouterr().out.startswith("error claim-about-equals")


def test_lint_of_runs_and_studies(capsys: Printed) -> None:
    assert main(["lint"]) == 0
    assert capsys.readouterr().out == "nothing to say\n"
    assert main(["lint", "num_iterations=1", "delta=1.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in found] == ["delta-inside-range", "clip-cannot-bind"]  # by cost
    assert all({"severity", "key", "sentence"} <= finding.keys() for finding in found)
    assert main(["lint", "clip_range"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main(["lint", "clip_rang"]) == 2
    assert "did you mean clip_range" in capsys.readouterr().err


def test_warnings_are_no_more_than_what_lint_says(capsys: Printed) -> None:
    planned = plans("reference")
    warn(check_plans(planned), [cell for plan in planned for cell in plan.cells])
    assert capsys.readouterr() == ("", "")
    with pytest.raises(RequestError):
        plans("reference", ["beta=-1"])


def test_the_page_explains_every_rule_and_every_equality(capsys: Printed) -> None:
    assert main(["lint", "--rules"]) == 0
    text = capsys.readouterr().out
    rows = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| `")]
    tables = (RUN_RULES, STUDY_RULES, TRL_RULES, *FILE_RULES.values(), KEY_RULES)
    assert rows == [
        [f"| `{rule}`", severity, f"`{key}`"] for rules in tables for rule, (severity, key) in rules.items()
    ]
    assert [line[2:] for line in text.splitlines() if line.startswith("- ")] == [*map(describe, AT_EQUAL_LENGTHS)]
