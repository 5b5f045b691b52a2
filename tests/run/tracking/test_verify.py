"""`grpolab track sync` and `track verify`: the store is made, checked, and made equal to the run folders."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runs import STUDY, FakeRun, assert_equal_to_journals, mirror, study, tracked, uri
from mlflow import MlflowClient

from grpolab.cli import main
from grpolab.paths import Results
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import Store
from grpolab.run.tracking.verify import verify


def command(results: Results, *words: str) -> int:
    return main(["track", *words, "--results", str(results.root)])


def differences(results: Results) -> list[str]:
    (checked,) = verify(results, Store(uri(results), results.artifacts), [STUDY])
    return checked.differences


def finished(results: Results) -> list[FakeRun]:
    runs = [FakeRun(results, cell).take(3) for cell in study(results, seeds=1)["cells"]]
    for run in runs:
        run.end()
    return runs


def query(results: Results, statement: str) -> None:
    with sqlite3.connect(results.store) as connection:
        assert connection.execute(statement).rowcount == 1


ONE = "run_uuid = (select run_uuid from runs where name = 'low/addition, seed 0')"
TABLE = "metrics (key, value, timestamp, run_uuid, step, is_nan)"
PLANTED = {
    "another value": (
        f"update metrics set value = 9 where key = 'loss' and step = 1 and {ONE}",
        "loss at step 1 is 9.0",
    ),
    "a point twice": (
        f"insert into {TABLE} select key, value, timestamp + 1, run_uuid, step, is_nan from metrics"
        f" where key = 'loss' and step = 2 and {ONE}",
        "loss at step 2 is there 2 times",
    ),
    "a point too few": (
        f"delete from metrics where key = 'grad_norm' and step = 0 and {ONE}",
        "grad_norm at step 0 is mi",
    ),
    "a point too many": (
        f"insert into {TABLE} select key, value, timestamp, run_uuid, 99, is_nan from metrics"
        f" where key = 'loss' and step = 2 and {ONE}",
        "loss at step 99 is in no journal",
    ),
    "NaN": (
        f"update metrics set value = 0, is_nan = 1 where key = 'loss' and step = 1 and {ONE}",
        "loss at step 1 is nan",
    ),
    "another status": (
        f"update runs set status = 'RUNNING', end_time = null where {ONE}",
        "is RUNNING, the run folder",
    ),
    "another outcome": (
        f"update tags set value = 'diverged' where key = 'outcome' and {ONE}",
        "the tag outcome is diver",
    ),
    "another arm": (f"update tags set value = 'high' where key = 'arm' and {ONE}", "the tag arm is high"),
    "no run": (f"update runs set lifecycle_stage = 'deleted' where {ONE}", "the store does not have it"),
}


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("{}")])
def test_a_journal_that_is_not_among_the_artefacts_is_named_and_repaired(
    results: Results, damage: Callable[[Path], object]
) -> None:
    finished(results)
    mirror(results)
    damage(next(results.artifacts.glob("*/*/artifacts/journal.jsonl")))
    (sentence,) = differences(results)
    assert "the artefact journal.jsonl is " in sentence
    assert StudyMirror(results, uri(results), [STUDY], repair=True).attempt(last=True) is None
    assert differences(results) == []


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_named_and_repaired(results: Results, planted: str) -> None:
    finished(results)
    mirror(results)
    assert differences(results) == []
    statement, said = PLANTED[planted]
    query(results, statement)
    (sentence,) = differences(results)
    assert sentence.startswith("low/addition, seed 0 (")
    assert said in sentence
    assert StudyMirror(results, uri(results), [STUDY], repair=True).attempt(last=True) is None
    assert differences(results) == []
    assert_equal_to_journals(results)


def test_a_second_run_of_a_cell_is_named_and_leaves_its_variant(results: Results) -> None:
    """Two machines that write to one server at once can make it; charts would count it in the mean."""
    finished(results)
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    MlflowClient(uri(results)).create_run(run.info.experiment_id, tags=tags, run_name="twin")
    assert any("the store has 2 runs of it" in sentence for sentence in differences(results))
    mirror(results)
    assert differences(results) == []


def test_a_run_whose_folder_is_not_here_is_named_and_left_alone(results: Results) -> None:
    """It was pruned, or it is another machine's."""
    runs = finished(results)
    mirror(results)
    runs[0].folder.rename(results.root / "elsewhere")
    (checked,) = verify(results, Store(uri(results), results.artifacts), [STUDY])
    assert checked.differences == []
    (unknown,) = checked.unknown
    assert "low/addition, seed 0" in unknown
    mirror(results)
    assert "low/addition, seed 0" in tracked(results)


def test_of_a_running_run_only_what_is_wrong_counts(results: Results) -> None:
    """What is new may be on its way; what the store has beyond a checkpoint comes again."""
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(3)
    files = [run.folder / name for name in ("journal.jsonl", "timing.jsonl")]
    checkpoint = [file.read_bytes() for file in files]
    run.take(1)
    mirror(results, last=False)
    journals = [file.read_bytes() for file in files]
    for file, content in zip(files, checkpoint, strict=True):  # it was killed and goes on
        file.write_bytes(content)
    assert differences(results) == []
    for file, content in zip(files, journals, strict=True):
        file.write_bytes(content)
    run.take(4)
    query(results, f"update metrics set value = 9 where key = 'loss' and step = 1 and {ONE}")
    (sentence,) = differences(results)
    assert "loss at step 1" in sentence


def test_a_failed_run_that_goes_on_has_no_point_of_its_half_step(results: Results) -> None:
    """The step is taken again, and its last update is another one then."""
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(1)
    journal = (run.folder / "journal.jsonl").read_bytes()
    half = {"kind": "update", "rollout_step": 1, "iteration": 0, "minibatch": 0, "optimizer_step": 4, "loss": 7.0}
    (run.folder / "journal.jsonl").write_bytes(journal + json.dumps(half, separators=(",", ":")).encode() + b"\n")
    outcome = run.folder / "outcome.json"
    outcome.write_text('{"outcome": "failed", "reason": "OSError: no space", "error": "..."}')
    mirror(results)
    assert differences(results) == []
    outcome.unlink()
    (run.folder / "journal.jsonl").write_bytes(journal)
    run.take(2).end()
    mirror(results)
    assert differences(results) == []
    assert_equal_to_journals(results)


def test_a_run_of_a_removed_level_whose_process_died_does_not_stay_running(results: Results) -> None:
    plan = study(results, seeds=1)
    gone = FakeRun(results, plan["cells"][0]).take(1)
    mirror(results, last=False)
    results.plan(STUDY).write_text(json.dumps({**plan, "cells": plan["cells"][1:]}))
    mirror(results)
    assert tracked(results)["low/addition, seed 0"].info.status == "RUNNING", "its process lives"
    gone.lease.release()
    assert [sentence for sentence in differences(results) if "is RUNNING, the run folder says KILLED" in sentence]
    mirror(results)
    assert tracked(results)["low/addition, seed 0"].info.status == "KILLED"
    assert differences(results) == []


@pytest.mark.slow
def test_the_commands_make_a_store_from_the_journals_and_find_it_equal(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(results)
    store = f"sqlite:///{tmp_path}/another.db"
    assert command(results, "verify", "--uri", store) == 1
    assert "`grpolab track sync` makes it" in capsys.readouterr().err
    assert not (tmp_path / "another.db").exists()
    assert command(results, "sync", "--uri", store) == 0
    assert "up to date" in capsys.readouterr().out
    assert command(results, "verify", STUDY, "--uri", store, "--json") == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert (checked["study"], checked["runs"], checked["differences"]) == (STUDY, 2, [])
    with sqlite3.connect(tmp_path / "another.db") as connection:
        assert connection.execute("select count(*) from metrics").fetchone() == (checked["points"],)
        connection.execute("delete from metrics where key = 'loss'")
    connection.close()
    assert command(results, "verify", "--uri", store) == 1
    said = capsys.readouterr().out
    assert f"{STUDY}: 2 runs, " in said
    assert "6 differences" in said
    assert "and 1 more" in said
    assert "`grpolab track sync --repair`" in said


@pytest.mark.slow
@pytest.mark.parametrize("word", ["sync", "verify"])
def test_a_server_that_is_down_is_one_sentence_and_exit_code_2(
    results: Results, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(results)
    assert command(results, word, "--uri", "http://127.0.0.1:9") == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:9 cannot be used: " in sentence
    assert "Connection refused" in sentence


@pytest.mark.parametrize(
    "words", [["track"], ["track", "sink"], ["track", "verify", "a", "b"], ["track", "sync", "--json"]]
)
def test_wrong_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("grpolab: ")


@pytest.mark.parametrize("word", ["sync", "verify"])
def test_wrong_requests(results: Results, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    study(results)
    for wrong, said in (
        (["clip_rang"], "did you mean clip_range?"),
        (["--uri", "ftp://x"], "ftp://x is no MLflow store"),
    ):
        assert command(results, word, *wrong) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert said in sentence
