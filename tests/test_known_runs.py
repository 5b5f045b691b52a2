"""What is kept of runs is never believed against the folders, and spares reading them again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_results import cells_of, change, write_run, write_study

from grpolab import known_runs
from grpolab.doctor import section
from grpolab.known_runs import KnownRuns
from grpolab.paths import Results
from grpolab.report import load, measures
from grpolab.studies import drawing
from grpolab.studies.facts import read_facts
from grpolab.studies.status import status
from grpolab.vocabulary import COMPLETED, DAMAGED


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files need not be two seconds old."""
    monkeypatch.setattr(known_runs, "SETTLED_SECONDS", -1.0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose outcome was read, one for each time."""
    done: list[str] = []
    whole = known_runs.outcome_or_damage
    monkeypatch.setattr(known_runs, "outcome_or_damage", lambda folder: (done.append(folder.name), whole(folder))[1])
    return done


def states(results: Results) -> list[str]:
    return [cell["state"] for cell in status(results, "clip_range", 0.0)["clip_range"]["cells"]]


def journal(results: Results) -> Path:
    return sorted(results.runs.glob("*/journal.jsonl"))[0]


def damage(file: Path) -> None:
    """Change a digit; size and time of last change stay."""
    before, content = file.stat(), file.read_bytes()
    place = content.index(b"0.")
    file.write_bytes(content[:place] + b"9" + content[place + 1 :])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_run_is_read_once_and_again_when_one_of_its_files_has_changed(tmp_path: Path, read: list[str]) -> None:
    results = write_study(tmp_path)
    first = states(results)
    assert set(first) == {COMPLETED}
    assert len(read) == len(first)
    assert states(results) == first
    assert len(read) == len(first), "nothing is read again"
    damage(journal(results))
    assert sorted(states(results)) == sorted([DAMAGED, *first[1:]])
    assert read[len(first) :] == [journal(results).parent.name]
    shutil.rmtree(journal(results).parent)
    assert sorted(states(results)) == sorted(["missing", *first[1:]])


def test_a_file_that_has_just_changed_is_read_again(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could change once more within the same time stamp."""
    monkeypatch.setattr(known_runs, "SETTLED_SECONDS", 60.0)
    results = write_study(tmp_path)
    runs = len(states(results))
    states(results)
    assert len(read) == 2 * runs
    assert not (results.root / "known_runs.json").exists()


def forged(content: bytes) -> bytes:
    return content.replace(b'"completed"', b'"diverged"', 1)


@pytest.mark.parametrize(
    "spoil",
    [lambda content: b"", lambda content: content[: len(content) // 2], forged, lambda content: b"\xff" + content],
    ids=["empty", "half", "forged", "no text"],
)
def test_a_cache_that_is_damaged_is_as_none(
    tmp_path: Path, read: list[str], spoil: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_study(tmp_path)
    first = status(results, "clip_range", 0.0)
    whole = (results.root / "known_runs.json").read_bytes()
    assert spoil(whole) != whole
    (results.root / "known_runs.json").write_bytes(spoil(whole))
    assert status(results, "clip_range", 0.0) == first
    (results.root / "known_runs.json").unlink()
    assert status(results, "clip_range", 0.0) == first
    monkeypatch.setattr(known_runs, "program_sha256", lambda: "another program")
    assert status(results, "clip_range", 0.0) == first
    assert len(read) == 4 * len(set(read)), "each time all is read anew"


def test_a_cache_of_another_folder_says_nothing_here(tmp_path: Path) -> None:
    """A copied results folder brings its cache along, and may have been changed on the way."""
    results = write_study(tmp_path / "here")
    states(results)
    shutil.copytree(results.root, tmp_path / "there")
    there = Results(tmp_path / "there")
    damage(journal(there))
    assert DAMAGED in states(there)
    assert DAMAGED not in states(results)


def test_facts_of_a_journal_are_kept(tmp_path: Path) -> None:
    results = write_study(tmp_path)
    name, known = journal(results).parent.name, KnownRuns(results)
    facts = known.derived(name, "facts", read_facts)
    assert list(facts) == list(read_facts(results.run(name)))
    known.save()

    def fails(_folder: Path) -> Any:
        raise AssertionError("it is read again")

    assert list(KnownRuns(results).derived(name, "facts", fails)) == list(facts)
    damage(journal(results))
    with pytest.raises(AssertionError, match="read again"):
        KnownRuns(results).derived(name, "facts", fails)


def test_quantities_are_computed_again_of_runs_with_another_journal_or_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, computed = write_study(tmp_path, seeds=1), []
    whole = measures.journal_quantities
    monkeypatch.setattr(measures, "journal_quantities", lambda *of: (computed.append(of), whole(*of))[1])

    def table() -> pd.DataFrame:
        computed.clear()
        return measures.stability_table(load.load(results, "clip_range")[-1])

    first = table()
    assert len(computed) == len(first) == 6
    pd.testing.assert_frame_equal(table(), first)
    assert computed == []
    write_run(results, cells_of(results)[0], last_step=9)
    assert not table().equals(first)
    assert len(computed) == 1
    change(results.plan("clip_range"), stability={"score_tail": 0.1, "entropy_ratio": 0.9})
    table()
    assert len(computed) == 6


def test_causes_are_looked_for_again_only_in_a_run_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor takes longer than all else of a report, and what it says of a run depends on no other one."""
    results, examined = write_study(tmp_path, seeds=1), list[str]()
    whole = section.find_causes
    monkeypatch.setattr(section, "find_causes", lambda run: (examined.append(run.run), whole(run))[1])
    command = KnownRuns(results)  # of a sweep, which has read some of its runs before the report is drawn

    def causes() -> dict[str, Any]:
        examined.clear()
        return section.causes_of(load.load(results, "clip_range")[-1])

    first = causes()
    assert len(examined) == len(first) == 6
    assert any(first.values()), "lists of JSON are tuples again"
    command.derived(examined[0], "facts", read_facts)
    monkeypatch.setattr(known_runs, "_READ", {})  # the causes were kept by another process
    command.save()
    monkeypatch.setattr(known_runs, "_READ", {})  # what follows is another process
    assert causes() == first
    assert examined == []
    write_run(results, cells_of(results)[0], last_step=9)
    causes()
    assert examined == [cells_of(results)[0]["signature"]]
    change(results.plan("clip_range"), stability={"entropy_ratio": 0.9})
    causes()
    assert len(examined) == 6


def test_an_assessment_is_written_anew_only_where_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, loads, whole = write_study(tmp_path), list[str](), load.load
    monkeypatch.setattr(load, "load", lambda results, name: (loads.append(name), whole(results, name))[1])

    def assess() -> bytes:
        drawing.assess_runs(results, "clip_range")
        return results.assessment("clip_range").read_bytes()

    first = assess()
    assert assess() == first
    assert len(loads) == 1
    results.assessment("clip_range").write_text("{}")
    assert assess() == first
    results.assessment("clip_range").unlink()
    assert assess() == first
    assert len(loads) == 3
    damage(journal(results))
    assert assess() != first


def test_preconditions_are_kept_until_a_run_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpolab.report import sentences

    results, asked = write_study(tmp_path), list[str]()
    monkeypatch.setattr(sentences, "find_unmet_of", lambda _results, name: (asked.append(name), ["1 is not met"])[1])
    assert [drawing.unmet(results, "clip_range") for _ in range(2)] == [["1 is not met"]] * 2
    assert len(asked) == 1
    damage(journal(results))
    drawing.unmet(results, "clip_range")
    assert len(asked) == 2
