"""A pass asks the store for no run that is complete, and what is kept for that is never believed against the store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from fake_runs import STUDY, FakeRun, assert_equal_to_journals, mirror, study, tracked, uri
from mlflow import MlflowClient

from grpolab.paths import Results


def two_runs(results: Results) -> list[FakeRun]:
    """Two runs of a study that have ended, and are mirrored; the study has two more."""
    runs = [FakeRun(results, cell).take(3) for cell in study(results)["cells"]]
    for run in runs[:2]:
        run.end()
        run.lease.release()
    for run in runs[2:]:
        run.lease.release()
        shutil.rmtree(run.folder)
    mirror(results)
    return runs[:2]


def as_stored(results: Results) -> dict[str, Any]:
    return {
        name: (run.info.run_id, run.info.status, run.data.to_dictionary()) for name, run in tracked(results).items()
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions after runs that passes have asked the store."""
    done: list[str] = []
    for name in ("search_runs", "get_run", "get_metric_history"):
        whole = getattr(MlflowClient, name)

        def counted(*of: Any, _name: str = name, _whole: Any = whole, **more: Any) -> Any:
            done.append(_name)
            return _whole(*of, **more)

        monkeypatch.setattr(MlflowClient, name, counted)
    return done


def test_a_pass_asks_the_store_for_no_run_that_is_complete(results: Results, asked: list[str]) -> None:
    two_runs(results)
    before = as_stored(results)
    asked.clear()
    mirror(results, last=False)
    assert asked == []
    assert as_stored(results) == before
    asked.clear()
    cell = json.loads(results.plan(STUDY).read_text())["cells"][2]
    new = FakeRun(results, cell).take(3)
    new.end()
    mirror(results, last=False)
    assert "search_runs" not in asked
    assert "get_run" not in asked
    assert len(tracked(results)) == len(before) + 1
    assert {name: run for name, run in as_stored(results).items() if name in before} == before


def test_what_another_program_changes_in_the_store_is_seen(results: Results) -> None:
    two_runs(results)
    before = tracked(results)
    name = next(name for name in before if name != "summary")
    MlflowClient(uri(results)).delete_run(before[name].info.run_id)
    mirror(results)
    assert tracked(results).keys() == before.keys()
    assert tracked(results)[name].info.run_id != before[name].info.run_id


@pytest.mark.parametrize("spoil", [lambda content: b"", lambda content: content.replace(b"low", b"lwo")])
def test_what_is_kept_of_the_store_may_be_lost_or_damaged(
    results: Results, asked: list[str], spoil: Callable[[bytes], bytes]
) -> None:
    two_runs(results)
    before, file = as_stored(results), results.mlflow_runs(STUDY).with_name("copied.json")
    file.write_bytes(spoil(file.read_bytes()))
    asked.clear()
    mirror(results, last=False)
    assert "search_runs" in asked
    assert as_stored(results) == before
    assert_equal_to_journals_of_two(results)


def assert_equal_to_journals_of_two(results: Results) -> None:
    plan = json.loads(results.plan(STUDY).read_text())
    plan["cells"] = [cell for cell in plan["cells"] if results.run(cell["signature"]).exists()]
    results.plan(STUDY).write_text(json.dumps(plan))
    assert_equal_to_journals(results)
