"""Artefacts lie below the results folder, also after that was moved or copied: nothing lands where it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_runs import STUDY, FakeRun, mirror, study, tracked, uri
from mlflow import MlflowClient

from grpolab.paths import Results
from grpolab.run.tracking import synchronise, ui
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.places import misplaced
from grpolab.run.tracking.store import Store
from grpolab.run.tracking.verify import verify


def files_of(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def copied(results: Results, to: Path) -> Results:
    """The results folder, with one run mirrored, copied as `cp -a` does; another run has ended since."""
    first, second = study(results, seeds=1)["cells"]
    FakeRun(results, first).take(1).end()
    mirror(results)
    shutil.copytree(results.root, to)
    there = Results(to)
    FakeRun(there, second).take(1).end()
    return there


def test_a_copied_folder_writes_nothing_where_it_was(
    results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = copied(results, tmp_path_factory.mktemp("copy") / "with a space")
    before = files_of(results.artifacts)
    assert synchronise(there, uri(there), [STUDY]) is None  # in a process of its own: MLflow remembers places
    assert files_of(results.artifacts) == before
    runs = tracked(there)
    for run in runs.values():
        assert run.info.artifact_uri.startswith(there.artifacts.as_uri())
    names = [
        {file.path for file in MlflowClient(uri(there)).list_artifacts(runs[f"{arm}/addition, seed 0"].info.run_id)}
        for arm in ("low", "high")
    ]
    assert names[0] == names[1] >= {"journal.jsonl", "outcome.json"}
    for model in MlflowClient(uri(there)).search_logged_models([runs["summary"].info.experiment_id]):
        assert model.artifact_location.startswith(there.artifacts.as_uri())
        assert Path(there.artifacts, model.artifact_location.removeprefix(there.artifacts.as_uri() + "/")).is_dir()
    assert not any(checked.differences for checked in verify(there, Store(uri(there), there.artifacts), [STUDY]))
    assert misplaced(uri(results), results.artifacts) == {}, "the other one is as it was"


def test_the_pages_of_a_moved_folder_show_its_own_artefacts(
    results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = copied(results, tmp_path_factory.mktemp("moved") / "results")
    shutil.rmtree(results.artifacts)
    assert ui._bring_home(there, uri(there)) is None
    run = tracked(there)["low/addition, seed 0"]
    assert MlflowClient(uri(there)).list_artifacts(run.info.run_id)


def test_a_store_elsewhere_is_left_alone_until_it_is_asked_for(results: Results, tmp_path: Path) -> None:
    """It may be that of several results folders."""
    store = f"sqlite:///{tmp_path}/elsewhere/store.db"
    (tmp_path / "elsewhere").mkdir()
    FakeRun(results, study(results, seeds=1, arms=("low",))["cells"][0]).take(1).end()
    assert StudyMirror(results, store, [STUDY]).attempt(last=True) is None
    there = Results(tmp_path / "moved")
    there.root.mkdir()
    shutil.move(results.runs, there.runs)
    shutil.move(results.studies, there.studies)
    shutil.move(results.artifacts, there.artifacts)
    problem = StudyMirror(there, store, [STUDY]).attempt(last=True) or ""
    assert f"`grpolab track sync --repair --uri {store}`" in problem
    assert not results.artifacts.exists()
    assert not there.artifacts.joinpath(STUDY, "report.html").exists()
    assert synchronise(there, store, [STUDY], repair=True) is None
    assert synchronise(there, store, [STUDY]) is None
    assert not results.artifacts.exists()
