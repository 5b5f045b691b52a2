"""`grpolab track sync` and `track verify`: the store is made, compared, and made anew from the run folders."""

from __future__ import annotations

import json
import shutil
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
from grpolab.studies.stored_runs import Comparison, verify

LOW = "low/addition, seed 0"


def compare(results: Results) -> Comparison:
    return verify(results, Store(uri(results), results), [STUDY])[0]


def finished(results: Results, seeds: int = 1) -> list[FakeRun]:
    runs = [FakeRun(results, cell).take(3) for cell in study(results, seeds=seeds)["cells"]]
    for run in runs:
        run.end()
    return runs


Plant = Callable[[MlflowClient, str, Path], object]
PLANTED: dict[str, tuple[Plant, str]] = {
    "another value": (lambda client, run, _: client.log_metric(run, "loss", 9.0, step=99), "the last loss is 9.0"),
    "a metric of nobody": (lambda client, run, _: client.log_metric(run, "mine", 1.0), "the last mine is 1.0"),
    "a step twice": (lambda client, run, _: client.log_metric(run, "system/rss_mib", 1.0, step=1), "steps is 4"),
    "another status": (lambda client, run, _: client.update_run(run, "RUNNING"), "the status is RUNNING"),
    "another outcome": (lambda client, run, _: client.set_tag(run, "outcome", "diverged"), "the tag outcome is diverg"),
    "another arm": (lambda client, run, _: client.set_tag(run, "arm", "high"), "the tag arm is high"),
    "no run": (lambda client, run, _: client.delete_run(run), "the store has 0 runs of it"),
    "another journal": (lambda _, __, artefacts: (artefacts / "journal.jsonl").write_text("{}"), "journal.jsonl is "),
    "no journal": (lambda _, __, artefacts: (artefacts / "journal.jsonl").unlink(), "journal.jsonl is None"),
}
# What would hide the others is planted in a run of its own.
ELSEWHERE = {"no run": "high/addition, seed 0", "no journal": "high/addition, seed 1"}


def test_what_is_planted_is_named(results: Results) -> None:
    finished(results, seeds=2)
    mirror(results)
    assert compare(results).differences == []
    runs, client, expected = tracked(results), MlflowClient(uri(results)), set[tuple[str, str]]()
    for planted, (plant, said) in PLANTED.items():
        name = ELSEWHERE.get(planted, LOW)
        plant(client, runs[name].info.run_id, Path(runs[name].info.artifact_uri.removeprefix("file://")))
        expected.add((name, said))
    differences = compare(results).differences
    assert len(differences) == len(expected)
    named = {
        (name, said) for name, said in expected if any(t.startswith(f"{name}: ") and said in t for t in differences)
    }
    assert named == expected


def test_a_store_is_rebuilt_and_the_old_one_is_set_aside(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    finished(results)
    mirror(results)
    MlflowClient(uri(results)).log_metric(tracked(results)[LOW].info.run_id, "loss", 9.0, step=99)
    assert StudyMirror(results, uri(results), [STUDY], rebuild=True).attempt(last=True) is None
    assert compare(results).differences == []
    assert_equal_to_journals(results)
    (old,) = results.root.glob("mlflow-*.db")
    assert old.name in capsys.readouterr().out
    assert len(list(results.root.glob("mlartifacts-*"))) == 1


def test_a_second_run_of_a_cell_is_named(results: Results) -> None:
    """Two machines that write to one server at once can make it; charts would count it in the mean."""
    finished(results)
    mirror(results)
    run = tracked(results)[LOW]
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    MlflowClient(uri(results)).create_run(run.info.experiment_id, tags=tags, run_name="twin")
    assert any("the store has 2 runs of it" in sentence for sentence in compare(results).differences)


def test_a_run_whose_folder_is_not_here_is_left_alone(results: Results) -> None:
    """It was pruned, or it is another machine's."""
    runs = finished(results)
    mirror(results)
    shutil.move(runs[0].folder, results.root / "elsewhere")
    assert compare(results).differences == []
    mirror(results)
    assert LOW in tracked(results)


def test_a_running_run_is_counted_and_not_compared(results: Results) -> None:
    run = FakeRun(results, study(results, seeds=1, arms=("low",))["cells"][0]).take(3)
    mirror(results, last=False)
    run.take(4)
    comparison = compare(results)
    assert (comparison.runs, comparison.running, comparison.differences) == (1, 1, [])


@pytest.mark.slow
def test_the_commands_make_a_store_from_the_journals_and_find_it_equal(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> int:
        return main(["track", *words, "--uri", store, "--results", str(results.root)])

    finished(results)
    store = f"sqlite:///{tmp_path}/another.db"
    assert command("verify") == 1
    assert "`grpolab track sync` makes it" in capsys.readouterr().err
    assert not (tmp_path / "another.db").exists()
    assert command("sync") == 0
    capsys.readouterr()
    assert command("verify", STUDY, "--json") == 0
    (comparison,) = json.loads(capsys.readouterr().out)
    assert (comparison["study"], comparison["runs"], comparison["differences"]) == (STUDY, 2, [])
    with sqlite3.connect(tmp_path / "another.db") as connection:
        connection.execute("delete from latest_metrics where key in ('loss', 'grad_norm', 'reward/mean')")
    connection.close()
    assert command("verify") == 1
    said = capsys.readouterr().out
    assert f"{STUDY}: 2 runs: 6 differences" in said
    assert "and 1 more" in said
    assert command("sync", "--rebuild") == 0
    assert command("verify") == 0


@pytest.mark.parametrize("word", ["sync", "verify"])
def test_wrong_requests(results: Results, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    study(results)
    for wrong, said in (
        (["clip_rang"], "did you mean clip_range"),
        (["--uri", "ftp://x"], "ftp://x is no MLflow store"),
        (["--uri", "http://127.0.0.1:9"], "Connection refused"),
    ):
        assert main(["track", word, *wrong, "--results", str(results.root)]) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert said in sentence
    for words in (["track"], ["track", "sink"], ["track", "verify", "a", "b"], ["track", "sync", "--yes"]):
        assert main(words) == 2
