"""What a release needs, as far as it can be seen without one: version, citation, licences, workflows."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import grpolab

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "requirements"))

import release_check  # noqa: E402


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "grpolab.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert release_check.read_version() == citation["version"] == grpolab.__version__


def test_zenodo_says_what_the_citation_says() -> None:
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"title", "authors", "version", "license", "message", "cff-version"} <= citation.keys()
    assert (zenodo["title"], zenodo["license"]) == (citation["title"], citation["license"])
    assert [one["name"] for one in zenodo["creators"]] == [one["name"] for one in citation["authors"]]
    assert zenodo["keywords"] == citation["keywords"]


@pytest.mark.parametrize("name", ["test", "release"])
def test_workflows_call_targets_that_there_are(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    makefile = (ROOT / "Makefile").read_text()
    for target in (step["run"].removeprefix("make ") for step in steps if step.get("run", "").startswith("make ")):
        assert f"\n{target}:" in makefile
    publish = workflow["jobs"].get("publish")
    assert (publish is not None) == (name == "release")
    if publish:
        assert publish["permissions"] == {"id-token": "write"}
        assert publish["needs"] == "check"
        assert steps[-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def test_the_container_is_the_dockerfiles() -> None:
    build = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["build"]
    assert f" AS {build['target']}\n" in (ROOT / ".devcontainer" / build["dockerfile"]).read_text()


def test_every_locked_package_is_in_the_bill_of_materials() -> None:
    packages = release_check.describe(release_check.locked())
    bill = release_check.bill_of_materials(packages, "1.2.3")
    components = {one["name"]: one for one in bill["components"]}  # type: ignore[attr-defined]
    assert components["numpy"]["purl"] == f"pkg:pypi/numpy@{release_check.locked()['numpy']}"
    assert len(components) == len(packages) > 150
    table = release_check.licence_table(packages)
    assert table.count("\n") == len(packages) + 2
    assert packages["pyyaml"][1].startswith("MIT")


def test_licences_of_each_kind_of_metadata() -> None:
    def licence(*lines: tuple[str, str]) -> str:
        metadata = Message()
        for name, value in lines:
            metadata[name] = value
        return release_check.licence_of(SimpleNamespace(metadata=metadata))

    osi = ("Classifier", "License :: OSI Approved :: MIT License")
    assert licence(("License-Expression", "BSD-3-Clause"), osi) == "BSD-3-Clause"
    assert licence(("License", "A text.\nOf many lines."), osi) == "MIT License"
    assert licence(("License", "Apache 2.0")) == "Apache 2.0"
    assert licence(("License", 70 * "x")) == licence() == "unknown"


def test_a_python_that_is_missing_is_said(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(release_check, "DIST", tmp_path / "dist")
    monkeypatch.setattr(release_check, "build_both", lambda: tmp_path / "x.whl")
    monkeypatch.setattr(release_check, "try_wheel", lambda *_arguments: "")
    monkeypatch.setattr(release_check.shutil, "which", lambda name: None if name.endswith("12") else name)
    assert release_check.main(["3.11", "3.12"]) == 1
    shown = capsys.readouterr()
    assert "Python 3.11: installed" in shown.out
    assert "Python 3.12: python3.12 is not on PATH" in shown.err
    assert json.loads((tmp_path / "dist" / "sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    assert release_check.main(["3.11"]) == 0


def test_a_command_that_fails_in_the_environment_is_said(monkeypatch, tmp_path) -> None:
    def refuse(command, folder):
        raise subprocess.CalledProcessError(1, command, stderr="no such thing")

    monkeypatch.setattr(release_check, "run", refuse)
    assert release_check.try_wheel("python3", tmp_path / "x.whl", "1").endswith("failed: no such thing")


def test_what_was_tried_without_torch_is_never_called_whole(monkeypatch, tmp_path, capsys) -> None:
    """Where setup.sh finds no build of torch, the light commands are tried, and the check fails all the same."""
    called: list[str] = []

    def fake(command, folder, **variables):
        called.append(" ".join(map(str, command)))
        if variables.get("ONLY_TORCH"):
            raise subprocess.CalledProcessError(1, command, stderr="no such build")
        return "grpolab 1, results version 1"

    monkeypatch.setattr(release_check, "run", fake)
    monkeypatch.setattr(release_check, "DIST", tmp_path / "dist")
    monkeypatch.setattr(release_check, "build_both", lambda: tmp_path / "x.whl")
    monkeypatch.setattr(release_check, "read_version", lambda: "1")
    monkeypatch.setattr(release_check.shutil, "which", lambda name: name)
    monkeypatch.setenv("TORCH_BACKEND", "cpu")
    assert release_check.main(["3.13"]) == 1
    said = capsys.readouterr().err
    assert "Python 3.13: light only, nothing was trained: torch==" in said
    assert "with TORCH_BACKEND=cpu does not install here:\nno such build" in said
    assert all(any(words in command for command in called) for words in release_check.LIGHT)
    assert not any("sweep smoke" in command for command in called)
