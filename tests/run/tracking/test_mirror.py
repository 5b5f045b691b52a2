"""What MLflow shows of a study: runs, their points, tags, params, data and artifacts, and the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import yaml
from fake_runs import SAMPLES, STUDY, T0, FakeRun, assert_equal_to_journals, mirror, points, study, tracked, uri
from mlflow import MlflowClient

from grpolab import vocabulary
from grpolab.paths import Results, write_json_atomic
from grpolab.run.tracking import pages
from grpolab.run.tracking.mirror import StudyMirror
from grpolab.run.tracking.store import Store
from grpolab.run.tracking.verify import Checked, verify


def test_a_run_is_mirrored_with_its_tags_params_data_and_artifacts(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    FakeRun(results, cell).take(3).end()
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    assert tags == {
        "study": STUDY,
        "variant": "low/addition",
        "arm": "low",
        "task": "addition",
        "seed": "0",
        "signature": cell["signature"],
        "outcome": "completed",
        "clip": "low",
        "factor.task": "addition",
        "line": tags["line"],
    }
    assert tags["line"].rstrip() == "low/addition"
    assert tags.keys() - vocabulary.TAGS.keys() == {"clip", "factor.task"}, "one for each factor of the study"
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (T0, T0 + 300)
    assert run.data.params["task.digits"] == "2"
    assert run.data.params["epsilon_high"] == "inf"
    assert not any(name.startswith("machine") for name in run.data.params)
    data = {d.tags[0].value: (d.dataset.name, d.dataset.digest) for d in run.inputs.dataset_inputs}
    assert data.keys() == {"training", "evaluation"}
    assert data["training"] != data["evaluation"]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert artifacts.is_relative_to(results.artifacts)
    for name in ("journal.jsonl", "settings.yaml", "provenance.json", "outcome.json", "samples/step_000000.parquet"):
        assert (artifacts / name).read_bytes() == (results.run(cell["signature"]) / name).read_bytes()
    (model,) = MlflowClient(uri(results)).search_logged_models([run.info.experiment_id])
    assert (model.source_run_id, model.status) == (run.info.run_id, "READY")


def test_of_a_rollout_step_the_last_update_is_drawn_at_the_time_it_ended(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    folder = FakeRun(results, cell).take(2).folder
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    losses = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines() if '"update"' in line]
    history = MlflowClient(uri(results)).get_metric_history(run.info.run_id, "loss")
    assert [point.value for point in history] == [losses[3]["loss"], losses[7]["loss"]]
    assert [point.timestamp for point in history] == [T0 + 100, T0 + 200]
    accuracy = MlflowClient(uri(results)).get_metric_history(run.info.run_id, "eval/accuracy_expected")
    assert [(point.step, point.timestamp) for point in accuracy] == [(0, T0), (2, T0 + 200)]


def test_values_that_are_not_finite_leave_a_gap_and_divergence_is_a_result(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(1)
    with (run.folder / "journal.jsonl").open("a") as journal:
        update = {"kind": "update", "rollout_step": 1, "iteration": 0, "minibatch": 0, "loss": "nan", "grad_norm": 2.0}
        journal.write(json.dumps(update, separators=(",", ":")) + "\n")
    run.end("diverged", "the loss is nan")
    mirror(results)
    tracked_run = tracked(results)["low/addition, seed 0"]
    found = points(results, tracked_run)
    assert ("loss", 1) not in found
    assert found["grad_norm", 1] == 2.0
    assert (tracked_run.info.status, tracked_run.data.tags["outcome"]) == ("FINISHED", "diverged")
    assert "the loss is nan" in tracked_run.data.tags["mlflow.note.content"]


def test_where_nothing_clips_there_is_no_clip_range_among_the_params(results: Results) -> None:
    low, high = study(results, seeds=1)["cells"]
    for cell, kernel in ((low, "ratio"), (high, "clipped")):
        file = FakeRun(results, cell).take(1).folder / "settings.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"kernel": kernel}))
    mirror(results)
    params = {name: run.data.params.keys() for name, run in tracked(results).items()}
    assert {"epsilon", "epsilon_high"} & params["low/addition, seed 0"] == set()
    assert {"epsilon", "epsilon_high"} <= params["high/addition, seed 0"]
    assert "delta" in params["low/addition, seed 0"]


def test_a_run_has_one_picture_and_one_table_however_often_it_is_mirrored(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    FakeRun(results, cell).take(3).end()
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    before = {name: (artifacts / name).read_bytes() for name in (pages.PICTURE, pages.TABLE)}
    assert before[pages.PICTURE].startswith(b"\x89PNG")
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples.json", "type": "table"}]
    table = json.loads(before[pages.TABLE])  # what pandas calls orient="split", as MLflow's own tables
    first, second = (dict(zip(table["columns"], row, strict=True)) for row in table["data"])
    assert first == {
        **{"sample": "step 0, prompt 0, sample 0", "completion": "2", "prompt": "1+1="},
        **{"reward": 1.0, "reward_correct": 1.0, "advantage": 0.7, "tokens": 2},
        **{"ratio_min": 0.5, "ratio_max": 1.5, "clipped_low": 0, "clipped_high": 1},
    }
    assert (second["completion"], second["ratio_max"], second["clipped_low"]) == ("3", 0.7, 1)
    MlflowClient(uri(results)).delete_tag(run.info.run_id, "outcome")  # the mirror was killed before the end
    mirror(results)
    assert {name: (artifacts / name).read_bytes() for name in before} == before
    assert json.loads(tracked(results)["low/addition, seed 0"].data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "samples.json", "type": "table"}
    ]


def test_damaged_samples_and_values_that_are_not_finite_make_no_table_and_stop_nothing(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    run = FakeRun(results, cell).take(1)
    run.end()
    (run.folder / "samples" / "step_000000.parquet").write_bytes(b"tokens")
    mirror(results)
    tracked_run = tracked(results)["low/addition, seed 0"]
    assert (tracked_run.info.status, tracked_run.data.tags["outcome"]) == ("FINISHED", "completed")
    assert "mlflow.loggedArtifacts" not in tracked_run.data.tags
    assert pages.picture([]) is None
    pd.DataFrame(SAMPLES).assign(ratio=float("inf")).to_parquet(run.folder / "samples" / "step_000000.parquet")
    assert "Infinity" not in (pages.table(run.folder / "samples") or "Infinity")


def test_a_renamed_arm_keeps_its_runs(results: Results) -> None:
    """A study file that calls an arm otherwise trains nothing, and its runs are there once, under the new name."""
    old = study(results, seeds=1, arms=("none",))
    FakeRun(results, old["cells"][0]).take(1).end()
    mirror(results)
    new = json.loads(json.dumps(old).replace('"none', '"no_clip'))
    results.plan(STUDY).write_text(json.dumps(new))
    mirror(results)
    runs = tracked(results)
    assert runs.keys() == {"no_clip/addition, seed 0", "summary"}
    run = runs["no_clip/addition, seed 0"]
    assert [run.data.tags[name] for name in ("variant", "arm", "clip", "outcome")] == [
        "no_clip/addition",
        "no_clip",
        "no_clip",
        "completed",
    ]
    assert_equal_to_journals(results)


def test_a_run_that_failed_before_it_wrote_anything(results: Results) -> None:
    cell = study(results, seeds=1, arms=("low",))["cells"][0]
    results.run(cell["signature"]).mkdir(parents=True)
    failure = {"outcome": "failed", "reason": "worker died", "error": "MemoryError"}
    (results.run(cell["signature"]) / "outcome.json").write_text(json.dumps(failure))
    mirror(results)
    run = tracked(results)["low/addition, seed 0"]
    assert run.info.status == "FAILED"
    assert "MemoryError" in run.data.tags["mlflow.note.content"]


def test_after_an_edit_of_the_study_old_runs_leave_their_variant_and_come_back(results: Results) -> None:
    """Grouped by variant, they would enter the mean of the new ones."""
    old = study(results, seeds=1, arms=("low",))
    new = json.loads(json.dumps(old))
    new["cells"][0]["signature"] = "f" * 16
    for plan, variants in (
        (old, {old["cells"][0]["signature"]: "low/addition"}),
        (new, {old["cells"][0]["signature"]: "low/addition (earlier settings)", "f" * 16: "low/addition"}),
        (old, {old["cells"][0]["signature"]: "low/addition", "f" * 16: "low/addition (earlier settings)"}),
    ):
        results.plan(STUDY).write_text(json.dumps(plan))
        if not results.run(plan["cells"][0]["signature"]).exists():
            FakeRun(results, plan["cells"][0]).take(1).end()
        mirror(results, last=False)
        client = MlflowClient(uri(results))
        runs = client.search_runs([client.get_experiment_by_name(STUDY).experiment_id])
        assert {run.data.tags["signature"]: run.data.tags["variant"] for run in runs} == variants
        assert len(runs) == len(variants)


def test_the_summary_run_has_the_report_and_no_variant(results: Results) -> None:
    study(results)
    output = results.output(STUDY)
    (output / "figures").mkdir()
    (output / "figures" / "F1.png").write_bytes(b"png")
    (output / "report.md").write_text("first")
    mirror(results)
    (output / "report.md").write_text("second")
    mirror(results)
    summary = tracked(results)["summary"]
    assert summary.data.tags["study"] == STUDY
    assert not {"variant", "arm", "seed", "outcome"} & summary.data.tags.keys()
    assert not summary.data.metrics
    artifacts = Path(summary.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "report.md").read_text() == "second"
    assert (artifacts / "figures" / "F1.png").read_bytes() == b"png"
    assert (artifacts / "plan.json").exists()
    part = results.output("reference") / "figures" / STUDY  # drawn again, by the study that includes this one
    part.mkdir(parents=True)
    (part / "F1.png").write_bytes(b"new")
    mirror(results)
    assert (artifacts / "figures" / "F1.png").read_bytes() == b"new"


def test_a_study_that_includes_others_mirrors_them(results: Results) -> None:
    FakeRun(results, study(results, seeds=1, arms=("low",))["cells"][0]).take(1).end()
    collection = {"study": "reference", "question": "All?", "created": "2026-11-20T10:00:00+00:00"}
    results.plan("reference").parent.mkdir()
    results.plan("reference").write_text(json.dumps({**collection, "includes": [STUDY], "cells": []}))
    assert StudyMirror(results, uri(results), ["reference"]).attempt(last=True) is None
    assert set(tracked(results)) == {"low/addition, seed 0", "summary"}
    client = MlflowClient(uri(results))
    (summary,) = client.search_runs([client.get_experiment_by_name("reference").experiment_id])
    assert summary.info.run_name == "summary"


def test_a_run_whose_journal_is_another_is_named_and_not_copied(results: Results) -> None:
    cells = study(results, seeds=2, arms=("low",))["cells"]
    for cell in cells:
        FakeRun(results, cell).take(1).end()
    file = results.run(cells[0]["signature"]) / "outcome.json"
    write_json_atomic(file, json.loads(file.read_text()) | {"journal_sha256": "0" * 64})
    problem = StudyMirror(results, uri(results), [STUDY]).attempt(last=True)
    assert problem is not None
    assert f"run {cells[0]['signature']} is damaged and not copied: {file.parent / 'journal.jsonl'} is not" in problem
    assert set(tracked(results)) >= {"low/addition, seed 1"}
    assert "low/addition, seed 0" not in tracked(results)


def test_what_report_and_doctor_say_of_a_run_are_metrics_and_tags(results: Results) -> None:
    """A run that collapsed has finished for MLflow: it is told from the others all the same."""
    low, high = study(results, seeds=1)["cells"]
    for cell in (low, high):
        FakeRun(results, cell).take(3).end()
    mirror(results)
    folder = Path(tracked(results)["low/addition, seed 0"].info.artifact_uri.removeprefix("file://"))
    (folder / "samples.json").unlink()
    numbers = {"final_score": 0.25, "gain": -0.1, "lost": 1.0, "collapsed": 1.0}
    said = {low["signature"]: {"metrics": numbers, "tags": {"lost": "collapsed", "cause": "unclipped"}}}
    said[high["signature"]] = {"metrics": {"lost": "no"}, "tags": {}}  # damaged
    write_json_atomic(results.assessment(STUDY), said)
    assert any("cause is None" in text for checked in verified(results) for text in checked.differences)
    mirror(results)
    run, other = (tracked(results)[f"{arm}/addition, seed 0"] for arm in ("low", "high"))
    assert numbers.items() <= run.data.metrics.items()
    assert (run.data.tags["lost"], run.data.tags["cause"]) == ("collapsed", "unclipped")
    assert "**Collapsed**" in run.data.tags["mlflow.note.content"]
    assert "lost" not in other.data.metrics
    assert not (folder / "samples.json").exists(), "what is there is not sent again"
    assert [checked.differences for checked in verified(results)] == [[]]
    anew = f"sqlite:///{results.root}/anew.db"
    assert StudyMirror(results, anew, [STUDY]).attempt(last=True) is None
    assert numbers.items() <= tracked(results, anew)["low/addition, seed 0"].data.metrics.items()


def verified(results: Results) -> list[Checked]:
    return verify(results, Store(uri(results), results.artifacts), [STUDY])
