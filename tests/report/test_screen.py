"""`report --brief` computes its screen once for what lies on the disk; no change there goes unseen."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from report_results import change, whole_of, write_study

from grpolab.paths import Results
from grpolab.report import brief, export, load, page, screen
from grpolab.report import registered as labels
from grpolab.report.brief import strip_markdown
from grpolab.report.claims import decide, decide_elsewhere
from grpolab.report.plans import outcome_at

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]})


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The studies that were loaded, one for each time."""
    done: list[str] = []
    whole = load.load

    def counted(results: Results, name: str) -> list[load.StudyRuns]:
        done.append(name)
        return whole(results, name)

    monkeypatch.setattr(load, "load", counted)
    return done


def journal_of(results: Results) -> Path:
    return sorted(results.runs.glob("*/journal.jsonl"))[0]


def test_a_screen_is_computed_once_and_then_read(results, loads):
    said = screen.screen(results, "clip_range")
    assert "final accuracy" in said
    assert screen.screen(results, "clip_range") == said
    assert loads == ["clip_range"]


def test_a_collection_whose_runs_are_another_s_says_so(results):
    """Two collections of one study: what they agree on they agree on because it is the same."""
    alone = screen.screen(results, "clip_range")
    for name in ("first", "second"):
        whole_of(results, name, ["clip_range"])
    assert screen.screen(results, "clip_range") == alone, "a part is no second sample"
    assert "all of them are runs of second too: one sample, counted once" in screen.screen(results, "first")
    results.plan("second").write_text("{")
    assert "one sample" not in screen.screen(results, "first"), "what is damaged elsewhere is left out"


def test_the_report_leaves_its_screen_for_the_next_who_asks(results, loads):
    said: list[str] = []
    page.write(results, "clip_range", said.append)
    assert screen.screen(results, "clip_range").endswith(said[-1].strip())
    assert loads == []


def test_a_change_of_any_file_that_it_is_from_is_seen_even_where_size_and_time_stay(results, loads):
    said, journal = screen.screen(results, "clip_range"), journal_of(results)
    before, text = journal.stat(), journal.read_text()
    last = max(part for part in text.split('"eval/accuracy_expected": ')[1:]).partition(",")[0].partition("}")[0]
    digit = next(place for place, letter in enumerate(last) if letter in "123456789")
    other = last[:digit] + ("1" if last[digit] != "1" else "2") + last[digit + 1 :]
    journal.write_text(text.replace(last, other))
    os.utime(journal, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert journal.stat().st_size == before.st_size
    screen.screen(results, "clip_range")
    assert len(loads) == 2
    change(results.plan("clip_range"), question="Another one?")
    assert screen.screen(results, "clip_range").startswith("Another one?")
    for file in ("outcome.json", "provenance.json"):
        path = journal.with_name(file)
        path.write_text(path.read_text() + " ")
        screen.screen(results, "clip_range")
    assert len(loads) == 5
    (journal.parent / "outcome.json").unlink()
    now = screen.screen(results, "clip_range")
    assert said != now
    assert "Limits: 5 runs" in now


@pytest.mark.parametrize(
    ("name", "other"),
    [("version", lambda name: f"another {name}"), ("registry_at", lambda commit: frozenset({f"a line at {commit}"}))],
)
def test_another_program_or_a_commit_that_git_learns_of_later_computes_it_again(
    results, loads, monkeypatch, name, other
):
    screen.screen(results, "clip_range")
    monkeypatch.setattr(screen, name, other)
    screen.screen(results, "clip_range")
    screen.screen(results, "clip_range")
    assert len(loads) == 2


def test_what_changed_while_it_was_computed_is_not_kept(results, loads, monkeypatch):
    whole = load.load

    def slow(results: Results, name: str) -> list[load.StudyRuns]:
        studies = whole(results, name)
        (journal_of(results).parent / "outcome.json").unlink(missing_ok=True)
        return studies

    with monkeypatch.context() as patch:
        patch.setattr(load, "load", slow)
        screen.screen(results, "clip_range")
    assert "Limits: 5 runs" in screen.screen(results, "clip_range")


def test_a_damaged_record_is_as_none(results, loads):
    said = screen.screen(results, "clip_range")
    file = results.screens / "clip_range.json"
    state = json.loads(file.read_text())["state"]
    spoilt = ["", "[]", "{}", '{"state": 3}', "text", json.dumps({"state": state})]
    for damaged in (*spoilt, json.dumps({"state": state, "text": "x", "registered": 3})):
        file.write_text(damaged)
        assert screen.screen(results, "clip_range") == said
    assert len(loads) == 8


def test_a_folder_that_cannot_be_written_has_none(results, loads):
    results.screens.write_text("a file where the folder should be")
    assert screen.screen(results, "clip_range") == screen.screen(results, "clip_range")
    assert len(loads) == 2


def test_an_exported_reference_is_not_written_to(results, tmp_path):
    (results.root / "format.json").unlink()
    screen.screen(results, "clip_range")
    assert not results.screens.exists()


def test_a_commit_that_is_no_hash_never_reaches_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels.registry_at.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git was called"))
    assert labels.registry_at(f"--output={tmp_path / 'made'}") == frozenset()


COMMITTED = Results(ROOT / "results")
QUICK = ("loss_form", "zero_variance")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(file.stem, marks=() if file.stem in QUICK else pytest.mark.slow)
        for file in sorted((COMMITTED.reference / "plans").glob("*.json"))
    ],
)
def test_a_committed_screen_is_what_this_program_computes(name):
    kept = json.loads((COMMITTED.reference / "screens" / f"{name}.json").read_text())
    assert kept["state"] == screen.committed_state(COMMITTED), "`grpolab export-reference` writes the screens too"
    alone = outcome_at(COMMITTED.reference)
    studies = load.load(alone, name)
    elsewhere = decide_elsewhere(alone, studies)
    text = strip_markdown(f"{studies[-1].plan['question']}\n\n{brief.screen(studies, decide(studies), elsewhere)}")
    assert kept["text"] == text


def test_every_committed_screen_is_of_the_committed_outcome():
    screens = (COMMITTED.reference / "screens").glob("*.json")
    assert {json.loads(file.read_text())["state"] for file in screens} == {screen.committed_state(COMMITTED)}


def test_a_committed_screen_is_read_until_a_run_of_the_study_is_here(results, loads, monkeypatch):
    export.export_reference(results, "clip_range")
    said = screen.screen(results, "clip_range")
    screen.write_committed(results)
    loads.clear()
    results.plan("clip_range").rename(results.root / "plan.json")
    runs = results.runs.rename(results.root / "elsewhere")
    assert screen.screen(results, "clip_range") == said
    assert loads == []
    change(results.reference / "screens" / "clip_range.json", registered={"0" * 40: "of another registry"})
    screen.screen(results, "clip_range")
    assert loads == ["clip_range"], "git has the registry, and another one at that commit"
    monkeypatch.setattr(labels, "git", lambda *words: None)
    loads.clear()
    assert screen.screen(results, "clip_range") == said, "an installed package cannot ask git"
    assert loads == []
    one = next(runs.iterdir())
    results.runs.mkdir()
    one.rename(results.runs / one.name)
    screen.screen(results, "clip_range")
    assert loads == ["clip_range"]
    (results.runs / one.name).rename(one)
    plan = results.committed_plan("clip_range")
    plan.write_text(plan.read_text().replace("final_score", "drawdown"))
    screen.screen(results, "clip_range")
    assert loads == ["clip_range"] * 2, "the screen is of another outcome"
