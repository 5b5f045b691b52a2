"""Journals are parsed once: the cache is the journal as long as that is the same, and worth nothing afterwards."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from report_results import cells_of, change, write_run, write_study

from grpolab.errors import RequestError
from grpolab.report.journals import columns_of
from grpolab.report.load import CACHE, load, read_journal, read_runs
from grpolab.vocabulary import DIVERGED


@pytest.fixture
def results(tmp_path):
    return write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]}, seeds=2)


@pytest.fixture
def folder(results):
    return results.run(cells_of(results)[0]["signature"])


def parsed(monkeypatch):
    """Names of what is parsed from now on."""
    seen, place = [], "grpolab.report.load.columns_of"
    monkeypatch.setattr(place, lambda records: (seen.append(len(records)), columns_of(records))[1])
    return seen


def test_a_journal_is_parsed_once(folder, monkeypatch):
    first, seen = read_journal(folder), parsed(monkeypatch)
    assert read_journal(folder).equals(first)
    assert seen == []


def test_a_cache_of_another_journal_is_worth_nothing(folder, monkeypatch):
    first, seen = read_journal(folder), parsed(monkeypatch)
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"kl_old/k3": 0.01', '"kl_old/k3": 0.02'))
    assert set(read_journal(folder)["kl_old/k3"].drop_null().to_pylist()) == {float(np.float32(0.02))}
    timing = folder / "timing.jsonl"
    timing.write_text(timing.read_text().replace('"seconds/update": 0.3', '"seconds/update": 0.4'))
    assert not read_journal(folder)["seconds/update"].equals(first["seconds/update"])
    (folder / CACHE).write_bytes(b"half of a fi")
    read_journal(folder)
    assert len(seen) == 3


def test_a_folder_that_cannot_be_written_is_read_all_the_same(folder, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError

    monkeypatch.setattr("grpolab.report.load.write_atomic", refuse)
    assert len(read_journal(folder)) > 0
    assert not (folder / CACHE).exists()


def test_columns_are_what_the_lines_say(results, folder):
    write_run(results, cells_of(results)[0], outcome=DIVERGED, last_step=6)
    lines = [json.loads(line) for line in (folder / "journal.jsonl").open()]
    for _ in ("parsed", "from the cache"):
        runs = read_runs(results, [folder.name])
        for kind in ("update", "rollout", "evaluation"):
            frame = runs[f"{kind}s"]
            records = [line for line in lines if line["kind"] == kind]
            expected = pd.DataFrame(records).drop(columns="kind").replace({"inf": np.inf, "nan": np.nan})
            assert len(frame) == len(expected) > 0
            assert set(frame) == {"signature", *expected}, "an absent metric stays absent"
            for column in expected:
                as_read = expected[column].astype("float64").astype("float32")
                assert np.array_equal(frame[column].astype("float32"), as_read, equal_nan=True), column
        counts = [line["position/count"] for line in lines if line["kind"] == "histogram"]
        assert [row.tolist() for row in runs["histograms"]["position/count"]] == counts
        assert runs["timings"]["time_ms"].tolist() == [1_700_000_000_000 + step for step in range(6)]
        assert runs["updates"]["rollout_step"].dtype == np.int64
        assert runs["updates"]["grad_norm"].dtype == np.float32


@pytest.mark.parametrize(("key", "what"), [("results_version", "results_version"), ("lock_sha256", "lock file")])
def test_runs_of_different_programs_are_not_drawn_together(results, folder, key, what):
    path = folder / "provenance.json"
    change(path, commit="another", dirty=True)
    study = load(results, "clip_range")[-1]  # mixed commits are reported, not refused
    assert set(study.cells["commit"]) == {"another", "c0ffee"}
    change(path, **{key: 2 if key == "results_version" else "77aa"})
    with pytest.raises(RequestError, match=f"study=clip_range mixes runs of more than one {what}") as refused:
        load(results, "clip_range")
    assert all(part in str(refused.value) for part in ("(1 run)", "(3 runs)", folder.name))
    (folder / "outcome.json").unlink()  # what is not drawn does not disturb
    assert len(load(results, "clip_range")[-1].done) == 3
