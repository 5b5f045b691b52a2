"""What MLflow shows of a study: runs with points, tags, params, data and artefacts, and the summary run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_runs import STUDY, T0, FakeRun, assert_equal_to_journals, mirror, points, study, tracked, uri
from mlflow import MlflowClient

from grpolab import meanings
from grpolab.paths import Results, write_json_atomic
from grpolab.run.tracking.mirror import NOTE, StudyMirror
from grpolab.run.tracking.store import Store
from grpolab.studies.stored_runs import verify

LOW = "low/addition, seed 0"


def artifacts_of(results: Results, name: str) -> Path:
    return Path(tracked(results)[name].info.artifact_uri.removeprefix("file://"))


def differences(results: Results) -> list[str]:
    return verify(results, Store(uri(results), results), [STUDY])[0].differences


def one_run(results: Results, arm: str = "low") -> FakeRun:
    """The only run of a study."""
    return FakeRun(results, study(results, seeds=1, arms=(arm,))["cells"][0])


def test_a_run_is_mirrored_with_its_tags_params_data_and_artifacts(results: Results) -> None:
    fake = one_run(results)
    fake.take(3).end()
    mirror(results)
    run = tracked(results)[LOW]
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    assert tags == {
        **{"study": STUDY, "variant": "low/addition", "arm": "low", "clip": "low"},
        **{"task": "addition", "factor.task": "addition", "seed": "0", "outcome": "completed"},
        "signature": fake.cell["signature"],
    }
    assert tags.keys() - meanings.TAGS.keys() == {"clip", "factor.task"}, "one for each factor of the study"
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", T0, T0 + 300)
    assert (run.data.params["task.digits"], run.data.params["epsilon_high"]) == ("2", "inf")
    assert not any(name.startswith("machine") for name in run.data.params)
    data = {d.tags[0].value: (d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs}
    assert data.keys() == {"training", "evaluation"}
    assert data["training"] != data["evaluation"]
    artifacts = artifacts_of(results, LOW)
    assert artifacts.is_relative_to(results.artifacts)
    for name in ("journal.jsonl", "settings.yaml", "provenance.json", "outcome.json", "samples/step_000000.parquet"):
        assert (artifacts / name).read_bytes() == (fake.folder / name).read_bytes()
    (model,) = MlflowClient(uri(results)).search_logged_models([run.info.experiment_id])
    assert (model.source_run_id, model.status) == (run.info.run_id, "READY")
    assert_equal_to_journals(results)


def test_of_a_rollout_step_the_last_update_is_drawn_at_the_time_it_ended(results: Results) -> None:
    folder = one_run(results).take(2).folder
    mirror(results)
    run_id = tracked(results)[LOW].info.run_id
    losses = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines() if '"update"' in line]
    history = MlflowClient(uri(results)).get_metric_history(run_id, "loss")
    assert [point.value for point in history] == [losses[3]["loss"], losses[7]["loss"]]
    assert [point.timestamp for point in history] == [T0 + 100, T0 + 200]
    accuracy = MlflowClient(uri(results)).get_metric_history(run_id, "eval/accuracy_expected")
    assert [(point.step, point.timestamp) for point in accuracy] == [(0, T0), (2, T0 + 200)]


def test_values_that_are_not_finite_leave_a_gap_and_divergence_is_a_result(results: Results) -> None:
    run = one_run(results).take(1)
    with (run.folder / "journal.jsonl").open("a") as journal:
        update = {"kind": "update", "rollout_step": 1, "iteration": 0, "minibatch": 0, "loss": "nan", "grad_norm": 2.0}
        journal.write(json.dumps(update, separators=(",", ":")) + "\n")
    run.end("diverged", "the loss is nan")
    mirror(results)
    tracked_run = tracked(results)[LOW]
    found = points(results, tracked_run)
    assert ("loss", 1) not in found
    assert found["grad_norm", 1] == 2.0
    assert (tracked_run.info.status, tracked_run.data.tags["outcome"]) == ("FINISHED", "diverged")
    assert "the loss is nan" in tracked_run.data.tags[NOTE]


def test_a_renamed_arm_keeps_its_runs(results: Results) -> None:
    one_run(results, "none").take(1).end()
    mirror(results)
    results.plan(STUDY).write_text(results.plan(STUDY).read_text().replace('"none', '"no_clip'))
    mirror(results)
    runs = tracked(results)
    assert runs.keys() == {"no_clip/addition, seed 0", "summary"}
    tags = runs["no_clip/addition, seed 0"].data.tags
    assert [tags[name] for name in ("variant", "arm", "clip")] == ["no_clip/addition", "no_clip", "no_clip"]
    assert_equal_to_journals(results)


def test_after_an_edit_of_the_study_old_runs_leave_their_variant_and_come_back(results: Results) -> None:
    """Grouped by variant, they would enter the mean of the new ones."""
    old = study(results, seeds=1, arms=("low",))
    first, second = old["cells"][0]["signature"], "f" * 16
    new = json.loads(json.dumps(old))
    new["cells"][0]["signature"] = second
    for plan, current, other in ((old, first, None), (new, second, first), (old, first, second)):
        results.plan(STUDY).write_text(json.dumps(plan))
        if not results.run(current).exists():
            FakeRun(results, plan["cells"][0]).take(1).end()
        mirror(results, last=False)
        client = MlflowClient(uri(results))
        runs = client.search_runs([client.get_experiment_by_name(STUDY).experiment_id])
        variants = {run.data.tags["signature"]: run.data.tags["variant"] for run in runs}
        assert variants.pop(current) == "low/addition"
        assert variants == ({other: "low/addition (earlier settings)"} if other else {})


def test_a_run_that_failed_before_it_wrote_anything(results: Results) -> None:
    (cell,) = study(results, seeds=1, arms=("low",))["cells"]
    failure = {"outcome": "failed", "reason": "worker died", "error": "MemoryError"}
    write_json_atomic(results.run(cell["signature"]) / "outcome.json", failure)
    mirror(results)
    run = tracked(results)[LOW]
    assert run.info.status == "FAILED"
    assert "MemoryError" in run.data.tags[NOTE]


def test_the_summary_run_has_the_report_and_no_variant(results: Results) -> None:
    study(results)
    output = results.output(STUDY)
    (output / "figures").mkdir()
    (output / "figures" / "F1.png").write_bytes(b"png")
    for text in ("first", "second"):
        (output / "report.md").write_text(text)
        (output / "report.html").write_text(text)
        mirror(results)
    summary = tracked(results)["summary"]
    assert summary.data.tags["study"] == STUDY
    assert not {"variant", "arm", "seed", "outcome"} & summary.data.tags.keys()
    assert not summary.data.metrics
    artifacts = artifacts_of(results, "summary")
    assert (artifacts / "report.md").read_text() == (artifacts / "report.html").read_text() == "second"
    assert (artifacts / "figures" / "F1.png").read_bytes() == b"png"
    assert (artifacts / "plan.json").exists()


def test_a_study_that_includes_others_mirrors_them(results: Results) -> None:
    one_run(results).take(1).end()
    collection = {"study": "reference", "question": "All?", "created": "2026-11-20T10:00:00+00:00"}
    write_json_atomic(results.plan("reference"), {**collection, "includes": [STUDY], "cells": []})
    assert StudyMirror(results, uri(results), ["reference"]).attempt(last=True) is None
    assert set(tracked(results)) == {LOW, "summary"}
    client = MlflowClient(uri(results))
    (summary,) = client.search_runs([client.get_experiment_by_name("reference").experiment_id])
    assert summary.info.run_name == "summary"


@pytest.mark.parametrize("damage", ["hash", "text"])
def test_one_damaged_folder_is_named_and_does_not_keep_the_others_waiting(results: Results, damage: str) -> None:
    cells = study(results, seeds=1)["cells"]
    for cell in cells:
        FakeRun(results, cell).take(1).end()
    folder = results.run(cells[0]["signature"])
    if damage == "hash":
        outcome = json.loads((folder / "outcome.json").read_text())
        write_json_atomic(folder / "outcome.json", outcome | {"journal_sha256": "0" * 64})
    else:
        (folder / "journal.jsonl").write_text("{]\n")
    problem = StudyMirror(results, uri(results), [STUDY]).attempt(last=True)
    assert problem is not None
    assert problem.startswith(f"run {folder.name} cannot be copied: {folder / 'journal.jsonl'}")
    assert tracked(results).keys() == {"high/addition, seed 0", "summary"}


def test_what_report_and_doctor_say_of_a_run_are_metrics_and_tags(results: Results) -> None:
    """A run that collapsed has finished for MLflow: it is told from the others all the same."""
    low, high = study(results, seeds=1)["cells"]
    for cell in (low, high):
        FakeRun(results, cell).take(3).end()
    mirror(results)
    numbers = {"final_score": 0.25, "gain": -0.1, "lost": 1.0, "collapsed": 1.0}
    said = {low["signature"]: {"metrics": numbers, "tags": {"lost": "collapsed", "cause": "unclipped"}}}
    write_json_atomic(results.assessment(STUDY), said)
    assert any("cause is None" in text for text in differences(results))
    mirror(results)
    run, other = (tracked(results)[f"{arm}/addition, seed 0"] for arm in ("low", "high"))
    assert numbers.items() <= run.data.metrics.items()
    assert (run.data.tags["lost"], run.data.tags["cause"]) == ("collapsed", "unclipped")
    assert "lost" not in other.data.metrics
    assert differences(results) == []
    said[low["signature"]]["metrics"]["gain"] = 0.5  # other thresholds, another study
    write_json_atomic(results.assessment(STUDY), said)
    mirror(results)
    assert tracked(results)[LOW].data.metrics["gain"] == 0.5
    assert differences(results) == []
    write_json_atomic(results.assessment(STUDY), {"abc": {"metrics": {"lost": "no"}, "tags": {}}})
    assert "assessment.json is damaged: its abc.metrics.lost" in str(
        StudyMirror(results, uri(results), [STUDY]).attempt()
    )
