"""Artefacts lie below the results folder, also after that was moved or copied: nothing lands where it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_runs import STUDY, FakeRun, mirror, study, tracked, uri
from mlflow import MlflowClient

from grpolab.paths import Results
from grpolab.run.tracking import synchronise
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import Store
from grpolab.studies.stored_runs import verify


def files_of(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_copied_folder_rebuilds_its_store_and_writes_nothing_where_it_was(
    results: Results, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = study(results, seeds=1)["cells"]
    FakeRun(results, first).take(1).end()
    mirror(results)
    there = Results(tmp_path_factory.mktemp("copy") / "with a space")
    shutil.copytree(results.root, there.root)
    FakeRun(there, second).take(1).end()
    before = files_of(results.root)
    assert Store(uri(there), there).find_misplaced()
    assert "artefacts lie in" in verify(there, Store(uri(there), there), [STUDY])[0].differences[-1]
    assert synchronise(there, uri(there), []) is None  # all studies that are planned
    assert not Store(uri(there), there).find_misplaced()
    assert files_of(results.root) == before
    for arm in ("low", "high"):
        run = tracked(there)[f"{arm}/addition, seed 0"]
        assert run.info.artifact_uri.startswith(there.artifacts.as_uri())
        files = {file.path for file in MlflowClient(uri(there)).list_artifacts(run.info.run_id)}
        assert files >= {"journal.jsonl", "outcome.json"}
    assert [comparison.differences for comparison in verify(there, Store(uri(there), there), [STUDY])] == [[]]


@pytest.mark.slow
def test_a_store_elsewhere_is_left_alone_until_it_is_asked_for(results: Results, tmp_path: Path) -> None:
    """It may be that of several results folders."""
    store = f"sqlite:///{tmp_path}/elsewhere/store.db"
    (tmp_path / "elsewhere").mkdir()
    FakeRun(results, study(results, seeds=1, arms=("low",))["cells"][0]).take(1).end()
    assert StudyMirror(results, store, [STUDY]).attempt(last=True) is None
    there = Results(tmp_path / "moved")
    there.root.mkdir()
    for folder in ("runs", "studies", "mlartifacts"):
        shutil.move(results.root / folder, there.root / folder)
    problem = StudyMirror(there, store, [STUDY]).attempt(last=True) or ""
    assert f"`grpolab track sync --rebuild --uri {store}`" in problem
    assert not results.artifacts.exists()
    assert synchronise(there, store, [STUDY], rebuild=True) is None
    assert synchronise(there, store, [STUDY]) is None
    assert not results.artifacts.exists()
