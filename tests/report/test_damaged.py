"""A file that is not what was written costs one run, by name: the others are read, nothing of it is called a result."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_results import cells_of, change, rewrite, write_study

from grpolab.cli import main
from grpolab.errors import Damaged, RequestError
from grpolab.paths import Results
from grpolab.records import read_result
from grpolab.report import journals, page, plans
from grpolab.report.compare import OPEN, compare
from grpolab.report.export import export_reference
from grpolab.report.figures import draw
from grpolab.report.load import load, read_journal
from grpolab.report.screen import screen
from grpolab.run_files import read_outcome
from grpolab.vocabulary import DAMAGED

FACTORS = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}
AGAIN = "grpolab sweep clip_range --retry-failed"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return write_study(tmp_path_factory.mktemp("results"), factors=FACTORS, seeds=4, figures=["F1"])


@pytest.fixture
def results(original: Results, tmp_path: Path) -> Results:
    shutil.copytree(original.root, tmp_path / "copy")
    return Results(tmp_path / "copy")


def first(results: Results) -> Path:
    """The folder of the first run."""
    return results.run(cells_of(results)[0]["signature"])


def alter(folder: Path) -> None:
    """Better scores, under the hash of the true ones."""
    journal = folder / "journal.jsonl"
    journal.write_text(re.sub(r'(accuracy_expected": )[-\d.]+', r"\g<1>0.99", journal.read_text()))


def test_altered_scores_are_left_out_and_named(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    folder = first(results)
    screen(results, "clip_range")  # so that the cache of the true journal is there
    alter(folder)
    (study,) = load(results, "clip_range")
    (ill,) = study.cells[study.cells["outcome"] == DAMAGED].itertuples()
    assert ill.signature == folder.name
    assert len(study.done) == len(study.cells) - 1
    assert folder.name not in set(study.evaluations["signature"])
    brief = screen(results, "clip_range")
    assert "Damaged and left out: 1 run, whose files have changed since they ended" in brief
    assert f"clip_range {ill.variant} seed {ill.seed} ({folder.name})" in brief
    assert AGAIN in brief
    said = f"{folder / 'journal.jsonl'} is not the journal that outcome.json was written for (journal_sha256)"
    assert said in page.write(results, "clip_range").read_text()
    assert f"Damaged and left out: {ill.variant} seed {ill.seed}." in draw(study, "F1")[1].caption
    assert main(["status", "clip_range", "--results", str(results.root)]) == 0
    status = capsys.readouterr().out
    assert "8 planned: 7 completed, 1 damaged" in status
    assert said in status
    assert AGAIN in status


def test_what_is_as_it_was_recorded_is_read_though_it_is_other_than_before(results: Results) -> None:
    """The hash is the measure, not the cache and not the time of the file."""
    journal = first(results) / "journal.jsonl"
    screen(results, "clip_range")
    rewrite(journal, journal.read_text().replace('"grad_norm": ', '"grad_norm": 1'))
    assert not (load(results, "clip_range")[0].cells["outcome"] == DAMAGED).any()


def test_emptied_journals_are_not_called_equal(original: Results, results: Results) -> None:
    (first(results) / "journal.jsonl").write_text("")
    text, verdict, _ = compare(results, original.root)
    assert "7 of the same signature, 7 of them with equal journals" in text
    assert "damaged here and left out, called neither equal nor different: symmetric/addition seed 0" in text
    assert verdict == OPEN
    for folder in results.runs.iterdir():
        (folder / "journal.jsonl").write_text("")
    with pytest.raises(RequestError, match="damaged here and left out"):
        compare(results, original.root)


@pytest.mark.parametrize("append", [False, True])
def test_nothing_damaged_is_exported(results: Results, append: bool) -> None:
    alter(first(results))
    with pytest.raises(RequestError, match=f"(?s)run {first(results).name} is damaged: .*{AGAIN}"):
        export_reference(results, "clip_range", append)
    assert not results.reference.exists()


def test_a_result_without_a_recorded_hash_is_read_and_counted(results: Results) -> None:
    change(first(results) / "outcome.json", journal_sha256=None)
    alter(first(results))
    text = page.write(results, "clip_range").read_text()
    assert "without a recorded hash of the journal, so that it was not checked: 1 run\n" in text


DAMAGE = {
    "half a line": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "NUL": lambda data: data[:20] + b"\0" + data[21:],
    "no UTF-8": lambda data: data[:20] + b"\xff" + data[21:],
    "another object": lambda data: b'{"a": 1}\n',
    "a list": lambda data: b"[]",
    "deep": lambda data: b"[" * 100_000,
    "a number of more than 64 bits": lambda data: data.replace(b"{", b'{"n": 1' + b"0" * 30 + b", ", 1),
    "words for numbers": lambda data: re.sub(rb'("[a-z_/]+": )-?[\d.e-]+', rb'\1"many"', data),
}
FILES = ("outcome.json", "provenance.json", "journal.jsonl", "timing.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_one_damaged_file_is_one_sentence_and_the_other_runs_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Each kind of damage in the file of a run of its own, and as many runs that are sound."""
    results = write_study(tmp_path / "results", factors=FACTORS, seeds=len(DAMAGE), figures=[])
    shutil.copytree(results.root, tmp_path / "original")
    harmless = {("timing.jsonl", "empty"), *((file, "another object") for file in ("timing.jsonl", "journal.jsonl"))}
    reasons = {}
    for (kind, damage), cell in zip(DAMAGE.items(), cells_of(results)[::2], strict=True):
        file = results.run(cell["signature"]) / name
        file.write_bytes(damage(file.read_bytes()))
        if name == "journal.jsonl" and kind != "empty":  # of an old program that kept no hash
            change(file.with_name("outcome.json"), journal_sha256=None)
        if (name, kind) not in harmless:
            reasons[cell["signature"]] = str(file.parent)
    (study,) = load(results, "clip_range")
    ill = study.cells[study.cells["outcome"] == DAMAGED]
    assert {*ill["signature"]} == {*reasons}, "nothing is missing, and what is not read is said"
    assert all(reasons[run.signature] in run.reason for run in ill.itertuples())
    here = ["--results", str(results.root)]
    commands = (["report", "clip_range", "--brief"], ["status", "clip_range"], ["compare", str(tmp_path / "original")])
    for command in commands:
        assert main([*command, *here]) in (0, 3), command
    assert "Traceback" not in capsys.readouterr().err


def test_a_final_number_that_is_a_word_is_damage(results: Results) -> None:
    change(first(results) / "outcome.json", final={"eval/accuracy_greedy": "word"})
    with pytest.raises(Damaged, match=r"its final\.eval/accuracy_greedy is 'word'"):
        read_outcome(first(results))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_plan_is_one_sentence(results: Results, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    file = results.plan("clip_range")
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    for command in (["report", "clip_range", "--brief"], ["status", "clip_range"], ["export-reference", "clip_range"]):
        assert main([*command, "--results", str(results.root)]) == 2
        assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("inner", [{"study": "../../../out"}, {"study": "/tmp/out"}, {"figures": ["../../../F1"]}])
def test_no_inner_name_of_a_plan_writes_outside(results: Results, inner: dict, tmp_path: Path) -> None:
    def outside() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if not path.is_relative_to(results.root)}

    change(results.plan("clip_range"), **inner)
    before = outside()
    assert main(["figures", "clip_range", "--results", str(results.root)]) == 2
    assert outside() == before


def test_samples_that_cannot_be_read_are_a_sentence(results: Results) -> None:
    samples = first(results) / "samples"
    shutil.rmtree(samples, ignore_errors=True)
    samples.mkdir()
    file = samples / "step_000001.parquet"
    for spoil in (lambda: file.symlink_to("nowhere"), lambda: file.write_bytes(b"PAR1")):
        file.unlink(missing_ok=True)
        spoil()
        with pytest.raises(Damaged, match=f"{file} cannot be read as samples"):
            journals.read_samples(file)


@pytest.mark.parametrize(("column", "values"), [("ratio", ["one"]), ("prompt_index", None), ("token", None)])
def test_samples_of_other_columns_are_a_sentence(column: str, values: list[str] | None, tmp_path: Path) -> None:
    """`show` had a KeyError."""
    numbers = ("prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio")
    texts = ("prompt", "completion", "token", "clipped")
    frame = pd.DataFrame({**{name: [1.0] for name in numbers}, **{name: ["x"] for name in texts}})
    frame.to_parquet(tmp_path / "whole.parquet")
    assert len(journals.read_samples(tmp_path / "whole.parquet")) == 1
    frame = frame.drop(columns=column) if values is None else frame.assign(**{column: values})
    frame.to_parquet(tmp_path / "step.parquet")
    with pytest.raises(Damaged, match=f"step.parquet cannot be read as samples: its column {column} is"):
        journals.read_samples(tmp_path / "step.parquet")


def test_a_pipe_in_place_of_a_file_is_not_waited_for(results: Results) -> None:
    provenance = first(results) / "provenance.json"
    provenance.unlink()
    os.mkfifo(provenance)
    assert "Damaged and left out: 1 run" in screen(results, "clip_range")


@pytest.mark.parametrize("stability", [{"tail": "ten"}, {"tails": 0.1}, {"ess": True}])
def test_a_plan_whose_thresholds_are_no_numbers_is_refused(
    original: Results, results: Results, stability: dict[str, object]
) -> None:
    """compare had a traceback."""
    change(results.plan("clip_range"), stability=stability)
    with pytest.raises(
        (Damaged, RequestError), match=rf"plan.json is damaged: its stability.{next(iter(stability))} is"
    ):
        compare(original, results.root)


LEVELS = {"clip": 3, "task": "addition"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stability": {"tail": "ten"}}, "its stability.tail is 'ten'"),
        ({"registered": {"H": "a word"}}, "its registered.H is 'a word'"),
        ({"registered": {"H": {"line": 1, "seeds": [], "looks": [], "margins": {}}}}, "its registered.H.line is 1"),
        ({"registered": "a word"}, "its registered is 'a word'"),
        ({"factors": {"clip": ["symmetric", 3]}}, "its factors.clip.1 is 3"),
        ({"factors": {"clip": "symmetric"}}, "its factors.clip is 'symmetric'"),
        ({"placebo": [["symmetric"]]}, "its placebo=.* is no list of pairs"),
        ({"stability": {"spike_least": 3.5}}, "its stability.spike_least is 3.5"),
        ({"stability": {"spike_window": -1}}, "its stability.spike_window is -1"),
        ({"factors": {}}, "compare='clip' is not one of its factors"),
        ({"study": "z" * 240}, "is no name of a study"),
        ({"question": "\ud800"}, "cannot be read: .*surrogates not allowed"),
        ({"hypotheses": ["a word"]}, "its hypotheses.0 is 'a word'"),
        ({"hypotheses": [{"says": "it has no id"}]}, "its hypotheses.0 lacks id, metric"),
        (lambda cells: [cells[0] | {"levels": LEVELS}], "its cells.0.levels.clip is 3"),
        (lambda cells: [cells[0] | {"settings": {"num_generations": "many"}}], "settings.num_generations is 'many'"),
        (lambda cells: [*cells, cells[0]], "has two cells of variant 'symmetric/addition' and seed 0"),
    ],
)
def test_a_plan_whose_inner_values_do_not_fit_is_refused(results: Results, changes: Any, said: str) -> None:
    changes = {"cells": changes(cells_of(results))} if callable(changes) else changes
    change(results.plan("clip_range"), **changes)
    with pytest.raises(Damaged, match=said):
        plans.read_plan(results.plan("clip_range"))


def test_a_journal_that_is_a_link_to_itself_is_one_sentence(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = first(results)
    (folder / "journal.jsonl").unlink()
    (folder / "journal.jsonl").symlink_to("journal.jsonl")
    with pytest.raises(Damaged, match=r"journal.jsonl cannot be read: Too many levels of symbolic links"):
        read_result(folder)
    assert main(["diagnose", folder.name, "--json", "--results", str(results.root)]) == 2
    assert folder.name in capsys.readouterr().err


def test_ledger_and_report_agree_on_a_run_without_its_number_of_items(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report called it damaged and the ledger completed, so that --retry-failed did nothing."""
    change(first(results) / "provenance.json", dataset={})
    (study,) = load(results, "clip_range")
    assert (study.cells["outcome"] == DAMAGED).sum() == 1
    assert main(["status", "clip_range", "--results", str(results.root)]) == 0
    assert "8 planned: 7 completed, 1 damaged" in capsys.readouterr().out


def test_a_journal_that_is_a_link_to_a_secret_shows_nothing_of_it(results: Results, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"outcome": "a-secret", "a-name": 1}')
    (first(results) / "timing.jsonl").unlink(missing_ok=True)
    (first(results) / "timing.jsonl").symlink_to(tmp_path / "secret.json")
    with pytest.raises(Damaged, match="a record's value is no number") as refused:
        read_journal(first(results))
    assert not re.search("a-secret|a-name", str(refused.value))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("warm_start", {"accuracy": "word"}, "warm_start.accuracy"),
        ("content", {"task": 1}, "content.task"),
        ("dirty", {"a": 1}, "dirty"),
        ("threads", "one", "threads"),
    ],
)
def test_provenance_of_wrong_types_is_damage_with_its_key(results: Results, key: str, value: Any, named: str) -> None:
    change(first(results) / "provenance.json", **{key: value})
    with pytest.raises(Damaged, match=rf"provenance.json is damaged: its {named} is"):
        read_result(first(results))
