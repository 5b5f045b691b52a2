"""The journal is strict JSON, speaks the vocabulary's words, and is whole when the outcome stands."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tiny import records, run_folder, tiny_settings

from grpolab import meanings
from grpolab.paths import Results
from grpolab.report import load
from grpolab.run import folder as outcome_file
from grpolab.run import provenance
from grpolab.run.folder import Journal
from grpolab.run.train import run
from grpolab.settings.resolved import Resolved
from grpolab.vocabulary import PASS_AT

NAMES = {
    kind: {name for name, metric in meanings.METRICS.items() if metric.kind == kind}
    for kind in ("update", "rollout", "evaluation", "timing")
}
OF_UPDATE = {"kind", "rollout_step", "optimizer_step", "iteration", "minibatch"}
OF_BATCH = {"kind", "rollout_step", "optimizer_step", "completions"}
PLACES = {"update": OF_UPDATE, "histogram": OF_UPDATE, "rollout": OF_BATCH, "evaluation": OF_BATCH}


def strict(text: str) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results.open(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def settings() -> Resolved:
    rejection = {"policy": "old", "bounds": {"token": [0.7, 1.4]}, "m2_budget": None}
    return tiny_settings(
        **{"beta": 0.05, "rollout_steps": 5, "epsilon_high": math.inf, "num_minibatches": 2},
        **{"sampler_noise": 0.3, "sampler_rejection": rejection},
        diagnostics={"mismatch": True, "gradient_cosine": True},
        top_p=0.95,
        reward={
            **{
                "verifier": {"false_right": 0.1, "false_wrong": 0.1},
                "overlong_buffer": 0.5,
                "length_penalty": "linear",
            },
            "weights": {"correct": 1.0, "format": 1.0, "overlong": 0.0, "length": 0.0},
        },
    )


@pytest.fixture(scope="module")
def folder(settings: Resolved, results: Results) -> Path:
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    return run_folder(settings, results)


def test_every_line_is_strict_json_with_known_names(folder: Path) -> None:
    for line in (folder / "journal.jsonl").read_text().splitlines():
        record = strict(line)
        kind = record["kind"]
        metrics = record.keys() - PLACES[kind]
        assert PLACES[kind] <= record.keys() <= meanings.POSITIONS.keys() | metrics
        if kind == "histogram":
            assert metrics == meanings.HISTOGRAM_FIELDS.keys()
        else:
            assert metrics <= NAMES[kind]
            assert all(isinstance(record[name], float) for name in metrics)
    for line in (folder / "timing.jsonl").read_text().splitlines():
        row = strict(line)
        assert row.keys() - {"rollout_step", "time_ms"} <= NAMES["timing"]


def test_every_word_of_the_vocabulary_is_measured_somewhere(folder: Path, results: Results) -> None:
    task = {"name": "filler_sorting", "length": 2, "max_fillers": 2, "corruption_base": 0.1}
    free = tiny_settings(
        task={**task, "corruption_per_filler": 0.1},
        **{"max_completion_length": 5, "rollout_steps": 4, "warm_start": {"max_steps": 60}},
        **{"filter_groups": {"metric": "correct", "max_batches": 2}, "pass_rate_cap": 0.9},
        advantage_history="smooth",
        other_tasks={"sums": {"name": "addition", "digits": 1}},
        diagnostics={"clip_conventions": True},
    )
    assert run(free, results)["outcome"] == "completed"
    timing = map(json.loads, (folder / "timing.jsonl").read_text().splitlines())
    seen = set(itertools.chain(*records(folder), *records(run_folder(free, results)), *timing))
    of_more_samples = {
        "eval/maj_at_k",
        *(f"eval/pass_at_{k}" for k in PASS_AT),
    }  # than these runs draw: tests/grpo/test_metrics.py has them
    assert meanings.METRICS.keys() - seen - of_more_samples == {"eval/reward"}, "of other programs alone"
    assert meanings.POSITIONS.keys() - seen == set()


def test_records_stand_in_order_and_count_right(folder: Path) -> None:
    found = [(r["kind"], r["rollout_step"], r["optimizer_step"]) for r in records(folder)]
    expected: list[tuple[str, int, int]] = [("evaluation", 0, 0)]
    for step in range(5):
        expected += [("update", step, 6 * step + k) for k in range(6)]
        expected += [("histogram", step, 6 * step + 5)] if step % 2 == 0 else []
        expected += [("rollout", step, 6 * step + 6)]
        expected += [("evaluation", step + 1, 6 * step + 6)] if step + 1 in (2, 4, 5) else []
    assert found == expected
    places = [(r["iteration"], r["minibatch"]) for r in records(folder, "update")]
    assert places == 5 * list(itertools.product(range(3), range(2)))
    assert {(r["iteration"], r["minibatch"]) for r in records(folder, "histogram")} == {(2, 1)}  # the last update
    assert [r["completions"] for r in records(folder, "rollout")] == [16, 32, 48, 64, 80]
    assert [r["completions"] for r in records(folder, "evaluation")] == [0, 32, 64, 80]


def test_settings_file_gives_the_signature_back(folder: Path, settings: Resolved) -> None:
    values = yaml.safe_load((folder / "settings.yaml").read_text())
    assert values["epsilon_high"] == "inf"
    assert (read := Resolved.model_validate(values)) == settings
    assert read.signature == folder.name


def test_a_package_that_is_absent_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are not tracked need no MLflow, and those of generated tasks no datasets."""
    monkeypatch.setattr(provenance, "PACKAGES", ("torch", "no-such-package"))
    packages = provenance.of_program.__wrapped__()["packages"]
    assert packages["torch"] == torch.__version__
    assert packages["no-such-package"] is None


@pytest.mark.parametrize("setting", ["diff.noprefix", "diff.mnemonicPrefix"])
def test_changes_are_recorded_alike_whatever_git_is_set_to(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report finds in the diff which studies were changed after they were registered."""
    study = tmp_path / "experiments" / "mine.yaml"
    study.parent.mkdir()
    study.write_text("question: ?\n")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "-q"], ["config", setting, "true"], ["add", "-A"], [*who, "commit", "-qm", "?"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    study.write_text("question: another\n")
    monkeypatch.setattr(provenance, "project_root", lambda: tmp_path)
    (tmp_path / "provenance.json").write_text(json.dumps(provenance.of_program.__wrapped__()))
    assert load._outcome_row({}, tmp_path)["touched"] == "experiments/mine.yaml"


def test_item_scores_average_to_the_last_evaluation_and_provenance_says_what_the_run_was_made_of(folder: Path) -> None:
    items = strict((folder / "evaluation_items.json").read_text())
    last = records(folder, "evaluation")[-1]
    assert items["rollout_step"] == last["rollout_step"] == 5
    assert np.mean(items["score"]) == pytest.approx(last["eval/accuracy_expected"], abs=1e-6)
    found = strict((folder / "provenance.json").read_text())
    assert datetime.fromisoformat(found["began"]).utcoffset() == timedelta(0)
    assert {"commit", "dirty", "lock_sha256", "threads", "python", "results_version"} <= found.keys()
    assert found["packages"]["torch"]
    assert {"cpu", "cpu_capability", "mkl", "float32"} <= found["hardware"].keys()
    assert found["warm_start"].keys() == {"signature", "sha256", "accuracy", "steps", "seconds"}
    assert found["dataset"]["evaluation_items"] == 20
    assert found["dataset"]["train_items"] == 61
    assert found["dataset"]["train_sha256"] != found["dataset"]["evaluation_sha256"]


def test_samples_show_what_the_last_pass_did(folder: Path) -> None:
    """Rows come back in the order of the prompts although minibatches were cut from a permutation."""
    names = [f"step_{step:06d}.parquet" for step in (0, 2, 4)]
    assert sorted(path.name for path in (folder / "samples").iterdir()) == names
    table = pq.read_table(folder / "samples" / "step_000002.parquet").to_pandas()
    updates = [r for r in records(folder, "update") if r["rollout_step"] == 2 and r["iteration"] == 2]
    (rollout,) = (r for r in records(folder, "rollout") if r["rollout_step"] == 2)
    completions = table.groupby(["prompt_index", "sample"], sort=False)
    assert list(completions.groups) == list(itertools.product(range(4), range(4)))
    for _, rows in completions:
        assert "".join(token for token in rows["token"] if not token.startswith("<")) == rows["completion"].iloc[0]
        assert rows["position"].tolist() == list(range(len(rows)))
        assert rows[["prompt", "completion", "reward", "advantage"]].drop_duplicates().shape[0] == 1
    each = completions.first()
    assert each["reward"].mean() == pytest.approx(rollout["reward/mean"])
    assert (each["reward_correct"] + each["reward_format"] == each["reward"]).all()
    assert each.groupby("prompt_index")["prompt"].nunique().max() == 1
    assert len(table) == pytest.approx(rollout["length/mean"] * 16)
    assert table["ratio"].max() == pytest.approx(max(update["ratio/token_max"] for update in updates))
    assert table["ratio"].min() == pytest.approx(min(update["ratio/token_min"] for update in updates))
    assert (table["clipped"] == "low").any()
    assert ((table["clipped"] == "low") == ((table["ratio"] < 0.8) & (table["advantage"] < 0))).all()
    assert not (table["clipped"] == "high").any()  # there is no upper clip in this run


def test_the_outcome_is_written_last_and_sums_up_the_run(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(seed=11)
    folder = run_folder(settings, results)
    there: list[set[str]] = []

    def spy(path: Path, content: bytes) -> bool:
        there.append({file.name for file in folder.iterdir()})
        return write(path, content)

    write = outcome_file.write_new
    monkeypatch.setattr(outcome_file, "write_new", spy)
    outcome = run(settings, results)
    everything = {"journal.jsonl", "timing.jsonl", "policy.safetensors", "settings.yaml", "provenance.json", "samples"}
    assert everything <= there[-1]
    assert "outcome.json" not in there[-1]
    assert outcome == strict((folder / "outcome.json").read_text())
    assert not (folder / "running.json").exists()
    assert (outcome["rollout_steps"], outcome["optimizer_steps"], outcome["completions"]) == (3, 9, 48)
    assert outcome["reason"] is outcome["error"] is None
    last = records(folder, "evaluation")[-1]
    assert outcome["final"] == {name: pytest.approx(last[name], rel=1e-8) for name in outcome["final"]}
    assert outcome["seconds"] > 0


def test_numbers_that_are_not_finite_are_strings(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append(kind="update", a=math.inf, b=-math.inf, c=math.nan, d=[1.0, math.inf], e=None, f=True, g=3)
    journal.close()
    texts = {"kind": "update", "a": "inf", "b": "-inf", "c": "nan", "d": [1.0, "inf"]}
    assert strict((tmp_path / "j.jsonl").read_text()) == {**texts, "e": None, "f": True, "g": 3}


def test_lines_wait_for_flush_and_opening_cuts(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.append(n=1)
    assert path.read_bytes() == b""
    length = journal.flush()
    assert path.read_bytes() == b'{"n":1}\n'
    journal.append(n=2)
    journal.close()
    again = Journal(path, keep_bytes=length)
    again.append(n=3)
    again.close()
    assert path.read_text() == '{"n":1}\n{"n":3}\n'


def test_a_heartbeat_waits_for_no_disk_and_comes_once_in_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush takes milliseconds, every second of every run."""
    monkeypatch.delattr(os, "fsync")
    heart, steps = outcome_file.Heartbeat(tmp_path, 10), []
    for step, seconds in enumerate((0, outcome_file.INTERVAL / 2, outcome_file.INTERVAL)):
        heart.beat(step, 1000.0 + seconds)
        steps.append(strict((tmp_path / "running.json").read_text())["rollout_step"])
    assert steps == [0, 0, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["running.json"]
