"""A study that is named by the path of its file: every command takes it, from any folder, and says what would work."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from fake_runs import study as fake_study
from fake_sweep import FakeSweep
from report_results import write_study

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.paths import Results, project_root
from grpolab.studies import ui
from grpolab.study_names import study_file, within_project
from grpolab.sweep.plan import plans

SMOKE = project_root() / "experiments" / "smoke.yaml"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study file in a folder of its own, outside of the project; the working folder is that above."""
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(SMOKE, tmp_path / "studies" / "mine.yaml"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one's own with nothing in experiments/ but the study that chose the regimes."""
    (tmp_path / "conf").symlink_to(project_root() / "conf")
    (tmp_path / "experiments").mkdir()
    shutil.copy(project_root() / "experiments" / "regimes.yaml", tmp_path / "experiments")
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path / "studies")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *request: str, code: int = 0) -> str:
    assert main(request) == code, request
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_a_plan_says_where_its_file_lies_where_the_name_does_not(mine: Path) -> None:
    (plan,) = plans("studies/mine.yaml")
    assert plan.document("", None)["file"] == str(mine)
    assert plan.study.argument == str(mine)
    (usual,) = plans("smoke")
    assert "file" not in usual.document("", None)
    assert usual.study.argument == "smoke"


def test_a_file_below_the_project_is_named_from_its_root(project: Path) -> None:
    shutil.copy(SMOKE, project / "studies" / "mine.yaml")
    assert plans("mine.yaml")[0].document("", None)["file"] == "studies/mine.yaml"
    assert within_project(Path("/elsewhere/mine.yaml")) == "/elsewhere/mine.yaml"


def test_what_is_swept_is_asked_for_by_the_same_path_from_any_folder(
    mine: Path, fake_sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake_sweep("studies/mine.yaml")[0] == 0
    capsys.readouterr()
    here = ["--results", str(fake_sweep.root)]
    by_name = json.loads(said(capsys, "status", "mine", "--json", *here))
    assert by_name["mine"]["states"] == {"completed": 4}
    assert json.loads(said(capsys, "status", "studies/mine.yaml", "--json", *here)) == by_name
    monkeypatch.chdir(mine.parent)
    assert json.loads(said(capsys, "status", "mine.yaml", "--json", *here)) == by_name
    assert json.loads(said(capsys, "status", str(mine), "--json", *here)) == by_name


def test_figures_report_and_what_reproduces_it(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grpolab.run.tracking.synchronise", lambda *_: None)  # another's tests
    factors = {"clip": ["symmetric", "no_clip"], "task": ["sorting"]}
    results = write_study(mine.parents[1] / "results", "mine", factors, seeds=2, figures=["F1"], file=str(mine))
    here = ["--results", str(results.root)]
    (picture,) = said(capsys, "figures", "studies/mine.yaml", *here).splitlines()
    assert Path(picture).is_relative_to(results.studies / "mine" / "figures")
    assert said(capsys, "report", "studies/mine.yaml", "--brief", *here).startswith("Does the report say")
    said(capsys, "report", "studies/mine.yaml", *here)
    report = (results.studies / "mine" / "report.md").read_text()
    assert f"\ngrpolab sweep {mine} --seeds 2\ngrpolab report {mine}\n```" in report


@pytest.mark.parametrize(
    "command",
    [
        *("status", "figures", "report", "ui", "export-reference", "track verify"),
        *("track sync", "compare results/reference"),
    ],
)
def test_what_is_not_planned_is_refused_with_the_command_that_plans_it(
    mine: Path, results: Results, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.replace("results/reference", str(project_root() / "results" / "reference")).split()
    error = said(capsys, *words, "studies/mine.yaml", "--results", str(results.root), code=2)
    assert error.count("\n") == 1
    assert "studies/mine.yaml is not planned" in error
    assert "run `grpolab sweep studies/mine.yaml` first" in error


def test_two_files_of_one_name_are_not_taken_for_each_other(
    mine: Path, fake_sweep: FakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_sweep("studies/mine.yaml")
    before = fake_sweep.results.plan("mine").read_bytes()
    other = mine.parents[1] / "mine.yaml"
    other.write_text(mine.read_text().replace("task.length=5", "task.length=4"))
    problem = f"mine is planned in {fake_sweep.root} from {mine}: give one of them another name"
    with pytest.raises(RequestError, match="give one of them another name"):
        fake_sweep("mine.yaml")
    assert problem in said(capsys, "status", "mine.yaml", "--results", str(fake_sweep.root), code=2)
    train = ["train", "--name", "mine", f"machine.results={fake_sweep.root}", "machine.tracking_uri=null"]
    assert problem in said(capsys, *train, code=2)
    assert fake_sweep.results.plan("mine").read_bytes() == before
    os.replace(mine, other)  # moved: the same study
    assert fake_sweep("mine.yaml") == (0, [])
    assert json.loads(fake_sweep.results.plan("mine").read_text())["file"] == str(other)


def test_an_unknown_name_is_refused_with_what_there_is(
    mine: Path, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--results", str(results.root)]
    assert "nope is not planned" in (error := said(capsys, "report", "nope", *here, code=2))
    assert "sweep nope" not in error, "it would be refused too"
    assert "run `grpolab sweep smoke` first" in said(capsys, "figures", "smoke", *here, code=2)
    assert "(did you mean studies/mine.yaml?)" in said(capsys, "sweep", "studies/mine", code=2)
    assert "mine.yml: there is no such file" in said(capsys, "status", "studies/mine.yml", *here, code=2)
    assert study_file("smoke") == SMOKE


def test_a_study_by_path_is_registered_by_the_same_path(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(SMOKE, project / "studies" / "mine.yaml")
    with (project / "studies" / "mine.yaml").open("a") as file:
        file.write("looks: [2]\n")
    here = ["--results", str(project / "results")]
    line, commit = said(capsys, "register", "mine.yaml", "--seeds", "2000,2001", *here).splitlines()
    assert (json.loads(line)["study"], json.loads(line)["seeds"]) == ("mine", [2000, 2001])
    registry = project / "experiments" / "registrations.jsonl"
    assert registry.read_text() == f"{line}\n"
    assert str(registry) in commit
    (plan,) = plans("mine.yaml", seeds=[2000, 2001])
    assert list(plan.registered) == ["H6"]


def test_a_collection_by_path_includes_the_studies_beside_it(project: Path) -> None:
    for name in ("one", "two"):
        (project / "studies" / f"{name}.yaml").write_text(SMOKE.read_text())
    (project / "studies" / "both.yaml").write_text("question: Both?\nincludes: [one, two]\nprimary: [one.H6]\n")
    *parts, whole = plans("both.yaml")
    assert [part.study.argument for part in parts] == ["studies/one.yaml", "studies/two.yaml"]
    assert list(whole.hypotheses) == ["one.H6"]
    (project / "studies" / "both.yaml").write_text("question: Both?\nincludes: [one]\nprimary: [one.H7]\n")
    with pytest.raises(RequestError, match=r"^studies/both\.yaml: primary=one\.H7 is unknown"):
        plans("both.yaml")


def test_pages_of_nothing_are_refused_before_a_server_starts(
    tracked_results: Results, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ui, "start_server", lambda *_: pytest.fail("a server was started"))
    here = ["--results", str(tracked_results.root)]
    fake_study(tracked_results)
    tracked_results.store.unlink(missing_ok=True)
    assert "study nope is not planned" in said(capsys, "ui", "nope", *here, code=2)
    assert "there is no tracking store at" in said(capsys, "ui", "clip_range", *here, code=2)
