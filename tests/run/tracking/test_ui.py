"""`grpolab ui`: a link that opens the study's charts, grouped by variant, on this machine only."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zlib
from pathlib import Path

import pytest
from fake_runs import FakeRun, study, uri

from grpolab import vocabulary
from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.run.tracking import pages, ui
from grpolab.run.tracking.mirror import StudyMirror

SERVE = """
import sys
from pathlib import Path
from grpolab.paths import Results
from grpolab.run.tracking.ui import serve
serve(Results(Path(sys.argv[1])), sys.argv[2], "clip_range", int(sys.argv[3]), lambda text: print(text, flush=True))
"""


def opened(tag: str) -> dict:
    """What MLflow's page reads out of a view's tag."""
    return json.loads(zlib.decompress(base64.b64decode(json.loads(tag)["state"].removeprefix("deflate;"))))


def test_the_shipped_view_groups_by_variant_and_begins_with_the_primary_metric(tmp_path: Path) -> None:
    plan = study(Results(tmp_path))
    tags = pages.view_tags(plan, created=1)
    assert list(tags) == [f"mlflow.sharedViewState.{pages.EVERY_VARIANT.key}"]
    state = opened(tags.popitem()[1])
    assert state["searchFilter"] == ""
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "line"}]
    assert state["compareRunCharts"][0]["metricKey"] == plan["primary_metric"]
    assert {chart["metricKey"] for chart in state["compareRunCharts"]} <= vocabulary.METRICS.keys()


def test_a_study_on_two_tasks_has_a_view_of_each(tmp_path: Path) -> None:
    plan = study(Results(tmp_path), seeds=1)
    for cell in plan["cells"][::2]:
        cell["levels"]["task"] = "sorting"
    filters = {name: opened(tag)["searchFilter"] for name, tag in pages.view_tags(plan, created=1).items()}
    assert filters == {
        "mlflow.sharedViewState.by_variant_sorting": "tags.variant LIKE '%/sorting'",
        "mlflow.sharedViewState.by_variant_addition": "tags.variant LIKE '%/addition'",
        "mlflow.sharedViewState.by_variant": "",
    }


def test_each_facet_is_linked_before_the_view_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    plan = study(results, seeds=1)
    for cell in plan["cells"][::2]:
        cell["levels"]["task"] = "sorting"
    results.plan("clip_range").write_text(json.dumps(plan))
    monkeypatch.setattr(ui, "_experiment_id", lambda root, name: "7")
    monkeypatch.setattr(ui, "_report", lambda root, name: ("7", "abc"))
    said: list[str] = []
    ui.serve(results, "http://host:5000/", "clip_range", say=said.append)
    assert [line.split(": ")[0] for line in said] == [
        "clip_range, report",
        "clip_range, sorting",
        "clip_range, addition",
        "clip_range, all variants",
    ]
    assert said.pop(0).endswith("/#/experiments/7/runs/abc/artifacts/report.html?workflowType=machine_learning")
    assert said[0].endswith("viewStateShareKey=by_variant_sorting")
    assert said[-1].endswith("viewStateShareKey=by_variant")


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind((ui.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < ui.free_port(port) < port + ui.PORTS_TRIED


def test_without_a_store_there_is_nothing_to_show(tmp_path: Path) -> None:
    results = Results(tmp_path)
    with pytest.raises(RequestError, match="grpolab sweep clip_range"):
        ui.serve(results, uri(results), "clip_range")
    assert not os.listdir(tmp_path)


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not answer"):
        ui.serve(Results(tmp_path), f"http://{ui.HOST}:{ui.free_port(40_000)}", "clip_range")


@pytest.mark.slow
def test_the_printed_link_leads_to_the_study_and_the_server_ends(results: Results) -> None:
    FakeRun(results, study(results)["cells"][0]).take(1).end()
    assert StudyMirror(results, uri(results), ["clip_range"]).attempt() is None
    port = ui.free_port(50_000)
    command = [sys.executable, "-c", SERVE, str(results.root), uri(results), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        link = process.stdout.readline().split()[-1]
        root, _, address = link.partition("/#/")
        assert root == f"http://127.0.0.1:{port}"
        assert "viewStateShareKey=by_variant" in address
        experiment_id = address.split("/")[1]
        question = f"{root}/api/2.0/mlflow/experiments/get?experiment_id={experiment_id}"
        with urllib.request.urlopen(question) as answer:
            experiment = json.load(answer)["experiment"]
        assert experiment["name"] == "clip_range"
        assert "mlflow.sharedViewState.by_variant" in {tag["key"] for tag in experiment["tags"]}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=90)
    deadline = time.monotonic() + 90
    while ui.free_port(port) != port:
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.2)
