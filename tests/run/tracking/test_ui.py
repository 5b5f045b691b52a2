"""`grpolab ui`: a link that opens the study's charts, grouped by variant, on this machine only."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from fake_runs import FakeRun, mirror, study, uri, wait_for_server

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.studies import ui

SERVE = """
import sys
from pathlib import Path
from grpolab.paths import Results
from grpolab.studies.ui import serve
serve(Results(Path(sys.argv[1])), sys.argv[2], "clip_range", int(sys.argv[3]), lambda text: print(text, flush=True))
"""


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind((ui.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < ui.free_port(port) < port + ui.PORTS_TRIED


def test_without_a_plan_or_a_store_there_is_nothing_to_show(results: Results) -> None:
    results.store.unlink()
    with pytest.raises(RequestError, match="grpolab sweep clip_range"):
        ui.serve(results, uri(results), "clip_range")
    FakeRun(results, study(results)["cells"][0])
    with pytest.raises(RequestError, match="no tracking store"):
        ui.serve(results, uri(results), "clip_range")
    with pytest.raises(RequestError, match="does not answer"):
        ui.serve(results, f"http://{ui.HOST}:{ui.free_port(40_000)}", "clip_range")
    assert not results.store.exists()


@pytest.mark.slow
def test_the_printed_link_leads_to_the_study_and_the_server_ends(results: Results) -> None:
    FakeRun(results, study(results)["cells"][0]).take(1).end()
    mirror(results)
    port = ui.free_port(50_000)
    command = [sys.executable, "-c", SERVE, str(results.root), uri(results), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        root, _, address = process.stdout.readline().split()[-1].partition("/#/")
        assert root == f"http://127.0.0.1:{port}"
        assert "viewStateShareKey=by_variant" in address
        question = f"{root}/api/2.0/mlflow/experiments/get?experiment_id={address.split('/')[1]}"
        wait_for_server(process, port)
        with urllib.request.urlopen(question) as answer:
            experiment = json.load(answer)["experiment"]
        assert experiment["name"] == "clip_range"
        tags = {tag["key"]: tag["value"] for tag in experiment["tags"]}
        group = json.loads(tags["mlflow.sharedViewState.by_variant"])["groupBy"]
        assert group["groupByKeys"] == [{"mode": "tag", "groupByData": "variant"}]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=90)
    deadline = time.monotonic() + 90
    while ui.free_port(port) != port:
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.2)
